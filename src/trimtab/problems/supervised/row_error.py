"""How well some rows know a metric: the standard error that comes from which rows they are."""

from math import inf, isfinite, sqrt
from statistics import fmean

import torch

from trimtab.compute import kernel
from trimtab.core import Vector
from trimtab.core.streams import ERROR, stream
from trimtab.problems.metrics import ranges_of
from trimtab.problems.supervised.evaluation import Evaluation
from trimtab.problems.supervised.samples import Data

GROUPS = 20  # rows are left out in turn in <= 20 groups


def row_error(
    evaluation: Evaluation, data: Data, x: Vector, layers: kernel.Layers | None, name: str
) -> float | None:
    """Return the standard error of a metric at x, by leaving out a twentieth of the rows in turn.

    The jackknife serves every metric, also those that are no means. None where it cannot be told:
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
