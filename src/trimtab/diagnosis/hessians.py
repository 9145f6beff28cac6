"""Measured Hessians at one point: how steep the clients' losses are, and how far apart.

L = the largest |eigenvalue| of any Hess_i; delta = that of any Hess_i - Hess. Where oracles are no
gradients the derivatives are not symmetric and have no such eigenvalues: L and delta are spectral
norms then, and mu is the least eigenvalue of the symmetric part.
"""

from dataclasses import dataclass, field, replace
from math import isfinite, nan, sqrt

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.lanczos import Spectrum, dense
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.theory import weighted

DENSE = 2000  # the mean Hessian is formed if d <= 2000
SMALL = 300  # the Hessians of all clients are formed if d <= 300
FLAT = 1e-6  # an eigenvalue counts as not negative if it is >= -1e-6 L


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
    rough: bool = False  # True: Lanczos was cut so short that L and delta say little


def consistent(measured: Hessians) -> Hessians:
    """Raise L to what the other numbers say of it, so that no two contradict each other.

    L is at least |Hess| and at least delta - |Hess|, and at least delta where all are positive
    semi-definite, since |Hess_i - Hess| <= |Hess_i| + |Hess|.
    """
    L, delta, norm = measured.L, measured.delta, measured.norm
    if not isfinite(delta):
        return measured
    definite = min(measured.weak, measured.mu) >= -FLAT * L
    return replace(measured, L=max(L, norm, delta if definite else delta - norm, delta / 2))


def full_hessians(panel: Panel, x: Vector, out_of_time: OutOfTime) -> Tensor | None:
    """Return all Hess_i in float64, or None if they are large or there is no time for them."""
    d = panel.problem.d
    if d > SMALL:
        return None
    eye, matrices = torch.eye(d).to(x), []
    for i in range(panel.problem.N):
        H = panel.products_in_time(i, x, eye, out_of_time)
        if H is None or out_of_time():
            return None
        # Each row is Hess_i times a unit vector, so it is a column of Hess_i.
        matrices.append((H + H.T).double() / 2 if panel.can.symmetric else H.T.double())
    return torch.stack(matrices)


def full_hessian(panel: Panel, x: Vector, out_of_time: OutOfTime) -> Tensor | None:
    """Return Hess in float64, or None if d is large or there is no time for it."""
    d = panel.problem.d
    if d > DENSE:
        return None
    H, eye = torch.zeros(d, d, dtype=torch.float64), torch.eye(d).to(x)
    assert panel.can.symmetric
    for i in range(panel.problem.N):
        H_i = None if out_of_time() else panel.products_in_time(i, x, eye, out_of_time)
        if H_i is None:
            return None
        H.add_(H_i.double().cpu(), alpha=float(panel.p[i]))
    return (H + H.T) / 2


def by_matrices(panel: Panel, H_i: Tensor, out_of_time: OutOfTime) -> Hessians | None:
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
    return consistent(
        Hessians(
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
        )
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
