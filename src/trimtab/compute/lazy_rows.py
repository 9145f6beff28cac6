"""The lazy vectors of several clients as the rows of one tensor."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from trimtab.compute.lazy import (
    LazyVector,
    NotAlikeError,
    as_tensor,
    changes_in_place,
    treats_numbers_alike,
)


class LazyRows(LazyVector):
    """The vectors of several clients, one in each row.

    It computes what treats every number alike, as most algorithms do. With a norm, an index or a
    comparison of whole vectors it would mix clients: NotAlikeError, and they go one by one.

    >>> import torch
    >>> rows = LazyRows.of(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    >>> torch.sqrt(1 - rows + rows**2).tensor()
    tensor([[2.6458, 3.6056],
            [1.0000, 1.0000]])
    >>> rows / rows.norm()
    Traceback (most recent call last):
    trimtab.compute.lazy.NotAlikeError: norm
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if not callable(value) and name not in ("dtype", "device"):
            raise NotAlikeError(name)
        return value

    def _fits(self, other: Any) -> bool:
        return isinstance(other, LazyVector) and super()._fits(other)

    @classmethod
    def _on_tensors(cls, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        changed = [
            *(args[:1] if changes_in_place(name) else ()),
            *(v for k, v in kwargs.items() if k == "out"),
        ]
        tables = any(_is_table(value) for value in (*args, *kwargs.values()))
        own = all(isinstance(vector, cls) for vector in changed)
        if not treats_numbers_alike(name) or tables or not own:
            raise NotAlikeError(name)
        result = super()._on_tensors(name, function, *args, **kwargs)
        if not isinstance(result, Tensor):
            raise NotAlikeError(name)
        shared = {_memory(value) for value in args if isinstance(value, Tensor | LazyVector)}
        return cls.of(result, given=_memory(result) in shared)


def _is_table(value: Any) -> bool:
    """Tell whether this is a tensor of several rows that are not those of the clients."""
    return isinstance(value, Tensor) and value.dim() > 1


def _memory(tensor: Tensor | LazyVector) -> int:
    """Return where the memory of a tensor begins."""
    address: int = as_tensor(tensor).untyped_storage().data_ptr()
    return address
