"""What is wanted of a run: a metric, and a target for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf, isfinite
from operator import index
from typing import Any

from trimtab._files import plain
from trimtab.core import Vector
from trimtab.errors import BadArgument
from trimtab.problems.metrics import ACCURACY, Metric
from trimtab.problems.problem import Problem, metric_of
from trimtab.studies.cost import Unit, spent, unit_of
from trimtab.studies.record import RoundLine


@dataclass(frozen=True)
class Goal:
    """A metric at or beyond the target.

    >>> from trimtab.problems.metrics import LOSS
    >>> Goal(ACCURACY, 0.9).reached({"accuracy": 0.91}), Goal(LOSS, 0.1).reached({"loss": 0.2})
    (True, False)
    """

    metric: Metric
    target: float | None = None
    unit: Unit = "rounds"  # in which runs are compared
    slack: float = 0.0  # a metric so much worse is, by the rows that are looked at, as good

    @property
    def name(self) -> str:
        """The metric's name."""
        return self.metric.name

    def to_json(self) -> dict[str, Any]:
        """Return the goal as a record holds it.

        >>> Goal.from_json(Goal(ACCURACY, 0.9).to_json()) == Goal(ACCURACY, 0.9)
        True
        """
        ends: dict[str, Any] = plain({f.name: getattr(self.metric, f.name) for f in fields(Metric)})
        wanted = {"metric": self.name, "range": ends, "target": self.target}
        return wanted | {"prefer": self.unit, "slack": self.slack}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Goal":
        """Read what `to_json` wrote."""
        metric = Metric(**{end: v for end, v in record["range"].items() if v is not None})
        return cls(metric, record["target"], unit_of(record["prefer"]), record["slack"])

    def without_target(self) -> "Goal":
        """Return the goal of whoever runs on."""
        return Goal(self.metric, unit=self.unit)

    def without_messages(self) -> "Goal":
        """Return the goal of those who send nothing: what is sent cannot be preferred."""
        return replace(self, unit="work" if self.unit == "work" else "rounds")

    def easier(self) -> "Goal":
        """Return the easiest goal that the rows cannot tell from this one.

        >>> Goal(ACCURACY, 0.9, slack=0.0312).easier().target
        0.8688
        """
        if self.target is None or not self.slack:
            return self
        target = self.target - self.slack if self.metric.higher else self.target + self.slack
        target = min(max(target, self.metric.low), self.metric.high)
        return replace(self, target=rounded(target, self.slack), slack=0.0)

    def cost(self, rounds: Sequence[RoundLine]) -> float:
        """Return what some rounds cost, in the unit by which runs are compared."""
        return spent(rounds, self.unit)

    def score(self, metrics: Mapping[str, float | None]) -> float:
        """Return how good a model with these metrics is; more is better."""
        value = metrics.get(self.name)
        if value is None or not isfinite(value):
            return -inf
        return float(value) if self.metric.higher else -float(value)

    def reached(self, metrics: Mapping[str, float | None]) -> bool:
        """Tell whether these metrics meet the target."""
        if self.target is None:
            return False
        return self.score(metrics) >= self.score({self.name: self.target})

    def first(self, rounds: Sequence[RoundLine]) -> RoundLine | None:
        """Return the first round that meets the target."""
        return next((line for line in rounds if self.reached(line.metrics)), None)

    def best_round(self, rounds: Sequence[RoundLine]) -> RoundLine | None:
        """Return the first of the best rounds."""
        finite = [line for line in rounds if self.score(line.metrics) > -inf]
        return max(finite, key=lambda line: self.score(line.metrics)) if finite else None

    def rounds_without_gain(self, rounds: Sequence[RoundLine]) -> int:
        """Return how many rounds ago the best one was; all of them if none is finite."""
        line = self.best_round(rounds)
        return len(rounds) if line is None else rounds[-1].r - line.r

    def best(self, rounds: Sequence[RoundLine]) -> float | None:
        """Return the best value seen."""
        line = self.best_round(rounds)
        return None if line is None else line.metrics[self.name]


def rounded(target: float, step: float) -> float:
    """Return a target with four digits, or with more where four would move it by much of a step.

    >>> rounded(0.123456, step=0.01), rounded(1000.4396, step=0.04)
    (0.1235, 1000.44)
    """
    tries = (float(f"{target:.{digits}g}") for digits in range(4, 17))
    return next((short for short in tries if abs(short - target) <= abs(step) / 20), target)


def goal_of(problem: Problem, target: float | None, x: Vector | None = None) -> Goal:
    """Return the goal a problem suggests: its own metric, or accuracy where it has one, or loss."""
    measured = problem.evaluate(problem.x0() if x is None else x)
    metric = metric_of(problem, measured)
    if metric.name not in measured:
        has = ", ".join(map(repr, measured)) or "nothing"
        raise ValueError(
            f"{type(problem).__name__}.evaluate returns {has}, by which nobody can win; return "
            + (
                "'accuracy' or 'loss' too."
                if metric.name == "loss"
                else f"its metric {metric.name!r} too."
            )
        )
    for name, value in measured.items():
        _check_number(problem, name, value)
    taken = sorted({f.name for f in fields(RoundLine)} & set(measured))
    if taken:
        raise ValueError(
            f"{type(problem).__name__}.evaluate returns {taken[0]!r}, which is what the record of "
            "a round calls a number of its own; give the metric another name."
        )
    if target is not None and not metric.allows(target):
        raise BadArgument(
            "target", "{target:{_given}}; pass {_wanted}.", _given=target, _wanted=_wanted(metric)
        )
    return Goal(metric, target)


def _check_number(problem: Problem, name: str, value: Any) -> None:
    """Refuse a metric that is no number; of NumPy or PyTorch it may be."""
    if not isinstance(plain(value), int | float | None) or value is None:
        raise ValueError(
            f"{type(problem).__name__}.evaluate returns {name!r} as {value!r}; return a number, "
            "NaN where it is undefined."
        )


def _wanted(metric: Metric) -> str:
    if metric == ACCURACY:
        return "an accuracy above 0 and at most 1, such as 0.9"
    low, high = ("above", "at most") if metric.higher else ("at least", "below")
    ends = [f"{low} {metric.low:g}"] * isfinite(metric.low)
    ends += [f"{high} {metric.high:g}"] * isfinite(metric.high)
    return f"a finite {metric.name}" + (f" {' and '.join(ends)}" if ends else "")


def round_count(R: int) -> int:
    """Return a number of rounds, or refuse what is none."""
    if isinstance(R, bool) or not hasattr(R, "__index__") or index(R) < 1:
        raise BadArgument("R", "{R:{_given}}; pass a number of rounds R >= 1.", _given=repr(R))
    return index(R)
