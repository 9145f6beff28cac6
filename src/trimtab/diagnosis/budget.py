"""A budget of time, and the list of what it cut short."""

from collections.abc import Callable
from time import perf_counter

CUBE = 1e-9  # the eigenvalues of a d x d matrix take about 1e-9 d^3 seconds

OutOfTime = Callable[[], bool]
"""The question whether the time of a stage is over."""


class Budget:
    """So many seconds from now on, shared out in stages.

    >>> Budget(60.0).out_of_time(0.5), Budget(0.0).out_of_time(0.5)
    (False, True)
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.started = seconds, perf_counter()
        self.cut: list[str] = []  # one sentence for each thing that was cut short

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return perf_counter() - self.started

    def seconds_until(self, share: float) -> float:
        """Return the seconds until this share of all the time is over."""
        return share * self.seconds - self.spent

    def out_of_time(self, share: float) -> bool:
        """Return whether this share of all the time is over."""
        return self.seconds_until(share) < 0

    def until(self, share: float) -> OutOfTime:
        """Return a question: is this share of all the time over?"""
        return lambda: self.out_of_time(share)

    def decomposes(self, d: int, share: float) -> bool:
        """Return whether eigenvalues of a d x d matrix fit in; nothing can interrupt that."""
        return CUBE * d**3 <= self.seconds_until(share)

    def note(self, sentence: str) -> None:
        """Remember what was cut short, once."""
        if sentence not in self.cut:
            self.cut.append(sentence)
