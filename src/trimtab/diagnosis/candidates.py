"""The algorithms that a diagnosis compares; in this room their names stand here alone."""

from trimtab.algorithms import ALGORITHMS, FedAvg, MimeLite, Momentum, Scaffold, Sgd
from trimtab.core import Algorithm

SGD, FEDAVG, SCAFFOLD, MIMELITE = "sgd", "fedavg", "scaffold", "mimelite"
SIMPLEST_FIRST = (SGD, MIMELITE, FEDAVG, SCAFFOLD)
BETA = 0.9  # MimeLite's base is Momentum(0.9)


def make(name: str, K: int, eta: float) -> Algorithm:
    """Return an algorithm with K local steps of size eta, and eta_g = 1.

    >>> make("fedavg", 5, 0.1)
    FedAvg(eta_l=0.1, K=5, eta_g=1.0)
    """
    if name == SGD:
        return Sgd(eta=eta)
    if name == MIMELITE:
        return MimeLite(eta=eta, K=K, base=Momentum(BETA))
    return Scaffold(eta_l=eta, K=K) if name == SCAFFOLD else FedAvg(eta_l=eta, K=K)


def has_K(name: str) -> bool:
    """Tell whether the number of local steps is a choice."""
    return name != SGD


def named(name: str) -> str:
    """Return an algorithm's class name for its lower-case one, with what follows it.

    >>> named("scaffold on quadratics")
    'Scaffold on quadratics'
    """
    first, _, rest = name.partition(" ")
    shown = ALGORITHMS[first].__name__ if first in ALGORITHMS else first
    return f"{shown} {rest}".strip()
