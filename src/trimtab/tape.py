"""A program written down: gradients at linear combinations, to be run for every client at once.

The local steps of most algorithms are linear: `y = y - eta_l * (g(y, k) - c_i + c)`. Such a program
is traced once a round on symbols instead of vectors, and a kernel then runs it for each client
without Python in between. The algorithms do not notice. A program that looks at a vector's numbers,
or does with them what is not linear, has no tape; it runs on tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trimtab.core import Program, State
from trimtab.native import Code
from trimtab.vectors import Combination, NotLinearError, Symbol

Terms = list[tuple[float, Symbol]]
Step = tuple[Symbol, Terms, int | None]
"""A symbol and the combination it stands for; with a batch, the gradient at its one term."""


@dataclass(frozen=True)
class Tape:
    """What a program does: its code, the mini-batches k it takes, and the trees it returns."""

    code: Code
    batches: list[int | None]
    upload: State  # its leaves are numbers of outputs,
    state: State  # and so are these


def trace(program: Program, state: State, broadcast: tuple[Any, ...], d: int) -> Tape | None:
    """Return a program's tape, or None if there is more to it than linear steps.

    The code's inputs are the vectors of the client's state, then those of the broadcast.

    >>> import torch, trimtab
    >>> x = torch.zeros(3)
    >>> tape = trace(trimtab.Scaffold(eta_l=0.1, K=5).local, x, (x, x), d=3)
    >>> tape.batches, tape.upload, tape.state, tape.code.registers
    ([0, 1, 2, 3, 4], Upload(dx=0, dc=1), 2, 3)
    """
    recorder = _Recorder(d)
    try:
        own, *sent = (recorder.inputs(tree) for tree in (state, *broadcast))
        upload, new = program(recorder.gradient, own, *sent)
        trees = recorder.outputs(upload), recorder.outputs(new)
    except NotLinearError:
        return None
    return Tape(recorder.code(), recorder.batches, *trees)


def numbers(tree: State) -> list[int]:
    """Return the leaves of a tape's tree."""
    return [j for part in tree for j in numbers(part)] if isinstance(tree, tuple) else [tree]


def filled(tree: State, values: Sequence[Any]) -> State:
    """Return a tape's tree with values in the places of their numbers."""
    if isinstance(tree, tuple):
        parts = [filled(part, values) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return values[tree]


class _Recorder:
    """Takes down what a program does with symbols."""

    def __init__(self, d: int) -> None:
        self.d = d
        self.given: list[Symbol] = []
        self.steps: list[Step] = []
        self.results: list[Terms] = []
        self.batches: list[int | None] = []

    def inputs(self, tree: State) -> State:
        """Return a tree with symbols for its vectors."""
        if isinstance(tree, tuple):
            parts = [self.inputs(part) for part in tree]
            return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
        if not isinstance(tree, Tensor) or tree.shape != (self.d,):
            raise NotLinearError  # a number may differ from client to client
        self.given.append(Symbol(self))
        return Combination([(1.0, self.given[-1])])

    def gradient(self, y: Any, k: int | None = None) -> Combination:
        """Stand for the oracle."""
        point = self.settled(y)
        if k not in self.batches:
            self.batches.append(k)
        gradient = Symbol(self)
        self.steps.append((gradient, [(1.0, point)], self.batches.index(k)))
        return Combination([(1.0, gradient)])

    def settled(self, y: Any) -> Symbol:
        """Return one symbol for a combination, which from now on is that symbol."""
        terms = _terms(y)
        if len(terms) == 1 and terms[0][0] == 1.0:
            return terms[0][1]
        point = Symbol(self)
        self.steps.append((point, terms, None))
        y.settle(point)
        return point

    def outputs(self, tree: State) -> State:
        """Return a tree with numbers of outputs for its vectors."""
        if isinstance(tree, tuple):
            parts = [self.outputs(part) for part in tree]
            return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
        self.results.append(_terms(tree))
        return len(self.results) - 1

    def code(self) -> Code:
        """Return the steps with registers for symbols, each used again once it is free."""
        steps, inputs = self._hoisted(), len(self.given)
        place = {id(symbol): j for j, symbol in enumerate(self.given)}
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
                    place[id(symbol)] = ends.pop()  # in place
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
        return Code(inputs, registers, code, outputs)

    def _hoisted(self) -> list[Step]:
        """Return the steps; what several of them add up of the inputs is added up once, before."""
        own = {id(symbol) for symbol in self.given}

        def constant(terms: Terms) -> tuple[tuple[float, int], ...]:
            return tuple((number, id(value)) for number, value in terms if id(value) in own)

        combined = [constant(terms) for _, terms, batch in self.steps if batch is None]
        sums: dict[Any, Step] = {}
        steps: list[Step] = []
        for symbol, terms, batch in self.steps:
            key = constant(terms)
            if batch is None and len(key) > 1 and combined.count(key) > 2:
                given = [(number, value) for number, value in terms if id(value) in own]
                before = sums.setdefault(key, (Symbol(self), given, None))
                rest = [(number, value) for number, value in terms if id(value) not in own]
                terms = [*rest, (1.0, before[0])]
            steps.append((symbol, terms, batch))
        return [*sums.values(), *steps]


def _terms(y: Any) -> Terms:
    """Return the terms of a combination of symbols."""
    if not isinstance(y, Combination):
        raise NotLinearError
    terms = [(number, value) for number, value in y.terms if isinstance(value, Symbol)]
    if len(terms) < len(y.terms):
        raise NotLinearError
    return terms
