"""What a search may cost: minutes, turned once into sample gradients, so that it can be repeated.

From there on what is run depends on the number of sample gradients alone, wherever it runs.
"""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from math import floor, inf, log10
from numbers import Real
from statistics import fmean, median
from time import monotonic

from trimtab.errors import BadArgument
from trimtab.studies.goal import Goal, cost_of
from trimtab.studies.record import RoundDone
from trimtab.studies.trial import Trial

TIMED = 16  # rounds are timed, each by itself, after one that is not
ENOUGH = 0.5  # seconds of timed rounds tell, however few they are
TIMED_STEP = 1e-12  # with steps so small no timed round diverges; it takes as long as another
PATIENCE = 1.5  # a comparison stops after the rung under way, past 1.5 x its minutes


def sample_gradients(
    trials: Sequence[Trial], goal: Goal, minutes: float, lanes: int
) -> Generator[RoundDone, None, float]:
    """Return how many sample gradients each of so many algorithms has, by a few timed rounds.

    Rounds of few steps take more time for each of them; the trials differ in K, and their mean
    counts. What a round costs besides gradients, such as measuring x, is in it. The median round
    counts: one that another program held up says nothing of the others.
    """
    rates: list[float] = []  # seconds for a sample gradient
    for trial in trials:
        yield from trial.advance(1, goal.without_target())
        began = monotonic()
        seen: list[float] = []
        while len(seen) < TIMED and monotonic() - began < ENOUGH:
            started, r = monotonic(), len(trial.rounds)
            yield from trial.advance(r + 1, goal.without_target())
            done = cost_of(trial.rounds[r:]).work
            if not done:
                break
            seen.append(max(1e-9, (monotonic() - started) / done))
        rates += [median(seen)] if seen else []
    return two_digits(60 * minutes / lanes / fmean(rates)) if rates else inf


def two_digits(value: float) -> float:
    """Return a number with two digits, rounded down.

    >>> two_digits(123456.0), two_digits(98.7)
    (120000.0, 98.0)
    """
    if not 1 <= value < inf:
        return max(1.0, value)
    size = 10 ** (floor(log10(value)) - 1)
    return float(floor(value / size) * size)


@dataclass(frozen=True)
class Deadline:
    """When a search stops, whatever is left of its budget."""

    minutes: float | None
    started: float

    @classmethod
    def of(cls, minutes: float | None) -> "Deadline":
        """Start the clock."""
        return cls(minutes, monotonic())

    @property
    def elapsed(self) -> float:
        """The seconds since the start."""
        return monotonic() - self.started

    def passed(self) -> bool:
        """Tell whether 1.5 times the minutes are over."""
        return self.minutes is not None and self.elapsed > PATIENCE * 60 * self.minutes


@dataclass
class Clock:
    """A deadline as one lane sees it: first what another process was told, then the time.

    A lane that ran in another process is gone through here once more, and stops where it did there.
    """

    deadline: Deadline
    told: deque[bool] = field(default_factory=deque)  # there, and not yet here
    said: list[bool] = field(default_factory=list)  # all that was said here

    def passed(self) -> bool:
        """Tell whether it is time to stop."""
        self.said.append(self.told.popleft() if self.told else self.deadline.passed())
        return self.said[-1]


def check_budget(minutes: float | None, budget: float | None) -> None:
    """Refuse what is no time, or no number of sample gradients."""
    for name, value, what in (
        ("minutes", minutes, "a positive number of minutes"),
        ("budget", budget, "a positive number of sample gradients"),
    ):
        number = isinstance(value, Real) and not isinstance(value, bool)
        if value is not None and not (number and value > 0):
            raise BadArgument(
                name, f"{{{name}:{{_given}}}}; pass {{_what}}.", _given=value, _what=what
            )
