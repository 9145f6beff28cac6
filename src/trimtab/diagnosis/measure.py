"""Measured gradients: how far the clients' are apart, and the noise of mini-batches.

zeta^2 = sum p_i |grad f_i - grad f|^2 and G^2 = sum p_i |grad f_i|^2 (equal at the optimum);
B^2 = the largest sum p_i |grad f_i(x) - grad f_i(x*)|^2 / |grad f(x)|^2 over the points tried.
"""

from dataclasses import dataclass
from math import isfinite, nan, sqrt

from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.panel import Panel, gradients
from trimtab.diagnosis.theory import weighted
from trimtab.problems.problem import Problem

STEADY = 0.02  # no more mini-batches are drawn if the standard error is <= 0.02 x the mean
PAIRS = 8, 1000  # >= 8 and <= 1000 pairs of mini-batches are drawn


@dataclass(frozen=True)
class Gradients:
    """The clients' gradients at one point, and what they say."""

    rows: Tensor  # grad f_i of each client, of shape (clients, d)
    mean: Vector
    G: float
    zeta: float
    zeta_error: float  # the standard error, 0 unless data or clients were sampled
    apart: tuple[float, ...]  # |grad f_i - grad f| of each client

    @property
    def moved(self) -> Tensor:
        """The differences grad f_i - grad f."""
        return self.rows - self.mean


def at_point(panel: Panel, x: Vector, sampled_clients: bool = False) -> Gradients:
    """Measure the gradients at x."""
    p, rows = panel.p, panel.gradients(x)
    mean = weighted(p, rows)
    apart = (rows - mean).norm(dim=1).double().cpu()
    square, variance = float(p @ apart.square()), 0.0
    if panel.halves is not None:
        square, variance = _without_noise(panel, x)
    if sampled_clients:
        variance += float(p.square() @ (apart.square() - square).square())
    zeta = sqrt(max(0.0, square))
    error = sqrt(variance) / (2 * zeta) if zeta else 0.0
    G = sqrt(max(0.0, square + float(mean.double().square().sum())))
    return Gradients(rows, mean, G, zeta, error, tuple(apart.tolist()))


def _without_noise(panel: Panel, x: Vector) -> tuple[float, float]:
    """Return zeta^2 free of the noise of sampled data, and its variance.

    Two halves of the data have independent noise: the product of their differences has none on
    average.
    """
    assert panel.halves is not None
    p = panel.p
    a, b = (gradients(half, x) for half in panel.halves)
    a, b = a - weighted(p, a), b - weighted(p, b)
    product = (a * b).sum(1).double().cpu()
    between, across = (a - b), ((a + b) / 2 * (a - b)).sum(1).double().cpu()
    noise = between.square().sum(1).double().cpu() / 2
    variance = across.square() + noise.square() / x.numel()
    return float(p @ product), float(p.square() @ variance)


def ratio(p: Tensor, here: Gradients, best: Gradients) -> float:
    """Return sum p_i |grad f_i(x) - grad f_i(x*)|^2 / |grad f(x) - grad f(x*)|^2, rooted."""
    moved = here.rows - best.rows
    size = float((here.mean - best.mean).double().square().sum())
    return sqrt(float(p @ moved.double().square().sum(1).cpu()) / size) if size > 0 else 1.0


@dataclass(frozen=True)
class BatchNoise:
    """sigma, where sigma^2 = sum p_i E|g_i(x, k) - grad f_i(x)|^2, and its standard error."""

    sigma: float = nan  # NaN: it was not measured
    error: float = 0.0


def batch_noise(panel: Panel, x: Vector, seed: int, out_of_time: OutOfTime) -> BatchNoise:
    """Measure the noise of mini-batch gradients at x; NaN if not every client got a pair.

    Half the squared distance of two independent mini-batch gradients is unbiased for sigma^2.
    """
    problem, p, (fewest, most) = panel.problem, panel.p, PAIRS
    squares: list[float] = []
    for pair in range(most):
        total = 0.0
        for i in range(problem.N):
            if out_of_time():
                return _rooted(squares)
            noise = noise_sample(problem, i, x, seed, pair)
            total += float(p[i]) * float(noise.double().square().sum())
        squares.append(total)
        if total == 0:
            break
        if pair + 1 >= fewest and _error(squares) <= STEADY * sum(squares) / len(squares):
            break
    return _rooted(squares)


def noise_sample(problem: Problem, i: int, x: Vector, seed: int, pair: int) -> Vector:
    """Return the difference of two mini-batch gradients, scaled to the noise of one."""
    first, second = (problem.oracle(i, seed, 2 * pair + j)(x, 0) for j in (1, 2))
    return (first - second) / sqrt(2)


def _rooted(squares: list[float]) -> BatchNoise:
    """Return sigma for independent estimates of sigma^2."""
    square = sum(squares) / len(squares) if squares else nan
    if not isfinite(square):
        return BatchNoise()
    sigma = sqrt(max(0.0, square))
    return BatchNoise(sigma, _error(squares) / (2 * sigma) if sigma > 0 else 0.0)


def _error(values: list[float]) -> float:
    """Return the standard error of the mean."""
    n = len(values)
    if n < 2:
        return 0.0
    mean = sum(values) / n
    return sqrt(sum((v - mean) ** 2 for v in values) / (n * (n - 1)))
