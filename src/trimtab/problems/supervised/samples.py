"""Samples as two tensors: from pairs (X, y), arrays, lists and Datasets."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from trimtab.compute.kernel import Layers
from trimtab.problems.supervised.flat import first_line


@dataclass(frozen=True)
class Data:
    """Inputs and targets of equal length."""

    X: Tensor
    y: Tensor
    who: str = "the data"  # whose they are, for errors

    def __len__(self) -> int:
        return self.X.shape[0]

    @cached_property
    def labelled(self) -> bool:
        """Whether there is one label for each sample, none of them to be ignored."""
        one = self.y.dim() == 1 and not self.y.is_floating_point()
        return one and int(self.y.min()) >= 0

    def suits(self, layers: Layers) -> bool:
        """Tell whether these are what a closed form takes: numbers, and labels or numbers."""
        X, y = self.X, self.y
        if not X.is_floating_point() or not (X.dim() == 2 or (layers.flattens and X.dim() > 2)):
            return False
        if layers.loss == "cross_entropy":
            return self.labelled
        return y.dtype == X.dtype and y.dim() == (1 if layers.single else 2)


def read(who: str, item: Any, dtype: torch.dtype, device: torch.device) -> Data:
    """Return a pair (X, y), or a map-style Dataset of such pairs, as two tensors."""
    if not is_pair(item):
        item = collated(who, item)
    X, y = as_tensor(f"the inputs of {who}", item[0]), as_tensor(f"the targets of {who}", item[1])
    X = X.to(dtype) if X.is_floating_point() else X
    y = y.to(dtype) if y.is_floating_point() else y.long()
    return Data(X.to(device).contiguous(), y.to(device).contiguous(), who)


def as_tensor(what: str, part: Any) -> Tensor:
    """Return numbers as a plain tensor: from a tensor, an array, a table or a list of them."""
    if isinstance(part, Tensor):
        if part.is_complex() or part.layout is not torch.strided:
            kind = "complex" if part.is_complex() else "sparse"
            raise ValueError(f"{what} are {kind}; pass real numbers in a dense tensor.")
        as_is = type(part) is Tensor and not part.requires_grad
        plain: Tensor = part if as_is else part.detach().as_subclass(Tensor)
        return plain.clone() if plain.is_inference() else plain
    try:
        if isinstance(part, list | tuple) and part and isinstance(part[0], Tensor):
            return torch.stack([as_tensor(what, row) for row in part])
        array = numpy.asarray(part)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"a {type(part).__name__} of {array.dtype}")
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        usable = array.flags.writeable and min(array.strides, default=0) >= 0
        return torch.as_tensor(array if usable else array.copy())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{what} are no numbers ({first_line(error)}); pass a tensor or an array of them."
        ) from error


def collated(who: str, dataset: Any) -> tuple[Any, Any]:
    """Return all samples of a map-style Dataset as X and y."""
    check_dataset(who, dataset)
    samples = [_sample(who, dataset, j) for j in range(len(dataset))]
    if not samples:
        return torch.empty(0), torch.empty(0)
    try:
        X, y = default_collate(samples)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"the samples of {who} do not fit together ({first_line(error)}); make them tensors "
            "of one shape."
        ) from error
    return X, y


def check_dataset(who: str, dataset: Any) -> None:
    """Refuse what is no map-style Dataset."""
    if isinstance(dataset, DataLoader):
        raise ValueError(
            f"{who} is a DataLoader; pass its dataset, and the size of mini-batches as batch=…."
        )
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not sized or isinstance(dataset, IterableDataset):
        raise ValueError(
            f"{who} is a {type(dataset).__name__}; pass a pair (X, y), or a Dataset with a length "
            "whose samples are such pairs."
        )
    if isinstance(dataset, Mapping | str | Tensor | numpy.ndarray):
        raise ValueError(
            f"{who} is a {type(dataset).__name__}; pass a pair (X, y) of inputs and targets."
        )


def _sample(who: str, dataset: Any, j: int) -> tuple[Any, ...]:
    """Return sample j of a Dataset as a pair (x, y)."""
    try:
        sample = dataset[j]
    except (KeyError, NotImplementedError) as error:
        raise ValueError(
            f"sample {j} of {who} cannot be read ({type(error).__name__}); pass a pair (X, y), or "
            "a Dataset whose samples are numbered from 0."
        ) from error
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        parts = f" of {len(sample)} parts" if isinstance(sample, tuple | list) else ""
        raise ValueError(
            f"sample {j} of {who} is a {type(sample).__name__}{parts}; make it a pair (x, y)."
        )
    what = f"parts of sample {j} of {who}"
    return tuple(as_tensor(what, p) if isinstance(p, list | tuple) else p for p in sample)


def size(item: Any) -> int:
    """Return how many samples a pair or a Dataset has, without reading them."""
    return len(item[1]) if is_pair(item) else len(item)


def is_pair(item: Any) -> bool:
    """Tell whether this is (X, y); two tuples of two are two samples (x, y)."""
    two = isinstance(item, tuple | list) and len(item) == 2
    return two and not all(isinstance(part, tuple) and len(part) == 2 for part in item)
