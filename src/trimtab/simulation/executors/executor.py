"""Executor, the interface, and Exchange, the task that it runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from trimtab.compute.kernel import BadDataError
from trimtab.compute.tape import Tapes
from trimtab.core import Program, State
from trimtab.core.oracle import ClientOracle, LocalSteps, RandomDraws, client_random
from trimtab.core.replies import Tally
from trimtab.problems.capabilities import Capabilities
from trimtab.problems.problem import Problem, chosen
from trimtab.simulation.client_states import ClientStates, StateStore

if TYPE_CHECKING:
    from trimtab.simulation.cohort import Work


# Not frozen: every exchange makes one, and freezing would take most of that time.
@dataclass
class Exchange:
    """A program to run on the clients of one round, and everything it needs."""

    problem: Problem
    can: Capabilities  # of the problem, looked up once for all clients
    program: Program
    broadcast: tuple[Any, ...]
    state: Callable[[int], State]
    # New clients share one object in this list, so it must not be modified.
    states: Callable[[Sequence[int]], list[State]]
    # The new state is copied, unless it is in memory from allocate_states.
    store_state: Callable[[int, State], None]
    allocate_states: Callable[[State, int], list[State]]
    seed: int
    r: int
    number: int  # of this exchange in its round, from 1
    tapes: Tapes
    work: "Work"  # counts the sample gradients of the clients
    new_state: Callable[[], State]  # returns the state of a client that has none yet
    slow: float = 0.0  # as in `simulate`
    store: ClientStates | None = None  # None if the states are on other machines

    def weight(self, i: int) -> float:
        """Return p_i."""
        return float(self.problem.weights[i])

    def weights(self, clients: Sequence[int]) -> list[float]:
        """Return the p_i of several clients, which is faster than one by one."""
        return chosen(self.problem.weights, clients)

    def oracle(self, i: int) -> ClientOracle:
        """Return the oracle of client i in this exchange."""
        gradient = self.work.counted(i, self.problem.oracle(i, self.seed, self.r))
        return ClientOracle(
            gradient, self.draws(i), count=self.local_steps(i), unequal=bool(self.slow)
        )

    def local_steps(self, i: int) -> LocalSteps:
        """Return the function from K to the number of local steps of client i."""
        return local_steps_of(self.can, i, self.seed, self.r, self.slow)

    def draws(self, i: int) -> RandomDraws:
        """Return the random numbers of client i in this exchange."""
        return client_random(self.seed, i, self.r, self.number)

    def run(
        self, i: int, g: Callable[..., Any], state: State, broadcast: tuple[Any, ...]
    ) -> tuple[Any, State]:
        """Run the program as client i; an error in its data names the client."""
        try:
            return self.program(g, state, *broadcast)
        except BadDataError as error:
            raise error.for_client(i) from None


def local_steps_of(can: Capabilities, i: int, seed: int, r: int, slow: float = 0.0) -> LocalSteps:
    """Return the function from K to the number of local steps of client i in round r."""
    passes = None if can.steps_in_a_pass is None else partial(can.steps_in_a_pass, i)
    return LocalSteps(passes, slow, (seed, i, r))


@runtime_checkable
class Executor(Protocol):
    """Runs a program on the clients of a cohort. It never depends on the algorithm.

    To write one, subclass this, set `name` and implement `run`; `Loop` is the reference. Add
    uploads and pass new states to `exchange.store_state` in the order of the clients' numbers, so
    that the bits are the same in every run, and as soon as they exist, so that those of a whole
    cohort never take memory at the same time.
    """

    name: str
    threads: Literal["one", "all"] = "one"  # "all": bits may depend on PyTorch's threads
    lazy_server: bool = False  # whether the server's vectors are lazy too

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Run the program on each client and return the sum of the uploads.

        exchange: the program and its inputs.
        clients: the clients, sorted.
        """
        ...

    def begin(self, problem: Problem, S: int) -> "Executor":
        """Return the executor of one simulation; itself, if it has no state per simulation.

        problem: the problem of the simulation.
        S: the number of clients sampled per round.
        """
        return self

    def states(self, memory: int | None) -> StateStore:
        """Return the store of client states, with at most `memory` bytes in RAM."""
        return ClientStates(memory)

    def facts(self) -> dict[str, Any]:
        """Return facts for the record of a run, in addition to the name."""
        return {}

    def close(self) -> None:
        """Free the resources of a simulation that has ended."""
        return
