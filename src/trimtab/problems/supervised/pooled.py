"""f and its gradient in one pass over the samples of all clients, for modules that allow it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.streams import seeded
from trimtab.problems.supervised.checks import rowwise
from trimtab.problems.supervised.losses import shares
from trimtab.problems.supervised.mean_loss import GENERATORS, MeanLoss
from trimtab.problems.supervised.on_batch import OnBatch
from trimtab.problems.supervised.samples import Data

_BYTES = 1 << 22  # samples are pooled if their inputs have <= 2^22 bytes
_ROWS = 64  # whether the module treats samples one by one is asked of <= 64 of them
_SAME = 1e-12  # weights are those of the pooled loss if they differ by <= 1e-12


class Pooled:
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
        alike = own is not None and all(
            abs(p - q) <= _SAME for p, q in zip(weights, own, strict=True)
        )
        # Where the loss of all samples is that mean, it is asked once; else client by client.
        self._parts = [self._all] if alike else list(data)
        self._weights = [1.0] if alike else list(weights)

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
) -> Pooled | None:
    """Return all samples in one pass; None where that is not the same, or takes much memory."""
    if isinstance(mean_loss.loss, OnBatch) or not all(each.plain for each in data):
        return None
    if sum(len(each) * each.row_bytes for each in data) > _BYTES or not all(map(len, data)):
        return None
    if len({(each.X.shape[1:], each.X.dtype, each.y.shape[1:], each.y.dtype) for each in data}) > 1:
        return None
    every = Pooled(mean_loss, data, weights, l2)
    few = every._all.cut(0, _ROWS)
    with GENERATORS, seeded(0, mean_loss.model.device), torch.no_grad():
        model = mean_loss.thread_model
        output = model(model.start, few.X)
        if not isinstance(output, Tensor) or output.shape[:1] != (len(few),):
            return None
        return every if rowwise(model, few) else None
