"""Choose how the gradients of a cohort are computed, and explain why no faster path applies.

The decision selects the executor of `auto` and is shown by `problem.explain()`. It depends on the
problem and S alone, not on a clock or the number of cores, so that bits depend on neither.
"""

from dataclasses import dataclass, replace

from trimtab.core.threads import KEEPS_CORES_BUSY, WORTH_A_THREAD
from trimtab.problems.problem import Problem

# Capturing a graph takes longer than it saves for cohorts below this size (docs/performance.md).
WORTH_A_GRAPH = 8


@dataclass(frozen=True)
class GradientPath:
    """A way to compute gradients, with the executor that uses it."""

    name: str
    executor: str
    why: str
    rejected: tuple[str, ...] = ()  # why the faster paths do not apply

    def __str__(self) -> str:
        first = f"{self.name} (executor {self.executor}): {self.why}."
        return "\n".join([first, *(f"not the {reason}." for reason in self.rejected)])


def path_of(problem: Problem, S: int) -> GradientPath:
    """Return the gradient path of a problem in rounds of S clients (docs/performance.md).

    >>> from trimtab import Quadratic
    >>> path_of(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0]), S=2).name
    'loop'
    """
    if problem.kernel is not None:
        return GradientPath(
            "kernel", "batched", "a compiled kernel runs the local steps on all cores"
        )
    rejected: list[str] = []
    if problem.why_no_kernel is not None:
        rejected.append(f"kernel: {problem.why_no_kernel()}")
    if problem.why_not_vectorised is not None:
        few = f"S = {S} clients per round are fewer than {WORTH_A_GRAPH}; sample more"
        why_not = few if S < WORTH_A_GRAPH else problem.why_not_vectorised()
        if not why_not:
            why = "the gradients of a chunk of clients are one graph, captured once and replayed"
            return GradientPath("captured vmap", "batched", why, tuple(rejected))
        rejected.append(f"captured vmap: {why_not}")
    return replace(_one_by_one(problem.d, S, problem.threads), rejected=tuple(rejected))


def _one_by_one(d: int, S: int, threads: bool) -> GradientPath:
    if not threads:
        return GradientPath("loop", "loop", "this problem is computed one client after the other")
    if d < WORTH_A_THREAD:
        why = f"with d = {d:,} the time goes into Python, where threads wait for each other"
        return GradientPath("loop", "loop", why)
    if d >= KEEPS_CORES_BUSY:
        why = f"d = {d:,} keeps all cores busy by itself"
        return GradientPath("fused", "fused", why)
    if S == 1:
        return GradientPath(
            "loop", "loop", "there is one client per round, and threads run one client each"
        )
    why = f"a client with d = {d:,} is worth its own thread"
    return GradientPath("threads", "threads", why)
