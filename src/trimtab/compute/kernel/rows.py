"""Which samples make up the mini-batches of several clients, as the C code reads it."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.compute.kernel.errors import BadDataError
from trimtab.compute.kernel.program import longs


@dataclass(frozen=True)
class Rows:
    """The mini-batches of several clients: as many of each, one client after the other.

    Whoever makes it says that at each place there are so many 64-bit integers, and keeps them there
    as long as this lives.
    """

    batches: int  # of each client
    places: "array[int]"  # where the numbers of a mini-batch's samples lie; 0 for all samples
    sizes: "array[int]"  # how many there are
    kept: Any = None  # what the places are in

    def check(self, clients: int) -> None:
        """Refuse mini-batches of other clients, and empty ones."""
        if not len(self.places) == len(self.sizes) == clients * self.batches:
            raise ValueError(
                f"a kernel takes the same number of mini-batches for {clients} clients."
            )
        if self.sizes and min(self.sizes) < 1:
            place = next(j for j, size in enumerate(self.sizes) if size < 1) // self.batches
            raise BadDataError(place, "no samples for a mini-batch")


def rows_of(rows: Sequence[Sequence[Tensor | None]], lengths: Sequence[int]) -> Rows:
    """Return the mini-batches that tensors of indices say; None stands for all samples."""
    places, sizes = array("Q"), longs(())
    for place, (row, n) in enumerate(zip(rows, lengths, strict=True)):
        for indices in row:
            if indices is not None and not (
                indices.dtype == torch.int64 and indices.dim() == 1 and indices.is_contiguous()
            ):
                raise BadDataError(place, f"a mini-batch of {indices.dtype}")
            places.append(0 if indices is None else indices.data_ptr())
            sizes.append(n if indices is None else indices.shape[0])
    return Rows(len(rows[0]), places, sizes, rows)
