"""What a run should reach: a metric, a target for it, and what the rounds to it cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf, isfinite
from operator import index
from typing import Any, Literal

from trimtab._files import plain
from trimtab.core import Vector, plain_number
from trimtab.errors import BadArgument
from trimtab.problems.metrics import ACCURACY, LOSS, Metric
from trimtab.problems.problem import Problem, metric_of
from trimtab.studies.record import RoundLine

Unit = Literal["rounds", "exchanges", "bytes", "work"]
"""The cost by which runs are compared; work counts the sample gradients of the clients."""

UNIT_TITLES: dict[Unit, str] = {
    "rounds": "rounds",
    "exchanges": "exchanges",
    "bytes": "bytes",
    "work": "sample gradients",
}


@dataclass(frozen=True)
class Cost:
    """The cost of some rounds."""

    rounds: int
    exchanges: int
    bytes: int
    work: int
    seconds: float


def cost_of(lines: Sequence[RoundLine]) -> Cost:
    """Return the total cost of rounds."""
    return Cost(
        rounds=len(lines),
        exchanges=sum(line.exchanges for line in lines),
        bytes=sum(line.bytes_down + line.bytes_up for line in lines),
        work=sum(line.work for line in lines),
        seconds=sum(line.seconds for line in lines),
    )


def unit_named(prefer: str) -> Unit:
    """Return the unit of a name; raise BadArgument if there is none."""
    for unit in UNIT_TITLES:
        if prefer == unit:
            return unit
    raise BadArgument(
        "prefer", "{prefer:{_given}}; pass rounds, exchanges, bytes or work.", _given=prefer
    )


class HeldTarget:
    """Finds the first round that holds a target, looking at each round once.

    A round holds the target if it meets it and at most a quarter of the next max(2, r // 4) rounds
    miss it. One lucky round does not count then, and one unlucky round after the target does not
    matter.

    >>> lucky, steady = HeldTarget(0.8), HeldTarget(0.8)
    >>> lucky.add([0.1, 0.9, 0.3, 0.2]).round, steady.add([0.1, 0.8, 0.9, 0.9]).round
    (None, 2)
    """

    def __init__(self, target: float) -> None:
        self.target = target  # a score, of which more is better
        self.round: int | None = None
        self._misses = [0]  # in the first n rounds, for each n
        self._open: list[int] = []  # rounds that met the target and may hold it

    def add(self, scores: Sequence[float]) -> "HeldTarget":
        """Continue with the scores of all rounds so far."""
        for score in scores[len(self._misses) - 1 :]:
            met = score >= self.target
            self._misses.append(self._misses[-1] + (not met))
            r = len(self._misses) - 1
            if met and self.round is None:
                self._open.append(r)
            while self._open and self.round is None:
                first = self._open[0]
                length = max(2, first // 4)
                missed = self._misses[min(r, first + length)] - self._misses[first]
                if missed > length // 4:
                    del self._open[0]
                elif r >= first + length:
                    self.round = first
                else:
                    break
        return self

    def undecided(self, to: int) -> bool:
        """Return whether a round up to `to` may still turn out to hold the target."""
        return self.round is None and bool(self._open) and self._open[0] <= to


def crossing(scores: Sequence[float], target: float, r: int) -> float:
    """Return where a straight line from round r - 1 to round r meets the target.

    >>> crossing([0.0, 0.5, 0.9], 0.8, 3)
    2.75
    """
    if r == 1 or not scores[r - 2] < target:
        return float(r)
    return r - (scores[r - 1] - target) / (scores[r - 1] - scores[r - 2])


@dataclass(frozen=True)
class Goal:
    """A metric at or beyond the target.

    >>> from trimtab.problems.metrics import LOSS
    >>> Goal(ACCURACY, 0.9).reached({"accuracy": 0.91}), Goal(LOSS, 0.1).reached({"loss": 0.2})
    (True, False)
    """

    metric: Metric
    target: float | None = None
    unit: Unit = "rounds"
    slack: float = 0.0  # the 90 % error of the metric on the held-out rows

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
        return cls(metric, record["target"], unit_named(record["prefer"]), record["slack"])

    def without_target(self) -> "Goal":
        """Return the goal of a run that ends with its last round."""
        return Goal(self.metric, unit=self.unit)

    def without_communication(self) -> "Goal":
        """Return the goal of a baseline that sends nothing, so that bytes cannot be preferred."""
        return replace(self, unit="work" if self.unit == "work" else "rounds")

    def easier(self) -> "Goal":
        """Return the easiest goal that lies within the error of the held-out rows.

        >>> Goal(ACCURACY, 0.9, slack=0.0312).easier().target
        0.8688
        """
        if self.target is None or not self.slack:
            return self
        target = self.target - self.slack if self.metric.higher else self.target + self.slack
        target = min(max(target, self.metric.low), self.metric.high)
        return replace(self, target=rounded(target, self.slack), slack=0.0)

    def cost(self, rounds: Sequence[RoundLine]) -> float:
        """Return the cost of some rounds, in the unit by which runs are compared."""
        return float(getattr(cost_of(rounds), self.unit))

    def score(self, metrics: Mapping[str, float | None]) -> float:
        """Return the score of a model with these metrics; more is better."""
        value = metrics.get(self.name)
        if value is None or not isfinite(value):
            return -inf
        return float(value) if self.metric.higher else -float(value)

    def reached(self, metrics: Mapping[str, float | None]) -> bool:
        """Return whether these metrics meet the target."""
        if self.target is None:
            return False
        return self.score(metrics) >= self.score({self.name: self.target})

    def first(self, rounds: Sequence[RoundLine]) -> RoundLine | None:
        """Return the first round that meets the target, whether or not it holds it."""
        return next((line for line in rounds if self.reached(line.metrics)), None)

    def tracker(self) -> HeldTarget:
        """Return a search for the first round that holds the target; without a target, none."""
        return HeldTarget(inf if self.target is None else self.score({self.name: self.target}))

    def held(self, rounds: Sequence[RoundLine]) -> RoundLine | None:
        """Return the first round that holds the target."""
        r = self.tracker().add([self.score(line.metrics) for line in rounds]).round
        return None if r is None else rounds[r - 1]

    def cost_to_target(self, rounds: Sequence[RoundLine]) -> Cost | None:
        """Return the cost of the rounds up to the one that holds the target; None if none does."""
        line = self.held(rounds)
        return None if line is None else cost_of(rounds[: line.r])

    def best_round(self, rounds: Sequence[RoundLine]) -> RoundLine | None:
        """Return the first of the best rounds."""
        finite = [line for line in rounds if self.score(line.metrics) > -inf]
        return max(finite, key=lambda line: self.score(line.metrics)) if finite else None

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
    """Return the goal that a problem suggests: its own metric, else accuracy, else loss."""
    measured = problem.evaluate(problem.x0() if x is None else x)
    metric = metric_of(problem, measured)
    if metric.name not in measured:
        has = ", ".join(map(repr, measured)) or "nothing"
        raise ValueError(
            f"{type(problem).__name__}.evaluate returns {has}, "
            "which no algorithm can be judged by; return "
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
            f"{type(problem).__name__}.evaluate returns {taken[0]!r}, which is a field of every "
            "round's record; give the metric another name."
        )
    check_target(target, metric, problem.least_loss)
    return Goal(metric, None if target is None else float(target))


def check_target(target: float | None, metric: Metric, least_loss: float = -inf) -> None:
    """Raise BadArgument if a target is not a number, or no model can reach it or all do."""
    if metric.name == LOSS.name:
        metric = replace(metric, low=max(metric.low, least_loss))
    if target is None:
        return
    number = plain_number(target)
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_number or not metric.allows(number):
        raise BadArgument(
            "target",
            "{target:{_given}}; pass {_wanted}.",
            _given=repr(number),
            _wanted=_wanted(metric),
        )


def _check_number(problem: Problem, name: str, value: Any) -> None:
    """Raise ValueError if a metric is not a number of Python, NumPy or PyTorch."""
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


def checked_count(name: str, count: int, what: str) -> int:
    """Return a count as an int; raise BadArgument if it is not a whole number from 1.

    name: the argument. what: the things that it counts.
    """
    if isinstance(count, bool) or not hasattr(count, "__index__") or index(count) < 1:
        sentence = f"{{{name}:{{_given}}}}; pass a number of {what} >= 1."
        raise BadArgument(name, sentence, _given=repr(count))
    return index(count)
