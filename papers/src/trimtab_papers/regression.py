"""Small regressions, each client's data its own, run with many step sizes at once.

An algorithm that does the same to every coordinate takes steps of size eta on f if it takes steps
of size one and its gradients are multiplied by eta. So x is M models in a row, each with a step
size of its own, and `simulate` runs them side by side with the same cohorts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.core.streams import PROBLEM, stream
from trimtab.problems.problem import normalised

FAR = 1e3  # a model has diverged if |x| >= 1000; it gets no gradients any more


class Regression:
    """N clients with n samples of p features each; f_i is half the mean square error.

    hidden: units of a network v' tanh(W u), which is not convex; 0: the linear model w' u, which is
    convex. The features have scales 1, 1/2, 1/3 ..., so that it is hardly strongly convex. Each
    client has a truth of its own.
    """

    def __init__(
        self, hidden: int, etas: Tensor, seed: int, N: int = 32, n: int = 6, p: int = 8
    ) -> None:
        self.hidden, self.etas, self.N, self.n, self.p = hidden, etas, N, n, p
        self.one = hidden * (p + 1) if hidden else p  # the numbers of one model
        self.d = len(etas) * self.one
        self.weights = normalised(None, N)
        draw = stream(seed, PROBLEM)
        shapes = ((N, n, p), (p,), (N, p), (N, n))
        U, common, own, noise = (
            torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes
        )
        T = torch.einsum("inj,ij->in", U, common + own) / p**0.5 + 0.1 * noise
        self.U = U / torch.arange(1, p + 1, dtype=torch.float64)
        self.T = torch.tanh(T) if hidden else T
        flat = self.U.reshape(-1, p), self.T.reshape(-1, 1)
        self.best = torch.linalg.lstsq(*flat).solution[:, 0]  # of the linear model

    # -- all models side by side: the Problem

    def rows(self, x: Vector) -> Tensor:
        """Return the models, (..., M, numbers of one)."""
        return x.view(*x.shape[:-1], len(self.etas), self.one)

    def x0(self, seed: int = 0) -> Vector:
        """Return one start for all: small random numbers for a network, whose zero is a saddle."""
        draw = stream(seed, PROBLEM, 1)
        start = torch.randn(self.one, generator=draw, dtype=torch.float64) / 2
        return (start if self.hidden else torch.zeros_like(start)).repeat(len(self.etas))

    def chunk_oracle(self, clients: Sequence[int], seed: int, r: int) -> Gradient:
        """Return eta grad f_i on all data, whatever k, of several clients at once."""
        return lambda Y, k=None: self._scaled(clients, Y)

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return eta grad f_i on all data, whatever k."""
        return lambda y, k=None: self._scaled([i], y[None])[0]

    def _scaled(self, clients: Sequence[int], Y: Tensor) -> Tensor:
        models = self.rows(Y)
        here = models.norm(dim=-1, keepdim=True) < FAR
        moves = self.etas[:, None] * self.gradients(clients, models)
        return torch.where(here, moves, 0.0).flatten(1)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return the least error of all models."""
        return {"loss": float(self.errors(x).min())}

    # -- one model, or several

    def first_layer(self, models: Tensor) -> Tensor:
        """Return the matrices W of networks."""
        return models[..., : -self.hidden].reshape(*models.shape[:-1], self.hidden, self.p)

    def predictions(self, U: Tensor, models: Tensor) -> Tensor:
        """Return what the models say of the features."""
        if not self.hidden:
            return (U @ models[..., None])[..., 0]
        W = self.first_layer(models)
        return (torch.tanh(U @ W.mT) @ models[..., -self.hidden :, None])[..., 0]

    def gradients(self, clients: Sequence[int], models: Tensor) -> Tensor:
        """Return grad f_i of each model; the first dimension is the clients'."""
        U = self.U[list(clients)][:, None]
        off = (self.predictions(U, models) - self.T[list(clients)][:, None])[..., None] / self.n
        if not self.hidden:
            return (off.mT @ U)[..., 0, :]
        W = self.first_layer(models)
        z = torch.tanh(U @ W.mT)
        inner = off * models[..., None, -self.hidden :] * (1 - z.square())
        return torch.cat([(inner.mT @ U).flatten(-2), (off.mT @ z)[..., 0, :]], dim=-1)

    def losses(self, models: Tensor) -> Tensor:
        """Return f of each model, (M, numbers of one)."""
        off = self.predictions(self.U[:, None], models) - self.T[:, None]
        return off.square().mean((0, 2)) / 2

    def errors(self, x: Vector) -> Tensor:
        """Return what a theorem bounds: |grad f|^2 of the networks, f - f* of the linear models."""
        models = self.rows(x)
        if self.hidden:
            everybody = models.expand(self.N, *models.shape)
            return self.gradients(range(self.N), everybody).mean(0).square().sum(-1)
        e: Tensor = (self.U[:, None] @ (models - self.best)[..., None])[..., 0]
        return e.square().mean((0, 2)) / 2  # A difference of losses would drown in rounding.
