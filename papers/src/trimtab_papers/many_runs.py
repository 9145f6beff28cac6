"""Many independent runs at once, and what theory says of their stationary law.

FedAvg, SCAFFOLD and Richardson-Romberg do the same to every coordinate. So a problem whose x is M
vectors in a row, each with mini-batches of its own, lets `simulate` run M chains in one.
All derivatives are at x*; C is the mean over clients of the covariance of one mini-batch gradient.
Clients weigh the same. (Mangold et al., 2025.)
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.core.streams import BATCH, PROBLEM, stream
from trimtab.problems.garnet import GarnetTD
from trimtab.problems.linear_system import LinearSystem, solve_continuous_lyapunov
from trimtab.problems.problem import Problem, normalised
from trimtab.problems.quadratic import Quadratic

BLOCK = 10  # mini-batches of 10 values of k are drawn at once


class Model(Protocol):
    """N losses with their derivatives; x may be (d,) or, where it says so, (M, d)."""

    N: int
    d: int
    exact: bool  # If true, a mini-batch is all data.

    def gradients(self, i: int, x: Tensor) -> Tensor:
        """Return grad f_i at each row of x."""

    def draw(self, i: int, k: int, M: int, source: torch.Generator) -> Tensor:
        """Return k times M mini-batches of client i, drawn i.i.d."""

    def sampled(self, i: int, x: Tensor, batches: Tensor) -> Tensor:
        """Return the gradients at the M rows of x, each on its mini-batch."""

    def hessian(self, i: int, x: Vector) -> Tensor: ...

    def third(self, i: int, x: Vector, V: Tensor) -> Vector:
        """Return the vector with entries sum_jk d3f_i[.jk] V_jk."""

    def covariance(self, i: int, x: Vector) -> Tensor:
        """Return the covariance of one mini-batch gradient."""


class Noisy:
    """Quadratics with Gaussian noise: third derivatives vanish, C = sigma^2/d I."""

    def __init__(self, quadratic: Quadratic) -> None:
        self.quadratic, self.N, self.d = quadratic, quadratic.N, quadratic.d
        self.exact = quadratic.sigma == 0

    def gradients(self, i: int, x: Tensor) -> Tensor:
        return self.quadratic.client_gradient(i, x)

    def draw(self, i: int, k: int, M: int, source: torch.Generator) -> Tensor:
        return _randn(source, (k, M, self.d)).mul_(self.quadratic.sigma / self.d**0.5)

    def sampled(self, i: int, x: Tensor, batches: Tensor) -> Tensor:
        """Return A_i x - b_i with noise."""
        return self.gradients(i, x) + batches

    def hessian(self, i: int, x: Vector) -> Tensor:
        return self.quadratic.A[i]

    def third(self, i: int, x: Vector, V: Tensor) -> Vector:
        return torch.zeros_like(x)

    def covariance(self, i: int, x: Vector) -> Tensor:
        """Return sigma^2/d I."""
        return self.quadratic.sigma**2 / self.d * torch.eye(self.d, dtype=x.dtype)


class Logistic:
    """Logistic regression with labels y of -1 and 1, l2/2 |x|^2 added; X is (N, n, d).

    Each client has a truth and scales of its features of its own, so gradients and Hessians at x*
    differ from client to client.
    """

    def __init__(
        self, N: int, n: int = 50, d: int = 3, l2: float = 0.1, batch: int | None = None
    ) -> None:
        self.N, self.n, self.d, self.l2, self.batch = N, n, d, l2, batch
        self.exact = batch is None
        shapes = ((n, d), (n,), (d,), (d,))
        draws = [stream(0, PROBLEM, i) for i in range(N)]
        clients = [[_randn(draw, shape) for shape in shapes] for draw in draws]
        X, noise, truth, scale = (torch.stack(parts) for parts in zip(*clients, strict=True))
        self.X = (1 + 2 * scale.abs())[:, None] * X
        self.y = torch.sign(torch.einsum("inj,ij->in", self.X, truth) + noise)
        self._yX = self.y[..., None] * self.X
        self._minus, self._mean = -self._yX.mT.contiguous(), -self._yX / n

    def gradients(self, i: int, x: Tensor) -> Tensor:
        """Return grad f_i at each row of x."""
        p = torch.sigmoid(x @ self._minus[i])
        return p @ self._mean[i] + self.l2 * x

    def draw(self, i: int, k: int, M: int, source: torch.Generator) -> Tensor:
        """Return the -y X of samples drawn with replacement, (k, M, batch, d)."""
        assert self.batch is not None
        return -self._yX[i][torch.randint(self.n, (k, M, self.batch), generator=source)]

    def sampled(self, i: int, x: Tensor, batches: Tensor) -> Tensor:
        """Return the gradients on mini-batches."""
        p = torch.sigmoid(batches @ x[..., None])  # Its shape is (M, batch, 1).
        return (p * batches).mean(1) + self.l2 * x

    def hessian(self, i: int, x: Vector) -> Tensor:
        p = torch.sigmoid(self.X[i] @ x)
        weighted = (p * (1 - p))[:, None] * self.X[i]
        return weighted.T @ self.X[i] / self.n + self.l2 * torch.eye(self.d, dtype=x.dtype)

    def third(self, i: int, x: Vector, V: Tensor) -> Vector:
        """Return the mean of p (1 - p) (1 - 2 p) (X' V X) X."""
        p = torch.sigmoid(self.X[i] @ x)
        square = torch.einsum("nj,jk,nk->n", self.X[i], V, self.X[i])
        return (p * (1 - p) * (1 - 2 * p) * square) @ self.X[i] / self.n

    def covariance(self, i: int, x: Vector) -> Tensor:
        """Return the covariance of a sample's gradient, divided by the batch size."""
        if self.batch is None:
            return torch.zeros(self.d, self.d, dtype=x.dtype)
        each = -torch.sigmoid(-(self._yX[i] @ x))[:, None] * self._yX[i]
        return torch.cov(each.T, correction=0) / self.batch


class TD:
    """Federated TD: N clients of the kinds that a GarnetTD has; a mini-batch is one transition."""

    exact = False

    def __init__(self, base: GarnetTD, N: int) -> None:
        self.base, self.N, self.d = base, N, base.d
        kinds = [i % base.N for i in range(N)]
        self.system = LinearSystem(
            *(t[kinds] for t in (base.system.A, base.system.b, base.system.noise))
        )
        self._after, self._visits = base.P.cumsum(2), base.visits.cumsum(1)

    def gradients(self, i: int, x: Tensor) -> Tensor:
        """Return A_i x - b_i at each row of x."""
        return self.system.client_gradient(i, x)

    def draw(self, i: int, k: int, M: int, source: torch.Generator) -> Tensor:
        """Return k transitions of M chains, (k, M, 2); a trajectory is one block of a round."""
        kind, last = i % self.base.N, self.base.states - 1
        at = torch.rand(2, k, M, generator=source, dtype=torch.float64)
        if self.base.sampling == "iid":
            s = torch.searchsorted(self._visits[kind], at[0]).clamp(max=last)
            return torch.stack([s, self._next(kind, s, at[1])], 2)
        assert k == BLOCK  # With K = BLOCK a round is one block, and so one trajectory.
        path = [torch.searchsorted(self._visits[kind], at[0, 0]).clamp(max=last)]
        for step in range(k):
            path.append(self._next(kind, path[-1], at[1, step]))
        states = torch.stack(path)
        return torch.stack([states[:-1], states[1:]], 2)

    def _next(self, kind: int, s: Tensor, at: Tensor) -> Tensor:
        return (self._after[kind][s] < at[..., None]).sum(-1).clamp(max=self.base.states - 1)

    def sampled(self, i: int, x: Tensor, batches: Tensor) -> Tensor:
        """Return the semi-gradients at the M rows of x, each on its transition."""
        s, after = batches.unbind(1)
        here = self.base.phi[s]
        difference = here - self.base.gamma * self.base.phi[after]
        found: Tensor = here * ((difference * x).sum(1) - self.base.r[i % self.base.N, s])[:, None]
        return found

    def hessian(self, i: int, x: Vector) -> Tensor:
        return self.system.A[i]

    def third(self, i: int, x: Vector, V: Tensor) -> Vector:
        return torch.zeros_like(x)

    def covariance(self, i: int, x: Vector) -> Tensor:
        """Return the covariance of one i.i.d. transition's semi-gradient at x*."""
        return self.system.noise[i]


def _randn(draw: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=draw, dtype=torch.float64)


class Chains(Problem):
    """M runs side by side as one Problem; `rows` takes x apart."""

    def __init__(self, model: Model, M: int = 1) -> None:
        self.model, self.M = model, M
        self.N, self.d = model.N, M * model.d
        self.weights = normalised(None, model.N)

    def rows(self, x: Vector) -> Tensor:
        """Return the chains, (M, d)."""
        return x.view(self.M, self.model.d)

    def start(self, x: Vector) -> Vector:
        return x.repeat(self.M)

    def x0(self, seed: int = 0) -> Vector:
        return torch.zeros(self.d, dtype=torch.float64)

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return g_i; each chain has mini-batches of its own, drawn for several k at once."""
        blocks: dict[int, Tensor] = {}

        def batches(k: int) -> Tensor:
            block, row = divmod(k, BLOCK)
            if block not in blocks:
                source = stream(seed, BATCH, i, r, block)
                blocks[block] = self.model.draw(i, BLOCK, self.M, source)
            return blocks[block][row]

        def g(y: Vector, k: int | None = None) -> Vector:
            if k is None or self.model.exact:
                return self.client_gradient(i, y)
            return self.model.sampled(i, self.rows(y), batches(k)).flatten()

        return g

    def client_gradient(self, i: int, x: Vector) -> Vector:
        return self.model.gradients(i, self.rows(x)).flatten()

    def gradient(self, x: Vector) -> Vector:
        return (
            sum((self.client_gradient(i, x) for i in range(self.N)), torch.zeros_like(x)) / self.N
        )

    def loss(self, x: Vector) -> float:
        """Return half the mean |grad f|^2, which falls as a loss does."""
        return float(self.gradient(x).square().sum()) / (2 * self.M)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        return {"loss": self.loss(x)}


# -- theory


def optimum(model: Model) -> Vector:
    """Return x*, by Newton's method."""
    x = torch.zeros(model.d, dtype=torch.float64)
    for _ in range(20):
        x = x - torch.linalg.solve(hessian(model, x), _mean(model.gradients, model, x))
    return x


def hessian(model: Model, x: Vector) -> Tensor:
    return _mean(model.hessian, model, x)


def stationary_covariance(model: Model, x: Vector, eta_l: float, eta_g: float = 1.0) -> Tensor:
    """Return Sigma with Hess Sigma + Sigma Hess = (eta_g eta_l/N) C, to first order."""
    C = _mean(model.covariance, model, x)
    return eta_g * eta_l / model.N * solve_continuous_lyapunov(hessian(model, x), C)


def heterogeneity_bias(model: Model, x: Vector, eta_l: float, K: int) -> Vector:
    """Return eta_l (K-1)/2 Hess^-1 mean_c (Hess_c - Hess) grad f_c: FedAvg's, not SCAFFOLD's."""
    hessians, gradients = _each(model.hessian, model, x), _each(model.gradients, model, x)
    H = hessians.mean(0)
    apart = torch.einsum("nij,nj->i", hessians - H, gradients) / model.N
    bias: Vector = eta_l * (K - 1) / 2 * torch.linalg.solve(H, apart)
    return bias


def noise_bias(model: Model, x: Vector, eta_l: float, eta_g: float = 1.0) -> Vector:
    """Return -(eta_g eta_l/(2 N)) Hess^-1 D3f[V], Hess V + V Hess = C, of every algorithm."""
    H = hessian(model, x)
    V = solve_continuous_lyapunov(H, _mean(model.covariance, model, x))
    D3 = _mean(lambda i, x: model.third(i, x, V), model, x)
    bias: Vector = -eta_g * eta_l / (2 * model.N) * torch.linalg.solve(H, D3)
    return bias


def _each(f: Callable[[int, Vector], Tensor], model: Model, x: Vector) -> Tensor:
    return torch.stack([f(i, x) for i in range(model.N)])


def _mean(f: Callable[[int, Vector], Tensor], model: Model, x: Vector) -> Tensor:
    return _each(f, model, x).mean(0)
