"""The samples of clients as kernels read them: checked once, then known by their addresses."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from trimtab.compute.kernel.errors import BadDataError
from trimtab.compute.kernel.program import Layers


class Samples:
    """Inputs and targets that a kernel can read.

    They are kept from round to round, while `hold` says that the tensors are what they were.
    """

    __slots__ = ("X_at", "_alive", "_kind", "n", "y_at")

    def __init__(
        self, layers: Layers, dtype: torch.dtype, X: Tensor, y: Tensor, place: int = 0
    ) -> None:
        n = y.shape[0] if y.dim() else -1
        labels = layers.loss == "cross_entropy"
        shape, kind = ((n,), torch.int64) if labels else (layers.output_shape(n), dtype)
        right = y.shape == shape and y.dtype == kind
        fits = X.shape[:1] == (n,) and layers.takes(X) and X.dtype == dtype
        readable = all(tensor.is_contiguous() and tensor.is_cpu for tensor in (X, y))
        if not (right and fits and readable):
            raise BadDataError(
                place,
                f"inputs of shape {tuple(X.shape)} and targets of shape {tuple(y.shape)}, "
                f"{X.dtype} and {y.dtype}",
            )
        self.X_at, self.y_at, self.n = X.data_ptr(), y.data_ptr(), n
        self._kind = X.shape, X.dtype, y.shape, y.dtype
        self._alive = X.detach(), y.detach()  # so that nothing else comes to lie there

    def hold(self, X: Tensor, y: Tensor) -> bool:
        """Tell whether these tensors lie where they lay, and are what they were but for values."""
        return (
            X.data_ptr() == self.X_at
            and y.data_ptr() == self.y_at
            and (X.shape, X.dtype, y.shape, y.dtype) == self._kind
            and X.is_contiguous()
            and y.is_contiguous()
        )


class Chosen:
    """The samples of some clients together: what a kernel reads, and how it cuts them."""

    def __init__(self, samples: Sequence[Samples]) -> None:
        self.lengths = [each.n for each in samples]
        self._arrays = (
            array("Q", [each.X_at for each in samples]),
            array("Q", [each.y_at for each in samples]),
            array("l", self.lengths),
        )
        self.at = [column.buffer_info()[0] for column in self._arrays]  # of X, y and the lengths
        self.cuts = dict[Any, Any]()  # into mini-batches, kept for the rounds to come
        self._samples = samples  # so that nothing else comes to lie there

    def __len__(self) -> int:
        return len(self.lengths)


class Cohorts:
    """The samples of the last cohorts, for those whose clients stay in memory.

    A cohort that comes again is looked at as a whole: a tensor that was replaced lies elsewhere,
    and one that was changed in its place has another version.
    """

    MOST = 16  # <= 16 cohorts are kept

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, tuple[list[Tensor], list[int], Chosen]] = OrderedDict()
        self._lock = Lock()  # Several simulations may share a problem.

    def get(self, what: Any) -> Chosen | None:
        """Return the samples of a cohort; None if they are not known, or not what they were."""
        with self._lock:
            found = self._kept.get(what)
            if found is None:
                return None
            tensors, marks, chosen = found
            if _marks(tensors) != marks:
                del self._kept[what]
                return None
            self._kept.move_to_end(what)
            return chosen

    def keep(self, what: Any, tensors: list[Tensor], chosen: Chosen) -> None:
        """Keep the samples of a cohort, of which these are the tensors."""
        if any(tensor.is_inference() for tensor in tensors):  # These have no version.
            return
        with self._lock:
            self._kept[what] = tensors, _marks(tensors), chosen
            while len(self._kept) > self.MOST:
                self._kept.popitem(last=False)


_version = attrgetter("_version")


def _marks(tensors: list[Tensor]) -> list[int]:
    """Return what changes if a tensor does: where it lies, how large it is, its version."""
    places, sizes = map(Tensor.data_ptr, tensors), map(Tensor.numel, tensors)
    return [*places, *sizes, *map(_version, tensors)]
