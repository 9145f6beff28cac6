"""A program written down: gradients at linear combinations, to be run for every client at once.

The local steps of most algorithms are linear: `y = y - eta_l * (g(y, k) - c_i + c)`. Such a program
is traced once on symbols instead of vectors, and a kernel then runs it for each client without
Python in between, in this round and in the next ones. The algorithms do not notice. A program that
looks at a vector's numbers, or does with them what is not linear, has no tape; it runs on tensors.
A tape is that of one number of local steps: clients with other K_i have another.
"""

import gc
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from torch import Tensor

from trimtab.compute.kernel import EncodedProgram
from trimtab.compute.lazy import LazyVector, NotLazyError, NotLinearError, Symbol
from trimtab.core import Epochs, Leaf, Program, State, leaves, map_leaves
from trimtab.core.oracle import ClientOracle, LocalSteps

Count = Callable[[int | Epochs], int]
"""How many local steps a client makes where so many are requested."""

SymbolTerms = list[tuple[float, Symbol]]
Step = tuple[Symbol, SymbolTerms, int | None]
"""A symbol and the combination it stands for; with a batch, the gradient at its one term."""


@dataclass(frozen=True)
class Output(Leaf):
    """The place of one of the code's outputs in a tree that a program returns."""

    number: int


@dataclass(frozen=True)
class Tape:
    """What a program does: its code, the mini-batches k it takes, and the trees it returns."""

    code: EncodedProgram
    batches: list[int | None]
    upload: State  # Its leaves are of the class Output.
    state: State  # Its leaves are of the class Output.

    @cached_property
    def upload_outputs(self) -> list[int]:
        """The numbers of the outputs in the upload."""
        return output_numbers(self.upload)

    @cached_property
    def dx_outputs(self) -> list[int]:
        """The numbers of the outputs in the upload's dx, if it has one."""
        return output_numbers(getattr(self.upload, "dx", ()))

    @cached_property
    def state_outputs(self) -> list[int]:
        """The numbers of the outputs in the new state."""
        return output_numbers(self.state)


@dataclass(frozen=True)
class Traced:
    """A program's tape, or None if it does more than linear steps; the K that it requested."""

    tape: Tape | None
    requested: tuple[int | Epochs, ...]

    @cached_property
    def in_epochs(self) -> bool:
        """Whether clients with other numbers of samples make other numbers of steps."""
        return any(isinstance(K, Epochs) for K in self.requested)


def trace(
    program: Program,
    state: State,
    broadcast: tuple[Any, ...],
    d: int,
    count: Count = LocalSteps(),  # noqa: B008
    unequal: bool = False,
) -> Traced:
    """Return what a program does where g.steps(K) is count(K).

    The code's inputs are the vectors of the client's state, then those of the broadcast. A single
    number of the broadcast is the same for all clients; the program gets it as it is.

    >>> import torch, trimtab
    >>> x = torch.zeros(3)
    >>> tape = trace(trimtab.Scaffold(eta_l=0.1, K=5).local, x, (x, x), d=3).tape
    >>> tape.batches, tape.upload, tape.state, tape.code.registers
    ([0, 1, 2, 3, 4], Upload(dx=Output(number=0), dc=Output(number=1)), Output(number=2), 3)
    """
    recorder = TapeRecorder(d, count, unequal)
    try:
        with _without_garbage_collection():
            client_state = map_leaves(recorder.input, state)
            sent = map_leaves(lambda leaf: recorder.input(leaf) if leaf.dim() else leaf, broadcast)
            upload, new = program(recorder.oracle(), client_state, *sent)
            trees = map_leaves(recorder.output, upload), map_leaves(recorder.output, new)
            tape = Tape(recorder.encode(), list(recorder.batches), *trees)
    except NotLazyError:
        tape = None
    return Traced(tape, tuple(recorder.requested))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Let Python's collector rest: it would go through all steps again and again as they grow."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _not_linear(kind: str, like: Any) -> Any:
    """Refuse random numbers, which differ from client to client and round to round."""
    raise NotLinearError


class Tapes:
    """The tapes of the last programs, so that equal ones are traced once.

    A program is known by its function and by the pickle of its algorithm, with the forms of what it
    is given and the numbers of steps that it is told: another hyper-parameter, also one that was
    slipped into a frozen dataclass, is another program. What is no method that can be pickled, or
    reads variables of its module, may depend on what changes, and is traced again.
    """

    def __init__(self, max_tapes: int = 64) -> None:
        self.max_tapes = max_tapes  # a round has fewer exchanges and numbers of steps
        # Each program has a number, and the K that it requested when it was last traced.
        self._programs: dict[Any, tuple[int, tuple[int | Epochs, ...]]] = {}
        # A tape is known by the number of its program and by the steps.
        self._traced: OrderedDict[tuple[int, tuple[int, ...]], Traced] = OrderedDict()
        self._numbers = 0  # so many were given

    def trace(
        self,
        program: Program,
        state: State,
        broadcast: tuple[Any, ...],
        d: int,
        count: Count = LocalSteps(),  # noqa: B008
        unequal: bool = False,
    ) -> Traced:
        """Return what `trace` returns, from memory if it is there."""
        known = _cache_key(program, state, broadcast, d)
        if known is None:
            return trace(program, state, broadcast, d, count, unequal)
        known += (unequal,)
        number, requested = self._programs.get(known, (-1, ()))
        key = number, tuple(map(count, requested))
        if key not in self._traced:
            traced = trace(program, state, broadcast, d, count, unequal)
            if number < 0 or traced.requested != requested:
                number, self._numbers = self._numbers, self._numbers + 1
                self._programs[known] = number, traced.requested
            key = number, tuple(map(count, traced.requested))
            self._traced[key] = traced
            if len(self._traced) > self.max_tapes:
                self._traced.popitem(last=False)
            if len(self._programs) > self.max_tapes:
                del self._programs[next(iter(self._programs))]
        self._traced.move_to_end(key)
        return self._traced[key]


def _cache_key(
    program: Program, state: State, broadcast: tuple[Any, ...], d: int
) -> tuple[Any, ...] | None:
    """Return what decides a tape but for the numbers of steps; None if that cannot be told."""
    function = getattr(program, "__func__", None)
    kind: Any = type(getattr(program, "__self__", None))
    if not isinstance(function, FunctionType) or _reads_variables(function, kind):
        return None
    try:
        algorithm = _algorithm_key(program.__self__)  # type: ignore[attr-defined]
    except Exception:  # Somebody's class may raise anything.
        return None
    single = tuple(leaf.item() for leaf in leaves(broadcast) if not leaf.dim())
    return function, kind, algorithm, _structure(state), _structure(broadcast), single, d


def _algorithm_key(algorithm: Any) -> Any:
    """Return what tells an algorithm from others of its class: plain values, else all its bytes."""
    values = tuple(vars(algorithm).values()) if hasattr(algorithm, "__dict__") else (None,)
    kinds = tuple(map(type, values))
    return (values, kinds) if _PLAIN_TYPES.issuperset(kinds) else pickle.dumps(algorithm)


_PLAIN_TYPES = {int, float, bool, str}


@cache
def _reads_variables(function: FunctionType, kind: Any) -> bool:
    """Tell whether a method, or what it calls in its class and module, reads what may change.

    Modules, classes and functions do not change; other things of a module or a closure may.
    """
    seen, waiting = set[FunctionType](), [function]
    while waiting:
        f = waiting.pop()
        seen.add(f)
        names = _referenced_names(f.__code__)
        variables = [f.__globals__[name] for name in names if name in f.__globals__]
        # super() needs __class__, which does not change.
        of_closure = set(f.__code__.co_freevars) - {"__class__"}
        if of_closure or not all(isinstance(value, _IMMUTABLE) for value in variables):
            return True
        called = [g for g in variables if getattr(g, "__module__", None) == f.__module__]
        called += [vars(c)[name] for c in kind.__mro__ for name in names if name in vars(c)]
        waiting += [g for g in called if isinstance(g, FunctionType) and g not in seen]
    return False


def _referenced_names(code: CodeType) -> set[str]:
    inner = (_referenced_names(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inner)


_IMMUTABLE = (ModuleType, type, FunctionType, BuiltinFunctionType)


def _structure(tree: State) -> Any:
    """Return the structure of a tree, and the shapes and types of its leaves."""
    if type(tree) is Tensor:  # as most are
        return tree.shape, tree.dtype
    if isinstance(tree, tuple):
        return (type(tree), *map(_structure, tree))
    return tuple((leaf.shape, leaf.dtype) for leaf in leaves(tree))


def output_numbers(tree: State) -> list[int]:
    """Return the numbers of the outputs in a tape's tree."""
    return [leaf.number for leaf in leaves(tree)]


def fill(tree: State, values: Sequence[Any]) -> State:
    """Return a tape's tree with values in the places of their numbers."""
    return map_leaves(lambda leaf: values[leaf.number], tree)


class TapeRecorder:
    """Takes down what a program does with symbols."""

    def __init__(self, d: int, count: Count, unequal: bool) -> None:
        self.d, self.count, self.unequal = d, count, unequal
        self.requested: list[int | Epochs] = []
        self.inputs: list[Symbol] = []
        self.steps: list[Step] = []
        self.results: list[SymbolTerms] = []
        self.batches: dict[int | None, int] = {}  # their numbers, in the order of first use

    def input(self, leaf: Any) -> LazyVector:
        """Return a symbol for a vector."""
        if leaf.shape != (self.d,) or not leaf.is_floating_point():
            raise NotLinearError  # A single number may differ from client to client.
        self.inputs.append(Symbol(self))
        return LazyVector.symbol(self.inputs[-1])

    def oracle(self) -> ClientOracle:
        """Return what a program takes for its client's oracle."""
        gradient: Any = self.gradient
        return ClientOracle(gradient, _not_linear, count=self.steps_of, unequal=self.unequal)

    def steps_of(self, K: int | Epochs) -> int:
        """Return how many steps there are, and note what was requested."""
        self.requested.append(K)
        return self.count(K)

    def gradient(self, y: Any, k: int | None = None) -> LazyVector:
        """Stand for the gradient at y."""
        point = self.symbol_for(y)
        batch = self.batches.setdefault(k, len(self.batches))
        gradient = Symbol(self)
        self.steps.append((gradient, [(1.0, point)], batch))
        return LazyVector.symbol(gradient)

    def symbol_for(self, y: Any) -> Symbol:
        """Return one symbol for a combination, which from now on is that symbol."""
        terms = _terms(y)
        if len(terms) == 1 and terms[0][0] == 1.0:
            return terms[0][1]
        point = Symbol(self)
        self.steps.append((point, terms, None))
        y.materialise(point)
        return point

    def output(self, leaf: Any) -> Output:
        """Return the place of a vector among the outputs."""
        self.results.append(_terms(leaf))
        return Output(len(self.results) - 1)

    def encode(self) -> EncodedProgram:
        """Return the steps with registers for symbols, each used again once it is free."""
        steps, inputs = self._with_shared_sums(), len(self.inputs)
        place = {id(symbol): j for j, symbol in enumerate(self.inputs)}
        last = {id(symbol): at for at, (_, terms, _) in enumerate(steps) for _, symbol in terms}
        last |= {id(symbol): len(steps) for terms in self.results for _, symbol in terms}
        registers, free = 0, list[int]()
        code: list[Any] = []
        for at, (symbol, terms, batch) in enumerate(steps):
            used = [(number, place[id(value)]) for number, value in terms]
            ends = {place[id(value)] for _, value in terms if last[id(value)] == at}
            ends -= set(range(inputs))
            if id(symbol) not in place:
                if batch is None and ends:
                    place[id(symbol)] = ends.pop()  # It is computed in place.
                elif free:
                    place[id(symbol)] = free.pop()
                else:
                    place[id(symbol)], registers = inputs + registers, registers + 1
            free += ends
            dest = place[id(symbol)]
            if batch is None:
                code.append((dest, sorted(used, key=lambda term: term[1] != dest)))
            else:
                code.append((dest, used[0][1], batch))
        outputs = [[(a, place[id(value)]) for a, value in terms] for terms in self.results]
        return EncodedProgram(inputs, registers, code, outputs)

    def _with_shared_sums(self) -> list[Step]:
        """Return the steps; what several of them add up of the inputs is added up once, before."""
        inputs = {id(symbol) for symbol in self.inputs}

        def constant(terms: SymbolTerms) -> tuple[tuple[float, int], ...]:
            return tuple((number, id(value)) for number, value in terms if id(value) in inputs)

        times = Counter(constant(terms) for _, terms, batch in self.steps if batch is None)
        sums: dict[Any, Step] = {}
        steps: list[Step] = []
        for symbol, terms, batch in self.steps:
            key = constant(terms)
            if batch is None and len(key) > 1 and times[key] > 2:
                given = [(number, value) for number, value in terms if id(value) in inputs]
                before = sums.setdefault(key, (Symbol(self), given, None))
                rest = [(number, value) for number, value in terms if id(value) not in inputs]
                terms = [*rest, (1.0, before[0])]
            steps.append((symbol, terms, batch))
        return [*sums.values(), *steps]


def _terms(y: Any) -> SymbolTerms:
    """Return the terms of a combination of symbols."""
    if not isinstance(y, LazyVector):
        raise NotLinearError
    terms = [(number, value) for number, value in y.terms if isinstance(value, Symbol)]
    if len(terms) < len(y.terms):
        raise NotLinearError
    return terms
