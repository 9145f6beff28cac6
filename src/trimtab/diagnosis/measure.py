"""Measured gradients: how far the clients' are apart, and the noise of mini-batches.

zeta^2 = sum p_i |grad f_i - grad f|^2 and G^2 = sum p_i |grad f_i|^2 (equal at the optimum);
B^2 = the largest sum p_i |grad f_i(x) - grad f_i(x*)|^2 / |grad f(x)|^2 over the points tried.
"""

from dataclasses import dataclass, replace
from math import isfinite, nan, sqrt

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.streams import NOISE, stream
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.resampling import Draws
from trimtab.diagnosis.theory import weighted
from trimtab.problems.problem import Problem

STEADY = 0.05  # no more mini-batches are drawn if the standard error is <= 0.05 x the mean
PAIRS = 8, 200  # >= 8 and <= 200 pairs of mini-batches are drawn


@dataclass(frozen=True)
class Products:
    """The inner products of vectors, one a client, with which means of any weights are known.

    For weights w, sum w_i |v_i - mean|^2 = sum w_i M_ii - w'Mw, with M that of the centred ones.
    """

    M: Tensor  # <v_i - mean, v_j - mean>, of shape (clients, clients)
    along: Tensor  # <v_i - mean, mean> of each client
    size: float  # |mean|^2
    error: Tensor  # the standard error of each M_ii, by the samples that were drawn

    def spread(self, w: Tensor) -> Tensor:
        """Return sum w_i |v_i - mean|^2 for each row of weights."""
        return w @ self.M.diagonal() - self._moved(w)

    def mean_size(self, w: Tensor) -> Tensor:
        """Return |sum w_i v_i|^2 for each row of weights."""
        return (self.size + 2 * w @ self.along + self._moved(w)).clamp_min(0.0)

    def noise(self, draws: Draws) -> Tensor:
        """Return by how much the spread may be off because samples were drawn."""
        return (draws.weights * draws.normals) @ self.error

    def _moved(self, w: Tensor) -> Tensor:
        return ((w @ self.M) * w).sum(-1)


@dataclass(frozen=True)
class Gradients:
    """The clients' gradients at one point, and what they say."""

    rows: Tensor  # grad f_i of each client, of shape (clients, d)
    mean: Vector
    products: Products
    halves: tuple[Tensor, Tensor] | None  # the rows on two halves of the samples, if drawn
    G: float
    zeta: float
    zeta_error: float  # the standard error, 0 unless data or clients were sampled
    apart: tuple[float, ...]  # |grad f_i - grad f| of each client

    @property
    def moved(self) -> Tensor:
        """The differences grad f_i - grad f."""
        return self.rows - self.mean

    def replicates(self, draws: Draws) -> tuple[Tensor, Tensor]:
        """Return zeta and G as other clients and samples might have made them."""
        square = (self.products.spread(draws.weights) + self.products.noise(draws)).clamp_min(0.0)
        return square.sqrt(), (square + self.products.mean_size(draws.weights)).sqrt()


def at_point(panel: Panel, x: Vector, sampled_clients: bool = False) -> Gradients:
    """Measure the gradients at x."""
    p, rows, halves = panel.p, panel.gradients(x), None
    mean = weighted(p, rows)
    apart = (rows - mean).norm(dim=1).cpu().double()
    if panel.halves is not None:
        first, second = (half.gradients(x) for half in panel.half_panels)
        halves = first, second
    products = inner_products(p, rows, halves)
    square = float(products.spread(p))
    variance = float(p.square() @ products.error.square())
    if sampled_clients:
        variance += float(p.square() @ (apart.square() - square).square())
    zeta = sqrt(max(0.0, square))
    error = sqrt(variance) / (2 * zeta) if zeta else 0.0
    G = sqrt(zeta**2 + float(products.mean_size(p)))
    return Gradients(rows, mean, products, halves, G, zeta, error, tuple(apart.tolist()))


def inner_products(p: Tensor, rows: Tensor, halves: tuple[Tensor, Tensor] | None) -> Products:
    """Return the inner products of rows, without the noise of sampled data where there are halves.

    Two halves of the data have independent noise: the product of their differences has none on
    average.
    """
    a, b = (rows, rows) if halves is None else halves
    mean_a, mean_b = weighted(p, a), weighted(p, b)
    a, b = a - mean_a, b - mean_b
    M = (a @ b.T).cpu().double()
    along = (a @ mean_b + b @ mean_a).cpu().double() / 2
    error = torch.zeros(len(rows), dtype=torch.float64)
    if halves is not None:
        across = ((a + b) / 2 * (a - b)).sum(1).cpu().double()
        noise = (a - b).square().sum(1).cpu().double() / 2
        error = (across.square() + noise.square() / rows.shape[1]).sqrt()
    return Products((M + M.T) / 2, along, float((mean_a * mean_b).cpu().double().sum()), error)


@dataclass(frozen=True)
class Ratio:
    """B^2 between two points: sum p_i |grad f_i(x) - grad f_i(x*)|^2 over |grad f(x)|^2."""

    products: Products

    def of(self, w: Tensor) -> Tensor:
        """Return B for each row of weights; at least 1, since a spread is not negative."""
        size = self.products.mean_size(w)
        ratio = 1 + self.products.spread(w).clamp_min(0.0) / size
        return torch.where(size > 0, ratio.sqrt(), torch.ones_like(size))

    def replicates(self, draws: Draws) -> Tensor:
        """Return B as other clients and samples might have made it."""
        w, products = draws.weights, self.products
        square = products.spread(w) + products.noise(draws)
        return (1 + square.clamp_min(0.0) / products.mean_size(w)).sqrt()


def ratio(p: Tensor, here: Gradients, best: Gradients) -> Ratio:
    """Return sum p_i |grad f_i(x) - grad f_i(x*)|^2 / |grad f(x) - grad f(x*)|^2, rooted."""
    halves = None
    if here.halves is not None and best.halves is not None:
        halves = here.halves[0] - best.halves[0], here.halves[1] - best.halves[1]
    return Ratio(inner_products(p, here.rows - best.rows, halves))


@dataclass(frozen=True)
class BatchNoise:
    """sigma, where sigma^2 = sum p_i E|g_i(x, k) - grad f_i(x)|^2, and its standard error."""

    sigma: float = nan  # NaN: it was not measured
    error: float = 0.0
    squares: Tensor | None = None  # |noise|^2 of each pair of mini-batches and client
    samples: Tensor | None = None  # how many samples of each client were drawn to measure it on

    def replicates(self, draws: Draws, seed: int) -> Tensor:
        """Return sigma as other clients and mini-batches might have made it."""
        if self.squares is None:
            return torch.full((len(draws.weights),), nan, dtype=torch.float64)
        pairs, count = len(self.squares), len(draws.weights)
        chosen = torch.randint(pairs, (count, pairs), generator=stream(seed, NOISE, 6))
        each = self.squares[chosen].mean(1)  # Pairs share no mini-batch, clients of a pair do not.
        if self.samples is not None:  # A variance of n samples is off by about sqrt(2/n).
            each = each * (1 + draws.normals * (2 / self.samples).sqrt()).clamp_min(0.0)
        return (draws.weights * each).sum(1).sqrt()


def batch_noise(panel: Panel, x: Vector, seed: int, out_of_time: OutOfTime) -> BatchNoise:
    """Measure the noise of mini-batch gradients at x; NaN if not every client got a pair.

    Half the squared distance of two independent mini-batch gradients is unbiased for sigma^2.
    """
    (fewest, most), squares = PAIRS, list[Tensor]()
    for pair in range(most):
        noise = noise_samples(panel, x, seed, pair, out_of_time)
        if noise is None:
            break
        squares.append(noise.cpu().double().square().sum(1))
        total = [float(panel.p @ each) for each in squares]
        if total[-1] == 0:
            break
        if pair + 1 >= fewest and _error(total) <= STEADY * sum(total) / len(total):
            break
    if not squares:
        return BatchNoise()
    found = _rooted([float(panel.p @ each) for each in squares], torch.stack(squares))
    if panel.halves is None or panel.samples is None:
        return found
    sizes = [panel.samples.clients.size(i) for i in range(panel.problem.N)]
    return replace(found, samples=torch.tensor(sizes, dtype=torch.float64))


def noise_samples(
    panel: Panel, x: Vector, seed: int, pair: int, out_of_time: OutOfTime = lambda: False
) -> Tensor | None:
    """Return the difference of two mini-batch gradients of each client, scaled to one's noise.

    None if the time is over before every client has its own.
    """
    draws = []
    for j in (1, 2):
        drawn = panel.batch_gradients(x, seed, 2 * pair + j, out_of_time)
        if drawn is None:
            return None
        draws.append(drawn)
    return (draws[0] - draws[1]) / sqrt(2)


def noise_sample(problem: Problem, i: int, x: Vector, seed: int, pair: int) -> Vector:
    """Return the difference of two mini-batch gradients, scaled to the noise of one."""
    first, second = (problem.oracle(i, seed, 2 * pair + j)(x, 0) for j in (1, 2))
    return (first - second) / sqrt(2)


def _rooted(squares: list[float], each: Tensor) -> BatchNoise:
    """Return sigma for independent estimates of sigma^2."""
    square = sum(squares) / len(squares)
    if not isfinite(square):
        return BatchNoise()
    sigma = sqrt(max(0.0, square))
    return BatchNoise(sigma, _error(squares) / (2 * sigma) if sigma > 0 else 0.0, each)


def _error(values: list[float]) -> float:
    """Return the standard error of the mean."""
    n = len(values)
    if n < 2:
        return 0.0
    mean = sum(values) / n
    return sqrt(sum((v - mean) ** 2 for v in values) / (n * (n - 1)))
