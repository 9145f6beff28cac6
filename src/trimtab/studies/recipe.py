"""How a problem is made from what a user types, so that another process can make it too."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trimtab.problems.adapter import as_problem
from trimtab.problems.loading import load_problem_and_target
from trimtab.problems.problem import Problem
from trimtab.studies.start import weighted


@dataclass(frozen=True)
class Recipe:
    """A name or `file.py:function`, and the options it is called with.

    >>> Recipe("digits", batch=16).made[0].batch
    16
    """

    spec: str
    seed: int = 0
    batch: int | float | None = None
    data: Path | None = None
    partition: str | None = None
    weights: str | None = None

    @cached_property
    def made(self) -> tuple[Problem, float | None]:
        """The problem, and the target it suggests; made once."""
        problem, target = load_problem_and_target(
            self.spec, partition=self.partition, batch=self.batch, data=self.data, seed=self.seed
        )
        return weighted(as_problem(problem), self.weights), target
