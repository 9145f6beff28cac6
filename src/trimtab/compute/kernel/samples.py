"""Samples of clients for the kernels: checked once, then passed as addresses; and errors."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from trimtab.compute.kernel.program import Layers, TroubleStruct

_NO_MEMORY, _BAD_LABEL, _BAD_ROW, _BAD_CODE = 1, 2, 3, 4  # as the enumeration in kernels.c


class Samples:
    """Inputs and targets that a kernel can read.

    They are used in all rounds while `is_unchanged` holds.

    position: of the client in a call, for errors.
    """

    __slots__ = ("X_at", "_alive", "_kind", "n", "y_at")

    def __init__(
        self, layers: Layers, dtype: torch.dtype, X: Tensor, y: Tensor, position: int = 0
    ) -> None:
        n = y.shape[0] if y.dim() else -1
        labels = layers.loss == "cross_entropy"
        shape, kind = ((n,), torch.int64) if labels else (layers.output_shape(n), dtype)
        right = y.shape == shape and y.dtype == kind
        fits = X.shape[:1] == (n,) and layers.takes(X) and X.dtype == dtype
        readable = X.is_contiguous() and y.is_contiguous() and X.is_cpu and y.is_cpu
        if not (right and fits and readable):
            raise BadDataError(
                position,
                f"inputs of shape {tuple(X.shape)} and targets of shape {tuple(y.shape)}, "
                f"{X.dtype} and {y.dtype}",
            )
        self.X_at, self.y_at, self.n = X.data_ptr(), y.data_ptr(), n
        self._kind = X.shape, X.dtype, y.shape, y.dtype
        self._alive = X.detach(), y.detach()  # keeps the memory at these addresses

    def is_unchanged(self, X: Tensor, y: Tensor) -> bool:
        """Return whether tensors have the same addresses, shapes and dtypes; values may differ."""
        return (
            X.data_ptr() == self.X_at
            and y.data_ptr() == self.y_at
            and (X.shape, X.dtype, y.shape, y.dtype) == self._kind
            and X.is_contiguous()
            and y.is_contiguous()
        )


class ClientSamples:
    """The samples of several clients, and their plans of mini-batches."""

    def __init__(self, samples: Sequence[Samples]) -> None:
        self.lengths = [each.n for each in samples]
        self._arrays = (
            array("Q", [each.X_at for each in samples]),
            array("Q", [each.y_at for each in samples]),
            array("l", self.lengths),
        )
        self.addresses = [
            column.buffer_info()[0] for column in self._arrays
        ]  # of X, y and the lengths
        self.plans = dict[Any, Any]()  # BatchPlans by their settings, for later rounds
        self._samples = samples  # keeps the memory at these addresses

    def __len__(self) -> int:
        return len(self.lengths)


class SampleCache:
    """The samples of the last cohorts, for problems whose clients stay in memory.

    All tensors of a cohort are compared when it is used again: a tensor that was replaced has
    another address, and one that was changed in place has another version.

    max_cohorts: how many are cached; each holds addresses and no copies of data, so 16 are cheap.
    """

    def __init__(self, max_cohorts: int = 16) -> None:
        self.max_cohorts = max_cohorts
        self._entries: OrderedDict[Any, tuple[list[Tensor], list[int], ClientSamples]] = (
            OrderedDict()
        )
        self._lock = Lock()  # Several simulations may share a problem.

    def get(self, what: Any) -> ClientSamples | None:
        """Return the samples of a cohort; None if they are unknown or have changed."""
        with self._lock:
            found = self._entries.get(what)
            if found is None:
                return None
            tensors, versions, samples = found
            if _tensor_versions(tensors) != versions:
                del self._entries[what]
                return None
            self._entries.move_to_end(what)
            return samples

    def keep(self, what: Any, tensors: list[Tensor], samples: ClientSamples) -> None:
        """Add the samples of a cohort, whose data are in these tensors."""
        if any(tensor.is_inference() for tensor in tensors):  # They have no version to compare.
            return
        with self._lock:
            self._entries[what] = tensors, _tensor_versions(tensors), samples
            while len(self._entries) > self.max_cohorts:
                self._entries.popitem(last=False)


_version = attrgetter("_version")


def _tensor_versions(tensors: list[Tensor]) -> list[int]:
    """Return addresses, sizes and versions: one of them differs if a tensor has changed."""
    places, sizes = map(Tensor.data_ptr, tensors), map(Tensor.numel, tensors)
    return [*places, *sizes, *map(_version, tensors)]


# -- errors, and checks before a call: a kernel would read or write beyond the end


class BadDataError(ValueError):
    """A kernel cannot use the data of a client, possibly because they were changed."""

    def __init__(self, position: int, what: str, who: str = "a client") -> None:
        super().__init__(f"{who} has {what}; make a new problem of data that were changed.")
        self.position, self.what = position, what

    def at_position(self, position: int) -> "BadDataError":
        """Return the error for a client at another position of the call."""
        return BadDataError(position, self.what)

    def for_client(self, client: int) -> "BadDataError":
        """Return the error with the number of the client."""
        return BadDataError(self.position, self.what, f"client {client}")


def raise_kernel_error(error: TroubleStruct, layers: Layers, lengths: Sequence[int]) -> None:
    """Raise the error that a kernel reported; lengths: the numbers of samples of the clients."""
    if error.what == _NO_MEMORY:
        raise MemoryError("there is no memory left for the clients' vectors.")
    if error.what == _BAD_CODE:
        raise ValueError("a program reads or writes what is not there; report its algorithm.")
    if error.what == _BAD_LABEL:
        what = f"label {error.value} in sample {error.sample}, of {layers.sizes[-1]} classes"
        raise BadDataError(error.client, what)
    if error.what == _BAD_ROW:
        count = lengths[error.client]
        raise BadDataError(error.client, f"no sample {error.value} for a mini-batch, but {count}")


def readable(vector: Tensor, dtype: torch.dtype) -> bool:
    """Return whether a kernel can read a vector from its memory."""
    return vector.dtype == dtype and vector.is_contiguous() and vector.is_cpu


def wrong_vector_count(rows: int, columns: int) -> ValueError:
    """Return the error for more or fewer vectors than a program has."""
    return ValueError(f"a kernel takes {columns} vectors for each of {rows} clients.")


def check_vectors(
    layers: Layers,
    dtype: torch.dtype,
    vectors: Sequence[Sequence[Tensor | None]],
    rows: int,
    columns: int,
) -> None:
    """Raise ValueError for vectors of the wrong number, length, dtype or device."""
    if len(vectors) != rows or any(len(row) != columns for row in vectors):
        raise wrong_vector_count(rows, columns)
    shape = (layers.d,)
    # Clients share the vectors of the broadcast, so each is checked once.
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
    """Raise BadDataError unless all clients have equally many mini-batches of indices."""
    for position, (length, row) in enumerate(zip(lengths, rows, strict=True)):
        if len(row) != len(rows[0]):
            raise BadDataError(position, f"{len(row)} mini-batches, others {len(rows[0])}")
        for indices in row:
            if not (length if indices is None else len(indices)):
                raise BadDataError(position, "no samples for a mini-batch")
            if indices is not None and (
                indices.dtype != torch.int64 or not indices.is_contiguous()
            ):
                raise BadDataError(position, f"a mini-batch of {indices.dtype}")
