"""A measured number: its value, where a second measurement would lie, and the point it is from."""

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

LEVEL = 0.95  # an interval covers the number in about 95 % of the diagnoses
REPLICATES = 200  # quantiles of 200 replicates are off by about a percent of probability


@dataclass(frozen=True)
class Estimate:
    """A number with the interval in which another seed would find it.

    >>> Estimate(0.5, 0.4, 0.7, "optimum").overlaps(Estimate(0.8, 0.65, 0.9, "optimum"))
    True
    """

    value: float
    low: float
    high: float
    at: str  # the point at which it was measured

    def overlaps(self, other: "Estimate") -> bool:
        """Return whether the two intervals have a number in common."""
        return self.low <= other.high and other.low <= self.high

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    def __str__(self) -> str:
        value, low, high = (f"{number:.3g}" for number in (self.value, self.low, self.high))
        return value if value == low == high else f"{value} ({low} to {high})"


def estimated(
    value: float, replicates: Tensor, at: str, slack: float = 0.0, least: float = 0.0
) -> Estimate:
    """Return the value with the interval of its replicates.

    slack: what rounding, or an iteration that ended, may have left out on either side. least: what
    the number cannot be below.

    >>> print(estimated(2.0, torch.linspace(1.9, 2.4, 1001).double(), "start"))
    2 (1.91 to 2.39)
    """
    finite = replicates[torch.isfinite(replicates)].double()
    if not isfinite(value):
        return Estimate(value, value, value, at)
    low = high = value
    if len(finite):
        ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
        low, high = torch.quantile(finite, ends).tolist()
    return Estimate(value, min(value, max(least, low - slack)), max(value, high + slack), at)
