"""The clients of one round, as an algorithm reaches them; what they compute; why a run diverged.

g(y, k) costs the samples of mini-batch k, g(y) all n_i; a problem without samples counts gradients.
"""

from collections.abc import Callable, Sequence
from math import ceil, isfinite, nan
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from trimtab.compute.lazy import eager
from trimtab.core import Algorithm, Gradient, Program, State, Vector, leaves, nbytes
from trimtab.core.hyper import settings_of, step_size
from trimtab.core.oracle import draws_of_server
from trimtab.core.replies import Tally
from trimtab.problems.capabilities import Capabilities, capabilities
from trimtab.simulation.client_states import ClientStates
from trimtab.simulation.executors import Exchange
from trimtab.simulation.sampling import responding_clients

if TYPE_CHECKING:
    from trimtab.simulation.simulate import Simulation

Size = Callable[[int | None], int]
"""The samples of mini-batch k of a client; of None, all it has."""


class NoRepliesError(Exception):
    """All replies of a round were lost."""


class Cohort:
    """The clients of one round. What they learn counts only once the round is over."""

    def __init__(self, sim: "Simulation", r: int, sampled_clients: list[int]) -> None:
        self.sim, self.r, self.sampled_clients = sim, r, sampled_clients
        self.reset()

    def reset(self) -> None:
        """Forget what was done in this round."""
        self.responding = self.sampled_clients
        self.bytes_down = self.bytes_up = self.exchanges = self.work = 0
        self.last: Tally | None = None
        self.vector: Callable[[Vector], Any] | None = None
        self.draws = draws_of_server(self.sim.seed, self.r)

    def run(self, program: Program, *broadcast: Any) -> Tally:
        """Reach those that answered every exchange of this round so far."""
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
        states, can = sim.states, capabilities(sim.problem)
        work = Work(can)
        exchange = Exchange(
            sim.problem,
            can,
            program,
            broadcast,
            self._state,
            self._states,
            states.stage,
            states.allocate_states,
            sim.seed,
            self.r,
            self.exchanges,
            sim.tapes,
            work,
            self._new,
            sim.slow,
            states if isinstance(states, ClientStates) else None,
        )
        self.last = sim.runs_on.run(exchange, self.responding)
        self.work += work.total
        if self.vector is not None:
            self.last.vector = self.vector
        self.bytes_up += self.last.bytes_sent(program)
        return self.last

    def normal(self, like: Any) -> Any:
        """Return standard normal numbers of the server's own."""
        return self._lazily(self.draws("normal", eager(like)))

    def uniform(self, like: Any) -> Any:
        """Return uniform numbers of the server's own."""
        return self._lazily(self.draws("uniform", eager(like)))

    def _lazily(self, drawn: Vector) -> Any:
        return drawn if self.vector is None else self.vector(drawn)

    def _state(self, i: int) -> State:
        state = self.sim.states.latest(i)
        return self._new() if state is None else state

    def _new(self) -> State:
        return self.sim.algorithm.init_client(self.sim.server.x)

    def _states(self, clients: Sequence[int]) -> list[State]:
        """Return the states of several clients; those without one share that of a new client."""
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
        """Tell whether the new client states are finite; exactly, but slowly only if in doubt.

        Where clients keep no states there is no spread, and no doubt.
        """
        doubt = self.last is not None and not isfinite(spread) and bool(leaves(self._new()))
        return not doubt or all(all_finite(self._state(i)) for i in self.responding)


def all_finite(state: State) -> bool:
    """Tell whether all numbers are finite: those of a finite norm are; else look at each."""
    for leaf in leaves(state):
        total = leaf.dot(leaf) if leaf.dim() == 1 and leaf.is_floating_point() else leaf.sum()
        if not (isfinite(total) or bool(torch.isfinite(leaf).all())):
            return False
    return True


# -- what clients compute


class Work:
    """The work of each client in one exchange.

    A client that starts again, because its program did something that its vectors could not, is
    counted from its last start. Several threads may count different clients.
    """

    def __init__(self, can: Capabilities) -> None:
        self._can = can
        self._done: dict[int, int] = {}
        self._elsewhere = 0

    @property
    def total(self) -> int:
        """The work of all clients."""
        return sum(self._done.values()) + self._elsewhere

    def add(self, total: int) -> None:
        """Count what was computed, and counted, elsewhere: by a kernel, or on another machine."""
        self._elsewhere += total

    def counted(self, i: int, gradient: Gradient) -> Gradient:
        """Return the oracle of a client that starts, which counts what it is asked."""
        done, size = self._done, self._size(i)
        done[i] = 0

        def g(y: Vector, k: int | None = None) -> Vector:
            done[i] += size(k)
            return gradient(y, k)

        return g

    def counted_rows(self, clients: Sequence[int], gradient: Gradient) -> Gradient:
        """Return the oracle of several clients at once, which counts what each is asked."""
        done, sizes = self._done, [(i, self._size(i)) for i in clients]
        for i in clients:
            done[i] = 0

        def g(y: Vector, k: int | None = None) -> Vector:
            for i, size in sizes:
                done[i] += size(k)
            return gradient(y, k)

        return g

    def _size(self, i: int) -> Size:
        samples = self._can.samples
        if samples is None:
            return lambda k: 1
        n, b = samples(i)
        if not self._can.reshuffles or n <= b:
            return lambda k: n if k is None else b
        in_a_pass = ceil(n / b)
        return lambda k: n if k is None else min(b, n - b * (k % in_a_pass))


# -- why a run diverged, from the sums that its rounds leave behind


class UpdateStatistics(NamedTuple):
    """What a round tells of the clients' moves dx_i."""

    drift: float  # mean |dx_i|
    movers: float  # how many clients it takes to move like that: 1 if one moves alone
    clients: int


def explain(
    algorithm: Algorithm, rounds: Sequence[UpdateStatistics], worst: Callable[[], int]
) -> str:
    """Say in half a sentence why, and what to do; `rounds` are the last that were finite.

    One client that moves alone is named by `worst`. Momentum adds up to 1/(1 - beta) steps. Else
    the step is too large for the curvature: on a quadratic, moves that grow by rho a round are
    those of |1 - eta L|^K = rho.

    >>> from trimtab import FedAvg
    >>> moves = [UpdateStatistics(1.0, 10.0, 10), UpdateStatistics(9.0, 10.0, 10)]
    >>> explain(FedAvg(eta_l=0.5, K=2), moves, worst=int)
    'try eta_l below 0.25: the moves grow 9-fold a round, so L is about 8 and 2/L is 0.25, not 0.5'
    """
    name, eta = step_size(algorithm)
    if not name:
        return "try a smaller step size"
    last = rounds[-1] if rounds else None
    if last is not None and last.clients > 2 and last.movers < min(2.0, 0.5 * last.clients):
        return (
            f"client {worst()} moves nearly alone, so look at its data (outliers, scale), or try "
            f"{name} below {eta:g}"
        )
    settings = settings_of(algorithm)
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
        f"try {name} below {2 / L:.2g}: the moves grow {growth:.2g}-fold a round, so L is about "
        f"{L:.2g} and 2/L is {2 / L:.2g}, not {eta:g}"
    )


def _growth(rounds: Sequence[UpdateStatistics]) -> float:
    if len(rounds) < 2 or not rounds[-2].drift > 0 or not isfinite(rounds[-1].drift):
        return nan
    return rounds[-1].drift / rounds[-2].drift
