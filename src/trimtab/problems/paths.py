"""Which way the gradients of a cohort are computed, why, and what keeps a faster one away.

The same decision chooses the executor of `auto` and is told by `problem.explain()`. It asks for
the problem and S alone: no clock, no number of cores, so that bits depend on neither.
"""

from dataclasses import dataclass, replace

from trimtab.core.threads import KEEPS_CORES_BUSY, WORTH_A_THREAD
from trimtab.problems.problem import Problem

WORTH_A_GRAPH = 8  # a cohort of S >= 8 clients is worth a graph


@dataclass(frozen=True)
class Path:
    """A way to compute gradients, by one of the executors that come with trimtab."""

    name: str
    executor: str
    why: str
    passed_over: tuple[str, ...] = ()  # why those that are tried before it are not taken

    def __str__(self) -> str:
        """Return it as a few lines of text."""
        first = f"{self.name} (executor {self.executor}): {self.why}."
        return "\n".join([first, *(f"not the {reason}." for reason in self.passed_over)])


def path_of(problem: Problem, S: int) -> Path:
    """Return the way that a problem takes in rounds of S clients (measured; docs/performance.md).

    >>> from trimtab import Quadratic
    >>> path_of(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0]), S=2).name
    'loop'
    """
    if problem.kernel is not None:
        return Path("kernel", "batched", "a compiled kernel runs the local steps on all cores")
    passed_over: list[str] = []
    if problem.why_no_kernel is not None:
        passed_over.append(f"kernel: {problem.why_no_kernel()}")
    if problem.why_not_vectorised is not None:
        few = f"S = {S} clients a round are fewer than {WORTH_A_GRAPH}; take more of them"
        why_not = few if S < WORTH_A_GRAPH else problem.why_not_vectorised()
        if not why_not:
            why = "the gradients of a chunk of clients are one graph, captured once and replayed"
            return Path("captured vmap", "batched", why, tuple(passed_over))
        passed_over.append(f"captured vmap: {why_not}")
    return replace(_one_by_one(problem.d, S, problem.threads), passed_over=tuple(passed_over))


def _one_by_one(d: int, S: int, threads: bool) -> Path:
    if not threads:
        return Path("loop", "loop", "this problem is computed one client after the other")
    if d < WORTH_A_THREAD:
        why = f"with d = {d:,} the time goes into Python, where threads wait for each other"
        return Path("loop", "loop", why)
    if d >= KEEPS_CORES_BUSY:
        why = f"d = {d:,} keeps all cores busy by itself"
        return Path("fused", "fused", why)
    if S == 1:
        return Path("loop", "loop", "there is one client a round, and a thread for each client")
    why = f"a client with d = {d:,} is worth a thread of its own"
    return Path("threads", "threads", why)
