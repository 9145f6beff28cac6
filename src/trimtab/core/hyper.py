"""Hyper-parameters: what an algorithm's fields may be."""

from collections.abc import Callable
from dataclasses import fields
from math import isfinite
from typing import Any

_POSITIVE = ("positive", lambda v: v > 0)
_NON_NEGATIVE = ("zero or positive", lambda v: v >= 0)
_FRACTION = ("at least 0 and below 1", lambda v: 0 <= v < 1)
_RULES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "eta": _POSITIVE,
    "eta_l": _POSITIVE,
    "eta_g": _NON_NEGATIVE,
    "mu": _NON_NEGATIVE,
    "eps": _POSITIVE,
    "beta": _FRACTION,
    "beta1": _FRACTION,
    "beta2": _FRACTION,
}


def validate(hyper: Any) -> None:
    """Check a dataclass of hyper-parameters by the names of its fields; call it in `__post_init__`.

    Numbers of NumPy or PyTorch become Python's own, so that `repr` can be read back.

    >>> from trimtab import FedAvg
    >>> FedAvg(eta_l=0.1, K=0)
    Traceback (most recent call last):
    ValueError: FedAvg: K=0, but it counts local steps; pass a whole number K >= 1.
    """
    who = type(hyper).__name__
    for name in (field.name for field in fields(hyper)):
        value = plain_number(getattr(hyper, name))
        if value is not getattr(hyper, name):
            object.__setattr__(hyper, name, value)
        if name == "K" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(
                f"{who}: K={value!r}, but it counts local steps; pass a whole number K >= 1."
            )
        if name == "base" and (isinstance(value, type) or not hasattr(value, "U")):
            raise ValueError(
                f"{who}: base={value!r}; pass an optimiser such as Momentum(), Adam() or Yogi()."
            )
        if name in _RULES:
            what, holds = _RULES[name]
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not isfinite(value) or not holds(value):
                raise ValueError(f"{who}: {name}={value!r}; pass a number that is {what}.")


def plain_number(value: Any) -> Any:
    """Return a number of NumPy or PyTorch as Python's own, and all else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value
