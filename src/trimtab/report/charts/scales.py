"""Axes: from numbers to pixels, their ticks, and the numbers beside these.

page.js has the same rules, for charts that it draws again after a zoom.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10


@dataclass(frozen=True)
class Scale:
    """One axis: the numbers low … high lie at the pixels start … end.

    >>> Scale(0, 10, 0, 200)(5), Scale(1, 100, 0, 200, log=True)(10)
    (100.0, 100.0)
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a number."""
        low, high, at = (log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (at - low) / ((high - low) or 1.0)

    def ticks(self, most: int = 6) -> list[float]:
        """Return round numbers inside the axis.

        >>> Scale(0, 0.95, 0, 1).ticks(), Scale(1, 200, 0, 1, log=True).ticks()
        ([0.0, 0.2, 0.4, 0.6, 0.8], [1.0, 10.0, 100.0])
        """
        if self.log and self.high / self.low >= 8:
            return _log_ticks(self.low, self.high, most)
        return _even_ticks(self.low, self.high, most)


def _even_ticks(low: float, high: float, most: int) -> list[float]:
    raw = (high - low) / most
    if not raw > 0:
        return [low]
    power = 10.0 ** floor(log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * (1 - 1e-9))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [float(f"{j * step:.12g}") for j in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    first, last = ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9)
    every = max(1, ceil((last - first + 1) / most))
    tens = [float(f"1e{e}") for e in range(first, last + 1, every)]
    if len(tens) > 2:
        return tens
    powers = range(floor(log10(low)), last + 1)
    finer = [float(f"{m}e{e}") for e in powers for m in (1, 2, 5)]
    return [tick for tick in finer if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def axis_ends(values: Iterable[float | None], log: bool = False) -> tuple[float, float]:
    """Return the ends of an axis for some values, with a little room.

    >>> axis_ends([None, 1.0, 3.0, float("nan")])
    (0.9, 3.1)
    """
    known = [v for v in values if v is not None and isfinite(v) and (v > 0 or not log)]
    if not known:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(known), max(known)
    if log:
        room = (high / low) ** 0.05 if high > low else 1.5
        return low / room, high * room
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def short(value: float) -> str:
    """Return the text of a number beside a tick.

    >>> [short(v) for v in (0.2, 1500, 2e6, 4e-5, 0, 3e18)]
    ['0.2', '1500', '2M', '4e-5', '0', '3e18']
    """
    size = abs(value)
    if 0 < size < 1e-3 or size >= 1e15:
        digits, _, power = f"{value:.3e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    for least, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= least:
            return f"{value / (1e3 if letter == 'k' else least):.4g}{letter}"
    return f"{value:.4g}"
