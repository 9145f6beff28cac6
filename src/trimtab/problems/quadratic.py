"""f_i(x) = 1/2 x' A_i x - b_i' x: heterogeneity, optimum and bias are known in closed form."""

from collections.abc import Sequence
from functools import cached_property
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.core.streams import NOISE, stream
from trimtab.core.tree import number_tensor
from trimtab.problems.identity import hashed_tensors, line
from trimtab.problems.problem import Problem, normalised


class Quadratic(Problem):
    """N quadratics with Hessians A (N, d, d) and vectors b (N, d); full gradients plus noise.

    A may also be given as diagonals (N, d) or, for d = 1, as numbers (N,). The A_i may be singular
    or indefinite, only their weighted mean must be positive definite. g(y, k) adds Gaussian noise
    with E|noise|^2 = sigma^2; g(y) has none.

    >>> pair = Quadratic(A=torch.tensor([2.0, 0.0]), b=torch.tensor([-1.0, 1.0]))  # Figure 3, G = 1
    >>> pair.x_star.item(), pair.G, pair.delta, pair.L, pair.mu
    (0.0, 1.0, 1.0, 2.0, 1.0)
    """

    def __init__(
        self,
        A: Tensor | Sequence[Any],
        b: Tensor | Sequence[Any],
        sigma: float = 0.0,
        weights: Sequence[float] | Tensor | None = None,
    ) -> None:
        A, b = number_tensor("Quadratic: A", A), number_tensor("Quadratic: b", b)
        dtype = torch.promote_types(A.dtype, b.dtype)
        dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
        A, b = A.to(dtype), b.to(dtype)
        b = b[:, None] if b.dim() == 1 else b
        A = A[:, None] if A.dim() == 1 else A
        A = torch.diag_embed(A) if A.dim() == 2 else A
        if not b.numel():
            raise ValueError(
                "Quadratic: there are no clients, or d = 0; pass at least one of each."
            )
        if b.dim() != 2 or A.shape != (*b.shape, b.shape[1]):
            raise ValueError(
                f"Quadratic: A has shape {tuple(A.shape)} and b {tuple(b.shape)}; "
                "pass A of shape (N, d, d) and b of shape (N, d)."
            )
        if not (torch.isfinite(A).all() and torch.isfinite(b).all()):
            raise ValueError("Quadratic: A or b holds NaN or infinity; pass finite numbers.")
        if not torch.allclose(A, A.mT):
            raise ValueError("Quadratic: some A_i is not symmetric; pass (A_i + A_i')/2.")
        if not (isinstance(sigma, int | float) and sigma >= 0):
            raise ValueError(f"Quadratic: sigma={sigma!r}; pass a number that is zero or positive.")
        self.A, self.b, self.sigma = A, b, float(sigma)
        self.N, self.d = b.shape
        self.weights = normalised(weights, self.N)
        if self.mu <= 0:
            raise ValueError(
                f"Quadratic: the mean of the A_i has eigenvalue {self.mu:.3g}, so f has no unique "
                "minimum; pass A_i whose weighted mean is positive definite."
            )

    constant_hessians = True

    # -- the Problem

    def x0(self, seed: int = 0) -> Vector:
        """Return zero: a quadratic has no natural start (pass `x=` to `simulate` for another)."""
        return torch.zeros_like(self.b[0])

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return A_i y - b_i, with noise drawn from (seed, i, r, k) when k is given."""

        def g(y: Vector, k: int | None = None) -> Vector:
            gradient = self.client_gradient(i, y)
            if k is None or not self.sigma:
                return gradient
            noise = torch.randn(self.d, generator=stream(seed, NOISE, i, r, k), dtype=y.dtype)
            return gradient + (self.sigma / sqrt(self.d)) * noise.to(y.device)

        return g

    def client_loss(self, i: int, x: Vector) -> float:
        """Return f_i(x)."""
        return float(x @ self.A[i] @ x / 2 - self.b[i] @ x)

    def client_gradient(self, i: int, x: Vector) -> Vector:
        """Return A_i x - b_i."""
        # A_i is symmetric, so this holds for x of shape (d,) and (s, d).
        return x @ self.A[i] - self.b[i]

    def client_hvp(self, i: int, x: Vector, V: Tensor) -> Tensor:
        """Return A_i v for each row v of V."""
        return V @ self.A[i]

    def chunk_hvp(self, clients: Sequence[int], x: Vector, V: Tensor) -> Tensor:
        """Return A_i v for each row v of V, (m, d) for all clients or (s, m, d)."""
        return V @ self.A[list(clients)]

    def loss(self, x: Vector) -> float:
        """Return f(x)."""
        return float(x @ self.H @ x / 2 - self._mean(self.b) @ x)

    def gradient(self, x: Vector) -> Vector:
        """Return H x - mean b."""
        return self.H @ x - self._mean(self.b)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return loss f(x), gap f(x) - f_star and distance |x - x_star| (or f_i(x) of a client)."""
        if client is not None:
            return {"loss": self.client_loss(client, x)}
        e = x - self.x_star
        gap = float(e @ self.H @ e / 2)  # A difference of losses would drown in rounding.
        return {"loss": self.loss(x), "gap": gap, "distance": float(e.norm())}

    @cached_property
    def fingerprint(self) -> str:
        """The line that identifies this problem in a saved run."""
        parts = {"N": self.N, "d": self.d, "sigma": self.sigma, "dtype": self.b.dtype}
        tensors = {"A": self.A, "b": self.b, "weights": self.weights}
        return line("Quadratic", parts | {n: hashed_tensors([t]) for n, t in tensors.items()})

    # -- closed forms

    def _mean(self, t: Tensor) -> Tensor:
        mean: Tensor = torch.tensordot(self.weights.to(t), t, dims=1)
        return mean

    def _newton(self, v: Vector) -> Vector:
        step: Tensor = torch.linalg.solve(self.H, v)
        return step

    @cached_property
    def H(self) -> Tensor:
        """The Hessian of f."""
        return self._mean(self.A)

    @cached_property
    def x_star(self) -> Vector:
        """The minimum of f."""
        return self._newton(self._mean(self.b))

    @cached_property
    def f_star(self) -> float:
        """The least value of f."""
        return self.loss(self.x_star)

    @cached_property
    def mu(self) -> float:
        """The strong convexity of f: the least eigenvalue of H."""
        return float(torch.linalg.eigvalsh(self.H)[0])

    @cached_property
    def L(self) -> float:
        """The smoothness: the largest |eigenvalue| of any A_i."""
        return float(torch.linalg.eigvalsh(self.A).abs().max())

    @cached_property
    def delta(self) -> float:
        """The Hessian dissimilarity of (A2): the largest |eigenvalue| of any A_i - H."""
        return float(torch.linalg.eigvalsh(self.A - self.H).abs().max())

    @cached_property
    def G(self) -> float:
        """The gradient dissimilarity at the optimum: G^2 = mean |grad f_i(x*)|^2."""
        gradients = torch.einsum("nij,j->ni", self.A, self.x_star) - self.b
        return float(self._mean(gradients.square().sum(1)).sqrt())

    @property
    def zeta(self) -> float:
        """First-order heterogeneity at x*; the same number as G."""
        return self.G

    @cached_property
    def B(self) -> float:
        """B^2 = sup_x mean |grad f_i(x) - grad f_i(x*)|^2 / |grad f(x)|^2."""
        inverse = torch.linalg.inv(self.H)
        ratio = inverse @ self._mean(self.A @ self.A) @ inverse
        return sqrt(float(torch.linalg.eigvalsh(ratio)[-1]))

    def fedavg_limit(self, eta_l: float, K: int) -> Vector:
        """Return where FedAvg with all clients and no noise stops, for any eta_g.

        K steps from x move client i by -eta_l P_i (A_i x - b_i), with P_i the sum of
        (I - eta_l A_i)^k over k < K; FedAvg stops where the mean of these vanishes.
        """
        eye = torch.eye(self.d).to(self.A)
        P, power = torch.zeros_like(self.A), eye.expand_as(self.A)
        for _ in range(K):
            P, power = P + power, power @ (eye - eta_l * self.A)
        mean_Pb = self._mean(torch.einsum("nij,nj->ni", P, self.b))
        limit: Tensor = torch.linalg.solve(self._mean(P @ self.A), mean_Pb)
        return limit

    def fedavg_bias(self, eta_l: float, K: int) -> Vector:
        """Return FedAvg's bias to first order in eta_l (Mangold et al., 2025).

        x_limit - x* = eta_l (K-1)/2 H^-1 sum_i p_i (A_i - H) grad f_i(x*) + O(eta_l^2).
        """
        gradients = torch.einsum("nij,j->ni", self.A, self.x_star) - self.b
        drift = self._mean(torch.einsum("nij,nj->ni", self.A - self.H, gradients))
        return eta_l * (K - 1) / 2 * self._newton(drift)
