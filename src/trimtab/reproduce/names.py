"""Algorithms by name: the only module here that knows what a name stands for."""

from dataclasses import fields

from trimtab.algorithms import ALGORITHMS, Adam, Base, Momentum
from trimtab.core import Algorithm

TITLES = {
    "sgd": "SGD",
    "fedavg": "FedAvg",
    "scaffold": "SCAFFOLD",
    "fedprox": "FedProx",
    "serveronly": "server only",
    "fedopt": "FedAvg",  # Its base optimiser works at the server.
    "mimelite": "MimeLite",
    "mime": "Mime",
    "richardsonromberg": "Richardson-Romberg",
}
BASES: dict[str, Base] = {"none": Momentum(beta=0.0), "momentum": Momentum(), "adam": Adam()}


def build(name: str, eta: float, K: int, *, base: str = "none", eta_g: float = 1.0) -> Algorithm:
    """Return an algorithm with a step size; it takes of the rest what it knows.

    >>> build("scaffold", 0.1, 5)
    Scaffold(eta_l=0.1, K=5, eta_g=1.0, option='II', lean=False)
    >>> build("serveronly", 0.1, 5, base="momentum")
    ServerOnly(eta=0.1, base=Momentum(beta=0.9))
    """
    words = {"eta": eta, "eta_l": eta, "K": K, "base": BASES[base], "eta_g": eta_g}
    made: Algorithm = ALGORITHMS[name](**{word: words[word] for word in words if _has(name, word)})
    return made


def takes_base(name: str) -> bool:
    """Tell whether an algorithm is made of a base optimiser."""
    return _has(name, "base")


def takes_local_steps(name: str) -> bool:
    """Tell whether clients take K steps, or send one gradient a round."""
    return _has(name, "K")


def takes_server_step(name: str) -> bool:
    """Tell whether the server has a step size of its own."""
    return _has(name, "eta_g")


def colour(name: str) -> str:
    """Return the colour of an algorithm in every figure."""
    from trimtab.report.plots import COLOURS

    return COLOURS[name]


def _has(name: str, word: str) -> bool:
    return word in {field.name for field in fields(ALGORITHMS[name])}
