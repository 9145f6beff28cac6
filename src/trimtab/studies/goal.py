"""What is wanted of a run: a metric, and a target for it."""

from dataclasses import dataclass
from math import inf, isfinite
from operator import index
from typing import Any

from trimtab.core import Vector
from trimtab.problems.problem import Problem


@dataclass(frozen=True)
class Goal:
    """What is wanted: accuracy at or above the target, or loss at or below it.

    >>> goal = Goal("accuracy", 0.9)
    >>> goal.reached({"accuracy": 0.91}), Goal("loss", 0.1).reached({"loss": 0.2})
    (True, False)
    """

    metric: str
    target: float | None = None

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return self.metric != "loss"

    def score(self, line: dict[str, Any]) -> float:
        """Return how good a round is; more is better."""
        value = line.get(self.metric)
        if value is None or not isfinite(value):
            return -inf
        return float(value) if self.higher else -float(value)

    def reached(self, line: dict[str, Any]) -> bool:
        """Tell whether a round meets the target."""
        if self.target is None:
            return False
        return self.score(line) >= self.score({self.metric: self.target})

    def first(self, rounds: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the first round that meets the target."""
        return next((line for line in rounds if self.reached(line)), None)

    def best_round(self, rounds: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the first of the best rounds."""
        finite = [line for line in rounds if self.score(line) > -inf]
        return max(finite, key=self.score) if finite else None

    def best(self, rounds: list[dict[str, Any]]) -> float | None:
        """Return the best value seen."""
        line = self.best_round(rounds)
        return None if line is None else float(line[self.metric])


def goal_of(problem: Problem, target: float | None, x: Vector | None = None) -> Goal:
    """Return the goal a problem suggests: accuracy where it has one, else loss."""
    measured = problem.evaluate(problem.x0() if x is None else x)
    metric = "accuracy" if "accuracy" in measured else "loss"
    if metric not in measured:
        has = ", ".join(map(repr, measured)) or "nothing"
        raise ValueError(
            f"{type(problem).__name__}.evaluate returns {has}, by which nobody can win; return "
            "'accuracy' or 'loss' too."
        )
    if target is not None and (
        not isfinite(target) or (metric == "accuracy" and not 0 < target <= 1)
    ):
        raise ValueError(f"target={target}; pass an accuracy above 0 and at most 1, such as 0.9.")
    return Goal(metric, target)


def round_count(R: int) -> int:
    """Return a number of rounds, or refuse what is none."""
    if isinstance(R, bool) or not hasattr(R, "__index__") or index(R) < 1:
        raise ValueError(f"R={R!r}; pass a number of rounds R >= 1.")
    return index(R)
