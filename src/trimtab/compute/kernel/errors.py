"""What kernels refuse: before they run, since they would read beyond; or what they found wrong."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.compute.kernel.program import Layers, Trouble

_NO_MEMORY, _BAD_LABEL, _BAD_ROW, _BAD_CODE = 1, 2, 3, 4  # as the enumeration in kernels.c


class BadDataError(ValueError):
    """A client's data are not, or no longer, what a kernel can use."""

    def __init__(self, place: int, what: str, who: str = "a client") -> None:
        super().__init__(f"{who} has {what}; make a new problem of data that were changed.")
        self.place, self.what = place, what

    def at(self, place: int) -> "BadDataError":
        """Return the same error of another client among those of a call."""
        return BadDataError(place, self.what)

    def of(self, client: int) -> "BadDataError":
        """Return the same error with the client's number."""
        return BadDataError(self.place, self.what, f"client {client}")


def raise_trouble(trouble: Trouble, layers: Layers, lengths: Sequence[int]) -> None:
    """Raise what a kernel complains of; `lengths`: how many samples clients have."""
    if trouble.what == _NO_MEMORY:
        raise MemoryError("there is no memory left for the clients' vectors.")
    if trouble.what == _BAD_CODE:
        raise ValueError("a program reads or writes what is not there; report its algorithm.")
    if trouble.what == _BAD_LABEL:
        what = f"label {trouble.value} in sample {trouble.sample}, of {layers.sizes[-1]} classes"
        raise BadDataError(trouble.client, what)
    if trouble.what == _BAD_ROW:
        count = lengths[trouble.client]
        raise BadDataError(
            trouble.client, f"no sample {trouble.value} for a mini-batch, but {count}"
        )


def readable(vector: Tensor, dtype: torch.dtype) -> bool:
    """Tell whether a kernel can read a vector as it lies in memory."""
    return vector.dtype == dtype and vector.is_contiguous() and vector.is_cpu


def wrong_number(rows: int, columns: int) -> ValueError:
    """Return the error that refuses more vectors, or fewer, than a program has."""
    return ValueError(f"a kernel takes {columns} vectors for each of {rows} clients.")


def check_vectors(
    layers: Layers,
    dtype: torch.dtype,
    vectors: Sequence[Sequence[Tensor | None]],
    rows: int,
    columns: int,
) -> None:
    """Refuse vectors that a kernel would read or write beyond; those of several rows once."""
    if len(vectors) != rows or any(len(row) != columns for row in vectors):
        raise wrong_number(rows, columns)
    shape = (layers.d,)
    for vector in {id(vector): vector for row in vectors for vector in row}.values():
        if vector is None:
            continue
        if vector.shape != shape:
            layers.check(vector)
        if not readable(vector, dtype):
            raise ValueError(
                f"a kernel was given a vector of {vector.dtype} on {vector.device}; "
                f"pass contiguous ones of {dtype} in the processor's memory."
            )


def check_rows(lengths: Sequence[int], rows: Sequence[Sequence[Tensor | None]]) -> None:
    """Refuse mini-batches that are no indices, or as many as others have."""
    for place, (length, row) in enumerate(zip(lengths, rows, strict=True)):
        if len(row) != len(rows[0]):
            raise BadDataError(place, f"{len(row)} mini-batches, others {len(rows[0])}")
        for indices in row:
            if not (length if indices is None else len(indices)):
                raise BadDataError(place, "no samples for a mini-batch")
            if indices is not None and (
                indices.dtype != torch.int64 or not indices.is_contiguous()
            ):
                raise BadDataError(place, f"a mini-batch of {indices.dtype}")
