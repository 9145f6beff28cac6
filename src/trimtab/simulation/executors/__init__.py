"""Executors run a program on the clients of a cohort. None of them knows an algorithm.

loop      one client after the other, one intra-op thread: the readable reference
fused     the same with all intra-op threads, for modules whose operators use all cores, and with
          lazy vectors; with the other executors the server has one thread too
batched   chunks of the cohort as one (s, d) computation
threads   blocks of clients on one thread per core, with one intra-op thread each
tree-V    clients in V virtual shards, added in a fixed tree: the reference for a cluster
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

# Instances without state are shared by all simulations; `begin` of the others returns a copy.
EXECUTORS: dict[str, Executor] = {
    executor.name: executor for executor in (Loop(), Fused(), Batched(), Threads())
}
_LOG = getLogger("trimtab")


def choose(problem: Problem, S: int) -> Executor:
    """Return the executor for `auto`; `trimtab.problems.paths` has the rules."""
    path = path_of(problem, S)
    _LOG.debug("%s", path)
    return EXECUTORS[path.executor]


def known(name: str) -> bool:
    """Return whether an executor of this name comes with trimtab."""
    return name in EXECUTORS or _tree(name) is not None


def executor_of(wanted: Any, problem: Problem, S: int) -> Executor:
    """Return the executor for a name or an `Executor`, ready for one simulation."""
    if isinstance(wanted, str):
        if wanted == "auto":
            return choose(problem, S)
        if wanted in EXECUTORS:
            return EXECUTORS[wanted]
        # The name of a tree has its number of shards, on which the bits of a checkpoint depend.
        wanted = _tree(wanted) or wanted
    if isinstance(wanted, Executor) and not isinstance(wanted, type):
        return wanted.begin(problem, S)
    names = ", ".join(EXECUTORS)
    raise ValueError(f"executor={wanted!r}; pass auto, {names}, or an instance of Executor.")


def _tree(name: str) -> Tree | None:
    """Return the executor for a name such as tree-16; None for other names."""
    kind, _, shards = name.partition("-")
    return Tree(int(shards)) if kind == "tree" and shards.isdecimal() and int(shards) else None


__all__ = ["EXECUTORS", "Exchange", "Executor", "Tree", "choose", "executor_of", "known"]
