"""Trace a client's program once, as gradients at linear combinations, for the kernel to run.

The local steps of most algorithms are linear: `y = y - eta_l * (g(y, k) - c_i + c)`. Such a program
is traced once with symbols instead of vectors. The kernel then runs the tape for each client
without Python, in this round and in later ones, and the algorithm does not notice. A program that
reads the values of a vector, or computes something that is not linear, has no tape and runs on
tensors. A tape holds for one number of local steps: clients with another K_i have another tape.
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
"""Returns the number of local steps of a client for a requested K."""

SymbolTerms = list[tuple[float, Symbol]]
Step = tuple[Symbol, SymbolTerms, int | None]
"""A symbol and the combination it equals; with a batch, the gradient at its only term."""


@dataclass(frozen=True)
class Output(Leaf):
    """A leaf that represents one of the code's outputs in a tree that a program returns."""

    number: int


@dataclass(frozen=True)
class Tape:
    """A traced program: its code, its mini-batches k, and the trees it returns."""

    code: EncodedProgram
    batches: list[int | None]  # None is the gradient on all local data
    upload: State  # with leaves of class Output
    state: State  # with leaves of class Output

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
    """The tape of a program, None if it is not linear; and the K that it requested."""

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
    """Trace a program.

    program: `algorithm.local` or another method that runs at a client.
    state: a client's state; its vectors are the first inputs of the code.
    broadcast: the server's message; its vectors are the next inputs. Scalars are equal for all
        clients, so the program receives their values.
    d: length of the vectors.
    count: the value of g.steps(K) as a function of K.
    unequal: whether clients differ in their numbers of steps.

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
    """Pause Python's collector: it would visit all recorded steps again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _not_linear(kind: str, like: Any) -> Any:
    """Raise NotLinearError: random numbers differ between clients and rounds."""
    raise NotLinearError


class Tapes:
    """A cache of tapes, so that equal programs are traced once.

    The key of a program is its function, the fields or the pickle of its algorithm, the structure
    of its arguments and the numbers of steps. So a changed hyper-parameter is another program, even
    if it was set in a frozen dataclass. A program is traced every time if it is not a method,
    cannot be pickled or reads variables of its module: it may depend on values that change.

    max_tapes: how many are cached; a round has fewer exchanges times numbers of steps.
    """

    def __init__(self, max_tapes: int = 64) -> None:
        self.max_tapes = max_tapes
        # By key, the number of a program and the K that it requested when it was last traced.
        self._programs: dict[Any, tuple[int, tuple[int | Epochs, ...]]] = {}
        # By the number of a program and its numbers of steps.
        self._traced: OrderedDict[tuple[int, tuple[int, ...]], Traced] = OrderedDict()
        self._numbers = 0  # assigned so far

    def trace(
        self,
        program: Program,
        state: State,
        broadcast: tuple[Any, ...],
        d: int,
        count: Count = LocalSteps(),  # noqa: B008
        unequal: bool = False,
    ) -> Traced:
        """Return the result of `trace`, from the cache if possible."""
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
    """Return all that decides a tape except numbers of steps; None if that is unknown."""
    function = getattr(program, "__func__", None)
    kind: Any = type(getattr(program, "__self__", None))
    if not isinstance(function, FunctionType) or _reads_variables(function, kind):
        return None
    try:
        algorithm = _algorithm_key(program.__self__)  # type: ignore[attr-defined]
    except Exception:  # Attributes and pickles of users' classes may raise anything.
        return None
    single = tuple(leaf.item() for leaf in leaves(broadcast) if not leaf.dim())
    return function, kind, algorithm, _structure(state), _structure(broadcast), single, d


def _algorithm_key(algorithm: Any) -> Any:
    """Return the fields of an algorithm if all are plain values, which is fast, else its pickle."""
    values = tuple(vars(algorithm).values()) if hasattr(algorithm, "__dict__") else (None,)
    kinds = tuple(map(type, values))
    return (values, kinds) if _PLAIN_TYPES.issuperset(kinds) else pickle.dumps(algorithm)


_PLAIN_TYPES = {int, float, bool, str}


@cache
def _reads_variables(function: FunctionType, kind: Any) -> bool:
    """Return whether a method, or a function of its class or module, reads a variable.

    Modules, classes and functions count as constants; other globals and closures may change.
    """
    seen, waiting = set[FunctionType](), [function]
    while waiting:
        f = waiting.pop()
        seen.add(f)
        names = _referenced_names(f.__code__)
        variables = [f.__globals__[name] for name in names if name in f.__globals__]
        # super() reads __class__, which does not change.
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
    """Return the structure of a tree with the shapes and dtypes of its leaves."""
    if type(tree) is Tensor:  # the common case, without the general walk
        return tree.shape, tree.dtype
    if isinstance(tree, tuple):
        return (type(tree), *map(_structure, tree))
    return tuple((leaf.shape, leaf.dtype) for leaf in leaves(tree))


def output_numbers(tree: State) -> list[int]:
    """Return the numbers of the outputs in a tree of a tape."""
    return [leaf.number for leaf in leaves(tree)]


def fill(tree: State, values: Sequence[Any]) -> State:
    """Return a tree of a tape with its outputs replaced by values."""
    return map_leaves(lambda leaf: values[leaf.number], tree)


class TapeRecorder:
    """Records what a program computes with symbols."""

    def __init__(self, d: int, count: Count, unequal: bool) -> None:
        self.d, self.count, self.unequal = d, count, unequal
        self.requested: list[int | Epochs] = []
        self.inputs: list[Symbol] = []
        self.steps: list[Step] = []
        self.results: list[SymbolTerms] = []
        self.batches: dict[int | None, int] = {}  # from k to number, in order of first use

    def input(self, leaf: Any) -> LazyVector:
        """Return a symbol for an input vector."""
        if leaf.shape != (self.d,) or not leaf.is_floating_point():
            raise NotLinearError  # A scalar in a state may differ between clients.
        self.inputs.append(Symbol(self))
        return LazyVector.symbol(self.inputs[-1])

    def oracle(self) -> ClientOracle:
        """Return an oracle whose gradients are symbols."""
        gradient: Any = self.gradient
        return ClientOracle(gradient, _not_linear, count=self.steps_of, unequal=self.unequal)

    def steps_of(self, K: int | Epochs) -> int:
        """Record the requested K and return the number of steps."""
        self.requested.append(K)
        return self.count(K)

    def gradient(self, y: Any, k: int | None = None) -> LazyVector:
        """Record a gradient and return its symbol."""
        point = self.symbol_for(y)
        batch = self.batches.setdefault(k, len(self.batches))
        gradient = Symbol(self)
        self.steps.append((gradient, [(1.0, point)], batch))
        return LazyVector.symbol(gradient)

    def symbol_for(self, y: Any) -> Symbol:
        """Return one symbol for a combination, and replace its terms by it."""
        terms = _terms(y)
        if len(terms) == 1 and terms[0][0] == 1.0:
            return terms[0][1]
        point = Symbol(self)
        self.steps.append((point, terms, None))
        y.materialise(point)
        return point

    def output(self, leaf: Any) -> Output:
        """Record a vector as the next output."""
        self.results.append(_terms(leaf))
        return Output(len(self.results) - 1)

    def encode(self) -> EncodedProgram:
        """Return the program with registers instead of symbols.

        A register is free for the next symbol after the last step that reads it, so that a client
        needs few vectors however many steps it makes.
        """
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
                    place[id(symbol)] = ends.pop()  # computed in place
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
        """Return the steps, with sums of inputs that several steps share computed once.

        The steps of SCAFFOLD all add eta_l * (c_i - c), for instance.
        """
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
    """Return the terms of a combination; raise NotLinearError if one is not a symbol."""
    if not isinstance(y, LazyVector):
        raise NotLinearError
    terms = [(number, value) for number, value in y.terms if isinstance(value, Symbol)]
    if len(terms) < len(y.terms):
        raise NotLinearError
    return terms
