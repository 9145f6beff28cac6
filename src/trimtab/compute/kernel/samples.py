"""The samples of clients as kernels read them: checked once, then known by their addresses."""

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

    They are kept from round to round, while `is_unchanged` says that the tensors are the same.
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
        readable = all(tensor.is_contiguous() and tensor.is_cpu for tensor in (X, y))
        if not (right and fits and readable):
            raise BadDataError(
                position,
                f"inputs of shape {tuple(X.shape)} and targets of shape {tuple(y.shape)}, "
                f"{X.dtype} and {y.dtype}",
            )
        self.X_at, self.y_at, self.n = X.data_ptr(), y.data_ptr(), n
        self._kind = X.shape, X.dtype, y.shape, y.dtype
        self._alive = X.detach(), y.detach()  # so that nothing else comes to lie there

    def is_unchanged(self, X: Tensor, y: Tensor) -> bool:
        """Tell whether these tensors lie where they lay, and are what they were but for values."""
        return (
            X.data_ptr() == self.X_at
            and y.data_ptr() == self.y_at
            and (X.shape, X.dtype, y.shape, y.dtype) == self._kind
            and X.is_contiguous()
            and y.is_contiguous()
        )


class ClientSamples:
    """The samples of some clients together: what a kernel reads, and how it cuts them."""

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
        self.plans = dict[Any, Any]()  # into mini-batches, kept for the rounds to come
        self._samples = samples  # so that nothing else comes to lie there

    def __len__(self) -> int:
        return len(self.lengths)


class SampleCache:
    """The samples of the last cohorts, for those whose clients stay in memory.

    A cohort that comes again is looked at as a whole: a tensor that was replaced lies elsewhere,
    and one that was changed in its position has another version.
    """

    def __init__(self, max_cohorts: int = 16) -> None:
        self.max_cohorts = max_cohorts
        self._entries: OrderedDict[Any, tuple[list[Tensor], list[int], ClientSamples]] = (
            OrderedDict()
        )
        self._lock = Lock()  # Several simulations may share a problem.

    def get(self, what: Any) -> ClientSamples | None:
        """Return the samples of a cohort; None if they are not known, or not what they were."""
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
        """Keep the samples of a cohort, of which these are the tensors."""
        if any(tensor.is_inference() for tensor in tensors):  # These have no version.
            return
        with self._lock:
            self._entries[what] = tensors, _tensor_versions(tensors), samples
            while len(self._entries) > self.max_cohorts:
                self._entries.popitem(last=False)


_version = attrgetter("_version")


def _tensor_versions(tensors: list[Tensor]) -> list[int]:
    """Return what changes if a tensor does: where it lies, how large it is, its version."""
    places, sizes = map(Tensor.data_ptr, tensors), map(Tensor.numel, tensors)
    return [*places, *sizes, *map(_version, tensors)]


# -- what kernels refuse before they run, since they would read beyond, and what they found wrong


class BadDataError(ValueError):
    """A client's data are not, or no longer, what a kernel can use."""

    def __init__(self, position: int, what: str, who: str = "a client") -> None:
        super().__init__(f"{who} has {what}; make a new problem of data that were changed.")
        self.position, self.what = position, what

    def at_position(self, position: int) -> "BadDataError":
        """Return the same error of another client among those of a call."""
        return BadDataError(position, self.what)

    def for_client(self, client: int) -> "BadDataError":
        """Return the same error with the client's number."""
        return BadDataError(self.position, self.what, f"client {client}")


def raise_kernel_error(error: TroubleStruct, layers: Layers, lengths: Sequence[int]) -> None:
    """Raise what a kernel complains of; `lengths`: how many samples clients have."""
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
    """Tell whether a kernel can read a vector as it lies in memory."""
    return vector.dtype == dtype and vector.is_contiguous() and vector.is_cpu


def wrong_vector_count(rows: int, columns: int) -> ValueError:
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
        raise wrong_vector_count(rows, columns)
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
