"""The algorithms that a diagnosis compares; in this room their names stand here alone."""

from typing import Any

from trimtab.algorithms import Momentum
from trimtab.algorithms.registry import NAMES, build, kind
from trimtab.core import Algorithm

SGD, FEDAVG, SCAFFOLD, MIMELITE = "sgd", "fedavg", "scaffold", "mimelite"
SIMPLEST_FIRST = (SGD, MIMELITE, FEDAVG, SCAFFOLD)
BETA = 0.9  # MimeLite's base is Momentum(0.9)


def make(name: str, K: int, eta: float) -> Algorithm:
    """Return an algorithm with K local steps of size eta, and eta_g = 1.

    >>> make("fedavg", 5, 0.1)
    FedAvg(eta_l=0.1, K=5, eta_g=1.0)
    """
    chosen = kind(name)
    words: dict[str, Any] = {chosen.step: eta}
    words |= {"K": K} if chosen.has_K else {}
    words |= {"base": Momentum(BETA)} if name == MIMELITE else {}
    algorithm: Algorithm = build(chosen, **words)
    return algorithm


def has_K(name: str) -> bool:
    """Tell whether the number of local steps is a choice."""
    return kind(name).has_K


def named(name: str) -> str:
    """Return an algorithm's class name for its lower-case one, with what follows it.

    >>> named("scaffold on quadratics")
    'Scaffold on quadratics'
    """
    first, _, rest = name.partition(" ")
    shown = kind(first).shown if first in NAMES else first
    return f"{shown} {rest}".strip()
