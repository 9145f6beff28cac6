"""The evaluation of Supervised at a point: loss, accuracy of classifiers, named metrics."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite, sqrt
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from trimtab.compute import kernel
from trimtab.core import Vector
from trimtab.core.streams import ERROR, stream
from trimtab.core.threads import KEEPS_CORES_BUSY, WORTH_A_THREAD, one_thread
from trimtab.problems.metrics import (
    BUILTIN_METRICS,
    builtin,
    find_metric,
    ranges_of,
)
from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.flat import Tree, first_line, join, versions
from trimtab.problems.supervised.losses import Loss, OnBatch, correct, ignored_label, loss_kind
from trimtab.problems.supervised.mean_loss import MeanLoss

Measure = Callable[[Any, Any], Tensor | float]
"""A user's metric: a function of outputs and targets, or OnBatch of module and batch."""

Measures = Mapping[str, Measure | str] | Sequence[str]
"""The argument `metrics=`: functions or names of built-in metrics by name, or names alone."""

# Clients evaluated in one pass; it bounds the memory that clients of a lazy sequence take.
_AT_ONCE = 64
# Probabilities are clipped to [1e-12, 1 - 1e-12], so that the logit of 0 or 1 is finite.
_SURE = 1e-12
# Groups of rows that the jackknife leaves out in turn: a standard error costs 20 evaluations.
GROUPS = 20


@dataclass(frozen=True)
class Evaluation:
    """The loss and the metrics to measure.

    mean_loss: the loss of the problem.
    metrics: functions by name, as `functions` returns them.
    in_target_units: puts outputs and targets into the units of metrics; None where those are the
        units of the loss.
    layers: the module's description for the kernel; None if the kernel cannot run it.
    """

    mean_loss: MeanLoss
    metrics: Mapping[str, Measure]
    in_target_units: Callable[[Tensor], Tensor] | None
    layers: kernel.Layers | None

    @torch.no_grad()
    def on(self, data: Data, x: Vector) -> dict[str, float]:
        """Return all metrics at x on some data."""
        return self._measured(self._outputs(data, x), data, x, self.metrics)

    @torch.no_grad()
    def over(self, clients: Iterable[Data], p: Sequence[float], x: Vector) -> dict[str, float]:
        """Return the mean of all metrics over clients with weights p_i.

        Built-in metrics whose mean has no meaning (auc, f1, ...) are computed on all samples.
        """
        if self.layers is not None and not self.metrics:
            rows = list[dict[str, float]]()
            for group in _groups(clients):
                rows += self._at_once(group, x, self.layers) or [self.on(d, x) for d in group]
            return weighted_mean(rows, p)
        known = {name: builtin(f) for name, f in self.metrics.items()}
        rest = {name: self.metrics[name] for name, own in known.items() if own and own.pooled}
        means = {name: f for name, f in self.metrics.items() if name not in rest}
        rows, kept = [], list[tuple[Tree, Tree]]()
        for data in clients:
            output = self._outputs(data, x)
            rows.append(self._measured(output, data, x, means))
            # Only outputs and targets are collected; the inputs of a lazy sequence are not.
            if rest:
                kept.append((_scores_for(rest, output, data.y), data.y))
        measured = weighted_mean(rows, p)
        return measured | self._pooled(kept, rest) if rest else measured

    def _pooled(
        self, kept: Sequence[tuple[Tree, Tree]], metrics: Mapping[str, Measure]
    ) -> dict[str, float]:
        try:
            outputs, targets = (join(part) for part in zip(*kept, strict=True))
        except RuntimeError as error:
            raise ValueError(
                f"metric '{next(iter(metrics))}' needs the outputs of all clients together, but "
                "their shapes differ; pass your own function, which is averaged over clients."
            ) from error
        return self._named(outputs, targets, metrics)

    def _at_once(
        self, group: Sequence[Data], x: Vector, layers: kernel.Layers
    ) -> list[dict[str, float]] | None:
        """Return loss and accuracy of several clients, computed in one pass over all samples.

        None if some data must be evaluated client by client.
        """
        known = loss_kind(self.mean_loss.loss)
        if known is None or not known.plain or not all(data.fits_kernel(layers) for data in group):
            return None
        sizes = torch.tensor([len(data) for data in group])
        with one_thread():
            point = x.to(group[0].X.dtype)
            output = kernel.outputs_of_each(layers, point, [data.X for data in group])
            y = torch.cat([data.y for data in group])
            right = correct(self.mean_loss.loss, output, y)
            try:
                losses = _means(known.each(output, y), sizes)
            except (IndexError, RuntimeError):
                # A label is out of range; client by client, the error names its client.
                return None
            if right is None:
                return [{"loss": loss} for loss in losses]
            # Ignored labels leave fewer predictions, and the sizes no longer fit.
            if len(right) < len(output):
                return None
            shares = _means(right, sizes)
        both = zip(losses, shares, strict=True)
        return [{"loss": loss, "accuracy": share} for loss, share in both]

    def _layers_for(self, data: Data) -> kernel.Layers | None:
        """Return the module's description if the kernel takes these data too."""
        return self.layers if self.layers is not None and data.fits_kernel(self.layers) else None

    def _outputs(self, data: Data, x: Vector) -> Tree:
        """Return the module's outputs; None for a loss of module and batch."""
        mean, d, layers = self.mean_loss, self.mean_loss.model.d, self._layers_for(data)
        if isinstance(mean.loss, OnBatch):
            return None
        large = layers is None and d >= KEEPS_CORES_BUSY
        with mean.precision(x), one_thread(when=not large):
            if layers is not None:
                return kernel.outputs(layers, x.to(data.X.dtype), data.X)
            if not large and d >= WORTH_A_THREAD and len(mean.output_pieces(data)) > 1:
                return mean.outputs_on_threads(x, data)
            return mean.outputs(x, data)

    def _measured(
        self, output: Tree, data: Data, x: Vector, metrics: Mapping[str, Measure]
    ) -> dict[str, float]:
        """Return the loss, the accuracy of a classifier and some metrics of these outputs."""
        mean = self.mean_loss
        large = mean.model.d >= KEEPS_CORES_BUSY and self._layers_for(data) is None
        with mean.precision(x), one_thread(when=not large):
            if isinstance(mean.loss, OnBatch):
                measured = {"loss": float(mean.value(x, data))}
            else:
                measured = {"loss": float(mean.of_outputs(output, data))}
                scores = _scores(output, data.y)
                right = None if scores is None else correct(mean.loss, scores, data.y)
                if right is not None:
                    measured["accuracy"] = float(right.cpu().double().mean())
            for name, metric in metrics.items():
                if isinstance(metric, OnBatch):
                    measured[name] = _as_number(name, mean.measured(metric, name, x, data))
            others = {n: f for n, f in metrics.items() if not isinstance(f, OnBatch)}
            return measured | self._named(output, data.y, others)

    def _named(self, output: Tree, y: Tree, metrics: Mapping[str, Measure]) -> dict[str, float]:
        """Return metrics by name; built-in ones get logits, and ignored labels as -100."""
        measured = dict[str, float]()
        if self.in_target_units and isinstance(output, Tensor) and isinstance(y, Tensor):
            output, y = self.in_target_units(output), self.in_target_units(y)
        for name, metric in metrics.items():
            if builtin(metric) is None:
                measured[name] = _number(name, metric, output, y)
                continue
            found = _scores_for({name: metric}, output, y)
            scores, labels = _as_logits(self.mean_loss.loss, found, y)
            try:
                measured[name] = float(metric(scores, labels))
            except ValueError as error:
                raise ValueError(f"metric '{name}': {error}") from error
        return measured


def _means(numbers: Tensor, sizes: Tensor) -> list[float]:
    """Return the mean of the numbers of each client, whose samples follow one another."""
    rows = numbers.reshape(len(numbers), -1).double().mean(1)
    means: list[float] = torch.segment_reduce(rows, "mean", lengths=sizes).tolist()
    return means


def _groups(clients: Iterable[Data]) -> Iterator[list[Data]]:
    rest = iter(clients)
    while group := list(islice(rest, _AT_ONCE)):
        yield group


def functions(metrics: Measures | None, loss: Loss) -> dict[str, Measure]:
    """Return the functions of metrics by the names under which results show them.

    metrics: the argument of Supervised; None for no metrics.
    loss: the loss, which decides whether a metric of classifiers can be computed.

    >>> list(functions(["auc", "log_loss"], torch.nn.CrossEntropyLoss()))
    ['auc', 'log loss']
    """
    if isinstance(metrics, str):
        raise ValueError(f"metrics={metrics!r}; pass a list of names, [{metrics!r}].")
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        if "loss" in metrics:
            raise ValueError(
                "metrics has a function named 'loss', which is the name of the mean of the loss "
                "itself; give it another name."
            )
        return {name: _function(given, loss) for name, given in metrics.items()}
    if not isinstance(metrics, Iterable):
        raise ValueError(f"metrics={metrics!r}; pass functions by name, or a list of names.")
    found = dict[str, Measure]()
    for given in metrics:
        known = find_metric(given) if isinstance(given, str) else None
        found[str(given) if known is None else known.metric.name] = _function(given, loss, True)
    return found


def _function(given: Any, loss: Loss, by_name: bool = False) -> Measure:
    """Return the function of a metric; raise ValueError if it is unknown or not for this loss."""
    if callable(given) and not by_name:
        chosen: Measure = given
    else:
        known = find_metric(given) if isinstance(given, str) else None
        if known is None:
            raise ValueError(
                f"{given!r} is not a built-in metric; pass one of {', '.join(BUILTIN_METRICS)}, or "
                "your own function of outputs and targets by name."
            )
        chosen = known.function
    if isinstance(loss, OnBatch) and not isinstance(chosen, OnBatch):
        raise ValueError(
            f"metric {given!r} is a function of outputs and targets, which a loss of module and "
            "batch does not have; pass OnBatch(f) by name, with f(module, batch) a number."
        )
    numbers, own = loss_kind(loss), builtin(chosen)
    if own and own.classifier and numbers is not None and numbers.is_regression:
        raise ValueError(
            f"metric {given!r} needs a classifier, but the loss is {numbers.name}; pass mse, mae, "
            "r2 or auc, or your own function."
        )
    return chosen


def weighted_mean(rows: Sequence[Mapping[str, float]], p: Sequence[float]) -> dict[str, float]:
    """Return the mean of each metric over clients with weights p_i.

    >>> weighted_mean([{"loss": 1.0}, {"loss": 3.0}], [0.25, 0.75])
    {'loss': 2.5}
    """
    return {
        name: sum(p_i * row[name] for p_i, row in zip(p, rows, strict=True)) for name in rows[0]
    }


def shares_of(
    what: str, loss: Loss, targets: Sequence[Tree], p: Sequence[float]
) -> tuple[str, Tensor] | None:
    """Return `what` and the share of each class, the mean over targets with weights p_i.

    None if targets are other numbers than labels, if they are not one tensor, or if all labels are
    ignored.

    what: the name of these labels, for a sentence.
    loss: the loss, which decides the ignored label.
    targets: the targets of each client.
    p: the weights of the clients.
    """
    parts = counts_of(loss, targets)
    if parts is None:
        return None
    shares = torch.zeros(max((len(counts) for counts in parts), default=0), dtype=torch.float64)
    for p_i, counts in zip(p, parts, strict=True):
        shares[: len(counts)] += p_i * counts.double() / max(1.0, float(counts.sum()))
    return (what, shares / shares.sum()) if float(shares.sum()) > 0 else None


def counts_of(loss: Loss, targets: Sequence[Tensor]) -> list[Tensor] | None:
    """Return the counts of each class in each of some targets; None if they are not labels."""
    parts = list[Tensor]()
    for y in targets:
        if not isinstance(y, Tensor):
            return None
        # Binary losses take labels 0 and 1 as floating-point numbers.
        if y.is_floating_point() and not bool(((y == 0) | (y == 1)).all()):
            return None
        labels = y.long() if y.is_floating_point() else y[(y >= 0) & (y != ignored_label(loss))]
        parts.append(labels.flatten().cpu().bincount())
    return parts


def _as_logits(loss: Loss, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs as logits where they are probabilities, and ignored labels as -100."""
    known = loss_kind(loss)
    if known is not None and known.name == "binary_cross_entropy":
        output = torch.logit(output.cpu().double(), eps=_SURE)
    ignored = ignored_label(loss)
    if ignored >= 0 and not y.is_floating_point():
        y = y.masked_fill(y == ignored, -100)
    return output, y


def _scores(output: Tree, y: Tree) -> Tensor | None:
    """Return the outputs for a built-in metric: a tensor, or the `logits` of a dict.

    None where that is not clear: the logits of tokens may be shifted against the targets.
    """
    found = output.get("logits") if isinstance(output, Mapping) else output
    if not isinstance(found, Tensor) or not isinstance(y, Tensor):
        return None
    return found if found is output or found.dim() <= 2 else None


def _scores_for(metrics: Mapping[str, Measure], output: Tree, y: Tree) -> Tensor:
    """Return the outputs for built-in metrics; raise ValueError if there are none."""
    found = _scores(output, y)
    if found is not None:
        return found
    keys = f" with {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
    what = f"the module returns a {type(output).__name__}{keys}"
    if not isinstance(y, Tensor):
        what = f"targets are a {type(y).__name__}"
    # The message shows the function that the user can call on the right parts of the outputs.
    name, metric = next(iter(metrics.items()))
    function = getattr(metric, "__name__", metric)
    raise ValueError(
        f"metric '{name}' needs scores and targets in one tensor each, but {what}; pass "
        f"{{'{name}': lambda output, y: metrics.{function}(scores of output, labels of y)}}, with "
        "metrics from trimtab.problems."
    )


def _number(name: str, metric: Measure, output: Tree, y: Tree) -> float:
    """Return the value of a user's metric; raise ValueError if it changes outputs or targets."""
    before = versions((output, y))
    value = metric(output, y)
    if versions((output, y)) != before:
        raise ValueError(
            f"metric '{name}' changes outputs or targets in place; let it work on copies."
        )
    return _as_number(name, value)


def _as_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"metric '{name}' does not return a number ({first_line(error)}); return one."
        ) from error


def metric_standard_error(evaluation: Evaluation, data: Data, x: Vector, name: str) -> float | None:
    """Return the standard error of a metric at x, by leaving out a twentieth of the rows in turn.

    This jackknife works for every metric, also for those that are not means. None if the error is
    unknown: for a single row, or if the metric is undefined without some rows.

    evaluation: the metrics.
    data: the rows.
    x: the point.
    name: the metric.
    """
    n = len(data)
    groups = min(GROUPS, n)
    if groups < 2:
        return None
    # Drawn, because rows may be sorted; with a fixed seed, so that every run finds the same error.
    order = torch.randperm(n, generator=stream(0, ERROR, n))
    values = []
    for group in range(groups):
        rows = order[torch.arange(n) % groups != group].sort().values
        measured = evaluation.on(data.take(rows.to(data.device)), x)
        values.append(measured.get(name, float("nan")))
    if not all(map(isfinite, values)):
        return None
    if max(values) == min(values):
        # If all rows give the same value, the jackknife finds no error, though the next row may
        # differ. By Laplace's rule of succession 1 in n + 2 does, so that the error is this share
        # of the range.
        metric = ranges_of(evaluation.metrics, None).get(name)
        span = inf if metric is None else metric.high - metric.low
        return span / (n + 2) if isfinite(span) else 0.0
    mean = fmean(values)
    return sqrt((groups - 1) / groups * sum((value - mean) ** 2 for value in values))
