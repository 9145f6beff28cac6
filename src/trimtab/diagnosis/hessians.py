"""Measured Hessians at one point: how steep the clients' losses are, and how far apart.

L = the largest |eigenvalue| of any Hess_i; delta = that of any Hess_i - Hess. Where oracles are no
gradients the derivatives are not symmetric and have no such eigenvalues: L and delta are spectral
norms then, and mu is the least eigenvalue of the symmetric part.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan, sqrt

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.lanczos import Spectrum, dense
from trimtab.diagnosis.measure import Sampled, norms
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.rules import RULES
from trimtab.diagnosis.theory import lyapunov_of, weighted
from trimtab.problems.linear_system import solve_continuous_lyapunov

REDUCED = 32  # replicates are made in <= 32 directions, since each decomposes its matrices
TOP = 4  # replicates look at the 4 steepest clients and at the 4 that differ most


@dataclass(frozen=True)
class Restricted:
    """All Hessians in the same directions, so that Hess is the mean of the Hess_i there too."""

    A: Sampled  # Hess_i in these directions, of shape (clients, m, m)
    p: Tensor  # the weights of these clients
    directions: Tensor | None = None  # orthonormal rows, (m, d); None: A is in all directions
    clients: tuple[int, ...] | None = None  # which of the panel's clients these are; None: all

    @cached_property
    def own(self) -> Tensor:
        """|Hess_i| of each client."""
        return norms(self.A.each)

    @cached_property
    def apart(self) -> Tensor:
        """|Hess_i - Hess| of each client."""
        return norms(self.A.each - weighted(self.p, self.A.each))

    @cached_property
    def steepest(self) -> Tensor:
        """The clients that are steepest, and those that differ most."""
        top = min(len(self.own), TOP)
        found = {i for v in (self.own, self.apart) for i in v.topk(top).indices.tolist()}
        return torch.tensor(sorted(found))

    def reduced(self) -> "Restricted":
        """Return the same in the directions that matter: those of Hess and of the worst clients."""
        m = self.A.each.shape[1]
        if m <= REDUCED:
            return self
        H = weighted(self.p, self.A.each)
        _, U = torch.linalg.eigh(H)
        directions = [U[:, :8], U[:, -4:]]
        for i in self.steepest.tolist():
            for shift in (torch.zeros_like(H), H):
                values, U = torch.linalg.eigh(self.A.each[i] - shift)
                directions.append(U[:, values.abs().argmax()][:, None])
        Q = torch.linalg.qr(torch.cat(directions, 1)).Q[:, :REDUCED]
        deviations = self.A.deviations
        A = Sampled(Q.T @ self.A.each @ Q, None if deviations is None else Q.T @ deviations @ Q)
        whole = torch.eye(m, dtype=Q.dtype) if self.directions is None else self.directions
        return replace(self, A=A, directions=Q.T.to(whole) @ whole)


@dataclass(frozen=True)
class Hessians:
    """What is known of the Hessians at one point; NaN stands for what was not measured."""

    L: float
    mu: float  # the least eigenvalue of Hess: strong convexity, or below 0 how non-convex f is
    delta: float
    weak: float  # the least eigenvalue of any Hess_i if that is below 0, else 0
    second: float  # sqrt of sum p_i |Hess_i - Hess|^2, in spectral norms
    apart: tuple[float, ...]  # |Hess_i - Hess| of each client, measured or estimated
    measured: tuple[bool, ...]  # False: the client's `apart` is an estimate from random vectors
    spectra: dict[int, Spectrum] = field(default_factory=dict)  # the spectra of Hess_i - Hess
    matrix: Tensor | None = None  # Hess, if d <= RULES.dense and there was time
    norm: float = nan  # |Hess|
    exact: bool = True  # False: L and delta are lower bounds
    mu_exact: bool = True  # False: mu is an upper bound
    rough: bool = False  # True: it was cut so short that L and delta say little
    errors: dict[str, float] = field(default_factory=dict)  # what an iteration may have left out
    restricted: Restricted | None = None  # the matrices themselves, for replicates

    @cached_property
    def eigen(self) -> tuple[Tensor, Tensor]:
        """The eigenvalues of Hess, ascending, and its eigenvectors in columns."""
        assert self.matrix is not None
        values, U = torch.linalg.eigh(self.matrix)
        return values, U

    def lyapunov(self, C: Tensor, *, symmetric: bool) -> Tensor:
        """Return X with Hess X + X Hess' = C; the matrix is there."""
        assert self.matrix is not None
        return (
            lyapunov_of(*self.eigen, C) if symmetric else solve_continuous_lyapunov(self.matrix, C)
        )

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


@dataclass(frozen=True)
class HessiansSeen:
    """The Hessians at the point where all is measured, and at the start."""

    here: Hessians
    start: Hessians | None  # None: there was no time


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
    return Sampled(panel.thinned.mean(parts), panel.thinned.deviations(parts))


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
    H_i = matrices.each
    p = panel.p
    H = weighted(p, H_i)
    mean, own, apart = dense(H), [], []
    for M in H_i:
        if out_of_time():
            return None
        own.append(dense(M))
        apart.append(dense(M - H))
    norms = tuple(s.norm for s in apart)
    return Hessians(
        L=max(s.norm for s in own),
        mu=mean.least,
        delta=max(norms),
        weak=min(0.0, *(s.least for s in own)),
        second=root_mean(p, norms),
        apart=norms,
        measured=(True,) * len(norms),
        spectra=dict(enumerate(apart)),
        matrix=H,
        norm=mean.norm,
        restricted=Restricted(matrices, p.cpu().double()),
    )


def by_asymmetric_matrices(panel: Panel, H_i: Tensor) -> Hessians:
    """Return what follows from derivatives that are not symmetric."""
    p = panel.p
    H = weighted(p, H_i)
    norms = tuple(torch.linalg.matrix_norm(H_i - H, 2).tolist())
    least = torch.linalg.eigvalsh((H_i + H_i.mT) / 2)[:, 0]
    return Hessians(
        L=float(torch.linalg.matrix_norm(H_i, 2).max()),
        mu=float(torch.linalg.eigvalsh((H + H.T) / 2)[0]),
        delta=max(norms),
        weak=min(0.0, float(least.min())),
        second=root_mean(p, norms),
        apart=norms,
        measured=(True,) * len(norms),
        matrix=H,
        norm=float(torch.linalg.matrix_norm(H, 2)),
    )


def by_mean_alone(panel: Panel, of_f: Spectrum) -> Hessians:
    """Return what the mean Hessian says of the others: that one of them is as steep."""
    N = panel.problem.N
    return Hessians(
        L=of_f.norm,
        mu=nan,
        delta=nan,
        weak=0.0,
        second=nan,
        apart=(nan,) * N,
        measured=(False,) * N,
        norm=of_f.norm,
        exact=False,
        mu_exact=False,
        rough=True,
    )


def root_mean(p: Tensor, values: tuple[float, ...]) -> float:
    """Return sqrt of sum p_i v_i^2."""
    return sqrt(float(p @ torch.tensor(values, dtype=torch.float64).square()))
