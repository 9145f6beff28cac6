"""The budget of a comparison: sample gradients for each algorithm, and a deadline by the clock.

Minutes are turned once into sample gradients. From there on the results depend on the number of
sample gradients alone, unless the deadline passes first.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import floor, inf, isfinite, log10
from numbers import Real
from statistics import median
from time import monotonic

from trimtab.errors import BadArgument
from trimtab.studies.goal import Goal, cost_of
from trimtab.studies.record import RoundDone
from trimtab.studies.trial import Trial

TIMED_ROUNDS = 16  # after one that is not timed, since it loads the data
TIMED_SECONDS = 0.5  # No more rounds of a trial are timed after this time.


class Stopped(Exception):
    """The next round does not fit in the budget, or the time has passed; str() says which."""


@dataclass(frozen=True)
class Deadline:
    """When a comparison ends, whatever is left of its budget."""

    minutes: float
    started: float = field(default_factory=monotonic)

    @property
    def elapsed(self) -> float:
        """The seconds since the start."""
        return monotonic() - self.started

    def until(self, share: float) -> float:
        """Return the seconds that are left of a share of the minutes."""
        return 60 * self.minutes * share - self.elapsed


class Ledger:
    """What one algorithm has spent, asked before each of its rounds.

    budget: in sample gradients. round_cost: the sample gradients that a round costs besides its
    own, since it takes time to send and to measure models. The budget is exceeded by at most one
    round, the first one of a candidate, whose cost is unknown.
    """

    def __init__(self, budget: float = inf, round_cost: float = 0.0) -> None:
        self.budget, self.round_cost = budget, round_cost
        self.spent, self.limit = 0.0, budget
        self._stage_began, self._seconds, self._ends = monotonic(), inf, inf

    def begin_stage(self, seconds: float) -> None:
        """Start the clock of a stage, which has so many seconds."""
        self._stage_began, self._seconds = monotonic(), seconds
        self._ends = self._stage_began + seconds

    def allow(self, share: float, of_stage: float = 1.0) -> None:
        """Allow a share of the budget, with all that was spent before, and of the stage's time."""
        self.limit = share * self.budget
        self._ends = self._stage_began + of_stage * self._seconds

    @contextmanager
    def half(self) -> Iterator[None]:
        """Allow half of what is left."""
        limit = self.limit
        self.limit = inf if limit == inf else (self.spent + limit) / 2
        try:
            yield
        finally:
            self.limit = limit

    @property
    def left(self) -> float:
        """What may still be spent in this stage."""
        return self.limit - self.spent

    def ask(self, cost: float, recorded: bool = False) -> None:
        """Raise Stopped if a round of this expected cost does not fit.

        recorded: the round was run before an interruption, so that it takes no time.
        The very first round always fits, so that every algorithm has something to show.
        """
        if not self.spent:
            return
        if self.spent + cost > self.limit:
            raise Stopped("budget")
        if not recorded and monotonic() > self._ends:
            raise Stopped("time")

    def charge(self, work: float) -> float:
        """Add a round, and return what it cost."""
        cost = work + self.round_cost
        self.spent += cost
        return cost


@dataclass(frozen=True)
class Budget:
    """The sample gradients of each algorithm, and what a round costs besides its own."""

    gradients: float = inf
    round_cost: float = 0.0

    def ledger(self) -> Ledger:
        """Return a ledger for one algorithm."""
        return Ledger(self.gradients, self.round_cost)


def timed_budget(
    trials: Sequence[Trial], goal: Goal, seconds: float
) -> Generator[RoundDone, None, Budget]:
    """Return how many sample gradients fit in so many seconds, from a few timed rounds.

    A round takes seconds = a + b work. The trials differ in K, so that two of them give a and b; a
    round costs as much as a/b sample gradients besides its own. The median round of each counts,
    since another program may hold up a single one.
    """
    found: list[tuple[float, float]] = []  # work and seconds of a round
    for trial in trials:
        yield from trial.advance(1, goal.without_target())
        began, times = monotonic(), list[float]()
        while len(times) < TIMED_ROUNDS and monotonic() - began < TIMED_SECONDS:
            if trial.diverged:
                break
            started = monotonic()
            yield from trial.advance(len(trial.rounds) + 1, goal.without_target())
            times.append(max(1e-9, monotonic() - started))
        if times:
            work = cost_of(trial.rounds).work / len(trial.rounds)
            found.append((work, median(times)))
    a, b = _line(found)
    if b == 0:
        return Budget()
    return Budget(two_digits(seconds / b), two_digits(a / b) if a > 0 else 0.0)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return a >= 0 and b > 0 of seconds = a + b work; b = 0 if no round has any work.

    >>> _line([(10, 3.0), (110, 8.0)])
    (2.5, 0.05)
    """
    known = sorted(point for point in points if point[0] > 0)
    if not known:
        return 0.0, 0.0
    (low, fast), (high, slow) = known[0], known[-1]
    if high > low and slow > fast:
        b = (slow - fast) / (high - low)
        return max(0.0, fast - b * low), b
    # Timing noise hides the work: charge all of the time to the work of the larger round.
    return 0.0, max(fast, slow) / high


def two_digits(value: float) -> float:
    """Return a number with two digits, rounded down.

    >>> two_digits(123456.0), two_digits(98.7)
    (120000.0, 98.0)
    """
    if not 1 <= value < inf:
        return max(1.0, value)
    size = 10 ** (floor(log10(value)) - 1)
    return float(floor(value / size) * size)


def check_budget(minutes: float | None, budget: float | None, round_cost: float) -> None:
    """Raise BadArgument if a value is not a positive number."""
    for name, value, what in (
        ("minutes", minutes, "a positive number of minutes"),
        ("budget", budget, "a positive number of sample gradients"),
    ):
        number = isinstance(value, Real) and not isinstance(value, bool)
        if value is not None and not (number and value > 0):
            raise _bad(name, value, what)
    if not isinstance(round_cost, Real) or not (round_cost >= 0 and isfinite(round_cost)):
        raise _bad("round_cost", round_cost, "a number of sample gradients >= 0")
    if round_cost and budget is None:
        raise _bad("round_cost", round_cost, "a budget too, to which it belongs")


def _bad(name: str, value: object, what: str) -> BadArgument:
    return BadArgument(name, f"{{{name}:{{_given}}}}; pass {{_what}}.", _given=value, _what=what)
