"""What a problem can do beyond what every problem must: the one place that looks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import signature
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from trimtab.core import Gradient, Vector
from trimtab.problems.metrics import Metric

T = TypeVar("T")


class OnePass(Protocol):
    """f and its gradient in one pass over the data of all clients."""

    def loss(self, x: Vector) -> float:
        """Return f(x)."""

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Return f(x) and its gradient."""


class _Own(Generic[T]):
    """What a problem has by a name, as it is when somebody asks; None if it has no such thing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, can: "Capabilities", kind: object = None) -> T | None:
        value: T | None = getattr(can.problem, self.name, None)
        return value


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this instance can do; None: it cannot. It depends on the instance, and on when.

    A problem is asked for what somebody wants to know, and only then: a round wants little.
    Gradients on all data always exist, since an oracle without k gives them.
    """

    problem: Any

    client_loss = _Own[Callable[[int, Vector], float]]("client_loss")  # f_i
    hessian_products = _Own[Callable[[int, Vector, Tensor], Tensor]]("client_hvp")  # Hess_i V'
    # The same for several clients, (s, m, d); None where one after the other is as fast.
    chunk_hessian_products = _Own[Callable[[Sequence[int], Vector, Tensor], Tensor]]("chunk_hvp")
    hessian = _Own[Callable[[int, Vector], Tensor]]("client_hessian")  # Hess_i, where it is cheap
    # (i, x, V) -> the gradient of tr(Hess_i V) at x, for a symmetric V.
    chunk_oracle = _Own[Callable[[Sequence[int], int, int], Gradient]]("chunk_oracle")
    why_no_kernel = _Own[Callable[[], str]]("why_no_kernel")  # why there is no `play`
    # Why `chunk_oracle` is not faster than one client after the other; empty if it is.
    why_not_vectorised = _Own[Callable[[], str]]("why_not_vectorised")
    steps = _Own[Callable[[float], int]]("steps")  # K for a number of epochs
    steps_in_a_pass = _Own[Callable[[int], int]]("steps_in_a_pass")  # of client i over its own data
    state_dict = _Own[Callable[[Vector], dict[str, Tensor]]]("unflatten")  # of a module at x
    vector = _Own[Callable[[dict[str, Tensor]], Vector]]("flatten")  # x of a module's state_dict
    split = _Own[Callable[[float, int], Any]]("split")  # the problem with rows held out, by a seed
    own_test = _Own[Callable[[int], bool]]("has_own_test")  # whether client i has a test part
    groups = _Own[Sequence[Any]]("groups")  # a label for each client
    with_metric = _Own[Callable[[str], Any]]("with_metric")  # the problem with one more metric
    class_shares = _Own[Callable[[], tuple[str, Tensor] | None]]("class_shares")  # for accuracy
    label_counts = _Own[Callable[[], list[list[int]] | None]]("label_counts")  # by client and class
    weighing = _Own[str]("weighing")  # where the p_i come from: uniform, samples or own
    columns = _Own[Any]("columns")  # what became of the columns of a table; str() says it

    def _has(self, name: str) -> Any:
        return getattr(self.problem, name, None)

    @property
    def client_gradient(self) -> Callable[[int, Vector], Vector]:
        """The gradient of f_i, on all its data."""
        return self._has("client_gradient") or _client_gradient(self.problem)

    @property
    def gradient(self) -> Callable[[Vector], Vector]:
        """The gradient of f."""
        return self._has("gradient") or _mean_gradient(self.problem, self.client_gradient)

    @property
    def loss(self) -> Callable[[Vector], float] | None:
        """The function f itself; a `loss` of outputs and targets is none."""
        own, each = self._has("loss"), self.client_loss
        if own is not None and _is_function_of_one(own):
            function: Callable[[Vector], float] = own
            return function
        return None if each is None else _mean_loss(self.problem, each)

    @property
    def one_pass(self) -> OnePass | None:
        """The function f and its gradient in one pass over all data, pooled when this is asked."""
        own: Callable[[], OnePass | None] | None = self._has("in_one_pass")
        return None if own is None else own()

    @property
    def metric(self) -> Metric | None:
        """What it is judged by, if not by accuracy or loss."""
        own = self._has("metric")
        if own is not None and not isinstance(own, Metric):
            raise ValueError(
                f"{type(self.problem).__name__}.metric is {own!r}; make it a Metric, as "
                "Metric('auc', higher=True, low=0.5, high=1.0)."
            )
        return own

    @property
    def metrics(self) -> Mapping[str, Any] | None:
        """Functions of outputs and targets, by name."""
        own = self._has("metrics")
        return own if isinstance(own, Mapping) else None

    @property
    def client_metrics(self) -> Callable[[int, Vector], dict[str, float]] | None:
        """What `evaluate` says of client i."""
        return _client_metrics(self.problem)

    @property
    def play(self) -> Callable[..., Any] | None:
        """What runs a tape for several clients, by the kernel that the problem has now."""
        layers = self._has("kernel")
        return None if layers is None else partial(self.problem.play, layers)

    @property
    def threads(self) -> bool:
        """Whether oracles of several clients may be called at once, and gain by it."""
        return bool(self._has("threads"))

    @property
    def samples(self) -> Callable[[int], tuple[int, int]] | None:
        """The n_i of a client, and the b_i of a mini-batch."""
        own = self._has("samples")
        return own if callable(own) else None

    @property
    def reshuffles(self) -> bool:
        """Whether a pass of mini-batches sees each sample once."""
        return bool(self._has("sampling") == "reshuffle")

    @property
    def optimum(self) -> Callable[[], Vector] | None:
        """The minimum of f, computed when this is called."""
        return (lambda: self.problem.x_star) if _declares(self.problem, "x_star") else None

    @property
    def constant_hessians(self) -> bool:
        """Whether the f_i are quadratic."""
        return bool(self._has("constant_hessians"))

    @property
    def symmetric(self) -> bool:
        """Whether what oracles give is the gradient of f_i: its derivative is symmetric."""
        return self._has("symmetric") is not False

    @property
    def validate(self) -> Callable[[Vector], dict[str, float]] | None:
        """What is measured on validation data, if there are any."""
        return self._has("validate") if getattr(self.problem, "has_validation", True) else None

    @property
    def validation_error(self) -> Callable[[Vector, str], float | None] | None:
        """(x, name) -> the standard error of a metric on validation data; None: it does not say."""
        return None if self.validate is None else self._has("validation_error")

    @property
    def has_test(self) -> bool:
        """Whether `evaluate` looks at data that nothing was learnt from."""
        return bool(getattr(self.problem, "has_test", True))


def capabilities(problem: Any) -> Capabilities:
    """Ask a problem what it can do.

    A problem says so by having `loss`, `gradient`, `client_loss`, `client_gradient`, `metric`,
    `client_hvp`, `chunk_hvp`, `client_hessian`, `in_one_pass`, `chunk_oracle`,
    `kernel` and `play`, `why_no_kernel`, `why_not_vectorised`, `threads`, `steps`,
    `steps_in_a_pass`, `samples`, `sampling`, `x_star`, `constant_hessians`, `unflatten`,
    `flatten`, `split`, `validate` (and, if that is not always so, `has_validation`),
    `validation_error`, `has_test`, `has_own_test`, `groups`, `metrics`, `with_metric`,
    `class_shares`, `label_counts`, `weighing` or `columns`; by an `evaluate` that takes a client;
    by `symmetric` = False that its oracles are no gradients. Where it has no gradients of its own,
    they come from its oracles; where it has no loss but the clients' losses, it is their mean.

    >>> from trimtab import Quadratic
    >>> can = capabilities(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0]))
    >>> can.constant_hessians, can.state_dict
    (True, None)
    """
    return Capabilities(problem)


def fingerprint_of(problem: Any) -> str | None:
    """Return the problem's own fingerprint, if it has one; it may be computed only now."""
    own: str | None = getattr(problem, "fingerprint", None)
    return own


def old_fingerprint_of(problem: Any) -> str | None:
    """Return the fingerprint that version 0.1.0 wrote, if the problem can still tell."""
    old: Callable[[], str] | None = getattr(problem, "old_fingerprint", None)
    return None if old is None else old()


def _client_gradient(problem: Any) -> Callable[[int, Vector], Vector]:
    """Return (i, x) -> grad f_i(x) by the oracle, which gives it in any round if there is no k."""

    def client_gradient(i: int, x: Vector) -> Vector:
        gradient: Vector = problem.oracle(i, 0, 1)(x)
        return gradient

    return client_gradient


def _mean_gradient(
    problem: Any, client_gradient: Callable[[int, Vector], Vector]
) -> Callable[[Vector], Vector]:
    """Return x -> sum p_i grad f_i(x)."""

    def gradient(x: Vector) -> Vector:
        total = torch.zeros_like(x)
        for i in range(problem.N):
            total.add_(client_gradient(i, x), alpha=float(problem.weights[i]))
        return total

    return gradient


def _mean_loss(
    problem: Any, client_loss: Callable[[int, Vector], float]
) -> Callable[[Vector], float]:
    """Return x -> sum p_i f_i(x)."""

    def loss(x: Vector) -> float:
        return sum(float(problem.weights[i]) * float(client_loss(i, x)) for i in range(problem.N))

    return loss


def _client_metrics(problem: Any) -> Callable[[int, Vector], dict[str, float]] | None:
    """Return (i, x) -> what `evaluate` says of client i, if it takes a client."""
    evaluate = getattr(problem, "evaluate", None)
    if not _takes_client(getattr(evaluate, "__func__", evaluate)):
        return None

    def client_metrics(i: int, x: Vector) -> dict[str, float]:
        measured: dict[str, float] = problem.evaluate(x, client=i)
        return measured

    return client_metrics


@lru_cache(maxsize=256)
def _takes_client(evaluate: Any) -> bool:
    """Tell whether a function has a parameter `client`; kept, since it is asked at every round."""
    try:
        parameters = signature(evaluate).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == "client" or p.kind is p.VAR_KEYWORD for p in parameters)


def _is_function_of_one(value: Any) -> bool:
    """Tell whether something can be called with one argument, as f(x) is."""
    function = value.forward if isinstance(value, nn.Module) else value
    try:
        signature(function).bind(None)
    except TypeError:  # It takes others, or is no function.
        return False
    except ValueError:  # It does not tell what it takes.
        pass
    return True


def _declares(problem: Any, name: str) -> bool:
    """Tell whether a problem has an attribute, without computing it where it is a property."""
    return hasattr(type(problem), name) or hasattr(problem, name)
