"""Vectors of several clients that are known by where they lie, so that nobody looks at each."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor


class Placed(Sequence[Sequence[Tensor | None]]):
    """A row of vectors for each client, all of length d and one type, in the processor's memory.

    `at` are their addresses, row by row, 0 where there is none. `row` makes the vectors of a
    client, for those that want tensors, and keeps alive what lies there.
    """

    def __init__(
        self,
        at: "array[int]",
        clients: int,
        d: int,
        dtype: torch.dtype,
        row: Callable[[int], Sequence[Tensor | None]],
    ) -> None:
        self.at, self.clients, self.d, self.dtype, self._row = at, clients, d, dtype, row

    def __len__(self) -> int:
        return self.clients

    @overload
    def __getitem__(self, j: int) -> Sequence[Tensor | None]: ...
    @overload
    def __getitem__(self, j: slice) -> Sequence[Sequence[Tensor | None]]: ...
    def __getitem__(self, j: Any) -> Any:
        if isinstance(j, slice):
            return [self._row(i) for i in range(*j.indices(len(self)))]
        return self._row(range(len(self))[j])
