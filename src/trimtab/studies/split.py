"""What a study looks at while it runs, and what it keeps for the end: honest splits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trimtab.core import Vector
from trimtab.problems.capabilities import capabilities
from trimtab.problems.metric import Metric
from trimtab.problems.notes import notes
from trimtab.problems.problem import Problem, judged_by
from trimtab.simulation import simulate
from trimtab.studies.chosen import Split

Look = Callable[[Vector], dict[str, float]]
"""Measures a model."""

TEST = "runs were tuned, stopped and compared on the test data, which flatters all of them."


@dataclass(frozen=True)
class Measured:
    """A problem, what is looked at while algorithms are compared, and what is kept for the end.

    split: the share of the samples that is looked at; "given" for validation data of the user's;
    "none" where that is what the end looks at too.
    """

    problem: Problem
    look: Look
    split: Split
    evaluate: Look
    simulation: Callable[..., Any] = simulate
    on_test: bool = False  # whether the test data decide, though they need not

    def notes(self, metric: Metric) -> list[str]:
        """Return what a reader must know of the numbers."""
        return [*([TEST] if self.on_test else []), *notes(self.problem, metric)]


def held_out(problem: Problem, split: float | None, seed: int, metric: str | None) -> Measured:
    """Return the problem with a part of its samples held out, by the seed, to be looked at."""
    problem = problem if metric is None else judged_by(problem, metric)
    can = capabilities(problem)
    if can.split is None:
        return Measured(problem, problem.evaluate, "none", problem.evaluate)
    given = can.validate is not None
    kept = problem if split is None or given else can.split(split, seed)
    look = capabilities(kept).validate
    if split is None or look is None:  # look is None: each client is too small to spare a sample
        return Measured(problem, problem.evaluate, "none", problem.evaluate, on_test=True)
    return Measured(kept, look, "given" if given else split, kept.evaluate)
