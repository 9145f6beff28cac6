"""What else might have been drawn: bootstrap weights of the clients, and noise of their samples."""

from dataclasses import dataclass
from math import cos, pi, sin, sqrt, tan
from statistics import NormalDist

import torch
from torch import Tensor

from trimtab.core.streams import PARTITION, stream
from trimtab.diagnosis.estimate import LEVEL, REPLICATES
from trimtab.diagnosis.panel import Panel

BISECTIONS = 50  # an angle is known up to 2^-50


@dataclass(frozen=True)
class Draws:
    """The same replicates for every number, so that what is derived from several stays joint."""

    weights: Tensor  # p as other clients might have made it, of shape (replicates, clients)
    normals: Tensor  # by how many standard errors samples are off, of the same shape
    tail: Tensor  # exponential numbers, for the clients that nobody measured
    unseen: float  # how many clients were not measured for each that was
    widen: float  # Student's quantile over the normal one, for so few clients
    N: int  # the clients of the whole problem
    seed: int

    @property
    def clients_vary(self) -> bool:
        """Whether only some of the clients were measured."""
        return self.unseen > 0

    def of_some(self, clients: tuple[int, ...], p: Tensor) -> "Draws":
        """Return the replicates for some of the panel's clients, drawn at random; p: their weights.

        Of all the panel's clients it is the same: only then are other numbers joint with these.
        """
        if len(clients) == self.weights.shape[1]:
            return self
        return _drawn(p, self.N, self.seed)


def drawn(panel: Panel, N: int, seed: int) -> Draws:
    """Return the replicates for a panel of a problem with N clients.

    Where all clients are measured, no other ones might have been drawn, and all weights are p.
    Else counts of a bootstrap are shrunk by the share of the clients that is known (Rao and Wu).
    """
    return _drawn(panel.p.cpu().double(), N, seed)


def _drawn(p: Tensor, N: int, seed: int) -> Draws:
    n, draw = len(p), stream(seed, PARTITION, 77)
    normals = torch.randn(REPLICATES, n, generator=draw, dtype=torch.float64)
    chosen = torch.randint(n, (REPLICATES, n), generator=draw)
    ones = torch.ones(REPLICATES, n, dtype=torch.float64)
    counts = torch.zeros_like(ones).scatter_add(1, chosen, ones)
    shrunk = min(1.0, sqrt((1 - n / N) * n / max(1, n - 1)))
    weights = p * (1 + shrunk * (counts - 1))
    tail = torch.empty(REPLICATES, dtype=torch.float64).exponential_(generator=draw)
    return Draws(
        weights=weights / weights.sum(1, keepdim=True),
        normals=normals,
        tail=tail,
        unseen=(N - n) / n,
        widen=_student(max(1, n - 1)) if n < N else 1.0,
        N=N,
        seed=seed,
    )


def largest(values: Tensor, draws: Draws) -> Tensor:
    """Return by which factor the largest of all clients may exceed the largest of those measured.

    The largest few are continued by an exponential tail, from which as many are drawn as there are
    clients that nobody measured; one factor, at least 1, for each replicate.
    """
    ordered = values.sort(descending=True).values.tolist()
    top = max(1, min(10, len(ordered) // 4))
    if not draws.clients_vary or len(ordered) < 2 or not ordered[0] > 0:
        return torch.ones(REPLICATES, dtype=torch.float64)
    edge = ordered[top]
    excess = sum(value - edge for value in ordered[:top]) / top
    beyond = torch.log(torch.tensor(top * draws.unseen).double()) - torch.log(draws.tail)
    factor: Tensor = (edge + excess * beyond) / ordered[0]
    return factor.clamp_min(1.0)


def few_draws(count: int) -> float:
    """Return by what a bootstrap of so few independent draws is too narrow.

    >>> few_draws(1), round(few_draws(8), 2)
    (1.0, 1.29)
    """
    return _student(count - 1) * sqrt(count / (count - 1)) if count > 1 else 1.0


def _student(freedom: int) -> float:
    """Return Student's quantile over the normal one, by bisection.

    scipy.stats has it too, but takes a third of a second to import.

    >>> round(_student(4) * 1.96, 3), round(_student(9) * 1.96, 3)
    (2.776, 2.262)
    """
    low, high = 0.0, pi / 2
    for _ in range(BISECTIONS):
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
