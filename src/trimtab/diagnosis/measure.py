"""What is measured at one point, and every number as one function of it: `scalars`.

L = the largest |eigenvalue| of any Hess_i; delta = that of any Hess_i - Hess; mu = the least
eigenvalue of Hess. zeta^2 = sum p_i |grad f_i - grad f|^2, G^2 = sum p_i |grad f_i|^2 and
sigma^2 = sum p_i E|g_i(x, k) - grad f_i(x)|^2. Where oracles are no gradients the derivatives are
not symmetric: L and delta are spectral norms then, and mu belongs to the symmetric part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, nan, sqrt

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.panel import Panel, weighted
from trimtab.diagnosis.rules import RULES

REDUCED = 32  # replicates are made in <= 32 directions, since each decomposes its matrices
TOP = 4  # replicates look at the 4 steepest clients and at the 4 that differ most

Numbers = dict[str, Tensor]


# -- numbers


def scalars(
    p: Tensor,
    A: Tensor | None = None,
    X: Tensor | None = None,
    V: Tensor | None = None,
    *,
    between: Sequence[tuple[Tensor, Tensor | None]] = (),
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
    between: differences of the gradients here and at other points, each with the errors of these:
    B^2 is the largest sum p_i |grad f_i(x) - grad f_i(x*)|^2 / |grad f(x)|^2 of them. error:
    E|error|^2 of each gradient, if samples were drawn; zeta is without it. steepest: the
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
        own = [norms(each, symmetric).amax() for each in (some, unseen)]
        found["mu"], found["norm"] = values[0], norm
        found["L"] = torch.stack([norm, *own]).amax()
        found["delta"] = sizes.amax() * (1.0 if beyond is None else beyond)
        if apart is not None and steepest is not None:
            grown = (sizes / apart[steepest].clamp_min(1e-30)).mean()
            sizes = (apart * grown).index_copy(0, steepest, sizes)
        found["second"] = (p @ sizes.square()).sqrt()
        if X is not None and at_optimum:
            steep = values > RULES.flat * values.abs().amax()
            inverse = torch.where(steep, 1 / torch.where(steep, values, 1.0), 0.0)
            step = U @ (inverse * (U.mT @ (p @ X)[: len(values)]))
            found["step"] = step.norm()
            X = torch.cat([X[:, : len(step)] - A @ step, X[:, len(step) :]], 1)
    if X is not None:
        spread, square = moments(p, X, error)
        # Errors of sampling are subtracted, so that an estimate of zeta^2 may be negative.
        found["zeta"] = spread.sign() * spread.abs().sqrt()
        found["G"] = (spread.clamp_min(0.0) + square.clamp_min(0.0)).sqrt()
    if between:
        found["B"] = torch.stack([_ratio(*moments(p, *one)) for one in between]).amax()
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


def _ratio(spread: Tensor, square: Tensor) -> Tensor:
    """Return B, which is at least 1, since a spread is not negative."""
    ratio = (1 + spread.clamp_min(0.0) / square.clamp_min(1e-300)).sqrt()
    return torch.where(square > 0, ratio, torch.ones_like(ratio))


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
    error: Tensor | None = None  # E|error|^2 of each, (clients,)

    def drawn(self, z: Tensor | None) -> Tensor:
        """Return it as other samples might have made it; z: normal numbers, (clients, folds)."""
        if self.deviations is None or z is None:
            return self.each
        weights = z.view(*z.shape, *[1] * (self.each.dim() - 1))
        return self.each + (weights * self.deviations).sum(1)

    def expected(self, share: float, *, drawn: bool) -> Tensor | None:
        """Return E|error|^2 of what `shrunk` left with this share, and of what was drawn for it.

        What is drawn has only the error along the coordinates that are kept.
        """
        if self.error is None or self.deviations is None:
            return None
        kept = self.deviations.flatten(1).square().sum(1) if drawn else 0.0
        return (1 - share) * self.error + share * kept

    def shrunk(self, p: Tensor, share: float) -> "Sampled":
        """Return each moved to the mean until this share of the errors' variance is gone.

        So what is drawn around it has as much error as what was measured.
        """
        if self.error is None:
            return self
        mean = weighted(p, self.each)
        away = self.each - mean
        spread = float(p @ away.flatten(1).square().sum(1))
        left = 1 - share * float((p * (1 - p)) @ self.error) / max(spread, 1e-300)
        return replace(self, each=mean + sqrt(max(0.0, left)) * away)


def sampled(each: Tensor, deviations: Tensor | None) -> Sampled:
    """Return it with its error, which is that of the deviations."""
    error = None if deviations is None else deviations.flatten(1).square().sum(1)
    return Sampled(each, deviations, error)


def vectors(
    rows: Tensor, directions: Tensor | None = None, deviations: Tensor | None = None
) -> Sampled:
    """Return rows (n, d) in coordinates, the first ones along the directions (m, d); None: all d.

    Of what lies outside of the directions the rows' own span is kept, and all inner products.
    """
    if directions is None:
        away = None if deviations is None else deviations.cpu().double()
        return sampled(rows.cpu().double(), away)
    inside = rows @ directions.T
    outside = rows - inside @ directions
    squares, U = torch.linalg.eigh((outside @ outside.T).cpu().double())
    kept = squares > 1e-12 * squares.abs().max().clamp_min(1e-300)
    sizes, U = squares[kept].sqrt(), U[:, kept]
    each = torch.cat([inside.cpu().double(), U * sizes], 1)
    if deviations is None:
        return Sampled(each)
    error = deviations.square().sum((1, 2)).cpu().double()
    along = deviations @ directions.T
    span = ((deviations - along @ directions) @ outside.T).cpu().double() @ (U / sizes)
    return Sampled(each, torch.cat([along.cpu().double(), span], 2), error)


@dataclass(frozen=True)
class Restricted:
    """All Hessians in the same directions, so that Hess is the mean of the Hess_i there too."""

    A: Sampled  # Hess_i in these directions, of shape (clients, m, m)
    p: Tensor  # the weights of these clients
    own: Tensor  # |Hess_i| of each client
    apart: Tensor  # |Hess_i - Hess| of each client
    directions: Tensor | None = None  # orthonormal rows, (m, d); None: A is in all directions
    clients: tuple[int, ...] | None = None  # which of the panel's clients these are; None: all

    @cached_property
    def steepest(self) -> Tensor:
        """The clients that are steepest, and those that differ most."""
        top = min(len(self.own), TOP)
        found = {i for v in (self.own, self.apart) for i in v.topk(top).indices.tolist()}
        return torch.tensor(sorted(found))

    def scalars(self, *, symmetric: bool = True) -> dict[str, float]:
        """Return L, mu, delta, |Hess| and `second`."""
        found = scalars(
            self.p, self.A.each, steepest=self.steepest, apart=self.apart, symmetric=symmetric
        )
        return {name: float(value) for name, value in found.items()}

    def reduced(self) -> "Restricted":
        """Return the same in the directions that matter: those of Hess and of the worst clients."""
        m = self.A.each.shape[1]
        if m <= REDUCED:
            return self
        H = weighted(self.p, self.A.each)
        U = torch.linalg.eigh(H).eigenvectors
        directions = [U[:, :8], U[:, -4:]]
        for i in self.steepest.tolist():
            for shift in (torch.zeros_like(H), H):
                values, U = torch.linalg.eigh(self.A.each[i] - shift)
                directions.append(U[:, values.abs().argmax()][:, None])
        Q = torch.linalg.qr(torch.cat(directions, 1)).Q[:, :REDUCED]
        deviations = self.A.deviations
        A = sampled(Q.T @ self.A.each @ Q, None if deviations is None else Q.T @ deviations @ Q)
        whole = torch.eye(m, dtype=Q.dtype) if self.directions is None else self.directions
        return replace(self, A=A, directions=Q.T.to(whole) @ whole)


@dataclass(frozen=True)
class Gradients:
    """The clients' gradients at one point."""

    rows: Tensor  # grad f_i of each client, of shape (clients, d)
    mean: Vector
    deviations: Tensor | None  # of the rows, (clients, folds, d), if samples were drawn
    zeta: float
    G: float
    apart: tuple[float, ...]  # |grad f_i - grad f| of each client

    @property
    def moved(self) -> Tensor:
        """The differences grad f_i - grad f."""
        return self.rows - self.mean


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


def difference(here: Gradients, best: Gradients) -> Sampled:
    """Return the differences of gradients at a point and at the best one, of which B is made."""
    deviations = None
    if here.deviations is not None and best.deviations is not None:
        deviations = here.deviations - best.deviations
    rows = here.rows - best.rows
    return vectors(rows, rows[:0], deviations)


def B_of(p: Tensor, *differences: Sampled) -> float:
    """Return the largest B of these."""
    return float(scalars(p, between=[(d.each, d.error) for d in differences])["B"])


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

    def drawn(self, draw: torch.Generator, z: Tensor | None, share: float) -> Tensor:
        """Return E|noise|^2 of each client as other mini-batches and samples might have made it.

        share: of the variance that mini-batches cause; other clients bring the rest.
        """
        assert self.squares is not None
        pairs, mean = len(self.squares), self.squares.mean(0)
        chosen = torch.randint(pairs, self.squares.shape, generator=draw)
        # A resampled mean of n numbers has (n - 1)/n of the variance of the mean.
        wider = sqrt(share * pairs / max(1, pairs - 1))
        away = wider * (self.squares.gather(0, chosen).mean(0) - mean)
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
    first = turn * ceil(max(RULES.folds, RULES.noise_pairs / len(p)) / turn)
    most = min(first, 2 * RULES.noise_pairs)
    while len(squares) < most:
        pair = len(squares)
        noise = noise_samples(panels[pair % turn], x, seed, pair, out_of_time)
        if noise is None:
            break
        squares.append(noise.cpu().double().square().sum(1) * scale[:, pair % turn])
        if pair + 1 == turn and not any(bool(each.any()) for each in squares):
            break
        if pair + 1 == first:
            most = _needed(p, torch.stack(squares))
    each = torch.stack(squares[: len(squares) // turn * turn]) if len(squares) >= turn else None
    if each is None or not bool(torch.isfinite(each).all()):
        return BatchNoise()
    sigma = float(scalars(p, V=each.mean(0))["sigma"])
    if thinned is None:
        return BatchNoise(sigma, each)
    parts = each.view(-1, turn, len(p)).mean(0).T
    return BatchNoise(sigma, each, thinned.deviations(parts, equal=True))


def _needed(p: Tensor, squares: Tensor) -> int:
    """Return how many pairs make the standard error of sigma^2 small; clients draw independently.

    The first pairs say so once: who looks after every pair ends where the error is small by chance.
    """
    variance = p.square() @ squares.var(0)
    allowed = (RULES.noise_error * (p @ squares.mean(0))).square().clamp_min(1e-300)
    return min(2 * RULES.noise_pairs, ceil(float(variance / allowed)))


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
