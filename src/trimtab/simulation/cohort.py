"""The clients of one round, as an algorithm reaches them."""

from collections.abc import Callable, Sequence
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

import torch

from trimtab.compute.lazy import eager
from trimtab.core import Program, State, Vector, leaves, nbytes
from trimtab.core.oracle import draws_of_server
from trimtab.core.replies import Tally
from trimtab.simulation.client_states import ClientStates
from trimtab.simulation.executors import Exchange
from trimtab.simulation.sampling import answering
from trimtab.simulation.work import Work

if TYPE_CHECKING:
    from trimtab.simulation.simulate import Simulation


class NobodyAnsweredError(Exception):
    """All replies of a round were lost."""


class Cohort:
    """The clients of one round. What they learn counts only once the round is over."""

    def __init__(self, sim: "Simulation", r: int, asked: list[int]) -> None:
        self.sim, self.r, self.asked = sim, r, asked
        self.start_again()

    def start_again(self) -> None:
        """Forget what was done in this round."""
        self.alive = self.asked
        self.bytes_down = self.bytes_up = self.exchanges = self.work = 0
        self.last: Tally | None = None
        self.vector: Callable[[Vector], Any] | None = None
        self.draws = draws_of_server(self.sim.seed, self.r)

    def run(self, program: Program, *broadcast: Any) -> Tally:
        """Reach those that answered every exchange of this round so far."""
        sim = self.sim
        if self.vector is not None:
            broadcast = eager(broadcast)
        self.bytes_down += len(self.alive) * nbytes(broadcast)
        self.exchanges += 1
        self.alive = answering(self.alive, sim.lost, sim.seed, self.r, self.exchanges)
        if not self.alive:
            raise NobodyAnsweredError
        states, work = sim.states, Work(sim.problem)
        exchange = Exchange(
            sim.problem,
            program,
            broadcast,
            self._state,
            self._states,
            states.stage,
            states.rooms,
            sim.seed,
            self.r,
            self.exchanges,
            sim.tapes,
            work,
            self._new,
            sim.slow,
            states if isinstance(states, ClientStates) else None,
        )
        self.last = sim.runs_on.run(exchange, self.alive)
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
        return not doubt or all(all_finite(self._state(i)) for i in self.alive)


def all_finite(state: State) -> bool:
    """Tell whether all numbers are finite: those of a finite norm are; else look at each."""
    for leaf in leaves(state):
        total = leaf.dot(leaf) if leaf.dim() == 1 and leaf.is_floating_point() else leaf.sum()
        if not (isfinite(total) or bool(torch.isfinite(leaf).all())):
            return False
    return True
