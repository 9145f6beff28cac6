"""A number that says how good a model is, and in which direction."""

from dataclasses import dataclass
from math import inf, isfinite


@dataclass(frozen=True)
class Metric:
    """A name in what `evaluate` returns, whether more of it is better, and where it ends.

    >>> auc = Metric("auc", higher=True, low=0.5, high=1.0)
    >>> auc.allows(0.9), auc.allows(0.3)
    (True, False)
    """

    name: str
    higher: bool = True
    low: float = -inf
    high: float = inf

    def allows(self, target: float) -> bool:
        """Tell whether a target can be wanted: what lies at the worse end is there from the start.

        >>> ACCURACY.allows(0.0), ACCURACY.allows(1.0), LOSS.allows(float("nan"))
        (False, True, False)
        """
        if not isfinite(target):
            return False
        if self.higher:
            return self.low < target <= self.high
        return self.low <= target < self.high

    def __str__(self) -> str:
        return self.name


ACCURACY = Metric("accuracy", higher=True, low=0.0, high=1.0)
LOSS = Metric("loss", higher=False)
