"""What is measured at one point, and every number as one function of it: `scalars`.

L = the largest |eigenvalue| of any Hess_i; delta = that of any Hess_i - Hess; mu = the least
eigenvalue of Hess. zeta^2 = sum p_i |grad f_i - grad f|^2, G^2 = sum p_i |grad f_i|^2 and
sigma^2 = sum p_i E|g_i(x, k) - grad f_i(x)|^2. Where oracles are no gradients the derivatives are
not symmetric: L and delta are spectral norms then, and mu belongs to the symmetric part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, nan, sqrt

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.rules import RULES
from trimtab.diagnosis.theory import weighted
from trimtab.problems.problem import Problem

Numbers = dict[str, Tensor]


# -- numbers


def scalars(
    p: Tensor,
    A: Tensor | None = None,
    X: Tensor | None = None,
    V: Tensor | None = None,
    *,
    error: Tensor | None = None,
    steepest: Tensor | None = None,
    apart: Tensor | None = None,
    beyond: Tensor | None = None,
    at_optimum: bool = False,
    symmetric: bool = True,
) -> Numbers:
    """Return all numbers of clients with these weights, as far as their parts are given.

    p: the weights, (n,). A: the Hessians in common directions, (n, m, m). X: the gradients, (n, D),
    whose first m coordinates belong to those directions. V: E|noise|^2 of a mini-batch gradient.
    error: E|error|^2 of each gradient, if samples were drawn; zeta is without it. steepest: the
    clients among which the largest norms are looked for. apart: |Hess_i - Hess| of the others.
    beyond: the factor by which a client that was not measured may differ more than any that was.
    at_optimum: the point is the minimum of the measured clients; others have another one, to which
    a Newton step leads.
    """
    found: Numbers = {}
    if A is not None:
        H = weighted(p, A)
        values, U = torch.linalg.eigh((H + H.mT) / 2)
        some = A if steepest is None else A[steepest]
        sizes = norms(some - H, symmetric)
        unseen = some if beyond is None else H + beyond * (some - H)
        norm = values.abs().amax() if symmetric else norms(H, symmetric)
        found["mu"], found["norm"] = values[0], norm
        found["L"] = torch.stack(
            [norm, norms(some, symmetric).amax(), norms(unseen, symmetric).amax()]
        ).amax()
        found["delta"] = sizes.amax() * (1.0 if beyond is None else beyond)
        if apart is not None and steepest is not None:
            grown = (sizes / apart[steepest].clamp_min(1e-30)).mean()
            sizes = (apart * grown).index_copy(0, steepest, sizes)
        found["second"] = (p @ sizes.square()).sqrt()
        if X is not None and at_optimum:
            step = _newton_step(p, X, values, U)
            found["step"] = step.norm()
            X = torch.cat([X[:, : len(step)] - A @ step, X[:, len(step) :]], 1)
    if X is not None:
        spread, square = moments(p, X, error)
        # Errors of sampling are subtracted, so that an estimate of zeta^2 may be negative.
        found["zeta"] = spread.sign() * spread.abs().sqrt()
        found["G"] = (spread.clamp_min(0.0) + square.clamp_min(0.0)).sqrt()
    if V is not None:
        found["sigma"] = (p @ V).sqrt()
    return found


def moments(p: Tensor, X: Tensor, error: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return sum p_i |x_i - mean|^2 and |mean|^2, both without the errors of the x_i."""
    mean = p @ X
    spread, square = p @ (X - mean).square().sum(1), mean.square().sum()
    if error is None:
        return spread, square
    return spread - (p * (1 - p)) @ error, square - p.square() @ error


def _newton_step(p: Tensor, X: Tensor, values: Tensor, U: Tensor) -> Tensor:
    """Return Hess^-1 mean, without the directions in which f is flat."""
    steep = values > RULES.flat * values.abs().amax()
    inverse = torch.where(steep, 1 / torch.where(steep, values, 1.0), 0.0)
    step: Tensor = U @ (inverse * (U.mT @ (p @ X)[: len(values)]))
    return step


def norms(M: Tensor, symmetric: bool = True) -> Tensor:
    """Return the spectral norm of each matrix."""
    singular: Tensor = torch.linalg.eigvalsh(M).abs() if symmetric else torch.linalg.svdvals(M)
    return singular.amax(-1)


# -- what the numbers are made of


@dataclass(frozen=True)
class Sampled:
    """Something of each client, and draws of its error if only some samples were measured."""

    each: Tensor  # of shape (clients, ...)
    deviations: Tensor | None = None  # of shape (clients, folds, ...): see `Thinned.deviations`

    def drawn(self, z: Tensor | None) -> Tensor:
        """Return it as other samples might have made it; z: normal numbers, (clients, folds)."""
        if self.deviations is None or z is None:
            return self.each
        weights = z.view(*z.shape, *[1] * (self.each.dim() - 1))
        return self.each + (weights * self.deviations).sum(1)


@dataclass(frozen=True)
class Vectors(Sampled):
    """A vector of each client, in coordinates that keep all inner products."""

    error: Tensor | None = None  # E|error|^2 of each, (clients,)


def vectors(
    rows: Tensor, directions: Tensor | None = None, deviations: Tensor | None = None
) -> Vectors:
    """Return rows (n, d) in coordinates, the first ones along the directions (m, d); None: all d.

    Of what lies outside of the directions, the rows' own span is kept.
    """
    error = None if deviations is None else deviations.square().sum((1, 2)).cpu().double()
    if directions is None:
        away = None if deviations is None else deviations.cpu().double()
        return Vectors(rows.cpu().double(), away, error)
    inside = rows @ directions.T
    outside = rows - inside @ directions
    squares, U = torch.linalg.eigh((outside @ outside.T).cpu().double())
    kept = squares > 1e-12 * squares.abs().max().clamp_min(1e-300)
    sizes, U = squares[kept].sqrt(), U[:, kept]
    each = torch.cat([inside.cpu().double(), U * sizes], 1)
    if deviations is None:
        return Vectors(each)
    along = deviations @ directions.T
    span = ((deviations - along @ directions) @ outside.T).cpu().double() @ (U / sizes)
    return Vectors(each, torch.cat([along.cpu().double(), span], 2), error)


@dataclass(frozen=True)
class Gradients:
    """The clients' gradients at one point."""

    rows: Tensor  # grad f_i of each client, of shape (clients, d)
    mean: Vector
    deviations: (
        Tensor | None
    )  # of the rows, (clients, folds, d), if only some samples were measured
    zeta: float
    G: float
    apart: tuple[float, ...]  # |grad f_i - grad f| of each client

    @property
    def moved(self) -> Tensor:
        """The differences grad f_i - grad f."""
        return self.rows - self.mean

    def of(self, clients: Sequence[int]) -> "Gradients":
        """Return the same of some clients."""
        some = list(clients)
        deviations = None if self.deviations is None else self.deviations[some]
        apart = tuple(self.apart[i] for i in some)
        return replace(self, rows=self.rows[some], deviations=deviations, apart=apart)

    def vectors(self, directions: Tensor | None = None) -> Vectors:
        """Return the gradients in coordinates."""
        return vectors(self.rows, directions, self.deviations)


def at_point(panel: Panel, x: Vector) -> Gradients:
    """Measure the gradients at x."""
    rows, deviations = panel.gradients(x), None
    if panel.thinned is not None:
        folds = torch.stack([fold.gradients(x) for fold in panel.fold_panels], 1)
        deviations = panel.thinned.deviations(folds)
    mean = weighted(panel.p, rows)
    apart = (rows - mean).norm(dim=1).cpu().double()
    own = vectors(rows, rows[:0], deviations)
    found = scalars(panel.p.cpu().double(), X=own.each, error=own.error)
    zeta = max(0.0, float(found["zeta"]))
    return Gradients(rows, mean, deviations, zeta, float(found["G"]), tuple(apart.tolist()))


@dataclass(frozen=True)
class Ratio:
    """B between two points: B^2 = sum p_i |grad f_i(x) - grad f_i(x*)|^2 / |grad f(x)|^2."""

    differences: Vectors

    def of(self, p: Tensor, z: Tensor | None = None) -> Tensor:
        """Return B for these weights and draws; at least 1, since a spread is not negative."""
        mine = self.differences
        error = None if mine.error is None else mine.error * (1 if z is None else 2)
        spread, square = moments(p, mine.drawn(z), error)
        ratio = (1 + spread.clamp_min(0.0) / square.clamp_min(1e-300)).sqrt()
        return torch.where(square > 0, ratio, torch.ones_like(ratio))


def ratio(here: Gradients, best: Gradients) -> Ratio:
    """Return B between a point and the best one."""
    deviations = None
    if here.deviations is not None and best.deviations is not None:
        deviations = here.deviations - best.deviations
    rows = here.rows - best.rows
    return Ratio(vectors(rows, rows[:0], deviations))


# -- noise


@dataclass(frozen=True)
class BatchNoise:
    """The noise of mini-batch gradients; NaN and None if there was no time to measure it."""

    sigma: float = nan  # sigma^2 = sum p_i E|noise|^2
    squares: Tensor | None = None  # of each pair of mini-batches and client, (pairs, clients)
    deviations: Tensor | None = None  # of the means, by folds, if only some samples are measured

    @property
    def each(self) -> Tensor | None:
        """The measured E|noise|^2 of each client."""
        return None if self.squares is None else self.squares.mean(0)

    def drawn(self, draw: torch.Generator, z: Tensor | None) -> Tensor:
        """Return E|noise|^2 of each client as other mini-batches and samples might have made it."""
        assert self.squares is not None
        pairs, mean = len(self.squares), self.squares.mean(0)
        chosen = torch.randint(pairs, self.squares.shape, generator=draw)
        # A resampled mean of n numbers has (n - 1)/n of the variance of the mean.
        away = (self.squares.gather(0, chosen).mean(0) - mean) * sqrt(pairs / max(1, pairs - 1))
        return Sampled(mean + away, self.deviations).drawn(z).clamp_min(0.0)


def batch_noise(panel: Panel, x: Vector, seed: int, out_of_time: OutOfTime) -> BatchNoise:
    """Measure the noise of mini-batch gradients at x.

    Half the squared distance of two independent mini-batch gradients is unbiased for |noise|^2.
    Thinned data have it fold by fold, in turn, scaled to the mini-batches of all data.
    """
    thinned, squares = panel.thinned, list[Tensor]()
    panels, p = [panel], panel.p.cpu().double()
    scale = torch.ones(len(p), 1, dtype=torch.float64)
    if thinned is not None:
        panels, scale = [Panel(fold, panel.clients) for fold in thinned.noise], thinned.scale
    turn = len(panels)
    fewest = max(RULES.folds, ceil(RULES.noise_pairs / len(p)))
    pilot = -(-fewest // turn) * turn
    most = RULES.most_noise_pairs
    for pair in range(RULES.most_noise_pairs):
        if pair == pilot:
            most = _needed(p, torch.stack(squares))
        if pair >= max(most, pilot):
            break
        noise = noise_samples(panels[pair % turn], x, seed, pair, out_of_time)
        if noise is None:
            break
        squares.append(noise.cpu().double().square().sum(1) * scale[:, pair % turn])
        if (pair + 1) % turn == 0 and not bool(torch.stack(squares).any()):
            break
    each = torch.stack(squares[: len(squares) // turn * turn]) if len(squares) >= turn else None
    if each is None or not bool(torch.isfinite(each).all()):
        return BatchNoise()
    sigma = float(scalars(p, V=each.mean(0))["sigma"])
    if thinned is None:
        return BatchNoise(sigma, each)
    parts = each.view(-1, turn, len(p)).mean(0).T
    return BatchNoise(sigma, each, thinned.deviations(parts, equal=True))


def _needed(p, squares):
    error = p.square() @ squares.var(0)
    needed = float(error) / (RULES.noise_error * float(p @ squares.mean(0))) ** 2
    return min(RULES.most_noise_pairs, ceil(needed))


def _settled(p: Tensor, squares: Tensor) -> bool:
    """Return whether the standard error of sigma^2 is small; clients draw independently."""
    if len(squares) < 2:
        return not bool(squares.any())
    error = (p.square() @ squares.var(0) / len(squares)).sqrt()
    return bool(error <= RULES.noise_error * (p @ squares.mean(0)))


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
