"""The budget of a comparison: sample gradients for each algorithm, and a deadline by the clock.

Minutes are turned once into sample gradients. From there on the results depend on the number of
sample gradients alone, unless the deadline passes first.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor, inf, isfinite, log10
from numbers import Real
from time import monotonic

from trimtab.errors import BadArgument

TIME = "time"


class Stopped(Exception):
    """The next round does not fit in the budget, or the time has passed; str() says which."""


class Deadline:
    """When a comparison ends, whatever is left of its budget."""

    def __init__(self, minutes: float) -> None:
        self.minutes, self.started = minutes, monotonic()

    def until(self, share: float) -> float:
        """Return the seconds that are left of a share of the minutes."""
        return 60 * self.minutes * share - (monotonic() - self.started)


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
            raise Stopped(TIME)

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


def budget_of(points: Sequence[tuple[float, float]], seconds: float) -> Budget:
    """Return how many sample gradients fit in so many seconds, from the work and time of rounds.

    A round takes a + b work seconds, so that it costs a/b sample gradients besides its own.

    >>> budget_of([(10, 3.0), (110, 8.0)], seconds=60.0)
    Budget(gradients=1200.0, round_cost=50.0)
    """
    known = sorted(point for point in points if point[0] > 0)
    if not known:
        return Budget()
    (low, fast), (high, slow) = known[0], known[-1]
    # Where timing noise hides the work, all of the time is that of the larger round's work.
    a, b = 0.0, max(fast, slow) / high
    if high > low and slow > fast:
        b = (slow - fast) / (high - low)
        a = max(0.0, fast - b * low)
    return Budget(two_digits(seconds / b), two_digits(a / b) if a > 0 else 0.0)


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
