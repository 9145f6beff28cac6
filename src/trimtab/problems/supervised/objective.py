"""f and the f_i on all data, without dropout: values, gradients, and Hessians times vectors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.streams import seeded
from trimtab.problems.supervised.curvature import Curvature
from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.losses import OnBatch, shares
from trimtab.problems.supervised.mean_loss import GENERATORS, MeanLoss, rowwise
from trimtab.problems.supervised.oracles import Oracles

# Bytes of inputs up to which samples are pooled, as for pieces in `mean_loss`.
_BYTES = 1 << 22
# Samples of the check whether the module computes each sample by itself.
_ROWS = 64
# Weights are those of the pooled loss if they differ by rounding in float64 alone.
_SAME = 1e-12


class PooledObjective:
    """The mean of the clients' losses with weights p_i, plus l2/2 |x|^2, without dropout."""

    def __init__(
        self, mean_loss: MeanLoss, data: Sequence[Data], weights: Sequence[float], l2: float
    ) -> None:
        self._mean_loss, self._l2 = mean_loss, l2
        self._all = Data(
            torch.cat([each.X for each in data]),
            torch.cat([each.y for each in data]),
            "the clients' samples",
        )
        own = shares(mean_loss.loss, [each.y for each in data])
        is_one_mean = own is not None and all(
            abs(p - q) <= _SAME for p, q in zip(weights, own, strict=True)
        )
        # If the weights are those of the pooled loss, one call of the loss is enough.
        self._parts = [self._all] if is_one_mean else list(data)
        self._weights = [1.0] if is_one_mean else list(weights)

    @torch.no_grad()
    def loss(self, x: Vector) -> float:
        """Return f(x)."""
        return float(self._recorded(x)) + self._l2 / 2 * float(x.square().sum())

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Return f(x) and its gradient."""
        with torch.enable_grad():
            loss = self._recorded(x)
            gradient = self._mean_loss.thread_model.gradient(loss)
        value = float(loss.detach()) + self._l2 / 2 * float(x.square().sum())
        return value, gradient + self._l2 * x

    def _recorded(self, x: Vector) -> Tensor:
        mean, start = self._mean_loss, 0
        with mean.precision(x):
            outputs = mean.outputs(x, self._all)
            total = torch.zeros((), dtype=x.dtype, device=x.device)
            for p, part in zip(self._weights, self._parts, strict=True):
                own = outputs[start : start + len(part)]
                total = total + p * mean.of_outputs(own, part)
                start += len(part)
        return total


def pooled(
    mean_loss: MeanLoss, data: Sequence[Data], weights: Sequence[float], l2: float
) -> PooledObjective | None:
    """Return the objective on all samples in one pass; None if it differs or takes much memory."""
    if isinstance(mean_loss.loss, OnBatch) or not all(each.plain for each in data):
        return None
    if sum(len(each) * each.row_bytes for each in data) > _BYTES or not all(map(len, data)):
        return None
    if len({(each.X.shape[1:], each.X.dtype, each.y.shape[1:], each.y.dtype) for each in data}) > 1:
        return None
    every = PooledObjective(mean_loss, data, weights, l2)
    few = every._all.cut(0, _ROWS)
    with GENERATORS, seeded(0, mean_loss.model.device), torch.no_grad():
        model = mean_loss.thread_model
        output = model(model.start, few.X)
        if not isinstance(output, Tensor) or output.shape[:1] != (len(few),):
            return None
        return every if rowwise(model, few, training=False) else None


@dataclass(frozen=True)
class Objective:
    """The objective f: the mean of the clients' losses with weights p_i, each with its l2."""

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

    def in_one_pass(self) -> PooledObjective | None:
        """Return f on the samples of all clients together; None if they must be separate."""
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
        if form is None or not data.fits_kernel(form.layers):
            return torch.stack([self.sample_gradient(x, data.cut(j, j + 1)) for j in rows])
        each = [data.cut(j, j + 1) for j in rows]
        return form.gradients(x, [(one.X, one.y, None) for one in each]) + self.oracles.l2 * x
