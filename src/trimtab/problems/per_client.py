"""How a model serves the clients one by one: the mean, the worst of them, and the spread."""

from dataclasses import asdict, dataclass
from math import ceil, isfinite, isnan, nan
from typing import Any

import torch

from trimtab._files import plain
from trimtab.core import Vector
from trimtab.problems.capabilities import Capabilities, capabilities
from trimtab.problems.metrics import Metric
from trimtab.problems.problem import Problem

_OWN, _TRAINING = "own test parts", "training data"


@dataclass(frozen=True)
class PerClient:
    """A metric over clients, each counted once; those for which it is NaN are left out."""

    metric: str
    clients: int  # how many it was defined for
    undefined: int  # how many were left out, for instance for having one class only
    mean: float
    worst_tenth: float  # the mean over the worst tenth, rounded up, of the clients
    worst: float
    worst_client: int | None  # the first of those where it is worst
    spread: float  # the standard deviation
    on: str | None  # own test parts, training data, or both; None: the problem does not say
    groups: dict[str, float | None] | None = None  # means, None for a group where it is undefined
    values: tuple[float, ...] = ()  # of each client, in the order of their numbers

    def to_json(self) -> dict[str, Any]:
        """Return the fields; a number that is not finite is None."""
        fields: dict[str, Any] = plain(asdict(self))
        return fields


def per_client(problem: Problem, x: Vector, metric: Metric) -> PerClient | None:
    """Return how a metric at x differs from client to client.

    A client is measured on its own test part where it has one, else on its training data. None
    for problems that cannot evaluate clients, or not by this metric.

    >>> from trimtab import Quadratic
    >>> from trimtab.problems.metrics import LOSS
    >>> found = per_client(Quadratic(A=[1.0, 1.0], b=[0.0, 2.0]), torch.ones(1), LOSS)
    >>> found.mean, found.worst, found.worst_client
    (-0.5, 0.5, 0)
    """
    can = capabilities(problem)
    if can.client_metrics is None:
        return None
    values = []
    for i in range(problem.N):
        measured = can.client_metrics(i, x)
        if metric.name not in measured:
            return None
        values.append(float(measured[metric.name]))
    defined = [i for i, value in enumerate(values) if not isnan(value)]
    from_worst = sorted(defined, key=lambda i: values[i], reverse=not metric.higher)
    tenth = from_worst[: ceil(len(from_worst) / 10)]
    return PerClient(
        metric=metric.name,
        clients=len(defined),
        undefined=len(values) - len(defined),
        mean=_mean([values[i] for i in defined]),
        worst_tenth=_mean([values[i] for i in tenth]),
        worst=values[tenth[0]] if tenth else nan,
        worst_client=tenth[0] if tenth else None,
        spread=_deviation([values[i] for i in defined]),
        on=_measured_on(can, problem.N),
        groups=_groups(can, values),
        values=tuple(values),
    )


def _groups(can: Capabilities, values: list[float]) -> dict[str, float | None] | None:
    """Return the mean of each group, in the order in which groups first occur."""
    if can.groups is None:
        return None
    members: dict[str, list[float]] = {}
    for label, value in zip(can.groups, values, strict=True):
        members.setdefault(str(label), []).extend([] if isnan(value) else [value])
    means = {label: _mean(inside) for label, inside in members.items()}
    return {label: mean if isfinite(mean) else None for label, mean in means.items()}


def _measured_on(can: Capabilities, N: int) -> str | None:
    if can.own_test is None:
        return None
    own = sum(can.own_test(i) for i in range(N))
    if own in (0, N):
        return _OWN if own else _TRAINING
    return f"{_OWN} of {own} clients, {_TRAINING} of the others"


def _mean(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).mean()) if values else nan


def _deviation(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).std(correction=0)) if values else nan
