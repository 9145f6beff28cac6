"""Why a run diverged, from the sums that its rounds leave behind."""

from collections.abc import Callable, Sequence
from math import isfinite, nan
from typing import NamedTuple

from trimtab.core import Algorithm
from trimtab.core.hyper import settings_of, step_size


class Moves(NamedTuple):
    """What a round tells of the clients' moves dx_i."""

    drift: float  # mean |dx_i|
    movers: float  # how many clients it takes to move like that: 1 if one moves alone
    clients: int


def explain(algorithm: Algorithm, rounds: Sequence[Moves], worst: Callable[[], int]) -> str:
    """Say in half a sentence why, and what to do; `rounds` are the last that were finite.

    One client that moves alone is named by `worst`. Momentum adds up to 1/(1 - beta) steps. Else
    the step is too large for the curvature: on a quadratic, moves that grow by rho a round are
    those of |1 - eta L|^K = rho.

    >>> from trimtab import FedAvg
    >>> moves = [Moves(1.0, 10.0, 10), Moves(9.0, 10.0, 10)]
    >>> explain(FedAvg(eta_l=0.5, K=2), moves, worst=int)
    'try eta_l below 0.25: the moves grow 9-fold a round, so L is about 8 and 2/L is 0.25, not 0.5'
    """
    name, eta = step_size(algorithm)
    if not name:
        return "try a smaller step size"
    last = rounds[-1] if rounds else None
    if last is not None and last.clients > 2 and last.movers < min(2.0, 0.5 * last.clients):
        return (
            f"client {worst()} moves nearly alone, so look at its data (outliers, scale), or try "
            f"{name} below {eta:g}"
        )
    settings = settings_of(algorithm)
    beta = getattr(settings.get("base"), "beta", 0.0)
    if beta:
        return (
            f"momentum beta = {beta:g} adds up to {1 / (1 - beta):.3g} steps, so try {name} below "
            f"{eta * (1 - beta):.2g} or a smaller beta, not {name} = {eta:g}"
        )
    growth = _growth(rounds)
    K = settings.get("K")
    if not isinstance(K, int) or not growth > 1 or "base" in settings:
        return f"try {name} below {eta:g}"
    L = (1 + growth ** (1 / K)) / eta
    return (
        f"try {name} below {2 / L:.2g}: the moves grow {growth:.2g}-fold a round, so L is about "
        f"{L:.2g} and 2/L is {2 / L:.2g}, not {eta:g}"
    )


def _growth(rounds: Sequence[Moves]) -> float:
    if len(rounds) < 2 or not rounds[-2].drift > 0 or not isfinite(rounds[-1].drift):
        return nan
    return rounds[-1].drift / rounds[-2].drift
