"""What a simulator, a diagnosis or a federation needs to know of a problem."""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.errors import BadArgument
from trimtab.problems.capabilities import capabilities, fingerprint_of, old_fingerprint_of
from trimtab.problems.fingerprint import Likeness, is_line, likeness
from trimtab.problems.metrics import ACCURACY, LOSS, READY, Metric, known_as, ready
from trimtab.problems.origin import derived


class Problem(Protocol):
    """N clients with losses f_i on R^d, and f(x) = sum of p_i f_i(x).

    This is all that a problem must have; what it may have besides, for speed or for a diagnosis,
    is listed in `trimtab.problems.capabilities`.
    """

    @property
    def N(self) -> int:
        """How many clients there are."""
        ...

    @property
    def d(self) -> int:
        """The length of x."""
        ...

    @property
    def weights(self) -> Tensor:
        """The p_i: N numbers in float64 that sum to 1."""
        ...

    def x0(self, seed: int = 0) -> Vector:
        """Return the point where a run with this seed starts."""
        ...

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return g_i for round r; mini-batches depend on (seed, i, r, k) alone.

        g_i(y, k) is the gradient at y on mini-batch k, g_i(y) that of f_i, on all its data.
        """
        ...

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return loss, accuracy where there is one, and other metrics at x."""
        ...


def metric_of(problem: Problem, measured: Mapping[str, float]) -> Metric:
    """Return what a problem is judged by: its own metric, or accuracy where it has one, or loss."""
    return capabilities(problem).metric or (ACCURACY if "accuracy" in measured else LOSS)


def judged_by(problem: Problem, metric: str | Metric) -> Problem:
    """Return the problem with a metric that it is judged by.

    What `evaluate` returns has the direction of `trimtab.problems.metrics.known_as`: more is
    better, unless the name ends in loss, error, mse, mae, perplexity, distance or gap; a Metric
    says it itself. A ready metric that is not measured is added, if the problem can.

    >>> from trimtab import Quadratic
    >>> judged_by(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0]), "distance").metric.higher
    False
    """
    can, given, asked = capabilities(problem), metric, problem
    if can.metric is not None and given in (can.metric, can.metric.name):
        return problem
    name = given.name if isinstance(given, Metric) else given
    measured = list(problem.evaluate(problem.x0()))
    known = ready(name)
    if name not in measured and known is not None:
        name = name if isinstance(given, Metric) else known.metric.name
        if name not in measured and can.with_metric is not None:
            problem = can.with_metric(name)
            measured.append(name)
    if name not in measured:
        others = [] if can.with_metric is None else [each for each in READY if each not in measured]
        raise BadArgument(
            "metric",
            "{metric:{_given}} is not measured here; pass one of {_known}.",
            _given=name,
            _known=", ".join([*measured, *others]),
        )
    function = (capabilities(problem).metrics or {}).get(name)
    judge = given if isinstance(given, Metric) else known_as(name, function)
    return derived(asked, _with(problem, judge), "judged_by", given)  # type: ignore[no-any-return]


def _with(problem: Any, metric: Metric) -> Problem:
    """Return a copy of a problem, which shares its data, with another metric."""
    judged = copy(problem)
    try:
        judged.metric = metric
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"the metric of this {type(problem).__name__} cannot be set ({error}); make `metric` "
            "an attribute that can."
        ) from error
    return judged  # type: ignore[no-any-return]


def fingerprint(problem: Problem) -> str:
    """Return a line that tells problems apart; their own, or their sizes."""
    return fingerprint_of(problem) or f"{type(problem).__name__} N={problem.N} d={problem.d}"


def same_problem(problem: Problem, stored: str) -> Likeness:
    """Compare a problem with the fingerprint in a saved run; one of version 0.1.0 by its rule."""
    now = fingerprint(problem)
    if is_line(stored) and is_line(now):
        return likeness(stored, now)
    old = None if is_line(stored) else old_fingerprint_of(problem)
    if old is not None:
        now = old
        if now.endswith("?") and stored.rpartition(" ")[0] == now.rpartition(" ")[0]:
            return Likeness(unknown=("the loss and the data",))
    if stored != now:
        return Likeness((f"it was {stored}, is now {now}",))
    known = old is not None or fingerprint_of(problem)
    return Likeness() if known else Likeness(unknown=(f"this {now}, which has no fingerprint",))


def side_by_side(oracles: Sequence[Gradient]) -> Gradient:
    """Return the oracle of a chunk of s clients: y of shape (d,) or (s, d) gives (s, d)."""

    def g(y: Vector, k: int | None = None) -> Vector:
        rows = y.expand(len(oracles), y.shape[-1])
        return torch.stack([oracle(row, k) for oracle, row in zip(oracles, rows, strict=True)])

    return g


def normalised(weights: Sequence[float] | Tensor | None, N: int) -> Tensor:
    """Return the p_i in float64 for given weights; None stands for uniform ones.

    >>> normalised([1, 3], 2).tolist()
    [0.25, 0.75]
    """
    if weights is None:
        # These are N numbers, of which one is in memory.
        return torch.full((1,), 1 / N, dtype=torch.float64).expand(N)
    p = torch.as_tensor(weights, dtype=torch.float64).cpu()
    if p.shape != (N,) or not bool(((p > 0) & torch.isfinite(p)).all()):
        raise ValueError(f"weights must be N={N} positive numbers, one a client; got {_short(p)}.")
    return p / p.sum()


def chosen(weights: Tensor, clients: Sequence[int]) -> list[float]:
    """Return the p_i of some clients.

    >>> chosen(normalised([1, 3], 2), [1])
    [0.75]
    """
    plain = weights.is_cpu and not weights.requires_grad
    p: list[float] = _as_array(weights if plain else weights.detach().cpu())[list(clients)].tolist()
    return p


@lru_cache(maxsize=4)
def _as_array(weights: Tensor) -> Any:
    """Return the same memory as a NumPy array; kept, since a round asks for little else."""
    return weights.numpy()


def _short(p: Tensor) -> Any:
    return p.tolist() if p.numel() <= 8 else f"{p.numel()} of them, the least {p.min().item():g}"
