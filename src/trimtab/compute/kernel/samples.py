"""The samples of one client as kernels read them: checked once, then known by their addresses."""

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
