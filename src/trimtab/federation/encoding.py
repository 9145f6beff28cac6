"""Algorithms as JSON holds them: names and hyper-parameters, never code."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from trimtab.algorithms import ALGORITHMS, BASES

_KINDS: dict[str, Callable[..., Any]] = {**ALGORITHMS, **BASES}


def describe(hyper: Any) -> Any:
    """Return an algorithm as JSON holds it.

    >>> from trimtab import Mime, Momentum
    >>> describe(Mime(eta=0.1, K=5, base=Momentum()))
    {'kind': 'mime', 'eta': 0.1, 'K': 5, 'base': {'kind': 'momentum', 'beta': 0.9}}
    """
    if not is_dataclass(hyper) or isinstance(hyper, type):
        return hyper
    kind = type(hyper).__name__.lower()
    if _KINDS.get(kind) is not type(hyper):
        raise ValueError(
            f"{hyper} is not in the registry, so that no site can know it; use one of "
            f"{', '.join(ALGORITHMS)}."
        )
    return {"kind": kind} | {f.name: describe(getattr(hyper, f.name)) for f in fields(hyper)}


def build(description: Any) -> Any:
    """Return what `describe` described; the names in the registry only."""
    if not isinstance(description, dict):
        return description
    kind = description.get("kind")
    if kind not in _KINDS:
        raise ValueError(f"there is no algorithm {kind!r}; use one of {', '.join(ALGORITHMS)}.")
    hyper = {name: build(value) for name, value in description.items() if name != "kind"}
    try:
        return _KINDS[kind](**hyper)
    except TypeError as error:
        raise ValueError(f"{kind} cannot be built from {hyper} ({error}).") from None
