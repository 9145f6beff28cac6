"""Measured Hessians at one point: how steep the clients' losses are, and how far apart.

While d is small all Hess_i are formed. Beyond, products with vectors show all of them in one common
subspace (Rayleigh and Ritz), in which Hess is exactly the mean of the Hess_i: no two numbers
contradict each other, however early the time is over. A direction costs a product with every
client's Hessian; the next ones are where the clients that seem steepest and most different, and
Hess, leave the subspace (Davidson).
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.streams import NOISE, PARTITION, stream
from trimtab.core.task import Progress
from trimtab.diagnosis.budget import Budget, OutOfTime
from trimtab.diagnosis.measure import Restricted, Sampled, norms, sampled
from trimtab.diagnosis.panel import Panel, orthonormal, weighted
from trimtab.diagnosis.rules import RULES
from trimtab.problems.linear_system import solve_continuous_lyapunov

PROBES = 4  # 4 random vectors rank the clients


@dataclass(frozen=True)
class Hessians:
    """What is known of the Hessians at one point; NaN stands for what was not measured."""

    L: float
    mu: float  # the least eigenvalue of Hess: strong convexity, or below 0 how non-convex f is
    delta: float
    second: float  # sqrt of sum p_i |Hess_i - Hess|^2, in spectral norms
    norm: float  # |Hess|
    weak: float  # the least eigenvalue of any Hess_i if that is below 0, else 0
    apart: tuple[float, ...]  # |Hess_i - Hess| of each client, measured or estimated
    measured: tuple[bool, ...]  # False: the client's `apart` is an estimate from random vectors
    spectra: dict[int, tuple[float, ...]] = field(default_factory=dict)  # of Hess_i - Hess
    matrix: Tensor | None = None  # Hess, if d <= RULES.dense and there was time
    exact: bool = True  # False: L and delta are lower bounds
    mu_exact: bool = True  # False: mu is an upper bound
    rough: bool = False  # True: it was cut so short that L and delta say little
    errors: dict[str, float] = field(default_factory=dict)  # what an iteration may have left out
    symmetric: bool = True
    restricted: Restricted | None = None  # the matrices themselves, for replicates

    @cached_property
    def eigen(self) -> tuple[Tensor, Tensor]:
        """The eigenvalues of Hess, ascending, and its eigenvectors in columns."""
        assert self.matrix is not None
        values, U = torch.linalg.eigh(self.matrix)
        return values, U

    def lyapunov_trace(self, C: Tensor) -> float:
        """Return the trace of X with Hess X + X Hess' = C; the matrix is there."""
        if not self.symmetric:
            assert self.matrix is not None
            return float(solve_continuous_lyapunov(self.matrix, C).trace())
        values, U = self.eigen
        return float(((U.T @ C * U.T).sum(1) / (2 * values)).sum())

    def with_exact_mu(self) -> "Hessians":
        """Return the same with mu by the matrix, which is there."""
        values, U = self.eigen
        beyond = max(0.0, float(values.abs().max()) - self.norm)
        errors = self.errors | {"mu": 0.0, "norm": beyond}
        exact = replace(self, mu=min(float(values[0]), self.mu), mu_exact=True, errors=errors)
        exact.__dict__["eigen"] = values, U  # It is that of the same matrix.
        return exact

    @property
    def mu_may_be_zero(self) -> bool:
        """Whether mu is so small that what the iteration left out may be all of it."""
        return 0 < abs(self.mu) <= self.errors.get("mu", 0.0)


Seen = tuple[Hessians, Hessians | None]
"""The Hessians where all is measured, and at the start if there was time for them."""


def by_mean_alone(panel: Panel, norm: float) -> Hessians:
    """Return what the mean Hessian says of the others: that one of them is as steep."""
    N = panel.problem.N
    known = Hessians(norm, nan, nan, nan, norm, 0.0, (nan,) * N, (False,) * N)
    return replace(known, exact=False, mu_exact=False, rough=True)


# -- whole matrices


def full_hessians(panel: Panel, x: Vector, out_of_time: OutOfTime) -> Sampled | None:
    """Return all Hess_i in float64, or None if they are large or there is no time for them."""
    if panel.problem.d > RULES.small:
        return None
    folds: list[Tensor] = []
    for fold in panel.fold_panels:
        found = list(_matrices(fold, x, out_of_time))
        if len(found) < panel.problem.N or out_of_time():
            return None
        H_i = torch.stack(found)
        folds.append((H_i + H_i.mT) / 2 if panel.problem.symmetric else H_i)
    if panel.thinned is None:
        return Sampled(folds[0])
    parts = torch.stack(folds, 1)
    return sampled(panel.thinned.mean(parts), panel.thinned.deviations(parts))


def full_hessian(panel: Panel, x: Vector, out_of_time: OutOfTime) -> Tensor | None:
    """Return Hess in float64, or None if d is large or there is no time for it."""
    d = panel.problem.d
    if d > RULES.dense:
        return None
    assert panel.problem.symmetric
    H, seen = torch.zeros(d, d, dtype=torch.float64), 0
    if not out_of_time():
        for H_i in _matrices(panel, x, out_of_time):
            H.add_(H_i, alpha=float(panel.p[seen]))
            seen += 1
    return (H + H.T) / 2 if seen == panel.problem.N else None


def _matrices(panel: Panel, x: Vector, out_of_time: OutOfTime) -> Iterator[Tensor]:
    """Yield Hess_i in float64 for one client after the other, until the time is over."""
    closed = panel.problem.client_hessian
    if closed is None:  # Each row is Hess_i times a unit vector, so it is a column of Hess_i.
        for columns in panel.all_products(x, torch.eye(panel.problem.d).to(x), out_of_time):
            yield columns.cpu().double().T
        return
    for i in range(panel.problem.N):
        if i and out_of_time():
            return
        yield closed(i, x).cpu().double()


def by_matrices(panel: Panel, matrices: Sampled, out_of_time: OutOfTime) -> Hessians | None:
    """Return what follows from all the Hessians; None if there is no time to decompose them."""
    A, p, symmetric = matrices.each, panel.p.cpu().double(), panel.problem.symmetric
    H, least = weighted(p, A), 0.0
    own, apart, spectra = list[Tensor](), list[Tensor](), list[Tensor]()
    for some in torch.split(A, RULES.step):
        if out_of_time():
            return None
        values = torch.linalg.eigvalsh((some + some.mT) / 2)
        least = min(least, float(values.min()))
        own.append(values.abs().amax(-1) if symmetric else norms(some, symmetric=False))
        if symmetric:
            spectra.append(torch.linalg.eigvalsh(some - H))
        apart.append(spectra[-1].abs().amax(-1) if symmetric else norms(some - H, symmetric=False))
    restricted = Restricted(matrices, p, torch.cat(own), torch.cat(apart))
    rows = torch.cat(spectra).tolist() if symmetric else []
    found: dict[str, Any] = restricted.scalars(symmetric=symmetric)
    return Hessians(
        **found,
        weak=least,
        apart=tuple(restricted.apart.tolist()),
        measured=(True,) * len(A),
        spectra={i: tuple(row) for i, row in enumerate(rows)},
        matrix=H,
        symmetric=symmetric,
        restricted=restricted if symmetric else None,
    )


# -- products with vectors


def by_products(
    panel: Panel,
    x: Vector,
    seed: int,
    budget: Budget,
    out_of_time: OutOfTime,
    worst: int = RULES.followed,
    share: float | None = None,
) -> Generator[Progress, None, Hessians]:
    """Rank the clients by random vectors, and follow Hess and the worst of them."""
    yield Progress("random vectors through every Hessian", share)
    space, d = _Subspace(panel, x, seed, out_of_time), panel.problem.d
    if space.seen < panel.problem.N:
        budget.note(
            f"Only {space.seen} of {panel.problem.N} Hessians, drawn at random, were looked at."
        )
    most = max(PROBES, min(RULES.directions, d, RULES.stored // (d * (3 + worst))))
    followed: dict[int, None] = {}
    open_ = True
    while open_ and len(space.Q) < most and (ends := space.ends(followed, worst)):
        if open_ := not out_of_time():
            yield Progress(f"Hessians in {len(space.Q)} directions", share)
            open_ = space.add(torch.stack(ends[: most - len(space.Q)]))
    if not open_ and out_of_time():
        budget.note(f"The Hessians were looked at in {len(space.Q)} directions only.")
    return space.conclude(tuple(followed))


@dataclass(frozen=True)
class _Ritz:
    """A Ritz value of a matrix in the subspace, and what the matrix adds."""

    value: float
    away: Vector  # M v - value v for the Ritz vector v: the direction to look at next

    @cached_property
    def residual(self) -> float:
        """An eigenvalue lies within this distance of the value."""
        return float(self.away.norm())

    def settled(self, size: float) -> bool:
        """Return whether the residual is small compared with a size."""
        return self.residual <= RULES.residual * max(abs(size), 1e-30)


class _Subspace:
    """Orthonormal directions Q, and what every client's Hessian does in them."""

    def __init__(self, panel: Panel, x: Vector, seed: int, out_of_time: OutOfTime) -> None:
        N, d = panel.problem.N, panel.problem.d
        self.panel, self.x, self.out_of_time = panel, x, out_of_time
        self.Q, self.HQ = x.new_zeros(0, d), x.new_zeros(0, d)  # and Hess times each direction
        self.images: dict[int, Tensor] = {}  # Hess_i times each direction, of those followed
        draw = torch.randn(min(PROBES, d), d, generator=stream(seed, NOISE, 1), dtype=torch.float64)
        V = orthonormal(self.Q, draw.to(x))
        # Those that there is time for are drawn at random, so that they stand for all.
        order = torch.randperm(N, generator=stream(seed, PARTITION, 8)).tolist()
        each = dict(zip(order, self._all_products(V, order), strict=False))
        self.clients = sorted(each)
        self.seen = len(self.clients)
        p = panel.p[self.clients]
        self.p = p / p.sum()
        products = torch.stack([each[i] for i in self.clients])
        both = self._mean(products)
        mean = weighted(self.p, both)
        norms_ = [rows.square().sum((1, 2)).sqrt() for rows in (both, both - mean)]
        # V spans only a part of all directions.
        self.by_chance = torch.stack(norms_, 1).cpu().double() * (d / len(V)) ** 0.5
        # Hess_i in the directions by folds: (clients, folds, m, m)
        self.parts = torch.zeros(self.seen, len(panel.fold_panels), 0, 0, dtype=torch.float64)
        self._grow(V, products @ V.T, mean)

    def add(self, V: Tensor) -> bool:
        """Look at further directions; False if there are none, or the time is over before."""
        V = orthonormal(self.Q, V)
        if not len(V):
            return False
        products, mean, images = list[Tensor](), torch.zeros_like(V), {}
        wide = torch.cat([self.Q, V])
        for i, folds in enumerate(self._all_products(V, self.clients)):
            both = self._mean(folds[None], [i])[0]
            mean.add_(both, alpha=float(self.p[i]))
            if i in self.images:
                images[i] = torch.cat([self.images[i], both])
            # Only what is seen of it in the subspace is kept, since there may be many clients.
            products.append(folds @ wide.T)
        if len(products) < self.seen:
            return False
        self.images |= images
        self._grow(V, torch.stack(products), mean)
        return True

    def _mean(self, parts: Tensor, some: Sequence[int] | None = None) -> Tensor:
        """Return what the folds have together; some: which of the clients these are."""
        if self.panel.thinned is None:
            return parts[:, 0]
        numbers = self.clients if some is None else [self.clients[i] for i in some]
        return self.panel.thinned.mean(parts, numbers)

    def _all_products(self, V: Tensor, clients: Sequence[int]) -> Iterator[Tensor]:
        """Yield Hess_i V on each fold for one client after the other, until the time is over."""
        how = (self.x, V, self.out_of_time, clients)
        folds = (panel.all_products(*how) for panel in self.panel.fold_panels)
        for products in zip(*folds, strict=False):
            yield torch.stack(products)

    def _grow(self, V: Tensor, products: Tensor, mean: Tensor) -> None:
        """Add the directions V, with Hess_i V in the subspace, by folds, and Hess V."""
        m, k = len(self.Q), len(V)
        self.Q, self.HQ = torch.cat([self.Q, V]), torch.cat([self.HQ, mean])
        rows = products.cpu().double()
        rows[..., m:] = (rows[..., m:] + rows[..., m:].mT) / 2
        parts = rows.new_zeros(*rows.shape[:2], m + k, m + k)
        parts[..., :m, :m] = self.parts
        parts[..., m:, :] = rows
        parts[..., :, m:] = rows.mT
        self.parts, self.A = parts, self._mean(parts)  # A: Hess_i in the directions
        self.H = weighted(self.p, self.A)
        # |Hess_i| and |Hess_i - Hess| in the subspace, in two columns
        self.sizes = torch.stack([norms(self.A), norms(self.A - self.H)], 1)

    # -- where the subspace is left

    def _ritz(self, M: Tensor, image: Tensor, *, least: bool = False) -> _Ritz:
        """Return the Ritz pair of largest size, or the least one, of the matrix with this image."""
        values, U = torch.linalg.eigh(M)
        j = 0 if least else int(values.abs().argmax())
        u, value = U[:, j].to(image), float(values[j])
        return _Ritz(value, u @ image - value * (u @ self.Q))

    def of_mean(self) -> tuple[_Ritz, _Ritz]:
        """Return the Ritz pair of largest size of Hess, and its least one."""
        return self._ritz(self.H, self.HQ), self._ritz(self.H, self.HQ, least=True)

    def of_client(self, i: int) -> tuple[_Ritz, _Ritz]:
        """Return the Ritz pairs of largest size of Hess_i, and of Hess_i - Hess."""
        if i not in self.images:
            folds = [f.products(self.clients[i], self.x, self.Q) for f in self.panel.fold_panels]
            self.images[i] = self._mean(torch.stack(folds)[None], [i])[0]
        image = self.images[i]
        return self._ritz(self.A[i], image), self._ritz(self.A[i] - self.H, image - self.HQ)

    def ends(self, followed: dict[int, None], worst: int) -> list[Vector]:
        """Return where Hess and the worst clients leave the subspace, if they have not settled."""
        largest, least = self.of_mean()
        away = [ritz.away for ritz in (largest, least) if not ritz.settled(largest.value)]
        for i in self._suspects():
            if i not in followed and len(followed) >= worst:
                continue
            followed[i] = None
            open_ = [ritz.away for ritz in self.of_client(i) if not ritz.settled(ritz.value)]
            if open_:  # The others wait until this one has settled.
                return away + open_
        # The least eigenvalue alone is not worth a pass: it settles late, or never.
        return [] if largest.settled(largest.value) else away

    def _suspects(self) -> list[int]:
        """Return the clients that may be most different or steepest, the likeliest first."""
        found: list[int] = []
        for values, estimates in ((self.sizes[:, j], self._estimated(j)) for j in (1, 0)):
            guess = torch.maximum(values, RULES.unlikely * estimates)
            order = guess.argsort(descending=True).tolist()
            found += [i for i in order if guess[i] >= values.max() and values[i] > 0]
        return list(dict.fromkeys(found))

    def _estimated(self, j: int) -> Tensor:
        """Return what random vectors suggest of |Hess_i| (0) or |Hess_i - Hess| (1).

        It is scaled so that no client has more in the subspace than that.
        """
        by_chance: Tensor = self.by_chance[:, j]
        return float((self.sizes[:, j] / by_chance.clamp_min(1e-30)).max()) * by_chance

    # -- what follows

    def conclude(self, followed: tuple[int, ...]) -> Hessians:
        """Return what is known of all clients."""
        N, numbers_of = self.panel.problem.N, {i: j for j, i in enumerate(self.clients)}
        own, apart = self.sizes.unbind(1)
        known = self._estimated(1).clamp_max(float(apart.max()))
        known[list(followed)] = apart[list(followed)]
        deviations = None
        if self.panel.thinned is not None:
            deviations = self.panel.thinned.deviations(self.parts, self.clients)
        A, p = sampled(self.A, deviations), self.p.cpu().double()
        restricted = Restricted(A, p, own, apart, self.Q, tuple(self.clients))
        found: dict[str, Any] = restricted.scalars()
        residuals = self._residuals(followed)
        sizes = {"L": found["L"], "delta": found["delta"], "mu": found["norm"]}
        open_ = {n for n in sizes if residuals[n] > RULES.residual * max(sizes[n], 1e-30)}
        errors = self._errors(residuals, followed)
        second = float((p @ known.square()).sqrt())
        errors["second"] = second - found["second"] + residuals["delta"]
        return Hessians(
            **found | {"second": second},
            weak=min(0.0, float(torch.linalg.eigvalsh(self.A).min())),
            apart=tuple(float(known[numbers_of[i]]) if i in numbers_of else nan for i in range(N)),
            measured=tuple(numbers_of.get(i) in followed for i in range(N)),
            spectra={
                self.clients[j]: tuple(torch.linalg.eigvalsh(self.A[j] - self.H).tolist())
                for j in followed
            },
            exact=len(followed) == N and not open_ & {"L", "delta"},
            mu_exact=self.seen == N and "mu" not in open_,
            rough=bool(open_ & {"L", "delta"}),
            errors=errors,
            restricted=restricted,
        )

    def _residuals(self, followed: tuple[int, ...]) -> dict[str, float]:
        """Return within which distance of L, delta, mu and |Hess| an eigenvalue lies."""
        whole = len(self.Q) >= self.panel.problem.d
        if whole or not followed:
            return dict.fromkeys(("L", "delta", "mu", "norm"), 0.0 if whole else inf)
        looks = zip(*map(self.of_client, followed), strict=True)
        own, apart = (max(each, key=lambda ritz: abs(ritz.value)).residual for each in looks)
        norm, least = (ritz.residual for ritz in self.of_mean())
        return {"L": own, "delta": apart, "mu": least, "norm": norm}

    def _errors(self, residuals: dict[str, float], followed: tuple[int, ...]) -> dict[str, float]:
        """Return what the iteration may have left out of L, delta, mu and |Hess|.

        The largest may be that of a client that was not followed, whose own residual counts; others
        that were not may exceed it. That an eigenvalue is near does not say that it is the
        outermost: mu and |Hess| may move on as they did in the last quarter of the directions.
        """
        errors, m = dict(residuals), len(self.Q)
        if m >= self.panel.problem.d:
            return errors
        others = [j for j in range(self.seen) if j not in followed]
        for kind, name in enumerate(("L", "delta")):
            sizes = self.sizes[:, kind]
            if not self.out_of_time():
                errors[name] = self.of_client(int(sizes.argmax()))[kind].residual
            if others:  # One who should have been followed may exceed the largest by as much.
                most = RULES.unlikely * float(self._estimated(kind)[others].max())
                errors[name] = max(errors[name], most - float(sizes.max()))
        part = 3 * m // 4
        now, before = (torch.linalg.eigvalsh(self.H[:k, :k]) for k in (m, max(1, part)))
        errors["mu"] += float(before[0] - now[0])
        errors["norm"] += float(now.abs().max() - before.abs().max())
        return errors
