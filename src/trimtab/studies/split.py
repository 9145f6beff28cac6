"""What a study looks at while it runs, and what it keeps for the end: honest splits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from trimtab.core import Algorithm, Vector
from trimtab.problems.clients import problem_notes
from trimtab.problems.metrics import Metric
from trimtab.problems.problem import Problem, with_target_metric
from trimtab.simulation import Rounds, Simulation
from trimtab.studies.chosen import Split
from trimtab.studies.goal import Goal
from trimtab.studies.statistics import NORMAL

Look = Callable[[Vector], dict[str, float]]
"""Measures a model."""

ON_THE_END = "runs were tuned, stopped and compared on the {data}, which flatters all of them."
FEW_ROWS = (
    "the validation rows know {goal.name} to ± {goal.slack:g} (90 %), so a difference counts only "
    "if it also holds for {easier.target:g}."
)
TOO_FEW_ROWS = (
    "the validation rows are too few to tell how well they know {goal.name}, so a difference may "
    "be theirs; hold out more."
)
NO_TEST = "there are no test data: the last numbers are of the rows that were trained on."


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
    simulation: Callable[[Algorithm, Any, Rounds], Any] = Simulation
    on_the_end: bool = False  # whether what is kept for the end decides, though it need not

    @property
    def tested_on(self) -> Literal["test", "training"]:
        """The data of the last numbers."""
        return "test" if self.problem.has_test else "training"

    def slack(self, x: Vector, metric: Metric) -> float | None:
        """Return half the 90 % interval of a metric at x that comes from the few held-out rows.

        0 where nothing is held out, or the problem does not say; None where they are too few.
        """
        error = None if self.split == "none" else self.problem.validation_error
        if error is None:
            return 0.0
        found = error(x, metric.name)
        return None if found is None else float(f"{NORMAL * found:.2g}")

    def notes(self, goal: Goal, untold: bool = False) -> list[str]:
        """Return what a reader must know; untold: rows cannot say how well they know the metric."""
        own = [ON_THE_END.format(data=f"{self.tested_on} data")] if self.on_the_end else []
        own += [NO_TEST] if self.tested_on == "training" and not self.on_the_end else []
        own += [FEW_ROWS.format(goal=goal, easier=goal.easier())] if goal.slack else []
        own += [TOO_FEW_ROWS.format(goal=goal)] if untold else []
        return [*own, *problem_notes(self.problem, goal.metric)]


def held_out(problem: Problem, split: float | None, seed: int, metric: str | None) -> Measured:
    """Return the problem with a part of its samples held out, by the seed, to be looked at."""
    problem = problem if metric is None else with_target_metric(problem, metric)
    if problem.split is None:
        return Measured(problem, problem.evaluate, "none", problem.evaluate)
    given = problem.has_validation
    kept = problem if split is None or given else problem.split(split, seed)
    if split is None or not kept.has_validation:  # The clients may be too small to spare a sample.
        return Measured(problem, problem.evaluate, "none", problem.evaluate, on_the_end=True)
    return Measured(kept, kept.validate, "given" if given else split, kept.evaluate)
