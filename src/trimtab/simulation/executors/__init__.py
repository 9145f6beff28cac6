"""Executors: ways to run a program on a cohort. None of them knows an algorithm.

loop      one client after the other, one intra-op thread: the readable reference
wide      the same with all intra-op threads, for modules that keep all cores busy by themselves,
          and with fused vectors; with the other executors the server has one thread too
batched   chunks of the cohort as one (s, d) computation
workers   blocks of clients on as many threads as there are cores, one intra-op thread each

Each of them adds the uploads and hands on the new states as they come, so that those of a whole
cohort never exist all at once.
"""

from collections.abc import Callable, Sequence

from trimtab.core.replies import Tally
from trimtab.problems.problem import Problem
from trimtab.simulation.executors.batched import batched
from trimtab.simulation.executors.exchange import Exchange
from trimtab.simulation.executors.fused import wide
from trimtab.simulation.executors.loop import loop
from trimtab.simulation.executors.threads import workers

Executor = Callable[[Exchange, Sequence[int]], Tally]

EXECUTORS: dict[str, Executor] = {
    "loop": loop,
    "wide": wide,
    "batched": batched,
    "workers": workers,
}
_ALL_THREADS = frozenset({"wide"})  # these compute with as many intra-op threads as PyTorch has


def choose(problem: Problem, S: int) -> str:
    """Return the executor for `auto`.

    A problem may say what it wants (`problem.executor`); else small ones take the loop, where
    threads would only wait for each other. The number of cores is not asked for: the same command
    gives the same bits wherever it runs.
    """
    wanted = getattr(problem, "executor", "loop")
    return "loop" if wanted == "workers" and S == 1 else str(wanted)


def bits_depend_on_threads(executor: str) -> bool:
    """Tell whether another number of cores, or of PyTorch's threads, may give other bits."""
    return executor in _ALL_THREADS


__all__ = ["EXECUTORS", "Exchange", "Executor", "bits_depend_on_threads", "choose"]
