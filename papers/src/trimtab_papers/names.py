"""Algorithms by name, as the papers' tables write them."""

from trimtab.algorithms import Adam, Base, Momentum, registry
from trimtab.core import Algorithm, Epochs

BASES: dict[str, Base] = {"none": Momentum(beta=0.0), "momentum": Momentum(), "adam": Adam()}
OF_ITS_OWN = {"alpha": 0.1}  # FedDyn's; ours, not tuned, as is the a = 0.1 of ScaffoldM and MVR
TITLES = {name: registry.kind(name).title for name in registry.NAMES} | {
    "fedopt": "FedAvg",  # Its base optimiser works at the server.
}


def build(
    name: str,
    eta: float,
    K: int | Epochs,
    *,
    base: str = "none",
    eta_g: float = 1.0,
    a: float = 0.1,
) -> Algorithm:
    """Return an algorithm with a step size; it takes of the rest what it knows.

    >>> build("scaffold", 0.1, 5)
    Scaffold(eta_l=0.1, K=5, eta_g=1.0, option='II', lean=False)
    >>> build("serveronly", 0.1, 5, base="momentum")
    ServerOnly(eta=0.1, base=Momentum(beta=0.9))
    """
    words = {"eta": eta, "eta_l": eta, "K": K, "base": BASES[base], "eta_g": eta_g, "a": a}
    words |= OF_ITS_OWN
    taken = {word: value for word, value in words.items() if _has(name, word)}
    algorithm: Algorithm = registry.build(name, **taken)
    return algorithm


def takes_base(name: str) -> bool:
    """Tell whether an algorithm is made of a base optimiser."""
    return _has(name, "base")


def takes_local_steps(name: str) -> bool:
    """Tell whether clients take K steps, or send one gradient a round."""
    return registry.kind(name).has_K


def takes_server_step(name: str) -> bool:
    """Tell whether the server has a step size of its own."""
    return _has(name, "eta_g")


def colour(name: str) -> str:
    """Return the colour of an algorithm in every figure."""
    return registry.kind(name).colour


def _has(name: str, word: str) -> bool:
    return any(parameter.name == word for parameter in registry.kind(name).parameters)
