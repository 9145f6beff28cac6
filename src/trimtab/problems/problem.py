"""The base class of problems: what a problem must have, and what it may override.

`adapter.as_problem` adapts objects of other classes that have the same members.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.core.tree import number_tensor
from trimtab.errors import BadArgument
from trimtab.problems.metrics import (
    ACCURACY,
    BUILTIN_METRICS,
    LOSS,
    Metric,
    find_metric,
    metric_named,
)
from trimtab.problems.origin import record_step

if TYPE_CHECKING:
    from builtins import property as _default
else:

    class _default:  # noqa: N801
        """A property that subclasses may also replace by a method or by an attribute."""

        def __init__(self, get):
            self.get, self.__doc__ = get, get.__doc__

        def __get__(self, problem, cls=None):
            return self if problem is None else self.get(problem)


class OnePass(Protocol):
    """f and its gradient in one pass over the data of all clients."""

    def loss(self, x: Vector) -> float:
        """Return f(x)."""

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Return f(x) and its gradient."""


class Problem(ABC):
    """N clients with losses f_i on R^d, and f(x) = sum of p_i f_i(x).

    Subclasses set `N`, `d` and `weights` and define `x0`, `oracle` and `evaluate`, which only a
    simulation can do without. Every other member has a default: override it for speed, or where a
    closed form exists. A member that is None by default is optional: None means that the problem
    cannot do it. Members are read when they are needed, so a property may be costly.
    """

    N: int
    """The number of clients."""
    d: int
    """The length of x."""
    weights: Tensor
    """The p_i: N numbers in float64 that sum to 1."""

    @abstractmethod
    def x0(self, seed: int = 0) -> Vector:
        """Return the point where a run with this seed starts."""

    @abstractmethod
    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return g_i for round r; mini-batches depend on (seed, i, r, k) alone.

        g_i(y, k) is the gradient at y on mini-batch k, g_i(y) that of f_i, on all its data.
        """

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return loss, accuracy where there is one, and other metrics at x."""
        raise ValueError(
            f"{type(self).__name__} has no evaluate(x, client=None), which everything but a "
            "simulation needs; define it."
        )

    # -- f, its gradient and its Hessians

    constant_hessians: bool = False
    """True if every f_i is quadratic."""
    symmetric: bool = True
    """False if oracles are not gradients of functions, as in linear systems and TD learning."""

    @_default
    def x_star(self) -> Vector | None:
        """The minimum of f, if it is known."""
        return None

    def client_loss(self, i: int, x: Vector) -> float:
        """Return f_i(x)."""
        return self._evaluated_loss(x, i)

    def loss(self, x: Vector) -> float:
        """Return f(x)."""
        # `evaluate` may use test data, so the mean of the clients' own losses goes first.
        if self._overrides("client_loss"):
            p = self.weights
            return sum(float(p[i]) * float(self.client_loss(i, x)) for i in range(self.N))
        return self._evaluated_loss(x, None)

    def client_gradient(self, i: int, x: Vector) -> Vector:
        """Return the gradient of f_i at x, on all its data."""
        return self.oracle(i, 0, 1)(x)

    def gradient(self, x: Vector) -> Vector:
        """Return the gradient of f at x."""
        total = torch.zeros_like(x)
        for i in range(self.N):
            total.add_(self.client_gradient(i, x), alpha=float(self.weights[i]))
        return total

    def in_one_pass(self) -> OnePass | None:
        """Return f and its gradient over pooled data, which live as long as what is returned."""
        return None

    def client_hvp(self, i: int, x: Vector, V: Tensor) -> Tensor:
        """Return the Hessian of f_i at x times each row of V (or times V).

        By default by autograd if the gradient has a graph, else by central differences. Autograd
        multiplies by the transposed matrix, so it serves symmetric problems only.
        """
        if self.symmetric:
            try:
                products = _double_backward(self, i, x, V)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # Some operations of torch have no second derivative.
                products = None
            if products is not None:
                return products
        rows = V.reshape(-1, self.d)
        return torch.stack([_central_difference(self, i, x, v) for v in rows]).view(V.shape)

    @_default
    def chunk_hvp(self) -> Callable[[Sequence[int], Vector, Tensor], Tensor] | None:
        """(clients, x, V) -> the same for several clients, (s, m, d), if that is faster."""
        return None

    @_default
    def client_hessian(self) -> Callable[[int, Vector], Tensor] | None:
        """(i, x) -> the (d, d) Hessian of f_i, if that is cheaper than d products."""
        return None

    # -- speed

    threads: bool = False
    """True if oracles of several clients may be called at once, and gain by it."""

    @_default
    def chunk_oracle(self) -> Callable[[Sequence[int], int, int], Gradient] | None:
        """(clients, seed, r) -> the oracle of several clients, for y of shape (d,) or (s, d)."""
        return None

    @_default
    def kernel(self) -> Any:
        """What `play` needs to run tapes in this round; None if it cannot."""
        return None

    def play(self, layers: Any, *args: Any) -> Any:
        """Run a tape for several clients; called only where `kernel`, its layers, is not None."""
        raise NotImplementedError

    @_default
    def why_no_kernel(self) -> Callable[[], str] | None:
        """() -> why there is no `kernel`."""
        return None

    @_default
    def why_not_vectorised(self) -> Callable[[], str] | None:
        """() -> why `chunk_oracle` is not faster than one client after the other; "" if it is."""
        return None

    # -- samples

    sampling: str | None = None
    """How mini-batches are drawn; "reshuffle": a pass of them uses every sample once."""
    groups: Sequence[Any] | None = None
    """A label for each client; metrics are averaged by group."""
    columns: Any = None
    """How the columns of a table became inputs and targets; `str` describes it."""

    @_default
    def samples(self) -> Callable[[int], tuple[int, int]] | None:
        """i -> the n_i of client i, and the b_i of its mini-batches."""
        return None

    @_default
    def steps(self) -> Callable[[float], int] | None:
        """epochs -> K."""
        return None

    @_default
    def steps_in_a_pass(self) -> Callable[[int], int] | None:
        """i -> the number of mini-batches in one pass over the data of client i."""
        return None

    @_default
    def weighing(self) -> str | None:
        """Where the weights come from: "uniform", "samples" or "own"."""
        return None

    def class_shares(self) -> tuple[str, Tensor] | None:
        """Return which labels accuracy is measured on, and the share of each class."""
        return None

    def label_counts(self) -> list[list[int]] | None:
        """Return the number of samples by client and class."""
        return None

    # -- metrics and held-out data

    least_loss: float = -inf
    """A lower bound of the loss, which no target for it may be below."""
    metric: Metric | None = None
    """The metric that models are compared by; None: accuracy where there is one, else loss."""
    metrics: Mapping[str, Any] = MappingProxyType({})
    """Functions of outputs and targets, by name."""

    @_default
    def with_metric(self) -> Callable[[str], "Problem"] | None:
        """The name of a built-in metric -> this problem, which measures it too."""
        return None

    @_default
    def has_own_test(self) -> Callable[[int], bool] | None:
        """i -> whether client i is evaluated on test data of its own."""
        return None

    @_default
    def has_test(self) -> bool:
        """Whether `evaluate` uses data that no client trains on."""
        return True

    @_default
    def split(self) -> Callable[[float, int], "Problem"] | None:
        """(fraction, seed) -> this problem with some rows of each client held out."""
        return None

    @_default
    def has_validation(self) -> bool:
        """Whether `validate` may be called."""
        return self._overrides("validate")

    def validate(self, x: Vector) -> dict[str, float]:
        """Return metrics on the validation data; called only if `has_validation`."""
        raise NotImplementedError

    @_default
    def validation_error(self) -> Callable[[Vector, str], float | None] | None:
        """(x, name) -> the standard error of a metric of `validate`; None: too few rows."""
        return None

    # -- files

    def unflatten(self, x: Vector) -> dict[str, Tensor]:
        """Return x as the tensors of a model file, such as a module's state_dict."""
        return {"x": x.clone()}

    @_default
    def flatten(self) -> Callable[[dict[str, Tensor]], Vector] | None:
        """The inverse of `unflatten`."""
        return None if self._overrides("unflatten") else lambda tensors: tensors["x"]

    @_default
    def fingerprint(self) -> str:
        """A line that tells problems apart in saved runs."""
        return f"{type(self).__name__} N={self.N} d={self.d}"

    # -- inside

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.N:,} client{'s'[: self.N > 1]}, d = {self.d:,})"

    def _overrides(self, name: str) -> bool:
        """Return whether a subclass, or the object that is adapted, has a member of its own."""
        return name in vars(self) or getattr(type(self), name) is not getattr(Problem, name)

    def _evaluated_loss(self, x: Vector, client: int | None) -> float:
        metrics = self.evaluate(x) if client is None else self.evaluate(x, client=client)
        if "loss" not in metrics:
            raise ValueError(
                f"a diagnosis needs f itself, and {type(self).__name__} has no loss; give it "
                "loss(x) or client_loss(i, x), or let evaluate(x) return a 'loss'."
            )
        return float(metrics["loss"])


def _double_backward(problem: Problem, i: int, x: Vector, V: Tensor) -> Tensor | None:
    """Return Hess_i at x times each row of V by autograd; None if the gradient has no graph."""
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        gradient = problem.client_gradient(i, leaf)
        if not gradient.requires_grad:
            return None
        parts = [
            torch.autograd.grad(gradient, leaf, v, retain_graph=True, materialize_grads=True)[0]
            for v in V.reshape(-1, len(x))
        ]
        return torch.stack(parts).view(V.shape)


def _central_difference(problem: Problem, i: int, x: Vector, v: Vector) -> Vector:
    size = float(v.norm())
    if size == 0:
        return torch.zeros_like(v)
    h = torch.finfo(x.dtype).eps ** (1 / 3) * (1 + float(x.norm())) / size
    ahead, behind = (problem.client_gradient(i, x + sign * h * v).detach() for sign in (1, -1))
    difference: Tensor = (ahead - behind) / (2 * h)
    return difference


def metric_of(problem: Problem, measured: Mapping[str, float]) -> Metric:
    """Return what a problem is judged by: its own metric, or accuracy where it has one, or loss."""
    return own_metric(problem) or (ACCURACY if "accuracy" in measured else LOSS)


def own_metric(problem: Problem) -> Metric | None:
    """Return the metric that a problem has; raise ValueError if it is not a Metric."""
    own: Any = problem.metric
    if own is not None and not isinstance(own, Metric):
        raise ValueError(
            f"{type(problem).__name__}.metric is {own!r}; make it a Metric, as "
            "Metric('auc', higher=True, low=0.5, high=1.0)."
        )
    return own


def with_target_metric(problem: Problem, metric: str | Metric) -> Problem:
    """Return the problem with a metric that it is judged by.

    What `evaluate` returns has the direction of `trimtab.problems.metrics.metric_named`: more is
    better, unless the name ends in loss, error, mse, mae, perplexity, distance or gap; a Metric
    says it itself. A built-in metric that is not measured is added, if the problem can.

    >>> from trimtab import Quadratic
    >>> with_target_metric(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0]), "distance").metric.higher
    False
    """
    given, asked, own = metric, problem, own_metric(problem)
    if own is not None and given in (own, own.name):
        return problem
    name = given.name if isinstance(given, Metric) else given
    measured = list(problem.evaluate(problem.x0()))
    known = find_metric(name)
    if name not in measured and known is not None:
        name = name if isinstance(given, Metric) else known.metric.name
        if name not in measured and problem.with_metric is not None:
            problem = problem.with_metric(name)
            measured.append(name)
    if name not in measured:
        adds = problem.with_metric is not None
        others = [each for each in BUILTIN_METRICS if each not in measured] if adds else []
        raise BadArgument(
            "metric",
            "{metric:{_given}} is not measured here; pass one of {_known}.",
            _given=name or repr(name),
            _known=", ".join([*measured, *others]),
        )
    judge = given if isinstance(given, Metric) else metric_named(name, problem.metrics.get(name))
    return record_step(asked, _with(problem, judge), "with_target_metric", given)  # type: ignore[no-any-return]


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


def stack_oracles(oracles: Sequence[Gradient]) -> Gradient:
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
    p = number_tensor("weights", weights).to(torch.float64).cpu()
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
