"""Extreme eigenvalues from products with vectors: Lanczos with full reorthogonalisation."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.rules import RULES

Product = Callable[[Vector], Vector]
"""v -> M v for a symmetric matrix M."""


@dataclass(frozen=True)
class Spectrum:
    """What a Lanczos process, or a full decomposition, found of a symmetric matrix."""

    values: tuple[float, ...]  # eigenvalues or Lanczos's Ritz values, ascending
    weights: tuple[float, ...]  # the share of the spectrum near each value; they sum to 1
    error: float = 0.0  # an eigenvalue lies within this distance of the value of largest size
    products: int = 0  # the number of products with vectors; 0: the whole matrix was there

    @property
    def least(self) -> float:
        """The least eigenvalue."""
        return self.values[0]

    @property
    def greatest(self) -> float:
        """The greatest eigenvalue."""
        return self.values[-1]

    @property
    def norm(self) -> float:
        """The largest |eigenvalue|."""
        return max(abs(self.least), abs(self.greatest))

    @property
    def settled(self) -> bool:
        """Whether the process went on until its extreme values hardly moved any more."""
        return self.error <= RULES.residual * self.norm


def dense(M: Tensor) -> Spectrum:
    """Return all eigenvalues of a symmetric matrix.

    >>> dense(torch.diag(torch.tensor([3.0, -4.0]))).norm
    4.0
    """
    values = torch.linalg.eigvalsh(M).tolist()
    return Spectrum(tuple(values), (1 / len(values),) * len(values))


def lanczos(
    product: Product,
    start: Vector,
    *,
    most: int = 60,
    tolerance: float = 2e-3,
    ends: bool = False,
    out_of_time: OutOfTime = lambda: False,
) -> Spectrum:
    """Return Ritz values of a symmetric matrix, its extreme ones accurate.

    It stops when the value of largest size (with `ends`, the least and the greatest) has a residual
    below `tolerance` of the largest, after `most` products, or when it is `out_of_time`. A Ritz
    value never lies outside the spectrum, so a norm that was cut short is too small, not too large.
    """
    d = start.numel()
    most = max(2, min(most, d, RULES.stored // d))
    basis = start.new_empty(most, d)
    q = start / start.norm()
    alphas: list[float] = []
    betas: list[float] = []
    values, first, last = torch.zeros(1), torch.ones(1), torch.zeros(1)
    residual = 0.0
    for j in range(most):
        basis[j] = q
        w = product(q)
        alphas.append(float(w @ q))
        for _ in range(2):  # Twice is enough (Kahan, Parlett).
            w = w - (basis[: j + 1] @ w) @ basis[: j + 1]
        beta = float(w.norm())
        T = torch.diag(torch.tensor(alphas, dtype=torch.float64))
        off = torch.tensor(betas, dtype=torch.float64)
        T = T + torch.diag(off, 1) + torch.diag(off, -1)
        values, U = torch.linalg.eigh(T)
        first, last = U[0].square(), U[-1].abs() * beta
        at = {0, len(alphas) - 1} if ends else {int(values.abs().argmax())}
        residual = max(float(last[i]) for i in at)
        size = float(values.abs().max())
        if beta <= 1e-6 * size or (j > 3 and residual <= tolerance * size) or out_of_time():
            break
        betas.append(beta)
        q = w / beta
    return Spectrum(tuple(values.tolist()), tuple(first.tolist()), residual, len(alphas))


def conjugate_gradients(
    product: Product,
    b: Vector,
    *,
    most: int = 200,
    tolerance: float = 1e-4,
    out_of_time: OutOfTime = lambda: False,
) -> tuple[Vector, float]:
    """Return x with M x = b for a positive definite M, and the relative residual that is left.

    >>> x, left = conjugate_gradients(lambda v: 2 * v, torch.ones(3))
    >>> x, left
    (tensor([0.5000, 0.5000, 0.5000]), 0.0)
    """
    x, r = torch.zeros_like(b), b.clone()
    p, rr, size = r, float(r @ r), float(b @ b)
    best = (x, 1.0)
    for _ in range(most):
        if rr <= tolerance**2 * size or out_of_time():
            break
        Mp = product(p)
        curvature = float(p @ Mp)
        if curvature <= 0:  # M is not positive definite along p.
            break
        x = x + rr / curvature * p
        r = r - rr / curvature * Mp
        old, rr = rr, float(r @ r)
        p = r + rr / old * p
        if rr < best[1] ** 2 * size:
            best = (x, (rr / size) ** 0.5)
    return best
