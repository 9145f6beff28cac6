"""Executors: ways to run a program on a cohort. None of them knows an algorithm.

loop      one client after the other, one intra-op thread: the readable reference
fused     the same with all intra-op threads, for modules that keep all cores busy by themselves,
          and with fused vectors; with the other executors the server has one thread too
batched   chunks of the cohort as one (s, d) computation
threads   blocks of clients on as many threads as there are cores, one intra-op thread each
"""

from typing import Any

from trimtab.core.threads import KEEPS_CORES_BUSY, WORTH_A_THREAD
from trimtab.problems.capabilities import capabilities
from trimtab.problems.problem import Problem
from trimtab.simulation.executors.batched import Batched
from trimtab.simulation.executors.executor import Exchange, Executor
from trimtab.simulation.executors.fused import Fused
from trimtab.simulation.executors.loop import Loop
from trimtab.simulation.executors.threads import Threads

EXECUTORS: dict[str, Executor] = {
    executor.name: executor for executor in (Loop(), Fused(), Batched(), Threads())
}
OLD_NAMES = {"wide": "fused", "workers": "threads"}  # of version 0.1.0


def choose(problem: Problem, S: int) -> Executor:
    """Return the executor for `auto` (measured; docs/performance.md).

    What a compiled kernel can run: batched, for the kernel itself uses all cores. Large modules
    keep all cores busy by themselves: fused. Middling ones: threads. Small ones spend their time in
    Python, where threads only wait for each other: loop. The number of cores is not asked for: the
    same command gives the same bits wherever it runs.
    """
    can = capabilities(problem)
    if can.play is not None:
        return EXECUTORS["batched"]
    if not can.threads or problem.d < WORTH_A_THREAD:
        return EXECUTORS["loop"]
    if problem.d >= KEEPS_CORES_BUSY:
        return EXECUTORS["fused"]
    return EXECUTORS["loop" if S == 1 else "threads"]


def known(name: str) -> bool:
    """Tell whether an executor of this name comes with trimtab."""
    return OLD_NAMES.get(name, name) in EXECUTORS


def executor_of(wanted: Any, problem: Problem, S: int) -> Executor:
    """Return the executor of a name, or an executor as it is."""
    if isinstance(wanted, str):
        name = OLD_NAMES.get(wanted, wanted)
        if name == "auto":
            return choose(problem, S)
        if name in EXECUTORS:
            return EXECUTORS[name]
    elif isinstance(wanted, Executor) and not isinstance(wanted, type):
        return wanted
    names = ", ".join(EXECUTORS)
    raise ValueError(f"executor={wanted!r}; pass auto, {names}, or an Executor of your own.")


__all__ = ["EXECUTORS", "Exchange", "Executor", "choose", "executor_of", "known"]
