"""What an algorithm may import: protocols, trees of tensors, checks of hyper-parameters.

Imports torch and the standard library only. Names are found when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.core.hyper import (
        Count,
        Epochs,
        EqualSteps,
        Fraction,
        NonNegative,
        Positive,
        Rule,
        Share,
        Steps,
        StepSize,
        plain_number,
        validate,
    )
    from trimtab.core.oracle import ClientOracle
    from trimtab.core.protocols import (
        Algorithm,
        Clients,
        Gradient,
        Oracle,
        Program,
        Replies,
        State,
        Vector,
    )
    from trimtab.core.tree import Leaf, NotATensorError, leaves, map_leaves, nbytes

_HOMES = {
    "hyper": (
        *("Count", "Epochs", "EqualSteps", "Fraction", "NonNegative", "Positive", "Rule"),
        *("Share", "StepSize", "Steps", "plain_number", "validate"),
    ),
    "oracle": ("ClientOracle",),
    "protocols": (
        *("Algorithm", "Clients", "Gradient", "Oracle", "Program", "Replies", "State", "Vector"),
    ),
    "tree": ("Leaf", "NotATensorError", "leaves", "map_leaves", "nbytes"),
}

__all__ = [
    "Algorithm",
    "ClientOracle",
    "Clients",
    "Count",
    "Epochs",
    "EqualSteps",
    "Fraction",
    "Gradient",
    "Leaf",
    "NonNegative",
    "NotATensorError",
    "Oracle",
    "Positive",
    "Program",
    "Replies",
    "Rule",
    "Share",
    "State",
    "StepSize",
    "Steps",
    "Vector",
    "leaves",
    "map_leaves",
    "nbytes",
    "plain_number",
    "validate",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"trimtab.core.{home}"), name)
            globals()[name] = value  # the next use finds it without a search
            return value
    raise AttributeError(f"module 'trimtab.core' has no attribute {name!r}")
