"""What an executor is asked to do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trimtab.compute.kernel import BadDataError
from trimtab.compute.tape import Tapes
from trimtab.core import Program, State
from trimtab.problems.problem import Problem


@dataclass(frozen=True)
class Exchange:
    """What is to be done: a program on the clients of one round, with what is sent to them."""

    problem: Problem
    program: Program
    broadcast: tuple[Any, ...]
    state: Callable[[int], State]
    keep: Callable[[int, State], None]  # takes a copy of the client's new state,
    room: Callable[[State], State | None]  # unless it was written into what this lends
    seed: int
    r: int
    tapes: Tapes

    def run(
        self, i: int, g: Callable[..., Any], state: State, broadcast: tuple[Any, ...]
    ) -> tuple[Any, State]:
        """Run the program as client i, whose number an error of its data has."""
        try:
            return self.program(g, state, *broadcast)
        except BadDataError as error:
            raise error.of(i) from None
