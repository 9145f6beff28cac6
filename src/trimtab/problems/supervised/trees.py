"""Trees of data: a tensor, or tuples, lists and dicts of trees, as batches and outputs are.

Unlike the states of algorithms (`core.tree`) they may have names, and hold things that are no
tensors, such as the caches that a language model returns.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any
"""A tensor, or a tuple, list or dict of trees; None where there is nothing."""


def leaves(tree: Tree) -> list[Tensor]:
    """Return the tensors of a tree in order; what is no tensor is passed over.

    >>> [t.item() for t in leaves({"a": torch.tensor(1), "b": (torch.tensor(2), None)})]
    [1, 2]
    """
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for _, part in parts(tree) for leaf in leaves(part)]


def parts(tree: Tree) -> list[tuple[Any, Tree]]:
    """Return what a tuple, list or dict holds, by key or place; nothing of anything else."""
    if isinstance(tree, Mapping):
        return list(tree.items())
    return list(enumerate(tree)) if isinstance(tree, tuple | list) else []


def map_tree(f: Callable[[Any], Any], tree: Tree) -> Tree:
    """Apply f to whatever is no tuple, list, dict or None; keep the structure and its classes.

    >>> map_tree(len, {"a": "four", "b": ("three", None)})
    {'a': 4, 'b': (5, None)}
    """
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return _like(tree, {key: map_tree(f, part) for key, part in tree.items()})
    if isinstance(tree, tuple | list):
        return _like(tree, [map_tree(f, part) for part in tree])
    return f(tree)


def join(trees: Sequence[Tree]) -> Tree:
    """Return trees of one structure as one, the rows of each after those of the one before.

    >>> join([{"a": torch.zeros(2, 3)}, {"a": torch.zeros(1, 3)}])["a"].shape
    torch.Size([3, 3])
    """
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(list(trees))
    if first is None:
        return None
    if isinstance(first, Mapping):
        return _like(first, {key: join([tree[key] for tree in trees]) for key in first})
    if isinstance(first, tuple | list):
        return _like(first, [join(together) for together in zip(*trees, strict=True)])
    raise TypeError(f"a {type(first).__name__} has no rows")


def map_rows(f: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Apply f to tensors that have rows; keep what belongs to no sample, such as one number.

    >>> map_rows(lambda t: t[:1], {"scores": torch.zeros(5), "penalty": 0.1})
    {'scores': tensor([0.]), 'penalty': 0.1}
    """
    return map_tree(lambda part: f(part) if isinstance(part, Tensor) and part.dim() else part, tree)


def describe(tree: Tree) -> str:
    """Say what a tree is made of, with the shape of one sample.

    >>> describe({"a": torch.zeros(5, 3), "b": torch.zeros(5)})
    "{'a': (3,), 'b': ()}"
    """
    if isinstance(tree, Tensor):
        return str(tuple(tree.shape[1:]))
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{key!r}: {describe(part)}" for key, part in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return "(" + ", ".join(describe(part) for part in tree) + ("," * (len(tree) == 1)) + ")"
    return "nothing" if tree is None else type(tree).__name__


def form(tree: Tree) -> Any:
    """Return what two trees of one structure have in common, whatever the shapes of tensors.

    >>> form({"a": torch.zeros(5, 3)}) == form({"a": torch.zeros(2, 7)})
    True
    """
    if isinstance(tree, Tensor):
        return "tensor"
    if isinstance(tree, Mapping):
        return frozenset((key, form(part)) for key, part in tree.items())
    return tuple(form(part) for _, part in parts(tree))


def _like(tree: Tree, contents: Any) -> Tree:
    """Return contents in the class of a tree: a named tuple, or what transformers call outputs."""
    if isinstance(tree, Mapping):
        return contents if type(tree) is dict else type(tree)(**contents)
    return type(tree)(*contents) if hasattr(tree, "_fields") else type(tree)(contents)
