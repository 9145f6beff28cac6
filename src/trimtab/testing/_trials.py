"""Small quadratics and recording clients on which `trimtab.testing` runs algorithms.

Also the error for a broken rule, one sentence.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trimtab.compute.kernel import KernelResult
from trimtab.core import Gradient, Program, State, Vector, leaves, map_leaves
from trimtab.core.oracle import ClientOracle, client_random, server_random
from trimtab.core.replies import Tally
from trimtab.problems import Quadratic
from trimtab.simulation import Simulation, simulate

N, D = 6, 4
# Three clients where vectors have four numbers, so that the dimensions of a chunk differ.
SOME = (1, 3, 5)


class ContractError(AssertionError):
    """An algorithm breaks the contract; the message names the rule and the way to keep it."""


def require(holds: bool, algorithm: Any, what: str, advice: str) -> None:
    """Raise ContractError unless the rule holds.

    holds: whether the rule holds.
    algorithm: the algorithm, or its class, that the message names.
    what: the fault.
    advice: the way to correct it.
    """
    if not holds:
        name = getattr(algorithm, "__name__", type(algorithm).__name__)
        raise ContractError(f"{name}: {what}; {advice}.")


def first_line(error: Exception) -> str:
    """Return the first line of a message without its full stop, as part of a sentence."""
    return str(error).partition("\n")[0].rstrip(".")


class ZeroGradients(Quadratic):
    """Clients whose gradients are zero everywhere."""

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return zero gradients."""
        return lambda y, k=None: torch.zeros_like(y)


class TracedQuadratic(Quadratic):
    """Quadratics with a kernel that runs a tape on tensors.

    The compiled kernel knows layers, not quadratics; this one lets the contract check tapes.
    """

    kernel = "tensors"

    def play(
        self,
        layers: Any,
        tape: Any,
        clients: Sequence[int],
        weights: Sequence[float],
        seed: int,
        r: int,
        inputs: Sequence[Sequence[Vector]],
        outputs: Sequence[Sequence[Vector | None]],
    ) -> KernelResult:
        """Return the weighted sum of each output, (outputs, d), and the clients' |output|^2."""
        oracles = (self.oracle(i, seed, r) for i in clients)
        results = [_played(tape, g, given) for g, given in zip(oracles, inputs, strict=True)]
        for places, vectors in zip(outputs, results, strict=True):
            for place, vector in zip(places, vectors, strict=True):
                if place is not None:
                    place.copy_(vector)
        stacked = torch.stack([torch.stack(vectors) for vectors in results])
        p = torch.tensor(weights, dtype=stacked.dtype)
        squares = stacked.square().sum(-1).T.tolist()
        return KernelResult(
            torch.tensordot(p, stacked, dims=1), squares, len(clients) * len(tape.code.batches)
        )


def _played(tape: Any, g: Gradient, given: Sequence[Vector]) -> list[Vector]:
    values = dict(enumerate(given))

    def combined(terms: Sequence[tuple[float, int]]) -> Vector:
        return torch.stack([number * values[value] for number, value in terms]).sum(0)

    # A step has a mini-batch if it is a gradient, and none if it is a linear combination.
    for dest, what, *batch in tape.code.steps:
        values[dest] = g(values[what], tape.batches[batch[0]]) if batch else combined(what)
    return [combined(terms) for terms in tape.code.outputs]


@cache
def quadratic(
    kind: type[Quadratic] = Quadratic,
    *,
    equal: bool = False,
    sigma: float = 0.1,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Quadratic:
    """Return N clients in R^D with L = 1 and unequal weights.

    kind: the class of the problem; default Quadratic.
    equal: whether all f_i are the same, with their minimum at `start()`; default False.
    sigma: the noise of a gradient, a standard deviation; default 0.1.
    dtype: default float64, in which rounding stays far below every tolerance.
    seed: decides A and b; default 0.

    >>> round(quadratic().L, 9), quadratic().delta > 0.1
    (1.0, True)
    >>> quadratic(equal=True).client_gradient(3, start()).tolist()
    [0.0, 0.0, 0.0, 0.0]
    """
    draw = torch.Generator().manual_seed(seed)
    rotate = torch.linalg.qr(torch.randn(N, D, D, generator=draw, dtype=torch.float64)).Q
    A = rotate @ torch.diag(torch.linspace(0.25, 1, D, dtype=torch.float64)) @ rotate.mT
    b = torch.randn(N, D, generator=draw, dtype=torch.float64)
    if equal:
        # b = A start, so that the gradient A x - b is zero there.
        A = A[[0] * N]
        b = (start() @ A[0]).expand(N, D)
    return kind(A.to(dtype), b.to(dtype), sigma, weights=range(1, N + 1))


def start(dtype: torch.dtype = torch.float64) -> Vector:
    """Return the initial x of all trials."""
    return torch.linspace(1, 2, D, dtype=dtype)


class RecordingClients:
    """Clients in any order, alone or as one chunk, that record programs, messages and states."""

    def __init__(
        self,
        problem: Quadratic,
        order: Sequence[int],
        states: dict[int, State],
        *,
        chunk: bool = False,
        lost: int | None = None,
        seed: int = 0,
    ) -> None:
        self.problem, self.order, self.states = problem, list(order), dict(states)
        self.chunk, self.lost, self.seed = chunk, lost, seed
        self.draws = server_random(seed, 1)
        self.programs: list[Program] = []
        # The name of each argument, the object itself and a copy: a check compares the two.
        self.given: list[tuple[str, State, State]] = []
        self.uploads: dict[int, tuple[Any, ...]] = dict.fromkeys(order, ())
        self.gradients: dict[int, list[Vector]] = {i: [] for i in order}  # of mini-batches

    def run(self, program: Program, *broadcast: Any) -> Tally:
        """Run the program on every client, then drop the reply of client `lost`."""
        self.programs.append(program)
        self._note("the broadcast", broadcast)
        replies = (self._as_chunk if self.chunk else self._alone)(program, broadcast)
        tally = Tally()
        for i, (upload, state) in zip(self.order, replies, strict=True):
            if i != self.lost:
                tally.add(float(self.problem.weights[i]), upload, state)
                self.uploads[i] += (upload,)
                self.states[i] = state
        # A client whose reply is lost takes no part in later exchanges of the round.
        self.order = [i for i in self.order if i != self.lost]
        return tally

    def parts(self, *servers: State) -> Iterator[tuple[str, Any]]:
        """Yield all parts of server states, client states and messages with their names."""
        named = [("server", server) for server in servers]
        named += [(name, copy) for name, _, copy in self.given]
        named += [("client state", self.states[i]) for i in self.uploads]
        named += [("upload", upload) for sent in self.uploads.values() for upload in sent]
        for name, tree in named:
            yield from parts(name, tree)

    def _note(self, name: str, tree: State) -> None:
        self.given.append((name, tree, map_leaves(torch.clone, tree)))

    def normal(self, like: Vector) -> Vector:
        """Return standard normal numbers from the server's stream."""
        return self.draws("normal", like)

    def uniform(self, like: Vector) -> Vector:
        """Return uniform numbers from the server's stream."""
        return self.draws("uniform", like)

    def _oracle(self, i: int) -> ClientOracle:
        oracle = self.problem.oracle(i, self.seed, 1)

        def g(y: Vector, k: int | None = None) -> Vector:
            gradient = oracle(y, k)
            if k is not None:
                self.gradients[i].append(gradient)
            return gradient

        return ClientOracle(g, client_random(self.seed, i, 1, len(self.programs)))

    def _alone(self, program: Program, broadcast: tuple[Any, ...]) -> list[tuple[Any, State]]:
        for i in self.order:
            self._note("the client's state", self.states[i])
        return [program(self._oracle(i), self.states[i], *broadcast) for i in self.order]

    def _as_chunk(self, program: Program, broadcast: tuple[Any, ...]) -> list[tuple[Any, State]]:
        s = len(self.order)
        stacked = map_leaves(lambda *rows: torch.stack(rows), *(self.states[i] for i in self.order))
        replies = program(self._chunk_oracle(), stacked, *broadcast)
        for name, part in parts("(upload, state)", replies):
            if part.shape[:1] != (s,):
                raise ValueError(f"{name} has shape {tuple(part.shape)}, not ({s}, …)")
        # j is bound as a default: a closure would see its last value only.
        return [map_leaves(lambda t, j=j: t[j], replies) for j in range(s)]

    def _chunk_oracle(self) -> ClientOracle:
        s, oracles = len(self.order), [self._oracle(i) for i in self.order]

        def g(y: Vector, k: int | None = None) -> Vector:
            rows = zip(oracles, y.expand(s, D), strict=True)
            return torch.stack([g_i(y_i, k) for g_i, y_i in rows])

        def draw(what: Any, like: Vector) -> Vector:
            rows = zip(oracles, like.expand(s, *like.shape[-1:]), strict=True)
            return torch.stack([g_i.draw(what, row) for g_i, row in rows])

        return ClientOracle(g, draw)


@torch.no_grad()
def run_round(
    algorithm: Any,
    server: State = None,
    states: dict[int, State] | None = None,
    *,
    order: Sequence[int] = SOME,
    problem: Quadratic | None = None,
    chunk: bool = False,
    lost: int | None = None,
    seed: int = 0,
) -> tuple[State, RecordingClients]:
    """Run a round, and return the server's new state and the clients with their records.

    server, states: the states before the round; default the initial ones.
    order: the clients in the order in which they run; default `SOME`.
    problem: default the quadratic of the seed.
    chunk: whether the clients run as one chunk; default False.
    lost: the client whose reply is dropped; default None.
    """
    problem = problem or quadratic(seed=seed)
    x = start(problem.b.dtype)
    server = algorithm.init_server(x) if server is None else server
    states = states or {i: algorithm.init_client(x) for i in range(N)}
    clients = RecordingClients(problem, order, states, chunk=chunk, lost=lost, seed=seed)
    return algorithm.round(server, clients), clients


def simulated(
    algorithm: Any, seed: int, problem: Quadratic | None = None, **options: Any
) -> Simulation:
    """Return a simulation from `start()`, by default on the quadratic of the seed."""
    return simulate(algorithm, problem or quadratic(seed=seed), seed=seed, x=start(), **options)


def warm(algorithm: Any, seed: int = 0) -> tuple[State, dict[int, State]]:
    """Return the states of server and clients after three rounds, when they are not zero."""
    sim = advance(simulated(algorithm, seed, S=4), 3)
    states = (
        sim.states[i] if i in sim.states else algorithm.init_client(start()) for i in range(N)
    )
    return sim.server, dict(enumerate(states))


def with_half_eta_g(algorithm: Any) -> Iterator[Any]:
    """Yield the algorithm and, if it has an eta_g, a copy with half of it."""
    yield algorithm
    if hasattr(algorithm, "eta_g"):
        yield replace(algorithm, eta_g=algorithm.eta_g / 2)


def advance(sim: Simulation, rounds: int) -> Simulation:
    """Run this many rounds, and return the same simulation."""
    for _ in range(rounds):
        next(sim)
    return sim


def distance(sim: Simulation) -> float:
    """Return |x - x*|."""
    return sim.problem.evaluate(sim.server.x)["distance"]


def all_states(sim: Simulation) -> State:
    """Return the states of the server and of all clients that took part so far."""
    return (sim.server, *(sim.states[i] for i in sim.states))


def parts(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a state or a message with their names.

    >>> [name for name, _ in parts("upload", (1, (2, 3)))]
    ['upload[0]', 'upload[1][0]', 'upload[1][1]']
    """
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", None)
        for j, part in enumerate(tree):
            yield from parts(f"{name}.{names[j]}" if names else f"{name}[{j}]", part)
    else:
        yield name, tree


def shapes(tree: State) -> list[tuple[str, Any]]:
    """Return the names and shapes of the parts of a state."""
    return [(name, part.shape) for name, part in parts("", tree)]


def equal(a: State, b: State) -> bool:
    """Return whether two states have the same bits."""
    return _match(torch.equal, a, b)


def close(a: State, b: State) -> bool:
    """Return whether two states are the same up to rounding."""
    # 1e-8 is far above rounding in float64; the mistakes in tests/testing still show.
    return _match(lambda t, u: torch.allclose(t, u, rtol=1e-8, atol=1e-8), a, b)


def _match(same: Callable[[Tensor, Tensor], bool], a: State, b: State) -> bool:
    ours, theirs = leaves(a), leaves(b)
    return [t.shape for t in ours] == [t.shape for t in theirs] and all(map(same, ours, theirs))
