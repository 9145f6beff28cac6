"""What a problem can do beyond what every problem must: the one place that looks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.problems.metric import Metric


@dataclass(frozen=True)
class Capabilities:
    """What this instance can do; None: it cannot. It depends on the instance, and on when."""

    metric: Metric | None = None  # what it is judged by, if not by accuracy or loss
    client_loss: Callable[[int, Vector], float] | None = None
    hessian_products: Callable[[int, Vector, Tensor], Tensor] | None = None  # Hess_i V'
    chunk_oracle: Callable[[Sequence[int], int, int], Gradient] | None = None  # of several clients
    play: Callable[..., Any] | None = None  # runs a tape for several clients, by a kernel
    threads: bool = False  # oracles of several clients may be called at once, and gain by it
    steps: Callable[[float], int] | None = None  # K for a number of epochs
    reshuffles: bool = False  # a pass of mini-batches sees each sample once
    optimum: Callable[[], Vector] | None = None
    constant_hessians: bool = False  # f_i are quadratic
    state_dict: Callable[[Vector], dict[str, Tensor]] | None = None  # of a module at x


def capabilities(problem: Any) -> Capabilities:
    """Ask a problem what it can do.

    A problem says so by having `metric`, `client_loss`, `client_hvp`, `chunk_oracle`, `kernel` and
    `play`, `threads`, `steps`, `sampling`, `x_star`, `constant_hessians` or `unflatten`.

    >>> from trimtab import Quadratic
    >>> found = capabilities(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0]))
    >>> found.constant_hessians, found.state_dict
    (True, None)
    """

    def has(name: str) -> Any:
        return getattr(problem, name, None)

    return Capabilities(
        metric=_metric(problem),
        client_loss=has("client_loss"),
        hessian_products=has("client_hvp"),
        chunk_oracle=has("chunk_oracle"),
        play=has("play") if has("kernel") is not None else None,
        threads=bool(has("threads")),
        steps=has("steps"),
        reshuffles=has("sampling") == "reshuffle",
        optimum=(lambda: problem.x_star) if hasattr(problem, "x_star") else None,
        constant_hessians=bool(has("constant_hessians")),
        state_dict=has("unflatten"),
    )


def _metric(problem: Any) -> Metric | None:
    own = getattr(problem, "metric", None)
    if own is not None and not isinstance(own, Metric):
        raise ValueError(
            f"{type(problem).__name__}.metric is {own!r}; make it a Metric, as "
            "Metric('auc', higher=True, low=0.5, high=1.0)."
        )
    return own
