"""Lazy vectors of several clients, as the rows of one tensor."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from trimtab.compute.lazy import (
    LazyVector,
    NotBatchableError,
    as_tensor,
    is_elementwise,
    is_in_place,
)


class LazyRows(LazyVector):
    """The vectors of several clients, one in each row.

    Only elementwise operations are computed, which suffices for most algorithms. A norm, an index
    or a comparison of whole vectors would mix clients: it raises NotBatchableError, and the
    executor runs the clients one by one.

    >>> import torch
    >>> rows = LazyRows.of(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    >>> torch.sqrt(1 - rows + rows**2).tensor()
    tensor([[2.6458, 3.6056],
            [1.0000, 1.0000]])
    >>> rows / rows.norm()
    Traceback (most recent call last):
    trimtab.compute.lazy.NotBatchableError: norm
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if not callable(value) and name not in ("dtype", "device"):
            raise NotBatchableError(name)
        return value

    def _is_compatible(self, other: Any) -> bool:
        return isinstance(other, LazyVector) and super()._is_compatible(other)

    @classmethod
    def _on_tensors(cls, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        changed = [
            *(args[:1] if is_in_place(name) else ()),
            *(v for k, v in kwargs.items() if k == "out"),
        ]
        matrices = any(_is_matrix(value) for value in (*args, *kwargs.values()))
        own = all(isinstance(vector, cls) for vector in changed)
        if not is_elementwise(name) or matrices or not own:
            raise NotBatchableError(name)
        result = super()._on_tensors(name, function, *args, **kwargs)
        if not isinstance(result, Tensor):
            raise NotBatchableError(name)
        shared = {_memory(value) for value in args if isinstance(value, Tensor | LazyVector)}
        return cls.of(result, borrowed=_memory(result) in shared)


def _is_matrix(value: Any) -> bool:
    """Return whether this is a tensor with rows of its own, which broadcasting would mix."""
    return isinstance(value, Tensor) and value.dim() > 1


def _memory(tensor: Tensor | LazyVector) -> int:
    address: int = as_tensor(tensor).untyped_storage().data_ptr()
    return address
