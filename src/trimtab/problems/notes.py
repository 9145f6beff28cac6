"""Sentences to be shown with results, so that numbers are not read for more than they say."""

from torch import Tensor

from trimtab.problems.capabilities import capabilities
from trimtab.problems.metrics import ACCURACY, Metric
from trimtab.problems.problem import Problem

_UNBALANCED = 1.5  # a class that is told of has a share > 1.5 / number of classes
_MAJORITY = 0.6  # a class that is told of has a share > 0.6


def notes(problem: Problem, metric: Metric) -> list[str]:
    """Return what to know of a problem that is judged by a metric, one sentence each.

    >>> from trimtab import Quadratic
    >>> from trimtab.problems.metrics import LOSS
    >>> notes(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0]), LOSS)
    ["all clients weigh the same (the papers' default)."]
    """
    can = capabilities(problem)
    shares = can.class_shares if metric.name == ACCURACY.name else None
    classes = None if shares is None else shares()
    found = [] if classes is None else _unbalanced(*classes)
    columns = [] if can.columns is None else [f"columns: {can.columns}."]
    return [*found, *columns, _weights(problem.weights, can.weighing)]


def _unbalanced(labels: str, shares: Tensor) -> list[str]:
    share, largest = float(shares.max()), int(shares.argmax())
    classes = max(2, int((shares > 0).sum()))
    if share <= max(_UNBALANCED / classes, _MAJORITY):
        return []
    return [
        f"{100 * share:.3g} % of the {labels} are class {largest}, so accuracy {share:.3g} is what "
        "always saying that scores; auc, f1 and balanced accuracy tell more."
    ]


def _weights(p: Tensor, weighing: str | None) -> str:
    if weighing == "uniform":
        return (
            "all clients weigh the same, whatever their size (the papers' default); "
            'weights="samples" weighs them by their samples.'
        )
    if weighing == "samples":
        return "clients weigh by their number of samples."
    low, high = float(p.min()), float(p.max())
    if low == high:
        return "all clients weigh the same (the papers' default)."
    return f"clients weigh by the weights given, from {low:.3g} to {high:.3g}."
