"""Executors: ways to run a program on a cohort. None of them knows an algorithm.

loop      one client after the other, one intra-op thread: the readable reference
fused     the same with all intra-op threads, for modules that keep all cores busy by themselves,
          and with fused vectors; with the other executors the server has one thread too
batched   chunks of the cohort as one (s, d) computation
threads   blocks of clients on as many threads as there are cores, one intra-op thread each
tree-V    clients in V virtual shards, added in a fixed tree: what a cluster is compared with
"""

from logging import getLogger
from typing import Any

from trimtab.problems.paths import path_of
from trimtab.problems.problem import Problem
from trimtab.simulation.executors.batched import Batched
from trimtab.simulation.executors.executor import Exchange, Executor
from trimtab.simulation.executors.loop import Loop
from trimtab.simulation.executors.threads import Fused, Threads
from trimtab.simulation.executors.tree import Tree

EXECUTORS: dict[str, Executor] = {
    executor.name: executor for executor in (Loop(), Fused(), Batched(), Threads())
}
_LOG = getLogger("trimtab")


def choose(problem: Problem, S: int) -> Executor:
    """Return the executor for `auto`; `trimtab.problems.paths` says why it is that one."""
    path = path_of(problem, S)
    _LOG.debug("%s", path)
    return EXECUTORS[path.executor]


def known(name: str) -> bool:
    """Tell whether an executor of this name comes with trimtab."""
    return name in EXECUTORS or _tree(name) is not None


def executor_of(wanted: Any, problem: Problem, S: int) -> Executor:
    """Return the executor of a name, or an executor as it is."""
    if isinstance(wanted, str):
        if wanted == "auto":
            return choose(problem, S)
        if wanted in EXECUTORS:
            return EXECUTORS[wanted]
        wanted = _tree(wanted) or wanted
    if isinstance(wanted, Executor) and not isinstance(wanted, type):
        return wanted.begin(problem, S)
    names = ", ".join(EXECUTORS)
    raise ValueError(f"executor={wanted!r}; pass auto, {names}, or an Executor of your own.")


def _tree(name: str) -> Tree | None:
    """Return the tree of a name such as tree-16; None for other names."""
    kind, _, shards = name.partition("-")
    return Tree(int(shards)) if kind == "tree" and shards.isdecimal() and int(shards) else None


__all__ = ["EXECUTORS", "Exchange", "Executor", "Tree", "choose", "executor_of", "known"]
