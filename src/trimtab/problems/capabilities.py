"""What a problem can do beyond what every problem must: the one place that looks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.problems.metric import Metric


@dataclass(frozen=True)
class Capabilities:
    """What this instance can do; None: it cannot. It depends on the instance, and on when.

    Gradients on all data always exist, since an oracle without k gives them.
    """

    client_gradient: Callable[[int, Vector], Vector]  # of f_i, on all its data
    gradient: Callable[[Vector], Vector]  # of f
    loss: Callable[[Vector], float] | None = None  # f itself
    client_loss: Callable[[int, Vector], float] | None = None  # f_i
    metric: Metric | None = None  # what it is judged by, if not by accuracy or loss
    hessian_products: Callable[[int, Vector, Tensor], Tensor] | None = None  # Hess_i V'
    chunk_oracle: Callable[[Sequence[int], int, int], Gradient] | None = None  # of several clients
    play: Callable[..., Any] | None = None  # runs a tape for several clients, by a kernel
    why_no_kernel: Callable[[], str] | None = None  # why there is no `play`
    # Why `chunk_oracle` is not faster than one client after the other; empty if it is.
    why_not_vectorised: Callable[[], str] | None = None
    threads: bool = False  # oracles of several clients may be called at once, and gain by it
    steps: Callable[[float], int] | None = None  # K for a number of epochs
    steps_in_a_pass: Callable[[int], int] | None = None  # of client i over its own data
    samples: Callable[[int], tuple[int, int]] | None = None  # n_i, and b_i of a mini-batch
    reshuffles: bool = False  # a pass of mini-batches sees each sample once
    optimum: Callable[[], Vector] | None = None
    constant_hessians: bool = False  # f_i are quadratic
    symmetric: bool = True  # what oracles give is the gradient of f_i: its derivative is symmetric
    state_dict: Callable[[Vector], dict[str, Tensor]] | None = None  # of a module at x
    split: Callable[[float, int], Any] | None = None  # the problem with rows held out, by a seed
    validate: Callable[[Vector], dict[str, float]] | None = None  # if it has validation data
    has_test: bool = True  # `evaluate` looks at data that nothing was learnt from
    vector: Callable[[dict[str, Tensor]], Vector] | None = None  # x of a module's state_dict
    client_metrics: Callable[[int, Vector], dict[str, float]] | None = None  # of client i
    own_test: Callable[[int], bool] | None = None  # whether client i has a test part of its own
    groups: Sequence[Any] | None = None  # a label for each client
    metrics: Mapping[str, Any] | None = None  # functions of outputs and targets, by name
    with_metric: Callable[[str], Any] | None = None  # the problem with a ready metric besides
    class_shares: Callable[[], tuple[str, Tensor] | None] | None = (
        None  # where accuracy is measured
    )
    weighing: str | None = None  # where the p_i come from: uniform, samples or own


def capabilities(problem: Any) -> Capabilities:
    """Ask a problem what it can do.

    A problem says so by having `loss`, `gradient`, `client_loss`, `client_gradient`, `metric`,
    `client_hvp`, `chunk_oracle`, `kernel` and `play`, `why_no_kernel`, `why_not_vectorised`,
    `threads`, `steps`, `steps_in_a_pass`, `samples`, `sampling`, `x_star`, `constant_hessians`,
    `unflatten`, `flatten`, `split`, `validate` (and, if that is not always so, `has_validation`),
    `has_test`, `has_own_test`, `groups`, `metrics`, `with_metric`, `class_shares` or `weighing`;
    by an `evaluate` that takes a client; by `symmetric` = False that its oracles are no gradients.
    Where it has no gradients of its own, they come from its oracles; where it has no loss but the
    clients' losses, it is their mean.

    >>> from trimtab import Quadratic
    >>> can = capabilities(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0]))
    >>> can.constant_hessians, can.state_dict
    (True, None)
    """

    def has(name: str) -> Any:
        return getattr(problem, name, None)

    client_gradient = has("client_gradient") or _client_gradient(problem)
    client_loss = has("client_loss")
    mean_loss = None if client_loss is None else _mean_loss(problem, client_loss)
    return Capabilities(
        client_gradient=client_gradient,
        gradient=has("gradient") or _mean_gradient(problem, client_gradient),
        loss=has("loss") or mean_loss,
        client_loss=client_loss,
        metric=_metric(problem),
        hessian_products=has("client_hvp"),
        chunk_oracle=has("chunk_oracle"),
        play=has("play") if has("kernel") is not None else None,
        why_no_kernel=has("why_no_kernel"),
        why_not_vectorised=has("why_not_vectorised"),
        threads=bool(has("threads")),
        steps=has("steps"),
        steps_in_a_pass=has("steps_in_a_pass"),
        samples=has("samples") if callable(has("samples")) else None,
        reshuffles=has("sampling") == "reshuffle",
        optimum=(lambda: problem.x_star) if _declares(problem, "x_star") else None,
        constant_hessians=bool(has("constant_hessians")),
        symmetric=has("symmetric") is not False,
        state_dict=has("unflatten"),
        split=has("split"),
        validate=has("validate") if getattr(problem, "has_validation", True) else None,
        has_test=bool(getattr(problem, "has_test", True)),
        vector=has("flatten"),
        client_metrics=_client_metrics(problem),
        own_test=has("has_own_test"),
        groups=has("groups"),
        metrics=has("metrics") if isinstance(has("metrics"), Mapping) else None,
        with_metric=has("with_metric"),
        class_shares=has("class_shares"),
        weighing=has("weighing"),
    )


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


def _declares(problem: Any, name: str) -> bool:
    """Tell whether a problem has an attribute, without computing it where it is a property."""
    return hasattr(type(problem), name) or hasattr(problem, name)


def _metric(problem: Any) -> Metric | None:
    own = getattr(problem, "metric", None)
    if own is not None and not isinstance(own, Metric):
        raise ValueError(
            f"{type(problem).__name__}.metric is {own!r}; make it a Metric, as "
            "Metric('auc', higher=True, low=0.5, high=1.0)."
        )
    return own
