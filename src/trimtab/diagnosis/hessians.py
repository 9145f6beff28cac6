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
from trimtab.diagnosis.estimate import REPLICATES
from trimtab.diagnosis.lanczos import Spectrum, dense
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.resampling import Draws, largest
from trimtab.diagnosis.theory import lyapunov_of, weighted
from trimtab.problems.linear_system import solve_continuous_lyapunov

DENSE = 2000  # the mean Hessian is formed if d <= 2000
SMALL = 300  # the Hessians of all clients are formed if d <= 300
FEW = 64  # replicates are made in <= 64 directions
TOP = 4  # replicates look at the 4 steepest clients and at the 4 that differ most
REPLICATED = ("L", "delta", "mu", "norm", "second")
FLAT = 1e-6  # an eigenvalue counts as not negative if it is >= -1e-6 L


@dataclass(frozen=True)
class Restricted:
    """All Hessians in the same directions, so that Hess is the mean of the Hess_i there too."""

    A: Tensor  # Hess_i in these directions, of shape (clients, m, m)
    p: Tensor  # the weights of these clients
    noise: Tensor | None = None  # how far A may be off because samples were drawn, as a draw of it
    clients: tuple[int, ...] | None = None  # which of the panel's clients these are; None: all

    def replicates(self, draws: Draws) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return L, delta, mu, |Hess| and `second` as other draws might have made them, and as is.

        Each replicate has matrices of its own and their mean, so none contradicts itself. The
        clients that nobody measured may be steeper, and differ more, by one common factor.
        """
        n = len(self.A)
        draws = draws if self.clients is None else draws.of_some(self.clients, self.p)
        own, apart = self._norms(self.A, self.p)
        centre = self._as_measured(own, apart)
        if not draws.clients_vary and self.noise is None:
            same = {name: torch.full((REPLICATES,), v).double() for name, v in centre.items()}
            return same, centre
        if self.A.shape[1] > FEW:
            return self._reduced(own, apart).replicates(draws)
        beyond = torch.maximum(largest(own, draws), largest(apart, draws))
        top = sorted({i for v in (own, apart) for i in v.topk(min(n, TOP)).indices.tolist()})
        rows: dict[str, list[float]] = {name: [] for name in REPLICATED}
        second = sqrt(float(self.p @ apart.square())) or 1.0
        for w, z, factor in zip(draws.weights, draws.normals, beyond.tolist(), strict=True):
            A = self._moved(z)
            values = torch.linalg.eigvalsh(weighted(w, A))
            steep, different = self._norms(A[top], torch.ones(1), weighted(w, A))
            norm = float(values.abs().max())
            rows["norm"].append(norm)
            rows["mu"].append(float(values[0]))
            rows["L"].append(max(norm, factor * float(steep.max())))
            rows["delta"].append(factor * float(different.max()))
            sizes = apart * float((different / apart[top].clamp_min(1e-30)).mean())
            sizes[top] = different
            rows["second"].append(sqrt(float(w @ sizes.square())) / second)
        return {name: torch.tensor(values).double() for name, values in rows.items()}, centre

    def _moved(self, z: Tensor) -> Tensor:
        """Return the matrices as other samples might have made them.

        Half of a client's noise is like its own, half like that of its neighbour: of one draw alone
        one would not know whether it is small by chance.
        """
        if self.noise is None:
            return self.A
        own, other = z[:, None, None], z.flip(0)[:, None, None]
        return self.A + (own * self.noise + other * self.noise.roll(1, 0)) / sqrt(2)

    def _as_measured(self, own: Tensor, apart: Tensor) -> dict[str, float]:
        """Return the numbers as they are."""
        values = torch.linalg.eigvalsh(weighted(self.p, self.A))
        norm = float(values.abs().max())
        found = {"L": float(own.max()), "delta": float(apart.max()), "mu": float(values[0])}
        return found | {"norm": norm, "second": 1.0}

    def _reduced(self, own: Tensor, apart: Tensor) -> "Restricted":
        """Return the same in the directions that matter: those of Hess and of the worst clients."""
        H = weighted(self.p, self.A)
        _, U = torch.linalg.eigh(H)
        directions = [U[:, :4], U[:, -8:]]
        for sizes, shift in ((own, torch.zeros_like(H)), (apart, H)):
            for i in sizes.topk(min(len(sizes), TOP)).indices.tolist():
                values, U = torch.linalg.eigh(self.A[i] - shift)
                directions.append(U[:, values.abs().topk(4).indices])
        Q = torch.linalg.qr(torch.cat(directions, 1)).Q
        noise = None if self.noise is None else Q.T @ self.noise @ Q
        return Restricted(Q.T @ self.A @ Q, self.p, noise)  # of the clients that draws are for

    @staticmethod
    def _norms(A: Tensor, p: Tensor, mean: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return |Hess_i| and |Hess_i - Hess| of each client."""
        H = weighted(p, A) if mean is None else mean
        own, apart = (torch.linalg.eigvalsh(M).abs().amax(1) for M in (A, A - H))
        return own, apart


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
    matrix: Tensor | None = None  # Hess, if d <= DENSE and there was time
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


def full_hessians(panel: Panel, x: Vector, out_of_time: OutOfTime) -> Tensor | None:
    """Return all Hess_i in float64, or None if they are large or there is no time for them."""
    if panel.problem.d > SMALL:
        return None
    found = list(_matrices(panel, x, out_of_time))
    if len(found) < panel.problem.N or out_of_time():
        return None
    H_i = torch.stack(found)
    return (H_i + H_i.mT) / 2 if panel.can.symmetric else H_i


def full_hessian(panel: Panel, x: Vector, out_of_time: OutOfTime) -> Tensor | None:
    """Return Hess in float64, or None if d is large or there is no time for it."""
    d = panel.problem.d
    if d > DENSE:
        return None
    assert panel.can.symmetric
    H, seen = torch.zeros(d, d, dtype=torch.float64), 0
    if not out_of_time():
        for H_i in _matrices(panel, x, out_of_time):
            H.add_(H_i, alpha=float(panel.p[seen]))
            seen += 1
    return (H + H.T) / 2 if seen == panel.problem.N else None


def _matrices(panel: Panel, x: Vector, out_of_time: OutOfTime) -> Iterator[Tensor]:
    """Yield Hess_i in float64 for one client after the other, until the time is over."""
    closed = panel.can.hessian
    if closed is None:  # Each row is Hess_i times a unit vector, so it is a column of Hess_i.
        for columns in panel.all_products(x, torch.eye(panel.problem.d).to(x), out_of_time):
            yield columns.cpu().double().T
        return
    for i in range(panel.problem.N):
        if i and out_of_time():
            return
        yield closed(i, x).cpu().double()


def by_matrices(
    panel: Panel, H_i: Tensor, out_of_time: OutOfTime, noise: Tensor | None = None
) -> Hessians | None:
    """Return what follows from all the Hessians; None if there is no time to decompose them."""
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
        restricted=Restricted(H_i, p.cpu().double(), noise),
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
