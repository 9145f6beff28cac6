"""What theory says of measured numbers: rounds, the best K, step sizes, bias and variance.

Karimireddy et al., "SCAFFOLD", 2020: Table 2, with L kept and numerical constants dropped.
Mangold et al., 2025: FedAvg's bias and the stationary law; all derivatives at x*, p the weights,
C the mean over clients of the covariance of ONE mini-batch gradient, drawn i.i.d. (with unequal
weights N sum p_i^2 C_i, so that C/N is still what the mean of all clients has).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis.candidates import FEDAVG, SCAFFOLD, SGD

STRONGLY_CONVEX, GENERAL_CONVEX, NON_CONVEX = "strongly convex", "general convex", "non-convex"
NO_GRADIENTS = "no gradients"  # what oracles give belongs to no f, so Table 2 says nothing of it

Option = Literal["I", "II"]
Rate = dict[str, float]
"""The terms of a rate by name; they add up to rounds."""


_HUGE = 1e75  # rates are computed of numbers < 1e75, whose fourth powers are finite


@dataclass(frozen=True)
class Constants:
    """What the rates depend on; `F` = f(x0) - f(x*) and `D` = |x0 - x*| where mu is not positive.

    >>> Constants(L=1, mu=0.01, delta=0.1, G=1, B=1, sigma=0, N=10, S=10, eps=0.01).convexity
    'strongly convex'
    """

    L: float
    mu: float
    delta: float
    G: float
    B: float
    sigma: float
    N: int
    S: int
    eps: float
    D: float = 1.0
    F: float = 1.0

    @property
    def usable(self) -> bool:
        """Whether rates can be computed: where f falls for ever, F and B grow without bound.

        >>> Constants(L=1, mu=-1, delta=1, G=1, B=1e200, sigma=0, N=2, S=2, eps=1).usable
        False
        """
        sizes = (self.L, self.mu, self.delta, self.G, self.B, self.sigma, self.D, self.F)
        return all(abs(size) < _HUGE for size in sizes) and self.eps > 1 / _HUGE

    @property
    def convexity(self) -> str:
        """Which column of Table 2 holds: mu is 0 up to a millionth of L, or it has a sign."""
        tiny = 1e-6 * self.L
        if self.mu > tiny:
            return STRONGLY_CONVEX
        return NON_CONVEX if self.mu < -tiny else GENERAL_CONVEX


def rates(at: Constants, K: int) -> dict[str, Rate]:
    """Return the rounds to eps of Table 2, term by term; both theorems for SCAFFOLD.

    >>> easy = Constants(L=1, mu=0.01, delta=0.1, G=0, B=1, sigma=0, N=10, S=10, eps=0.01)
    >>> {name: round(sum(rate.values())) for name, rate in rates(easy, K=10).items()}
    {'sgd': 100, 'fedavg': 100, 'scaffold': 101, 'scaffold on quadratics': 20}
    """
    c = at
    if c.convexity == NON_CONVEX:
        scale = c.F / c.eps
        noise = c.L * c.sigma**2 * c.F / (K * c.eps**2)
        sampling = (1 - c.S / c.N) * c.G**2 * c.F / (c.S * c.eps**2)
        drift = sqrt(c.L) * c.G / c.eps**1.5
        late = (c.N / c.S) ** (2 / 3) * c.L * scale
        third = {"smoothness and late clients": late}
    else:
        strong = c.convexity == STRONGLY_CONVEX
        mu = c.mu if strong else c.eps / c.D**2  # In Table 2, eps stands for mu.
        scale = 1 / mu
        noise = c.sigma**2 / (mu * K * c.eps)
        sampling = (1 - c.S / c.N) * c.G**2 / (mu * c.S * c.eps)
        drift = sqrt(c.L) * c.G / (mu * sqrt(c.eps))
        third = {"smoothness": c.L * scale, "late clients": c.N / c.S}
    return {
        SGD: {"noise": noise / c.N, "smoothness": c.L * scale},
        FEDAVG: {
            "noise": noise / c.S,
            "sampled clients that differ": sampling,
            "drift": drift,
            "smoothness": c.B**2 * c.L * scale,
        },
        SCAFFOLD: {"noise": noise / c.S} | third,
        f"{SCAFFOLD} on quadratics": {
            "noise": noise / c.N,
            "smoothness": c.L * scale / K,
            "different Hessians": c.delta * scale,
        },
    }


def totals(at: Constants, K: int) -> dict[str, float]:
    """Return the rounds to eps by algorithm."""
    return {name: sum(rate.values()) for name, rate in rates(at, K).items()}


def dominating(rate: Mapping[str, float]) -> str:
    """Return the name of the largest term.

    >>> dominating({"noise": 1.0, "drift": 3.0})
    'drift'
    """
    return max(rate, key=lambda name: rate[name])


def knee(L: float, delta: float, mu: float, option: Option = "II") -> float:
    """Return the K from which on more local steps save no rounds; infinite if clients are equal.

    Option I: L/delta (Theorem IV). Option II's controls are means over the last local path and lag
    behind: min(L/delta, sqrt(L/mu)), by our measurements (`trimtab reproduce local-steps`).

    >>> knee(L=1, delta=0.08, mu=0.0001), knee(L=1, delta=0.08, mu=0.04)
    (12.5, 5.0)
    """
    by_hessians = L / delta if delta > 0 else inf
    by_lag = sqrt(L / mu) if mu > 0 and option == "II" else inf
    return max(1.0, min(by_hessians, by_lag))


@dataclass(frozen=True)
class Knees:
    """The knee of both options."""

    option_I: float
    option_II: float

    def to_json(self) -> dict[str, float]:
        """Return the knees by the options' names."""
        return {"I": self.option_I, "II": self.option_II}


def knees(at: Constants) -> Knees:
    """Return the knee of both options."""
    return Knees(knee(at.L, at.delta, at.mu, "I"), knee(at.L, at.delta, at.mu, "II"))


def stable_step(L: float, K: int, eta_g: float = 1.0) -> float:
    """Return an eta_l with K eta_l eta_g L = 1 at most, and eta_l L = 1 at most.

    That is what the theorems ask for up to constants: a round moves no further than a gradient
    step of 1/L would. Better steps may be larger; this one is safe for convex losses.

    >>> stable_step(L=2.0, K=5), stable_step(L=2.0, K=1, eta_g=0.1)
    (0.1, 0.5)
    """
    return min(1.0, 1 / (K * eta_g) if eta_g else 1.0) / L if L > 0 else inf


# -- bias and variance


def weighted(p: Tensor, t: Tensor) -> Tensor:
    """Return the sum of p_i t_i."""
    mean: Tensor = torch.tensordot(p.to(t), t, dims=1)
    return mean


def drift(p: Tensor, hessians: Tensor, gradients: Tensor) -> Vector:
    """Return sum p_c (Hess_c - Hess) grad f_c."""
    different = hessians - weighted(p, hessians)
    return weighted(p, torch.einsum("nij,nj->ni", different, gradients))


def heterogeneity_bias(
    p: Tensor, hessians: Tensor, gradients: Tensor, eta_l: float, K: int
) -> Vector:
    """Return eta_l (K-1)/2 Hess^-1 sum p_c (Hess_c - Hess) grad f_c: FedAvg's, not SCAFFOLD's."""
    bias: Tensor = torch.linalg.solve(
        weighted(p, hessians), eta_l * (K - 1) / 2 * drift(p, hessians, gradients)
    )
    return bias


def stationary_covariance(H: Tensor, C: Tensor, eta_l: float, N: int, eta_g: float = 1.0) -> Tensor:
    """Return Sigma with Hess Sigma + Sigma Hess = (eta_g eta_l/N) C, to first order; S = N."""
    return lyapunov(H, eta_g * eta_l / N * C)


def sampled_noise(C: Tensor, spread: Tensor, algorithm: str, K: int, N: int, S: int) -> Tensor:
    """Return what takes the place of C/N when S of N clients are sampled.

    `spread` is the mean of grad f_c grad f_c', weighed as in C. SCAFFOLD: (2/S - 1/N) C. FedAvg:
    C/S and, since clients that differ come and go, K (N-S)/(S (N-1)) of the spread. (Ours,
    measured; with unequal weights the mean of a cohort is a ratio, and this its first order.)
    """
    if algorithm == SCAFFOLD:
        return (2 / S - 1 / N) * C
    return C / S + (K * (N - S) / (S * (N - 1)) * spread if S < N else 0.0)


def lyapunov(H: Tensor, C: Tensor) -> Tensor:
    """Solve H X + X H = C for symmetric positive definite H.

    >>> lyapunov(torch.diag(torch.tensor([1.0, 2.0])), torch.eye(2))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]])
    """
    values, U = torch.linalg.eigh(H)
    return lyapunov_of(values, U, C)


def lyapunov_of(values: Tensor, U: Tensor, C: Tensor) -> Tensor:
    """Solve the same for H with these eigenvalues, and eigenvectors in columns."""
    X: Tensor = U @ ((U.T @ C @ U) / (values[:, None] + values)) @ U.T
    return X
