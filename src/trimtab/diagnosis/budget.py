"""A budget of time, and a list of what it cut short."""

from collections.abc import Callable
from time import perf_counter

CUBE = 1e-9  # seconds times d^3: about what the eigenvalues of a d x d matrix take


class Clock:
    """So many seconds from now on, shared out in stages.

    >>> clock = Clock(60.0)
    >>> clock.until(0.5)(), Clock(0.0).until(0.5)()
    (False, True)
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.started = seconds, perf_counter()
        self.cut: list[str] = []  # sentences

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return perf_counter() - self.started

    def left(self, share: float) -> float:
        """Return the seconds until this share of all the time is over."""
        return share * self.seconds - self.spent

    def until(self, share: float) -> Callable[[], bool]:
        """Return a question: is this share of all the time over?"""
        return lambda: self.left(share) < 0

    def over(self, share: float) -> bool:
        """Tell whether this share of all the time is over."""
        return self.left(share) < 0

    def decomposes(self, d: int, share: float) -> bool:
        """Tell whether eigenvalues of a matrix of this size fit in; nothing can interrupt that."""
        return CUBE * d**3 <= self.left(share)

    def note(self, sentence: str) -> None:
        """Remember what was cut short, once."""
        if sentence not in self.cut:
            self.cut.append(sentence)
