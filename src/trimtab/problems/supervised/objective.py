"""f and the f_i on all data, without dropout: values, gradients, and Hessians times vectors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.problems.supervised.curvature import Curvature
from trimtab.problems.supervised.oracles import Oracles
from trimtab.problems.supervised.pooled import Pooled, pooled
from trimtab.problems.supervised.samples import Data


@dataclass(frozen=True)
class Objective:
    """What is minimised: the mean of the clients' losses with weights p_i, each with its l2."""

    oracles: Oracles
    curvature: Curvature
    weights: Tensor

    @torch.no_grad()
    def client_loss(self, i: int, x: Vector) -> float:
        """Return f_i(x)."""
        loss = self.oracles.mean_loss.value(x, self.oracles.clients[i])
        return float(loss + self.oracles.l2 / 2 * x.square().sum())

    def client_gradient(self, i: int, x: Vector) -> Vector:
        """Return the gradient of f_i at x."""
        return self.oracles.gradient(x, self.oracles.clients[i], training=False, whole=True)

    def client_products(self, i: int, x: Vector, V: Tensor) -> Tensor:
        """Return the Hessian of f_i at x times each row of V (or times V)."""
        rows = V.reshape(-1, len(x))
        products = self.oracles.mean_loss.hessian_products(x, self.oracles.clients[i], rows)
        return products.add_(rows, alpha=self.oracles.l2).view(V.shape)

    def products(self, clients: Sequence[int], x: Vector, V: Tensor) -> Tensor:
        """Return the Hessians of several f_i times rows, (m, d) for all or (s, m, d): (s, m, d)."""
        rows = V.expand(len(clients), *V.shape[-2:])
        products = self.curvature.products(x, [self.oracles.clients[i] for i in clients], rows)
        return products.add_(rows, alpha=self.oracles.l2)

    def client_hessian(self) -> Callable[[int, Vector], Tensor] | None:
        """Return (i, x) -> the Hessian of f_i at x; None where it has no closed form."""
        whole, l2 = self.curvature.whole(self.oracles.clients), self.oracles.l2
        if whole is None:
            return None
        return lambda i, x: whole(i, x) + l2 * torch.eye(len(x)).to(x)

    def in_one_pass(self) -> Pooled | None:
        """Return f and its gradient on the samples of all clients together, where that is so."""
        clients = self.oracles.clients
        if not clients.in_memory:
            return None
        data = [clients[i] for i in range(len(clients))]
        return pooled(self.oracles.mean_loss, data, self.weights.tolist(), self.oracles.l2)

    def loss(self, x: Vector) -> float:
        """Return f(x)."""
        return sum(float(p) * self.client_loss(i, x) for i, p in enumerate(self.weights))

    def gradient(self, x: Vector) -> Vector:
        """Return the gradient of f at x."""
        total = torch.zeros_like(x)
        for i, p in enumerate(self.weights):
            total.add_(self.client_gradient(i, x), alpha=float(p))
        return total

    def sample_gradient(self, x: Vector, data: Data) -> Vector:
        """Return the gradient at x of the mean loss on some samples, plus l2 x."""
        return self.oracles.gradient(x, data, training=False)

    def sample_gradients(self, x: Vector, data: Data) -> Tensor:
        """Return the gradients at x of the losses on single samples, each plus l2 x."""
        form, rows = self.oracles.mean_loss.closed_form, range(len(data))
        if form is None or not data.suits(form.layers):
            return torch.stack([self.sample_gradient(x, data.cut(j, j + 1)) for j in rows])
        each = [data.cut(j, j + 1) for j in rows]
        return form.gradients(x, [(one.X, one.y, None) for one in each]) + self.oracles.l2 * x
