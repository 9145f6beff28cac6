"""What Supervised measures at a point: the loss, the accuracy of classifiers, named metrics."""

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
    find_metric,
    is_builtin,
    is_pooled,
    needs_classifier,
    ranges_of,
)
from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.flat import Tree, first_line, join, leaves, version
from trimtab.problems.supervised.losses import Loss, OnBatch, correct, ignored_label, loss_kind
from trimtab.problems.supervised.mean_loss import MeanLoss

Measure = Callable[[Any, Any], Tensor | float]
"""A metric of a user's: a function of outputs and targets, or OnBatch of module and batch."""

Measures = Mapping[str, Measure | str] | Sequence[str]
"""What `metrics=` takes: functions or the names of built-in ones, by name; or names alone."""

_NUMBERS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_AT_ONCE = 64  # clients evaluated in one pass; bounds the memory of a lazy sequence
_SURE = 1e-12  # a probability is taken for at least 1e-12 and at most 1 - 1e-12
GROUPS = 20  # groups of rows that are left out in turn: the cost of an error is 20 evaluations


@dataclass(frozen=True)
class Evaluation:
    """The loss and the metrics that are measured."""

    mean_loss: MeanLoss
    metrics: Mapping[str, Measure]

    @torch.no_grad()
    def on(self, data: Data, x: Vector, layers: kernel.Layers | None) -> dict[str, float]:
        """Return all metrics at x on some data; by the kernel, if it knows the layers."""
        layers = layers if layers is not None and data.fits_kernel(layers) else None
        output = self._outputs(data, x, layers)
        return self._measured(output, data, x, layers, self.metrics)

    @torch.no_grad()
    def over(
        self, clients: Iterable[Data], p: Sequence[float], x: Vector, layers: kernel.Layers | None
    ) -> dict[str, float]:
        """Return the mean of all metrics over clients with weights p_i.

        Built-in metrics of which a mean says nothing (auc, f1, ...) are those of all samples.
        """
        means = {name: f for name, f in self.metrics.items() if not is_pooled(f)}
        rest = {name: f for name, f in self.metrics.items() if is_pooled(f)}
        rows, kept = list[dict[str, float]](), list[tuple[Tree, Tree]]()
        if layers is not None and not self.metrics:
            for group in _groups(clients):
                rows += self._at_once(group, x, layers) or [self.on(d, x, layers) for d in group]
            return weighted_mean(rows, p)
        for data in clients:
            fast = layers if layers is not None and data.fits_kernel(layers) else None
            output = self._outputs(data, x, fast)
            rows.append(self._measured(output, data, x, fast, means))
            if rest:
                kept.append((_scores_for(rest, output, data.y), data.y))
        measured = weighted_mean(rows, p)
        if rest:
            try:
                outputs, targets = (join(part) for part in zip(*kept, strict=True))
            except RuntimeError as error:
                raise ValueError(
                    f"metric '{next(iter(rest))}' needs the outputs of all clients together, but "
                    "their shapes differ; pass a function of your own, of which the mean over "
                    "clients is taken."
                ) from error
            measured |= self._named(outputs, targets, rest)
        return measured

    def _at_once(
        self, group: Sequence[Data], x: Vector, layers: kernel.Layers
    ) -> list[dict[str, float]] | None:
        """Return loss and accuracy of several clients, computed in one pass over all samples.

        None where some data need a closer look.
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
                return (
                    None  # A label is out of range; client by client, the error names its client.
                )
            if right is None:
                return [{"loss": loss} for loss in losses]
            if len(right) < len(output):
                return None
            shares = _means(right, sizes)
        both = zip(losses, shares, strict=True)
        return [{"loss": loss, "accuracy": share} for loss, share in both]

    def _outputs(self, data: Data, x: Vector, layers: kernel.Layers | None) -> Tree:
        """Return the module's outputs; None where the loss is of module and batch."""
        mean, d = self.mean_loss, self.mean_loss.model.d
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
        self,
        output: Tree,
        data: Data,
        x: Vector,
        layers: kernel.Layers | None,
        metrics: Mapping[str, Measure],
    ) -> dict[str, float]:
        """Return the loss, the accuracy of a classifier and some metrics of these outputs."""
        mean = self.mean_loss
        large = layers is None and mean.model.d >= KEEPS_CORES_BUSY
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
        """Return metrics by name; built-in ones see logits, and ignored labels as -100."""
        measured = dict[str, float]()
        for name, metric in metrics.items():
            if is_builtin(metric):
                found = _scores_for({name: metric}, output, y)
                scores, labels = _as_logits(self.mean_loss.loss, found, y)
                measured[name] = _ready_number(name, metric, scores, labels)
            else:
                measured[name] = _number(name, metric, output, y)
        return measured


def _means(numbers: Tensor, sizes: Tensor) -> list[float]:
    """Return the mean of the numbers of each client, whose samples follow one another."""
    rows = numbers.reshape(len(numbers), -1).double().mean(1)
    means: list[float] = torch.segment_reduce(rows, "mean", lengths=sizes).tolist()
    return means


def _groups(clients: Iterable[Data]) -> Iterator[list[Data]]:
    """Cut clients into groups that are evaluated at once; those of a lazy sequence may be many."""
    rest = iter(clients)
    while group := list(islice(rest, _AT_ONCE)):
        yield group


def functions(metrics: Measures | None, loss: Loss) -> dict[str, Measure]:
    """Return the functions of what `metrics=` was given, by the names that they are shown under.

    >>> list(functions(["auc", "log_loss"], torch.nn.CrossEntropyLoss()))
    ['auc', 'log loss']
    """
    if isinstance(metrics, str):
        raise ValueError(f"metrics={metrics!r}; pass a list of names, [{metrics!r}].")
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
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
                "a function of outputs and targets by a name of your own."
            )
        chosen = known.function
    if isinstance(loss, OnBatch) and not isinstance(chosen, OnBatch):
        raise ValueError(
            f"metric {given!r} is a function of outputs and targets, which a loss of module and "
            "batch does not have; pass OnBatch(f) by name, with f(module, batch) a number."
        )
    numbers = loss_kind(loss)
    if needs_classifier(chosen) and numbers is not None and numbers.name in _NUMBERS:
        raise ValueError(
            f"metric {given!r} needs a classifier, but the loss is {numbers.name}; pass mse, mae, "
            "r2 or auc, or a function of your own."
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
    """Return the share of each class, the mean over targets with weights p_i, and what they are.

    None if targets are numbers other than 0 and 1 or no single tensor, or no label counts.
    """
    parts = counts_of(loss, targets)
    if parts is None:
        return None
    shares = torch.zeros(max((len(counts) for counts in parts), default=0), dtype=torch.float64)
    for p_i, counts in zip(p, parts, strict=True):
        shares[: len(counts)] += p_i * counts.double() / max(1.0, float(counts.sum()))
    return (what, shares / shares.sum()) if float(shares.sum()) > 0 else None


def counts_of(loss: Loss, targets: Sequence[Tensor]) -> list[Tensor] | None:
    """Return how often each class is among some targets; None if one holds other numbers."""
    parts = list[Tensor]()
    for y in targets:
        if not isinstance(y, Tensor):
            return None
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


def _ready_number(name: str, metric: Measure, output: Tensor, y: Tensor) -> float:
    """Return a built-in metric, and say which one it is that cannot take these outputs."""
    try:
        return float(metric(output, y))
    except ValueError as error:
        raise ValueError(f"metric '{name}': {error}") from error


def _scores(output: Tree, y: Tree) -> Tensor | None:
    """Return the outputs that a built-in metric takes: a tensor, or the `logits` of a dict.

    None where that is not clear: of the logits of tokens, which may be shifted against targets.
    """
    found = output.get("logits") if isinstance(output, Mapping) else output
    if not isinstance(found, Tensor) or not isinstance(y, Tensor):
        return None
    return found if found is output or found.dim() <= 2 else None


def _scores_for(metrics: Mapping[str, Measure], output: Tree, y: Tree) -> Tensor:
    """Return the outputs that built-in metrics take; raise ValueError if there are none."""
    found = _scores(output, y)
    if found is None:
        raise ValueError(_no_scores(*next(iter(metrics.items())), output, y))
    return found


def _no_scores(name: str, metric: Measure, output: Tree, y: Tree) -> str:
    """Return the sentence that says which function to pass where a built-in metric cannot tell."""
    keys = f" with {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
    what = f"the module returns a {type(output).__name__}{keys}"
    if not isinstance(y, Tensor):
        what = f"targets are a {type(y).__name__}"
    function = next(
        each.function.__name__ for each in BUILTIN_METRICS.values() if each.function is metric
    )
    return (
        f"metric '{name}' needs scores and targets in one tensor each, but {what}; pass "
        f"{{'{name}': lambda output, y: metrics.{function}(scores of output, labels of y)}}, with "
        "metrics from trimtab.problems."
    )


def _number(name: str, metric: Measure, output: Tree, y: Tree) -> float:
    """Return the value of a user's metric, which must not change outputs or targets."""
    tensors = [*leaves(output), *leaves(y)]
    before = [version(t) for t in tensors]
    value = metric(output, y)
    if [version(t) for t in tensors] != before:
        raise ValueError(
            f"metric '{name}' changes outputs or targets in place; let it work on copies."
        )
    return _as_number(name, value)


def _as_number(name: str, value: Any) -> float:
    """Return what a user's metric returned, if it is a number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"metric '{name}' returns no number ({first_line(error)}); return one."
        ) from error


def metric_standard_error(
    evaluation: Evaluation, data: Data, x: Vector, layers: kernel.Layers | None, name: str
) -> float | None:
    """Return the standard error of a metric at x, by leaving out a twentieth of the rows in turn.

    The jackknife serves every metric, also those that are not means. None where it is unknown:
    of one row, or where the metric is undefined without some of them. Where all n rows are alike,
    all of them right, say, it finds nothing, though the next may differ: by Laplace's rule of
    succession 1 in n + 2 does, and the error of a metric that has two ends is that share of them.
    """
    n = len(data)
    groups = min(GROUPS, n)
    if groups < 2:
        return None
    order = torch.randperm(n, generator=stream(0, ERROR, n))
    values = []
    for group in range(groups):
        rows = order[torch.arange(n) % groups != group].sort().values
        measured = evaluation.on(data.take(rows.to(data.device)), x, layers)
        values.append(measured.get(name, float("nan")))
    if not all(map(isfinite, values)):
        return None
    if max(values) == min(values):
        return _error_of_equals(evaluation, name, n)
    mean = fmean(values)
    return sqrt((groups - 1) / groups * sum((value - mean) ** 2 for value in values))


def _error_of_equals(evaluation: Evaluation, name: str, n: int) -> float:
    metric = ranges_of(evaluation.metrics, None).get(name)
    span = inf if metric is None else metric.high - metric.low
    return span / (n + 2) if isfinite(span) else 0.0
