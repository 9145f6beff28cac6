"""The readable reference executor: one client after the other, in the order of their numbers."""

from collections.abc import Callable, Iterable
from typing import Any

from trimtab.core import Program, State
from trimtab.problems.problem import Problem
from trimtab.simulation.replies import Tally
from trimtab.threads import one_thread


def loop(
    problem: Problem,
    program: Program,
    broadcast: tuple[Any, ...],
    clients: Iterable[int],
    state: Callable[[int], State],
    seed: int,
    r: int,
) -> tuple[Tally, dict[int, State]]:
    """Run `program` on every client; return the tally of uploads and the clients' new states."""
    tally, states = Tally(), {}
    with one_thread():
        for i in clients:
            upload, states[i] = program(problem.oracle(i, seed, r), state(i), *broadcast)
            tally.add(float(problem.weights[i]), upload, states[i])
    return tally, states
