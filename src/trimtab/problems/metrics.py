"""Metrics of a model, and the built-in ones by name: functions of all outputs and targets.

The numbers equal scikit-learn's (tested). They are computed in PyTorch, because a search evaluates
them every few milliseconds and scikit-learn's checks alone take that long.

Outputs are what a module returns: for labels 0 … C - 1 a score for each class, (n, C) or
(n, C, length); for targets 0 and 1 of the outputs' own shape a logit each; for numbers a number
each. Labels below 0 are ignored. An undefined value is NaN: an auc where all labels are equal, or
any metric of outputs that are not finite.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trimtab.errors import BadArgument


@dataclass(frozen=True)
class Metric:
    """A number that `evaluate` returns: its name, its direction and its range.

    name: the key in the result of `evaluate`.
    higher: whether larger values are better, default True.
    low, high: the range of possible values, by default unlimited.

    >>> auc = Metric("auc", higher=True, low=0.5, high=1.0)
    >>> auc.allows(0.9), auc.allows(0.3)
    (True, False)
    """

    name: str
    higher: bool = True
    low: float = -inf
    high: float = inf

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"Metric: name={self.name!r}; pass the key in the result of evaluate.")
        if self.name == "loss" and self.higher:
            raise ValueError("Metric: a smaller loss is better; pass higher=False.")
        if not self.low < self.high:
            raise ValueError(
                f"Metric: low={self.low} and high={self.high}; pass a low that is below high."
            )

    def allows(self, target: float) -> bool:
        """Return whether a value makes sense as a target; the worse end of the range does not.

        >>> ACCURACY.allows(0.0), ACCURACY.allows(1.0), LOSS.allows(float("nan"))
        (False, True, False)
        """
        if not isfinite(target):
            return False
        if self.higher:
            return self.low < target <= self.high
        return self.low <= target < self.high

    def __str__(self) -> str:
        return self.name


ACCURACY = Metric("accuracy", higher=True, low=0.0, high=1.0)
LOSS = Metric("loss", higher=False)


Function = Callable[[Tensor, Tensor], float]


class BuiltinMetric(NamedTuple):
    """A metric and the function that computes it.

    pooled: whether it must be computed from all samples at once, as it is no mean over clients.
    classifier: whether it needs scores of classes, or logits.
    """

    metric: Metric
    function: Function
    pooled: bool = False
    classifier: bool = False


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of right predictions; with several logits per sample, over all of them."""
    scores, y = _columns(outputs, targets)
    right = _classes(scores, y) == y
    return float(right.double().mean()) if _usable(scores, y) else nan


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean over the classes among the targets of the share of each that is found.

    NaN if there is one class only. With several logits per sample, the mean over their columns.
    """

    def of(scores: Tensor, y: Tensor) -> float:
        there = y.bincount()
        found = y[_classes(scores, y) == y].bincount(minlength=len(there))
        seen = there > 0
        return nan if int(seen.sum()) < 2 else float((found[seen].double() / there[seen]).mean())

    return _mean(of(*each) for each in _problems(outputs, targets))


def auc(outputs: Tensor, targets: Tensor) -> float:
    """Return the area under the ROC curve, that of class 1 if there are two.

    Of several classes: each against the rest, and the mean (macro) over those that are among the
    targets but are not all of them. With several logits per sample, the mean over their columns.
    """

    def of(scores: Tensor, y: Tensor) -> Iterator[float]:
        binary = scores.dim() == 1 or scores.shape[1] == 2
        margin = scores if scores.dim() == 1 else scores[:, 1] - scores[:, 0]
        p = scores if binary else F.softmax(scores, 1)
        parts = [(y == 1, margin)] if binary else [(y == c, p[:, c]) for c in _seen(y)]
        for positive, score in parts:
            yield _pairs_in_order(score[positive], score[~positive])

    return _mean(value for each in _problems(outputs, targets) for value in of(*each))


def _pairs_in_order(positive: Tensor, negative: Tensor) -> float:
    """Return the share of pairs in which the positive has the higher score; ties count half."""
    if not len(positive) or not len(negative):
        return nan
    order = negative.sort().values
    below = torch.searchsorted(order, positive).sum()
    not_above = torch.searchsorted(order, positive, right=True).sum()
    return int(below + not_above) / (2 * len(positive) * len(negative))


def f1(outputs: Tensor, targets: Tensor) -> float:
    """Return the F1 score of class 1 if there are two, else the mean (macro) over classes.

    The mean is over classes that are among the targets or predictions. NaN where class 1 is
    neither. With several logits per sample, the mean over their columns.
    """

    def of(scores: Tensor, y: Tensor) -> float:
        predicted = _classes(scores, y)
        either = torch.cat([y, predicted]).bincount(minlength=2)  # 2 TP + FP + FN of each class
        right = y[predicted == y].bincount(minlength=len(either))
        each = 2 * right.double() / either
        binary = scores.dim() == 1 or scores.shape[1] == 2
        return float(each[1] if binary else each[either > 0].mean())

    return _mean(of(*each) for each in _problems(outputs, targets))


def log_loss(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean of -log p(target), whatever else the loss may weigh or smooth."""
    scores, y = _columns(outputs, targets)
    if not _usable(scores, y):
        return nan
    if scores.dim() == y.dim():
        return float(F.binary_cross_entropy_with_logits(scores, y.double()))
    return float(F.cross_entropy(scores, y))


def perplexity(outputs: Tensor, targets: Tensor) -> float:
    """Return exp(log loss): the number of equally likely classes with the same log loss."""
    return float(torch.tensor(log_loss(outputs, targets), dtype=torch.float64).exp())


def mse(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean squared difference, over all numbers."""
    predicted, y = _numbers(outputs, targets)
    return float((predicted - y).square().mean()) if _usable(predicted, y) else nan


def mae(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean absolute difference, over all numbers."""
    predicted, y = _numbers(outputs, targets)
    return float((predicted - y).abs().mean()) if _usable(predicted, y) else nan


def r2(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of the targets' variance that is explained; the mean over their columns.

    Columns in which all targets are equal do not count; NaN if there is no other.
    """
    predicted, y = _numbers(outputs, targets)
    if not _usable(predicted, y):
        return nan
    predicted, y = predicted.reshape(len(y), -1), y.reshape(len(y), -1)
    vary = (y != y[0]).any(0)
    if not bool(vary.any()):
        return nan
    predicted, y = predicted[:, vary], y[:, vary]
    left, all_of_it = (y - predicted).square().sum(0), (y - y.mean(0)).square().sum(0)
    return float((1 - left / all_of_it).mean())


_ALL = (
    BuiltinMetric(ACCURACY, accuracy, classifier=True),
    BuiltinMetric(
        Metric("balanced accuracy", True, 0.0, 1.0), balanced_accuracy, pooled=True, classifier=True
    ),
    BuiltinMetric(Metric("auc", True, 0.0, 1.0), auc, pooled=True),
    BuiltinMetric(Metric("f1", True, 0.0, 1.0), f1, pooled=True, classifier=True),
    BuiltinMetric(Metric("log loss", False, 0.0), log_loss, classifier=True),
    BuiltinMetric(Metric("mse", False, 0.0), mse),
    BuiltinMetric(Metric("mae", False, 0.0), mae),
    BuiltinMetric(Metric("r2", True, -inf, 1.0), r2, pooled=True),
    BuiltinMetric(Metric("perplexity", False, 1.0), perplexity, pooled=True, classifier=True),
)
BUILTIN_METRICS = {each.metric.name: each for each in _ALL}


def ranges_of(functions: Mapping[str, object], metric: Metric | None) -> dict[str, Metric]:
    """Return the ranges of the built-in metrics and of the problem's target metric, by name.

    A user's function may have the name of a built-in one; its range is unknown.
    """
    ranges = {
        name: each.metric
        for name, each in BUILTIN_METRICS.items()
        if functions.get(name, each.function) is each.function
    }
    return ranges if metric is None else ranges | {metric.name: metric}


_LOWER = ("loss", "error", "mse", "mae", "perplexity", "distance", "gap")


def find_metric(name: str) -> BuiltinMetric | None:
    """Return the built-in metric of a name, in which _ and - may replace blanks.

    >>> find_metric("balanced_accuracy").metric.name, find_metric("ndcg")
    ('balanced accuracy', None)
    """
    if not isinstance(name, str):
        raise BadArgument("metric", "{metric:{_given}}; pass its name.", _given=repr(name))
    return BUILTIN_METRICS.get(name.lower().replace("_", " ").replace("-", " "))


def metric_named(name: str, function: object = None) -> Metric:
    """Return the direction and range of a metric called `name` that `function` computes.

    A built-in function has its own direction and range. A user's function has no range, and the
    direction of the built-in metric of its name; for any other name larger is better, unless it
    ends in loss, error, mse, mae, perplexity, distance or gap.

    >>> metric_named("AUC", auc), metric_named("rmse").higher, metric_named("ndcg").higher
    (Metric(name='AUC', higher=True, low=0.0, high=1.0), False, True)
    """
    if function is None and name == ACCURACY.name:
        return ACCURACY
    own = builtin(function)
    if own is not None:
        return replace(own.metric, name=name)
    named = find_metric(name)
    return Metric(name, not name.lower().endswith(_LOWER) if named is None else named.metric.higher)


def builtin(function: object) -> BuiltinMetric | None:
    """Return the built-in metric that a function computes; None for a user's function."""
    return next((each for each in _ALL if each.function is function), None)


# -- outputs and targets


def _problems(outputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return scores and labels, (n, C) or (n,), (n,): one pair, or one for each column of logits.

    None where something is not finite, or nothing is left.
    """
    scores, y = _columns(outputs, targets)
    if not _usable(scores, y):
        return []
    if scores.dim() != y.dim() or y.dim() == 1:
        return [(scores, y)]
    return list(zip(scores.unbind(1), y.unbind(1), strict=True))


def _columns(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores in float64 and labels: (n, C), (n,); or logits and labels of one shape."""
    scores, y = outputs.detach().cpu().double(), targets.detach().cpu()
    if not y.is_floating_point() and scores.dim() == y.dim() + 1 and scores.shape[1] > 1:
        scores, y = scores.movedim(1, -1).flatten(0, -2), y.flatten()
        return scores[y >= 0], y[y >= 0].long()
    if scores.numel() != y.numel() or not bool(((y == 0) | (y == 1)).all()):
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)} "
            "are not those of a classifier; give it labels 0, 1, … and a score for each, or "
            "targets 0 and 1 and a logit for each."
        )
    scores = scores.reshape(y.shape)
    flat = y.dim() != 2 or y.shape[1] == 1
    return (scores.flatten(), y.flatten().long()) if flat else (scores, y.long())


def _classes(scores: Tensor, y: Tensor) -> Tensor:
    """Return the predictions: the class with the best score, or whether the logit is positive."""
    return (scores > 0).long() if scores.dim() == y.dim() else scores.argmax(1)


def _numbers(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return predictions and targets in float64, of one shape."""
    if outputs.numel() != targets.numel():
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)} "
            "are not those of a regression; give both the same shape."
        )
    y = targets.detach().cpu().double()
    return outputs.detach().cpu().double().reshape(y.shape), y


def _seen(y: Tensor) -> list[int]:
    return y.bincount().nonzero().flatten().tolist()


def _usable(scores: Tensor, y: Tensor) -> bool:
    return y.numel() > 0 and bool(torch.isfinite(scores).all())


def _mean(values: Iterator[float] | Sequence[float]) -> float:
    """Return the mean of those that are defined; NaN if none is."""
    defined = [value for value in values if value == value]
    return sum(defined) / len(defined) if defined else nan
