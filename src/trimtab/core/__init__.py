"""The names that an algorithm may import: protocols, trees of tensors, checks of hyper-parameters.

Imports torch and the standard library only. Modules are imported when a name is first used, so
that the command line can read hyper-parameters without torch.
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

# The names of each module. The command line reads `hyper`, which must not load torch.
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
            globals()[name] = value  # Python calls __getattr__ only for names that are not here.
            return value
    raise AttributeError(f"module 'trimtab.core' has no attribute {name!r}")
