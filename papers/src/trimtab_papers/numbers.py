"""Numbers and curves as records hold them: few of them, and no more digits than they deserve."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Curve:
    """A thinned curve: the rounds that were kept, and the values there."""

    rounds: list[int]
    values: list[float]

    def to_json(self) -> dict[str, list[Any]]:
        """Return what a record holds."""
        return {"rounds": self.rounds, "values": self.values}


def rounded(record: dict[str, Any], digits: int = 6) -> dict[str, Any]:
    """Return a record with its floats, however deep, rounded to significant digits.

    >>> rounded({"f": [1234567.8, 0.1 + 0.2], "K": 10})
    {'f': [1234570.0, 0.3], 'K': 10}
    """
    return {key: _rounded(value, digits) for key, value in record.items()}


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return rounded(value, digits)
    if isinstance(value, list | tuple):
        return [_rounded(v, digits) for v in value]
    return value


def thinned(values: Sequence[float], most: int = 300) -> Curve:
    """Return at most so many points of a curve that starts at round 0, both ends among them.

    >>> thinned([1.0, 0.5, 0.25, 0.125, 0.0625], most=3)
    Curve(rounds=[0, 2, 4], values=[1.0, 0.25, 0.0625])
    """
    kept = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int).tolist()
    return Curve(kept, [_rounded(float(values[r]), 6) for r in kept])


def first_below(values: Sequence[float], target: float) -> int | None:
    """Return the first round at or below the target; the curve starts at round 0.

    >>> first_below([1.0, 0.5, 0.25], 0.3), first_below([1.0, 0.5], 0.3)
    (2, None)
    """
    return next((r for r, value in enumerate(values) if value <= target), None)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent p of y ~ x^p, by least squares.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit([log(v) for v in x], [log(v) for v in y], 1)[0])


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """Return the mean, and behind it the least and the greatest if one can tell them apart.

    >>> spread([1.5]), spread([1.0, 2.0]), spread([1.5, 1.5001])
    ('1.5', '1.5 (1 to 2)', '1.5')
    """
    mean, low, high = (f"{value:{form}}" for value in (fmean(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"
