"""What an executor is, and what it is asked to do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

from trimtab.compute.kernel import BadDataError
from trimtab.compute.tape import Tapes
from trimtab.core import Program, State
from trimtab.core.oracle import ClientOracle, Draws, Pace, draws_of_client
from trimtab.core.replies import Tally
from trimtab.problems.problem import Problem, chosen
from trimtab.simulation.client_states import ClientStates, StateStore
from trimtab.simulation.work import Work


@dataclass  # It is not frozen: every round makes one, and freezing takes most of that time.
class Exchange:
    """What is to be done: a program on the clients of one round, with what is sent to them."""

    problem: Problem
    program: Program
    broadcast: tuple[Any, ...]
    state: Callable[[int], State]
    states: Callable[[Sequence[int]], list[State]]  # new clients may share one: do not change it
    keep: Callable[[int, State], None]  # takes a copy of the client's new state,
    rooms: Callable[[State, int], list[State]]  # unless it was written into what this lends
    seed: int
    r: int
    number: int  # of this exchange in its round
    tapes: Tapes
    work: Work  # counts what the clients compute
    fresh: Callable[[], State]  # the state of a client that has none yet
    slow: float = 0.0  # the share of clients that make only some of their local steps
    store: ClientStates | None = None  # where states lie, if it is in this process

    def weight(self, i: int) -> float:
        """Return p_i."""
        return float(self.problem.weights[i])

    def weights(self, clients: Sequence[int]) -> list[float]:
        """Return the p_i of several clients."""
        return chosen(self.problem.weights, clients)

    def oracle(self, i: int) -> ClientOracle:
        """Return the oracle of client i in this exchange."""
        gradient = self.work.counted(i, self.problem.oracle(i, self.seed, self.r))
        return ClientOracle(gradient, self.draws(i), count=self.pace(i), unequal=bool(self.slow))

    def pace(self, i: int) -> Pace:
        """Return how many local steps client i makes."""
        return pace_of(self.problem, i, self.seed, self.r, self.slow)

    def draws(self, i: int) -> Draws:
        """Return the random numbers of client i in this exchange."""
        return draws_of_client(self.seed, i, self.r, self.number)

    def run(
        self, i: int, g: Callable[..., Any], state: State, broadcast: tuple[Any, ...]
    ) -> tuple[Any, State]:
        """Run the program as client i, whose number an error of its data has."""
        try:
            return self.program(g, state, *broadcast)
        except BadDataError as error:
            raise error.of(i) from None


def pace_of(problem: Problem, i: int, seed: int, r: int, slow: float = 0.0) -> Pace:
    """Return how many local steps client i of a problem makes in round r."""
    steps = problem.steps_in_a_pass
    passes = None if steps is None else partial(steps, i)
    return Pace(passes, slow, (seed, i, r))


@runtime_checkable
class Executor(Protocol):
    """A way to run a program on a cohort. It knows no algorithm, and is told no names.

    To write one, subclass this, give it a name, and write `run`; `Loop` is the reference. Uploads
    are added, and new states handed to `exchange.keep`, in the order of the clients' numbers and as
    they come, so that those of a whole cohort never exist all at once.
    """

    name: str
    threads: Literal["one", "all"] = "one"  # "all": bits may depend on PyTorch's threads
    lazy_server: bool = False  # whether the server's vectors are lazy too

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Run the program on each client; return the sum of what they sent."""
        ...

    def begin(self, problem: Problem, S: int) -> "Executor":
        """Return what runs one simulation; an executor that keeps nothing of one is its own."""
        return self

    def states(self, memory: int | None) -> StateStore:
        """Return where client states are kept: at most so many bytes in RAM."""
        return ClientStates(memory)

    def facts(self) -> dict[str, Any]:
        """Return what a record should say of it besides its name."""
        return {}

    def close(self) -> None:
        """Give back what was taken for a simulation that has ended."""
        return
