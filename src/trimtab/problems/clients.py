"""Facts about the clients of a problem: the metric of each, their data, and notes for reports.

Records keep these facts, so that a page can show how clients differ when the data are gone.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from inspect import signature
from math import ceil, isfinite, isnan, nan
from typing import Any

import torch
from torch import Tensor

from trimtab._files import plain
from trimtab.core import Vector
from trimtab.problems.metrics import ACCURACY, Metric
from trimtab.problems.problem import Problem
from trimtab.problems.supervised.problem import Supervised
from trimtab.problems.supervised.tables import Columns

# -- the metric of each client

_OWN, _TRAINING = "own test parts", "training data"
_SAME = 1e-12  # Metrics that are closer are equal but for rounding.


@dataclass(frozen=True)
class PerClient:
    """A metric over clients, each counted once; clients for which it is NaN are left out."""

    metric: str
    clients: int  # for which it is defined
    undefined: int  # clients that are left out, for instance because they have one class
    mean: float
    worst_tenth: float  # the mean over the worst tenth, rounded up, of the clients
    worst: float
    worst_client: int | None  # the first of those where it is worst
    spread: float  # the standard deviation
    on: str | None  # own test parts, training data, or both; None: the problem does not say
    groups: dict[str, float | None] | None = None  # means, None for a group where it is undefined
    values: tuple[float, ...] = ()  # of each client, in the order of their numbers
    # With a client's own statistics of BatchNorm in place of the pooled ones, if that differs.
    own_mean: float | None = None
    own_values: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields; a number that is not finite is None."""
        fields: dict[str, Any] = plain(asdict(self))
        return fields


def per_client(problem: Problem, x: Vector, metric: Metric) -> PerClient | None:
    """Return the metric of each client at x, its mean, worst values and spread.

    A client is measured on its own test part if it has one, else on its training data. The result
    is None for problems that cannot evaluate single clients, or not by this metric.

    >>> from trimtab import Quadratic
    >>> from trimtab.problems.metrics import LOSS
    >>> found = per_client(Quadratic(A=[1.0, 1.0], b=[0.0, 2.0]), torch.ones(1), LOSS)
    >>> found.mean, found.worst, found.worst_client
    (-0.5, 0.5, 0)
    """
    if not _takes_client(problem.evaluate):
        return None
    values = []
    for i in range(problem.N):
        measured = problem.evaluate(x, client=i)
        if metric.name not in measured:
            return None
        values.append(float(measured[metric.name]))
    defined = [i for i, value in enumerate(values) if not isnan(value)]
    from_worst = sorted(defined, key=lambda i: values[i], reverse=not metric.higher)
    tenth = from_worst[: ceil(len(from_worst) / 10)]
    own = _with_own_statistics(problem, x, metric)
    differs = any(abs(a - b) > _SAME for a, b in zip(own, values, strict=False))
    return PerClient(
        metric=metric.name,
        clients=len(defined),
        undefined=len(values) - len(defined),
        mean=_mean([values[i] for i in defined]),
        worst_tenth=_mean([values[i] for i in tenth]),
        worst=values[tenth[0]] if tenth else nan,
        worst_client=tenth[0] if tenth else None,
        spread=_deviation([values[i] for i in defined]),
        on=_measured_on(problem),
        groups=_groups(problem, values),
        values=tuple(values),
        own_mean=_mean([value for value in own if not isnan(value)]) if differs else None,
        own_values=tuple(own) if differs else (),
    )


def _with_own_statistics(problem: Problem, x: Vector, metric: Metric) -> list[float]:
    """Return the metric of each client with its own statistics of BatchNorm, if there are any."""
    if not isinstance(problem, Supervised) or not problem.model.norms:
        return []
    return [float(problem.evaluate_own(x, i)[metric.name]) for i in range(problem.N)]


def _takes_client(evaluate: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter `client`."""
    try:
        parameters = signature(evaluate).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == "client" or p.kind is p.VAR_KEYWORD for p in parameters)


def _groups(problem: Problem, values: list[float]) -> dict[str, float | None] | None:
    """Return the mean of each group, in the order in which groups first occur."""
    if problem.groups is None:
        return None
    members: dict[str, list[float]] = {}
    for label, value in zip(problem.groups, values, strict=True):
        members.setdefault(str(label), []).extend([] if isnan(value) else [value])
    means = {label: _mean(inside) for label, inside in members.items()}
    return {label: mean if isfinite(mean) else None for label, mean in means.items()}


def _measured_on(problem: Problem) -> str | None:
    has_own_test = problem.has_own_test
    if has_own_test is None:
        return None
    own = sum(has_own_test(i) for i in range(problem.N))
    if own in (0, problem.N):
        return _OWN if own else _TRAINING
    return f"{_OWN} of {own} clients, {_TRAINING} of the others"


def _mean(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).mean()) if values else nan


def _deviation(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).std(correction=0)) if values else nan


# -- their data

# Above these limits a record would be larger than the curves it belongs to.
MAX_CLIENTS = 2000  # described one by one
MAX_COUNTS = 50_000  # clients times labels


@dataclass(frozen=True)
class ClientSummary:
    """Sizes, labels and weights of the clients; empty or None if the problem does not know."""

    N: int
    d: int
    weights: tuple[float, ...] = ()
    weighing: str | None = None  # where the weights come from: uniform, samples or own
    sizes: tuple[int, ...] = ()  # training samples of each client
    batches: tuple[int, ...] = ()  # samples of a mini-batch of each client
    labels: tuple[tuple[int, ...], ...] | None = None  # how many of each, by client

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        fields: dict[str, Any] = plain(asdict(self))
        return fields

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "ClientSummary":
        """Read what `to_json` wrote."""
        labels = content["labels"]
        tuples = {name: tuple(content[name]) for name in ("weights", "sizes", "batches")}
        counts = None if labels is None else tuple(tuple(row) for row in labels)
        return cls(**content | tuples | {"labels": counts})


def summarise_clients(problem: Problem) -> ClientSummary:
    """Describe the clients of a problem; of more than MAX_CLIENTS, only their number.

    >>> from trimtab import Quadratic
    >>> summarise_clients(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0]))
    ClientSummary(N=2, d=1, weights=(0.5, 0.5), weighing=None, sizes=(), batches=(), labels=None)
    """
    if problem.N > MAX_CLIENTS:
        return ClientSummary(problem.N, problem.d, weighing=problem.weighing)
    count = problem.samples
    samples = [] if count is None else [count(i) for i in range(problem.N)]
    return ClientSummary(
        N=problem.N,
        d=problem.d,
        weights=tuple(float(p) for p in problem.weights),
        weighing=problem.weighing,
        sizes=tuple(n for n, _ in samples),
        batches=tuple(b for _, b in samples),
        labels=_labels(problem.label_counts()),
    )


def _labels(counts: list[list[int]] | None) -> tuple[tuple[int, ...], ...] | None:
    """Return the counts as rows of one length; None where there are none, or too many."""
    classes = max((len(row) for row in counts or ()), default=0)
    if counts is None or not classes or classes * len(counts) > MAX_COUNTS:
        return None
    return tuple((*row, *(0,) * (classes - len(row))) for row in counts)


# -- notes

# A note warns about a class whose share is above both 1.5 / classes and 0.6: always predicting it
# scores that accuracy.
_UNBALANCED = 1.5
_MAJORITY = 0.6
STATISTICS = (
    "BatchNorm's statistics are estimated at the model that is measured or saved: one pass over "
    "each client's training data in mini-batches as in training, pooled by the clients' weights."
)


def problem_notes(problem: Problem, metric: Metric) -> list[str]:
    """Return sentences that a reader of this metric on this problem needs.

    >>> from trimtab import Quadratic
    >>> from trimtab.problems.metrics import LOSS
    >>> problem_notes(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0]), LOSS)
    ["all clients weigh the same (the papers' default)."]
    """
    classes = problem.class_shares() if metric.name == ACCURACY.name else None
    found = [] if classes is None else _unbalanced(*classes)
    columns = [] if problem.columns is None else [f"columns: {problem.columns}."]
    if isinstance(problem.columns, Columns) and problem.columns.target_scale:
        columns.append(
            "the loss is in units of the scaled target; metrics such as mse, mae and r2, and "
            f"predictions, are in those of {', '.join(problem.columns.targets)} itself."
        )
    if isinstance(problem, Supervised) and problem.model.norms:
        columns.append(STATISTICS)
    return [*found, *columns, _weights(problem.weights, problem.weighing)]


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
