"""A_i x = b_i with matrices that need not be symmetric: no losses, and yet all in closed form.

What a client follows is A_i y - b_i, which is the gradient of no function unless A_i is symmetric.
FedAvg on it is FedLSA, SCAFFOLD II with all clients is SCAFFLSA (Mangold et al., NeurIPS 2024),
where x is called theta.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.core.streams import NOISE, stream
from trimtab.core.tree import number_tensor
from trimtab.problems.identity import hashed_tensors, line
from trimtab.problems.metrics import Metric
from trimtab.problems.problem import Problem, normalised

ERROR = Metric("error", higher=False, low=0.0)


class LinearSystem(Problem):
    """N linear systems with matrices A (N, d, d) and vectors b (N, d); x* solves their mean.

    noise: the covariance of what g(y, k) adds to A_i y - b_i, i.i.d. and Gaussian: (N, d, d), or
    (d, d) for all clients, or a number for that multiple of I; g(y) has none. The A_i may be
    anything as long as every eigenvalue of their weighted mean has a positive real part.

    >>> turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    >>> pair = LinearSystem(torch.stack([torch.eye(2) + turn, torch.eye(2) - turn]), torch.eye(2))
    >>> pair.x_star, pair.evaluate(torch.zeros(2))["error"]
    (tensor([0.5000, 0.5000]), 0.5)
    """

    constant_hessians, symmetric, metric = True, False, ERROR

    def __init__(
        self,
        A: Tensor | Sequence[Any],
        b: Tensor | Sequence[Any],
        noise: Tensor | Sequence[Any] | float | None = None,
        weights: Sequence[float] | Tensor | None = None,
    ) -> None:
        A, b = number_tensor("LinearSystem: A", A), number_tensor("LinearSystem: b", b)
        dtype = torch.promote_types(A.dtype, b.dtype)
        dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
        self.A, self.b = A.to(dtype), b.to(dtype)
        if not self.b.numel() or b.dim() != 2 or A.shape != (*b.shape, b.shape[1]):
            raise ValueError(
                f"LinearSystem: A has shape {tuple(A.shape)} and b {tuple(b.shape)}; "
                "pass A of shape (N, d, d) and b of shape (N, d), neither of them empty."
            )
        if not (torch.isfinite(self.A).all() and torch.isfinite(self.b).all()):
            raise ValueError("LinearSystem: A or b holds NaN or infinity; pass finite numbers.")
        self.N, self.d = self.b.shape
        self.weights = normalised(weights, self.N)
        least = float(torch.linalg.eigvals(self.mean_A).real.min())
        if not least > 0:
            raise ValueError(
                f"LinearSystem: the mean of the A_i has an eigenvalue with real part {least:.3g}, "
                "so no step is small enough to converge; pass A_i whose weighted mean has positive "
                "real parts alone."
            )
        self.noise, self._root = _covariance(noise, self.N, self.d, self.A)

    # -- the Problem

    def x0(self, seed: int = 0) -> Vector:
        """Return zero."""
        return torch.zeros_like(self.b[0])

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return A_i y - b_i, with noise drawn from (seed, i, r, k) when k is given."""

        def g(y: Vector, k: int | None = None) -> Vector:
            exact = self.client_gradient(i, y)
            if k is None or self._root is None:
                return exact
            drawn = torch.randn(self.d, generator=stream(seed, NOISE, i, r, k), dtype=y.dtype)
            return exact + (self._root[i] @ drawn).to(y.device)

        return g

    def client_gradient(self, i: int, x: Vector) -> Vector:
        """Return A_i x - b_i, for x of shape (d,) or (s, d)."""
        return x @ self.A[i].mT - self.b[i]

    def client_hvp(self, i: int, x: Vector, V: Tensor) -> Tensor:
        """Return A_i v for each row v of V."""
        return V @ self.A[i].mT

    def chunk_hvp(self, clients: Sequence[int], x: Vector, V: Tensor) -> Tensor:
        """Return A_i v for each row v of V, (m, d) for all clients or (s, m, d)."""
        return V @ self.A[list(clients)].mT

    def gradient(self, x: Vector) -> Vector:
        """Return the residual of the mean system."""
        return self.mean_A @ x - self._mean(self.b)

    def loss(self, x: Vector) -> float:
        """Return |x - x*|^2, as a stand-in for f: there is no loss."""
        return float((x - self.x_star).square().sum())

    def client_loss(self, i: int, x: Vector) -> float:
        """Return |x - x*|^2, the same for all clients."""
        return self.loss(x)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return error |x - x*|^2 and residual |A x - b|, of the mean system or of a client's."""
        left = self.gradient(x) if client is None else self.client_gradient(client, x)
        return {"error": self.loss(x), "residual": float(left.norm())}

    @cached_property
    def fingerprint(self) -> str:
        """The line that identifies this problem in a saved run."""
        parts = {"N": self.N, "d": self.d, "dtype": self.b.dtype}
        tensors = {"A": self.A, "b": self.b, "noise": self.noise, "weights": self.weights}
        return line("LinearSystem", parts | {n: hashed_tensors([t]) for n, t in tensors.items()})

    # -- closed forms

    def _mean(self, t: Tensor) -> Tensor:
        mean: Tensor = torch.tensordot(self.weights.to(t), t, dims=1)
        return mean

    @cached_property
    def mean_A(self) -> Tensor:
        """The matrix of the mean system."""
        return self._mean(self.A)

    @cached_property
    def x_star(self) -> Vector:
        """The solution of the mean system."""
        solution: Tensor = torch.linalg.solve(self.mean_A, self._mean(self.b))
        return solution

    def _powers(self, eta_l: float, K: int) -> Tensor:
        """Return (I - eta_l A_i)^k for k = 0 ... K, of shape (K + 1, N, d, d)."""
        eye = torch.eye(self.d).to(self.A)
        powers = [eye.expand_as(self.A)]
        for _ in range(K):
            powers.append(powers[-1] @ (eye - eta_l * self.A))
        return torch.stack(powers)

    def fedavg_limit(self, eta_l: float, K: int) -> Vector:
        """Return where FedAvg (FedLSA) with all clients stops on average, for any eta_g.

        K steps from x move client i by -eta_l P_i (A_i x - b_i), with P_i the sum of
        (I - eta_l A_i)^k over k < K; where A_i has an inverse that is ((I - eta_l A_i)^K - I)
        (x - A_i^-1 b_i). FedAvg stops where the mean of these vanishes.
        """
        P = self._powers(eta_l, K)[:K].sum(0)
        mean_Pb = self._mean(torch.einsum("nij,nj->ni", P, self.b))
        limit: Tensor = torch.linalg.solve(self._mean(P @ self.A), mean_Pb)
        return limit

    def fedavg_covariance(self, eta_l: float, K: int, eta_g: float = 1.0) -> Tensor:
        """Return the stationary covariance of the x of FedAvg (FedLSA) with all clients.

        A round maps x to T x + a vector + noise of covariance Q, so it solves X = T X T' + Q.
        """
        powers, p = self._powers(eta_l, K), self.weights.to(self.A)
        T = (1 - eta_g) * torch.eye(self.d).to(self.A) + eta_g * self._mean(powers[K])
        Q = (eta_g * eta_l) ** 2 * torch.tensordot(p**2, self._noise_of_a_round(powers), dims=1)
        return _settled(T, Q, eta_l)

    def scaffold_covariance(self, eta_l: float, K: int, eta_g: float = 1.0) -> Tensor:
        """Return the stationary covariance of the x of SCAFFOLD II (SCAFFLSA) with all clients.

        The same equation, of a state z that holds x and all c_i; c is the mean of the c_i.
        """
        powers, p = self._powers(eta_l, K), self.weights.to(self.A)
        eye, pick = torch.eye(self.d).to(self.A), torch.eye(self.N + 1).to(self.A)
        x, *c_i = (torch.kron(row[None], eye) for row in pick)  # x @ z is x, c_i[j] @ z is c_j.
        c = torch.kron(torch.cat([p.new_zeros(1), p])[None], eye)
        P, noise = powers[:K].sum(0), self._noise_of_a_round(powers)
        T, Q = torch.kron(pick, eye), torch.zeros_like(torch.kron(pick, eye))
        for i in range(self.N):
            # Client i moves by -eta_l (pull z + a vector + noise).
            pull = P[i] @ (self.A[i] @ x - c_i[i] + c)
            into = c_i[i].mT / K - eta_g * eta_l * p[i] * x.mT
            T = T + into @ pull - c_i[i].mT @ c
            Q = Q + into @ noise[i] @ into.mT
        return _settled(T, Q, eta_l)[: self.d, : self.d]

    def _noise_of_a_round(self, powers: Tensor) -> Tensor:
        """Return the covariances of the sums of (I - eta_l A_i)^(K-1-k) noise_k over k < K."""
        summed: Tensor = (powers[:-1] @ self.noise @ powers[:-1].mT).sum(0)
        return summed


def _settled(T: Tensor, Q: Tensor, eta_l: float) -> Tensor:
    """Return the covariance of the recursion; raise ValueError if the step is too large."""
    largest = float(torch.linalg.eigvals(T).abs().max())
    if not largest < 1:
        raise ValueError(
            f"eta_l={eta_l:g} makes a round grow by a factor of {largest:.3g}, so there is no "
            "stationary law; pass a smaller step."
        )
    return solve_discrete_lyapunov(T, Q)


def _covariance(
    noise: Tensor | Sequence[Any] | float | None, N: int, d: int, like: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the covariances (N, d, d) and their symmetric roots; None where there is no noise."""
    C = number_tensor("LinearSystem: noise", 0.0 if noise is None else noise).to(like)
    C = C * torch.eye(d).to(like) if C.dim() == 0 else C
    if C.shape not in ((d, d), (N, d, d)):
        raise ValueError(
            f"LinearSystem: noise has shape {tuple(C.shape)}; pass a covariance of shape "
            f"({d}, {d}) or ({N}, {d}, {d}), or a number."
        )
    if not bool(torch.isfinite(C).all()) or not torch.allclose(C, C.mT):
        raise ValueError("LinearSystem: noise is not a symmetric finite matrix; pass a covariance.")
    values, U = torch.linalg.eigh(C)
    if float(values.min()) < -1e-6 * float(values.abs().max()):
        raise ValueError(
            f"LinearSystem: noise has the eigenvalue {float(values.min()):.3g}, and a covariance "
            "has none below zero; pass a covariance."
        )
    root = U @ torch.diag_embed(values.clamp(min=0).sqrt()) @ U.mT
    some = bool((C != 0).any())
    return C.expand(N, d, d), root.expand(N, d, d) if some else None


# -- Lyapunov equations whose matrix need not be symmetric: the covariance of a linear recursion

# A recursion that has not converged after 2^64 steps does not converge.
DOUBLINGS = 64


def solve_discrete_lyapunov(T: Tensor, Q: Tensor) -> Tensor:
    """Solve X = T X T' + Q, where every eigenvalue of T is smaller than 1.

    X is the sum of T^j Q T'^j over all j, of which each step here doubles the number.

    >>> solve_discrete_lyapunov(torch.tensor([[0.5]]), torch.tensor([[3.0]]))
    tensor([[4.]])
    """
    if not float(torch.linalg.eigvals(T).abs().max()) < 1:
        raise ValueError(
            "an eigenvalue of T is 1 or larger, so X grows without end; pass another T."
        )
    X, power = Q, T
    for _ in range(DOUBLINGS):
        more = power @ X @ power.mT
        X, power = X + more, power @ power
        if not bool((more != 0).any()):
            break
    return (X + X.mT) / 2


def solve_continuous_lyapunov(A: Tensor, C: Tensor) -> Tensor:
    """Solve A X + X A' = C, where every eigenvalue of A has a positive real part.

    With a > 0 this is (A + aI) X (A + aI)' = (A - aI) X (A - aI)' + 2a C, a discrete equation.

    >>> solve_continuous_lyapunov(torch.tensor([[2.0]]), torch.tensor([[3.0]]))
    tensor([[0.7500]])
    """
    a = float(torch.linalg.matrix_norm(A, 2))
    shift = a * torch.eye(len(A)).to(A)
    T = torch.linalg.solve(A + shift, A - shift)
    half = torch.linalg.solve(A + shift, C)
    return solve_discrete_lyapunov(T, 2 * a * torch.linalg.solve(A + shift, half.mT).mT)
