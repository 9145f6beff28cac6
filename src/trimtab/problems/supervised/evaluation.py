"""What Supervised measures at a point: the loss, the accuracy of classifiers, users' metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.compute import kernel
from trimtab.core import Vector
from trimtab.core.threads import KEEPS_CORES_BUSY, WORTH_A_THREAD, one_thread
from trimtab.problems.supervised.flat import first_line, version
from trimtab.problems.supervised.losses import correct
from trimtab.problems.supervised.mean_loss import MeanLoss
from trimtab.problems.supervised.samples import Data

Measure = Callable[[Tensor, Tensor], Tensor | float]
"""A metric of a user's: a function of outputs and targets."""


@dataclass(frozen=True)
class Evaluation:
    """The loss and the metrics that are measured."""

    mean_loss: MeanLoss
    metrics: Mapping[str, Measure]

    @torch.no_grad()
    def on(self, data: Data, x: Vector, layers: kernel.Layers | None) -> dict[str, float]:
        """Return all metrics at x on some data; by the kernel, if it knows the layers."""
        mean, d = self.mean_loss, self.mean_loss.model.d
        layers = layers if data.labelled else None
        large = layers is None and d >= KEEPS_CORES_BUSY
        with mean.precision(x), one_thread(when=not large):
            if layers is not None:
                output = kernel.outputs(layers, x.to(data.X.dtype), data.X)
            elif not large and d >= WORTH_A_THREAD and len(mean.pieces(data)) > 1:
                output = mean.outputs_on_threads(x, data)
            else:
                output = mean.outputs(x, data)
            measured = {"loss": float(mean.of_outputs(output, data))}
            right = correct(mean.loss, output, data.y)
            if right is not None:
                measured["accuracy"] = float(right.double().mean())
            for name, metric in self.metrics.items():
                measured[name] = _number(name, metric, output, data.y)
            return measured


def weighted_mean(rows: Sequence[Mapping[str, float]], p: Sequence[float]) -> dict[str, float]:
    """Return the mean of each metric over clients with weights p_i.

    >>> weighted_mean([{"loss": 1.0}, {"loss": 3.0}], [0.25, 0.75])
    {'loss': 2.5}
    """
    return {
        name: sum(p_i * row[name] for p_i, row in zip(p, rows, strict=True)) for name in rows[0]
    }


def _number(name: str, metric: Measure, output: Tensor, y: Tensor) -> float:
    """Return a metric of the user's as a number, and refuse one that changes the data."""
    before = version(output), version(y)
    value = metric(output, y)
    if (version(output), version(y)) != before:
        raise ValueError(
            f"metric '{name}' changes outputs or targets in place; let it work on copies."
        )
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"metric '{name}' returns no number ({first_line(error)}); return one."
        ) from error
