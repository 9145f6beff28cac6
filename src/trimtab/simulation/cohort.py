"""The clients of one round: their exchanges with the server, their work, and why they diverged."""

from collections.abc import Callable, Sequence
from math import ceil, isfinite, nan
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from trimtab.compute.lazy import eager
from trimtab.core import Algorithm, Gradient, Program, State, Vector, leaves, nbytes
from trimtab.core.hyper import settings_of, step_size
from trimtab.core.oracle import server_random
from trimtab.core.replies import Tally
from trimtab.problems.problem import Problem
from trimtab.simulation.client_states import ClientStates
from trimtab.simulation.executors import Exchange
from trimtab.simulation.sampling import responding_clients

if TYPE_CHECKING:
    from trimtab.simulation.simulate import Simulation

Size = Callable[[int | None], int]
"""The number of samples in mini-batch k of a client; for None, in all of its data."""


class NoRepliesError(Exception):
    """No client was available, or all replies of a round were lost."""


class SimulatedCohort:
    """The clients of one round. Their new states are staged until the round is over."""

    def __init__(self, sim: "Simulation", r: int, sampled_clients: list[int]) -> None:
        self.sim, self.r, self.sampled_clients = sim, r, sampled_clients
        self.reset()

    def reset(self) -> None:
        """Forget the exchanges of this round, so that it can be run again."""
        self.responding = self.sampled_clients
        self.bytes_down = self.bytes_up = self.exchanges = self.work = 0
        self.last: Tally | None = None
        self.vector: Callable[[Vector], Any] | None = None
        self.draws = server_random(self.sim.seed, self.r)

    def run(self, program: Program, *broadcast: Any) -> Tally:
        """Run a program on the clients that replied to every exchange of this round so far."""
        sim = self.sim
        if self.vector is not None:
            broadcast = eager(broadcast)
        self.bytes_down += len(self.responding) * nbytes(broadcast)
        self.exchanges += 1
        self.responding = responding_clients(
            self.responding, sim.lost, sim.seed, self.r, self.exchanges
        )
        if not self.responding:
            raise NoRepliesError
        self.last = self.exchange(program, broadcast, self.responding, self.r)
        if self.vector is not None:
            self.last.vector = self.vector
        return self.last

    def exchange(
        self, program: Program, broadcast: tuple[Any, ...], clients: list[int], r: int
    ) -> Tally:
        """Run a program on clients, with the random numbers of round r; stage their new states."""
        sim = self.sim
        states, work = sim.states, Work(sim.problem)
        exchange = Exchange(
            sim.problem,
            program,
            broadcast,
            self._state,
            self._states,
            states.stage,
            states.allocate_states,
            sim.seed,
            r,
            self.exchanges,
            sim.tapes,
            work,
            self._new,
            sim.slow,
            states if isinstance(states, ClientStates) else None,
        )
        replies = sim.runs_on.run(exchange, clients)
        self.work += work.total
        self.bytes_up += replies.bytes_sent(program)
        return replies

    def normal(self, like: Any) -> Any:
        """Return standard normal numbers from the server's stream."""
        return self._lazily(self.draws("normal", eager(like)))

    def uniform(self, like: Any) -> Any:
        """Return uniform numbers from the server's stream."""
        return self._lazily(self.draws("uniform", eager(like)))

    def _lazily(self, drawn: Vector) -> Any:
        return drawn if self.vector is None else self.vector(drawn)

    def _state(self, i: int) -> State:
        state = self.sim.states.latest(i)
        return self._new() if state is None else state

    def _new(self) -> State:
        return self.sim.algorithm.init_client(self.sim.server.x)

    def _states(self, clients: Sequence[int]) -> list[State]:
        """Return the states of several clients; all new clients share one object."""
        found = [self.sim.states.latest(i) for i in clients]
        if not any(state is None for state in found):
            return found
        new = self._new()
        return [new if state is None else state for state in found]

    @property
    def spread(self) -> float:
        """The spread of the client states after the last exchange; NaN where there was none."""
        return self.last.spread if self.last else nan

    def finite(self, spread: float) -> bool:
        """Return whether the new client states are finite."""
        # A finite spread proves it. Clients without states have no spread, and nothing to check.
        doubt = self.last is not None and not isfinite(spread) and bool(leaves(self._new()))
        return not doubt or all(all_finite(self._state(i)) for i in self.responding)


def all_finite(state: State) -> bool:
    """Return whether all numbers are finite."""
    for leaf in leaves(state):
        # The sum needs no second tensor. It may overflow, and only then each number is checked.
        total = leaf.dot(leaf) if leaf.dim() == 1 and leaf.is_floating_point() else leaf.sum()
        if not (isfinite(total) or bool(torch.isfinite(leaf).all())):
            return False
    return True


# -- work


class Work:
    """Counts the sample gradients of each client in one exchange.

    g(y, k) costs the samples of mini-batch k, g(y) all n_i; on a problem without samples each
    gradient costs 1. A client whose program is run again, because lazy vectors lack one of its
    operations, is counted from its last start. Several threads may count different clients.
    """

    def __init__(self, problem: Problem) -> None:
        # Read once per exchange: on small problems reading a member takes as long as a step.
        self._samples, self._sampling = problem.samples, problem.sampling
        self._done: dict[int, int] = {}
        self._elsewhere = 0

    @property
    def total(self) -> int:
        """The work of all clients."""
        return sum(self._done.values()) + self._elsewhere

    def add(self, total: int) -> None:
        """Add work that was counted elsewhere: by the kernel, or on another machine."""
        self._elsewhere += total

    def counted(self, i: int, gradient: Gradient) -> Gradient:
        """Return an oracle that counts the calls for client i, from zero."""
        done, size = self._done, self._size(i)
        done[i] = 0

        def g(y: Vector, k: int | None = None) -> Vector:
            done[i] += size(k)
            return gradient(y, k)

        return g

    def counted_rows(self, clients: Sequence[int], gradient: Gradient) -> Gradient:
        """Return an oracle of several clients at once that counts the calls for each of them."""
        done, sizes = self._done, [(i, self._size(i)) for i in clients]
        for i in clients:
            done[i] = 0

        def g(y: Vector, k: int | None = None) -> Vector:
            for i, size in sizes:
                done[i] += size(k)
            return gradient(y, k)

        return g

    def _size(self, i: int) -> Size:
        if self._samples is None:
            return lambda k: 1
        n, b = self._samples(i)
        if self._sampling != "reshuffle" or n <= b:
            return lambda k: n if k is None else b
        in_a_pass = ceil(n / b)
        return lambda k: n if k is None else min(b, n - b * (k % in_a_pass))


# -- divergence


class UpdateStatistics(NamedTuple):
    """A summary of the clients' updates dx_i in one round."""

    drift: float  # mean |dx_i|
    movers: float  # the effective number of clients that move: 1 if one moves alone
    clients: int


def explain(
    algorithm: Algorithm, rounds: Sequence[UpdateStatistics], worst: Callable[[], int]
) -> str:
    """Return the end of the message of `Diverged`: the advice and its reason.

    algorithm: as it was in the round that diverged.
    rounds: the last rounds that were finite, at most two.
    worst: returns the client with the largest gradient, which is named if it moves alone.

    Momentum adds up to 1/(1 - beta) steps. Without it the step is too large for the curvature: on
    a quadratic, moves that grow by rho per round are those of |1 - eta L|^K = rho.

    >>> from trimtab import FedAvg
    >>> moves = [UpdateStatistics(1.0, 10.0, 10), UpdateStatistics(9.0, 10.0, 10)]
    >>> explain(FedAvg(eta_l=0.5, K=2), moves, worst=int)
    'try eta_l below 0.25: the moves grow 9-fold per round, so L is about 8 and 2/L 0.25, not 0.5'
    """
    name, eta = step_size(algorithm)
    if not name:
        return "try a smaller step size"
    last = rounds[-1] if rounds else None
    # One or two clients always move nearly alone, so that this would blame any of them.
    if last is not None and last.clients > 2 and last.movers < min(2.0, 0.5 * last.clients):
        return (
            f"client {worst()} moves nearly alone, so check its data (outliers, scale), or try "
            f"{name} below {eta:g}"
        )
    settings = settings_of(algorithm)
    # Only Momentum has a `beta`; the means of Adam and Yogi do not add up.
    beta = getattr(settings.get("base"), "beta", 0.0)
    if beta:
        return (
            f"momentum beta = {beta:g} adds up to {1 / (1 - beta):.3g} steps, so try {name} below "
            f"{eta * (1 - beta):.2g} or a smaller beta, not {name} = {eta:g}"
        )
    growth = _growth(rounds)
    K = settings.get("K")
    if not isinstance(K, int) or not growth > 1 or "base" in settings:
        return f"try {name} below {eta:g}"
    L = (1 + growth ** (1 / K)) / eta
    return (
        f"try {name} below {2 / L:.2g}: the moves grow {growth:.2g}-fold per round, so L is "
        f"about {L:.2g} and 2/L {2 / L:.2g}, not {eta:g}"
    )


def _growth(rounds: Sequence[UpdateStatistics]) -> float:
    if len(rounds) < 2 or not rounds[-2].drift > 0 or not isfinite(rounds[-1].drift):
        return nan
    return rounds[-1].drift / rounds[-2].drift
