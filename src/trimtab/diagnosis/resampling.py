"""A measured number with its interval, and what else might have been drawn in its place."""

from dataclasses import asdict, dataclass
from math import cos, isfinite, pi, sin, sqrt, tan
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from trimtab.core.streams import PARTITION, stream
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.rules import RULES

EXTREMES = ("L", "delta")  # of a single client, whose folds alone say how far they may be off


@dataclass(frozen=True)
class Draws:
    """The same replicates for every number, so that what is derived from several stays joint."""

    weights: Tensor  # p as other clients might have made it, of shape (replicates, clients)
    normals: Tensor | None  # of the folds' deviations, (replicates, clients, folds)
    tails: Tensor  # exponential, gamma and normal numbers of each replicate, (3, replicates)
    unseen: float  # the number of clients that were not measured for each that was
    N: int  # the clients of the whole problem
    seed: int

    @property
    def clients_vary(self) -> bool:
        """Whether only some of the clients were measured."""
        return self.unseen > 0

    @property
    def vary(self) -> bool:
        """Whether only some of the clients, or of their samples, were measured."""
        return self.clients_vary or self.normals is not None

    def of_some(self, clients: tuple[int, ...], p: Tensor) -> "Draws":
        """Return replicates for some of the panel's clients, drawn at random; p: their weights.

        Of all the panel's clients they are the same: only then are other numbers joint with these.
        """
        if len(clients) == self.weights.shape[1]:
            return self
        return _drawn(p, self.N, self.seed, self.normals is not None)

    def widen(self, name: str) -> float:
        """Return Student's quantile over the normal one, for so few clients or folds."""
        clients = student(max(1, self.weights.shape[1] - 1)) if self.clients_vary else 1.0
        folds = self.normals is not None and name in EXTREMES
        # The largest of all is now one client's and now another's, so that the folds of two count.
        return max(clients, student(2 * (RULES.folds - 1)) if folds else 1.0)


def drawn(panel: Panel, N: int, seed: int) -> Draws:
    """Return the replicates for a panel of a problem with N clients."""
    return _drawn(panel.p.cpu().double(), N, seed, panel.thinned is not None)


def _drawn(p: Tensor, N: int, seed: int, thinned: bool) -> Draws:
    """Draw weights, normal numbers and tails.

    Where all clients are measured no others might have been drawn, and all weights are p. Else the
    counts of a bootstrap are shrunk by the share of the clients that is known (Rao and Wu).
    """
    n, draw = len(p), stream(seed, PARTITION, 77)
    chosen = torch.randint(n, (REPLICATES, n), generator=draw)
    ones = torch.ones(REPLICATES, n, dtype=torch.float64)
    counts = torch.zeros_like(ones).scatter_add(1, chosen, ones)
    shrunk = min(1.0, sqrt((1 - n / N) * n / max(1, n - 1)))
    weights = p * (1 + shrunk * (counts - 1))
    tails = torch.empty(3, REPLICATES, dtype=torch.float64)
    tails[0].exponential_(generator=draw)
    tails[1] = torch._standard_gamma(torch.full_like(tails[1], _top(n)), generator=draw)
    tails[2].normal_(generator=draw)
    normals = torch.randn(REPLICATES, n, RULES.folds, generator=draw, dtype=torch.float64)
    return Draws(
        weights=weights / weights.sum(1, keepdim=True),
        normals=normals if thinned else None,
        tails=tails,
        unseen=(N - n) / n,
        N=N,
        seed=seed,
    )


def _top(n: int) -> int:
    """Return how many of the n largest values say how a tail goes on."""
    return max(1, min(10, n // 4))


def largest(values: Tensor, draws: Draws) -> Tensor:
    """Return by which factor the largest of all clients may exceed the largest of those measured.

    The largest few are continued by an exponential tail, from which as many are drawn as there are
    clients that were not measured. A bootstrap never exceeds the largest that it saw. The gamma
    numbers allow for a scale that is known from few values only. One factor, at least 1, for each
    replicate.
    """
    ordered = values.sort(descending=True).values.tolist()
    top = _top(len(ordered))
    if not draws.clients_vary or len(ordered) < 2 or not ordered[0] > 0:
        return torch.ones(REPLICATES, dtype=torch.float64)
    edge, exponential, gamma = ordered[top], *draws.tails[:2]
    excess = sum(value - edge for value in ordered[:top]) / gamma
    beyond = torch.log(torch.tensor(top * draws.unseen).double()) - torch.log(exponential)
    factor: Tensor = (edge + excess * beyond) / ordered[0]
    return factor.clamp_min(1.0)


def student(freedom: int) -> float:
    """Return Student's quantile over the normal one, by bisection.

    scipy.stats has it too, but takes a third of a second to import.

    >>> round(student(4) * 1.96, 3), round(student(9) * 1.96, 3)
    (2.776, 2.262)
    """
    low, high = 0.0, pi / 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < LEVEL else (low, middle)
    return sqrt(freedom) * tan(low) / NormalDist().inv_cdf((1 + LEVEL) / 2)


def _within(angle: float, freedom: int) -> float:
    """Return P(|t| < sqrt(freedom) tan(angle)) (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    odd = freedom % 2
    total, term = 0.0, cos(angle) if odd else 1.0
    for j in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (j - 1) / j
    if odd:
        return 2 / pi * (angle + sin(angle) * total)
    return sin(angle) * total


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
        n = len(finite)  # A new draw is below the j-th of n others with probability j/(n + 1).
        outside = max(0.0, ((n + 1) * (1 - LEVEL) / 2 - 1) / max(1, n - 1))
        ends = torch.tensor([outside, 1 - outside], dtype=torch.float64)
        low, high = torch.quantile(finite, ends).tolist()
    return Estimate(value, min(value, max(least, low - slack)), max(value, high + slack), at)
