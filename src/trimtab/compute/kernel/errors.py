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

    def of(self, client: int) -> "BadDataError":
        """Return the same error with the client's number."""
        return BadDataError(self.place, self.what, f"client {client}")


def raise_trouble(trouble: Trouble, layers: Layers, data: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Raise what a kernel complains of, if it does."""
    if trouble.what == _NO_MEMORY:
        raise MemoryError("there is no memory left for the clients' vectors.")
    if trouble.what == _BAD_CODE:
        raise ValueError("a program reads or writes what is not there; report its algorithm.")
    if trouble.what == _BAD_LABEL:
        what = f"label {trouble.value} in sample {trouble.sample}, of {layers.sizes[-1]} classes"
        raise BadDataError(trouble.client, what)
    if trouble.what == _BAD_ROW:
        count = len(data[trouble.client][1])
        raise BadDataError(
            trouble.client, f"no sample {trouble.value} for a mini-batch, but {count}"
        )


def check_vectors(
    layers: Layers,
    dtype: torch.dtype,
    vectors: Sequence[Sequence[Tensor | None]],
    rows: int,
    columns: int,
) -> None:
    """Refuse vectors that a kernel would read or write beyond; those of several rows once."""
    if len(vectors) != rows or any(len(row) != columns for row in vectors):
        raise ValueError(f"a kernel takes {columns} vectors for each of {rows} clients.")
    shape = (layers.d,)
    for vector in {id(vector): vector for row in vectors for vector in row}.values():
        if vector is None:
            continue
        if vector.shape != shape:
            layers.check(vector)
        if vector.dtype != dtype or not vector.is_contiguous() or not vector.is_cpu:
            raise ValueError(
                f"a kernel was given a vector of {vector.dtype} on {vector.device}; "
                f"pass contiguous ones of {dtype} in the processor's memory."
            )


def check_data(
    layers: Layers, dtype: torch.dtype, data: Sequence[tuple[Tensor, Tensor]]
) -> list[int]:
    """Return how many samples clients have; refuse data that have changed their shape or type."""
    labels, lengths = layers.loss == "cross_entropy", []
    for place, (X, y) in enumerate(data):
        n = y.shape[0] if y.dim() else -1
        shape, kind = ((n,), torch.int64) if labels else (layers.output_shape(n), dtype)
        if not (
            X.shape[:1] == (n,) and layers.takes(X) and X.dtype == dtype and X.is_contiguous()
            and X.is_cpu and y.shape == shape and y.dtype == kind and y.is_contiguous()
            and y.is_cpu
        ):  # fmt: skip
            raise BadDataError(
                place,
                f"inputs of shape {tuple(X.shape)} and targets of shape {tuple(y.shape)}, "
                f"{X.dtype} and {y.dtype}",
            )
        lengths.append(n)
    return lengths


def check_rows(
    data: Sequence[tuple[Tensor, Tensor]], rows: Sequence[Sequence[Tensor | None]]
) -> None:
    """Refuse mini-batches that are no indices, or as many as others have."""
    for place, ((_, y), row) in enumerate(zip(data, rows, strict=True)):
        if len(row) != len(rows[0]):
            raise BadDataError(place, f"{len(row)} mini-batches, others {len(rows[0])}")
        for indices in row:
            if not (len(y) if indices is None else len(indices)):
                raise BadDataError(place, "no samples for a mini-batch")
            if indices is not None and (
                indices.dtype != torch.int64 or not indices.is_contiguous()
            ):
                raise BadDataError(place, f"a mini-batch of {indices.dtype}")
