"""Trees of tensors: states, uploads and broadcasts. No other module traverses them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.protocols import State


class Leaf:
    """Base class of leaves that are not tensors, such as lazy vectors."""

    __slots__ = ()


class NotATensorError(TypeError, ValueError):
    """A state or message holds an object that is neither a tensor nor a tuple."""


def leaves(tree: State, what: str = "a state or message") -> list[Any]:
    """Return the tensors of a state, upload or broadcast, in order.

    >>> import torch
    >>> [t.item() for t in leaves((torch.tensor(1), ((), torch.tensor(2))))]
    [1, 2]
    >>> leaves((torch.tensor(1), None), "x")
    Traceback (most recent call last):
    trimtab.core.tree.NotATensorError: x holds None; use tensors, tuples of them, or () for nothing.
    """
    if type(tree) is Tensor:  # The usual case, tested first for speed.
        return [tree]
    if isinstance(tree, tuple):
        found: list[Any] = []
        for part in tree:
            found += (part,) if type(part) is Tensor else leaves(part, what)
        return found
    return [_leaf(tree, what)]


def map_leaves(f: Callable[..., Any], tree: State, *others: State) -> State:
    """Return a tree of the same structure with f applied to the leaves.

    f: takes one leaf of each tree.
    tree: a tensor, or a (named) tuple of trees.
    others: trees of the same structure.
    """
    if type(tree) is Tensor:
        return f(tree, *others)
    if isinstance(tree, tuple):
        if others:
            parts = [map_leaves(f, *parts) for parts in zip(tree, *others, strict=True)]
        else:
            parts = [f(part) if type(part) is Tensor else map_leaves(f, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return f(_leaf(tree), *others)


def _leaf(tree: Any, what: str = "a state or message") -> Any:
    # Skipping another object would silently leave it unchanged.
    if isinstance(tree, Tensor | Leaf):
        return tree
    raise NotATensorError(f"{what} holds {tree!r}; use tensors, tuples of them, or () for nothing.")


def control(state: State) -> State:
    """Return the control variate c_i in a client's state: the state itself, or a wrapper's `inner`.

    >>> from trimtab.algorithms.through import StagedState
    >>> control(StagedState(inner="c_i", stages=())), control("c_i")
    ('c_i', 'c_i')
    """
    while isinstance(state, tuple) and hasattr(state, "inner"):
        state = state.inner
    return state


def with_control(state: State, c_i: Tensor) -> State:
    """Return a client's state with another control variate."""
    return c_i if control(state) is state else state._replace(inner=with_control(state.inner, c_i))


def nbytes(tree: State) -> int:
    """Return the bytes of all tensors of a message or state."""
    return sum([leaf.nbytes for leaf in leaves(tree)])


def number_tensor(name: str, value: Any) -> Tensor:
    """Return numbers as a tensor; raise ValueError if they are not numbers."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):  # of text, None, or rows of several lengths
        raise ValueError(f"{name} holds no array of numbers; pass one.") from None
