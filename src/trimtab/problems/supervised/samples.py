"""Samples as tensors with a row for each: from pairs (X, y), dicts, arrays, lists and Datasets."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from trimtab.compute.kernel import Layers, Samples
from trimtab.problems.supervised.flat import (
    Tree,
    describe,
    first_line,
    form,
    join,
    leaves,
    map_tree,
)


class Data:
    """Inputs and targets: tensors, or tuples and dicts of them, with a row for each sample.

    y is None where a loss of module and batch is given samples that are no pairs. Samples without
    a common shape, such as sentences, stay as they are: `collate` makes X and y of those that a
    mini-batch has, each time.
    """

    def __init__(
        self,
        X: Tree = None,
        y: Tree = None,
        who: str = "the data",
        *,
        samples: Sequence[Any] | None = None,
        collate: Callable[[str, Sequence[Any]], "Data"] | None = None,
    ) -> None:
        self.who = who  # whose they are, for errors
        self.samples, self._collate = samples, collate
        if samples is None:
            self.X, self.y = X, y

    @cached_property
    def X(self) -> Tree:
        """The inputs, of samples in one batch."""
        return self._collated.X

    @cached_property
    def y(self) -> Tree:
        """The targets, of samples in one batch."""
        return self._collated.y

    @cached_property
    def _collated(self) -> "Data":
        assert self._collate is not None
        assert self.samples is not None
        return self._collate(self.who, self.samples)

    def __len__(self) -> int:
        if self.samples is not None:
            return len(self.samples)
        return self.X.shape[0] if isinstance(self.X, Tensor) else len(leaves(self.batch)[0])

    @cached_property
    def labelled(self) -> bool:
        """Whether there is one label for each sample, none of them to be ignored."""
        if not self.plain:
            return False
        one = self.y.dim() == 1 and not self.y.is_floating_point()
        return one and int(self.y.min()) >= 0

    def suits(self, layers: Layers) -> bool:
        """Tell whether these are what a closed form takes: numbers, and labels or numbers."""
        if not self.plain:
            return False
        X, y = self.X, self.y
        if not X.is_floating_point() or not (X.dim() == 2 or (layers.flattens and X.dim() > 2)):
            return False
        if layers.loss == "cross_entropy":
            return self.labelled
        return bool(y.dtype == X.dtype and y.dim() == (1 if layers.single else 2))

    def for_kernel(self, layers: Layers, dtype: torch.dtype) -> Samples | None:
        """Return these as a kernel reads them; None if it cannot."""
        kept: tuple[Any, ...] | None = self.__dict__.get("_for_kernel")
        if kept is not None and kept[0] is layers and kept[1] == dtype:
            samples: Samples = kept[2]
            if samples.hold(self.X, self.y):
                return samples
        if not self.suits(layers):
            return None
        samples = Samples(layers, dtype, self.X, self.y)
        self.__dict__["_for_kernel"] = layers, dtype, samples
        return samples

    @property
    def plain(self) -> bool:
        """Whether inputs and targets are one tensor each, whichever samples are taken."""
        return self.samples is None and isinstance(self.X, Tensor) and isinstance(self.y, Tensor)

    @property
    def batch(self) -> Tree:
        """All that is known of these samples: (X, y), or X where there are no targets."""
        return self.X if self.y is None else (self.X, self.y)

    @property
    def device(self) -> torch.device:
        """Where the rows that `take` is given should be."""
        return torch.device("cpu") if self.samples is not None else leaves(self.X)[0].device

    @property
    def row_bytes(self) -> int:
        """How many bytes the inputs of one sample take; of samples, those of the first."""
        X = self.X if self.samples is None else self.cut(0, 1).X
        return sum(leaf[0].numel() * leaf.element_size() for leaf in leaves(X))

    @property
    def form(self) -> Any:
        """What all clients must have in common: the structure, and the shape of one input."""
        if self.samples is not None:
            return form(self.cut(0, 1).batch)
        return form(self.batch), [leaf.shape[1:] for leaf in leaves(self.X)]

    def take(self, rows: Tensor) -> "Data":
        """Return some samples, by their numbers."""
        if self.samples is not None:
            return self._of([self.samples[j] for j in rows.tolist()], self.who)
        # index_select is about 5 x as fast as X[rows].
        return self._each(lambda leaf: leaf.index_select(0, rows))

    def cut(self, start: int, end: int) -> "Data":
        """Return the samples from one number up to another."""
        if self.samples is not None:
            return self._of(self.samples[start:end], self.who)
        return self._each(lambda leaf: leaf[start:end])

    def joined(self, others: Sequence["Data"], who: str) -> "Data":
        """Return these samples and others after them."""
        both = [self, *others]
        if self.samples is not None:
            return self._of([sample for data in both for sample in data.samples or ()], who)
        return Data(join([data.X for data in both]), join([data.y for data in both]), who)

    def copy(self) -> "Data":
        """Return the same samples in tensors of their own; those of a collate as a new batch."""
        if self.samples is not None:
            return self._of(self.samples, self.who)._collated
        return self._each(torch.clone)

    def _of(self, samples: Sequence[Any], who: str) -> "Data":
        return Data(who=who, samples=samples, collate=self._collate)

    def _each(self, f: Any) -> "Data":
        if self.plain:
            return Data(f(self.X), f(self.y), self.who)
        return Data(map_tree(f, self.X), map_tree(f, self.y), self.who)


def columns(who: str, item: Any, *, on_batch: bool) -> tuple[Tree, Tree]:
    """Return inputs and targets as trees of tensors, which have a row for each sample."""
    n = rows_of(item)
    if on_batch and not is_pair(item):
        what = f"the data of {who}"
        several = isinstance(item, tuple)
        return tuple(as_tree(what, p, n) for p in item) if several else as_tree(what, item, n), None
    return as_tree(f"the inputs of {who}", item[0], n), as_tree(f"the targets of {who}", item[1], n)


def as_tree(what: str, part: Any, n: int) -> Tree:
    """Return n samples as a tensor; a dict, or a tuple of tensors of n rows, part by part."""
    if isinstance(part, Mapping):
        if not part:
            raise ValueError(f"{what} are an empty dict; pass tensors by name.")
        return {key: as_tree(f"{what}, {key!r},", each, n) for key, each in part.items()}
    if _is_side_by_side(part, n):
        return tuple(as_tree(what, each, n) for each in part)
    return as_tensor(what, part)


def rows_of(item: Any) -> int:
    """Return how many samples there are in a pair, or in a dict or tuple of columns."""
    if hasattr(item, "shape"):
        return _length(item)
    inside = list(item.values()) if isinstance(item, Mapping) else list(item)
    for part in inside:
        if hasattr(part, "shape"):
            return _length(part)
        if isinstance(part, Mapping) and part:
            return rows_of(part)
    last = inside[-1] if inside else ()
    arrays = isinstance(last, tuple) and all(_is_array(each) for each in last)
    return _length(last[0]) if arrays and last else len(last)


def _is_side_by_side(part: Any, n: int) -> bool:
    """Tell whether a tuple holds tensors of n rows each, and not n rows."""
    if not isinstance(part, tuple) or len(part) in (0, n):
        return False
    return all(
        isinstance(each, Mapping) or (_is_array(each) and _length(each) == n) for each in part
    )


def _is_array(part: Any) -> bool:
    return bool(getattr(part, "shape", ()))


def is_sparse(part: Any) -> bool:
    """Return whether this is a sparse tensor, or a sparse matrix of SciPy, which has no length."""
    if isinstance(part, Tensor):
        return part.layout is not torch.strided
    return type(part).__module__.startswith("scipy.sparse")


def _refuse_sparse(what: str, part: Any) -> None:
    if is_sparse(part):
        how = "to_dense" if isinstance(part, Tensor) else "toarray"
        raise ValueError(
            f"{what} are sparse, a {type(part).__name__}; pass them dense, as .{how}() returns "
            "them."
        )


def _length(part: Any) -> int:
    return int(part.shape[0]) if len(part.shape) else 0


def as_tensor(what: str, part: Any) -> Tensor:
    """Return numbers as a plain tensor: from a tensor, an array, a table or a list of them."""
    _refuse_sparse(what, part)
    if "complex" in str(getattr(part, "dtype", "")):
        raise ValueError(
            f"{what} are complex; pass real numbers, e.g. real and imaginary parts as columns."
        )
    if isinstance(part, Tensor):
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


def stacked(who: str, dataset: Any, *, on_batch: bool = False) -> Any:
    """Return all samples of a map-style Dataset as X and y; on_batch: as what samples are."""
    given = samples_of(who, dataset)
    if not given:
        return torch.empty(0), torch.empty(0)
    samples = [_parts(who, j, sample, on_batch) for j, sample in enumerate(given)]
    for j, sample in enumerate(samples):
        if form(sample) != form(samples[0]):
            raise ValueError(
                f"sample {j} of {who} is made of {_made_of(sample)}, sample 0 of "
                f"{_made_of(samples[0])}; give all samples the same parts."
            )
    try:
        return _tuples(default_collate(samples), samples[0])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"the samples of {who} do not fit together ({first_line(error)}); make them tensors "
            "of one shape, or pass collate=…, which makes a batch of them."
        ) from error


def samples_of(who: str, dataset: Any) -> list[Any]:
    """Return all samples of a map-style Dataset as they are."""
    check_dataset(who, dataset)
    return [_sample(who, dataset, j) for j in range(len(dataset))]


def _tuples(batch: Tree, sample: Tree) -> Tree:
    """Return a batch with tuples where a sample has them, of which PyTorch makes lists."""
    if isinstance(sample, Mapping):
        return {key: _tuples(batch[key], part) for key, part in sample.items()}
    if isinstance(sample, tuple | list):
        return tuple(_tuples(*both) for both in zip(batch, sample, strict=True))
    return batch


def _made_of(sample: Any) -> str:
    """Say what one sample is made of."""
    if isinstance(sample, Mapping | tuple | list):
        return describe(map_tree(lambda part: torch.as_tensor(part)[None], sample))
    return f"a {type(sample).__name__}"


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
    if isinstance(dataset, Mapping | str | Tensor | numpy.ndarray) or is_sparse(dataset):
        raise ValueError(
            f"{who} is a {type(dataset).__name__}; pass a pair (X, y) of inputs and targets."
        )


def _sample(who: str, dataset: Any, j: int) -> Any:
    """Return sample j of a Dataset."""
    try:
        return dataset[j]
    except (KeyError, NotImplementedError) as error:
        raise ValueError(
            f"sample {j} of {who} cannot be read ({type(error).__name__}); pass a pair (X, y), or "
            "a Dataset whose samples are numbered from 0."
        ) from error


def _parts(who: str, j: int, sample: Any, on_batch: bool) -> Any:
    """Return a sample with numbers as tensors; refuse one that should be a pair and is none."""
    several = isinstance(sample, tuple | list)
    if not on_batch and not (several and len(sample) == 2):
        count = f" of {len(sample)} parts" if several else ""
        raise ValueError(
            f"sample {j} of {who} is a {type(sample).__name__}{count}; make it a pair (x, y), or "
            "pass a loss of module and batch, OnBatch(f)."
        )
    what = f"parts of sample {j} of {who}"
    return tuple(_numbers(what, part) for part in sample) if several else _numbers(what, sample)


def _numbers(what: str, part: Any) -> Any:
    """Return lists and tuples of numbers as tensors; dicts, and tuples of tensors, as they are."""
    _refuse_sparse(what, part)
    if isinstance(part, Mapping):
        return {key: _numbers(what, each) for key, each in part.items()}
    if isinstance(part, tuple) and any(isinstance(p, Mapping) or _is_array(p) for p in part):
        return tuple(_numbers(what, each) for each in part)
    return as_tensor(what, part) if isinstance(part, list | tuple) else part


def is_columns(item: Any, *, on_batch: bool) -> bool:
    """Tell whether there is a row for each sample: a pair (X, y); for OnBatch also a dict."""
    if on_batch and isinstance(item, tuple) and len(item) > 2:
        return all(_is_array(each) and _length(each) == _length(item[0]) for each in item)
    return is_pair(item) or (on_batch and isinstance(item, Mapping))


def is_pair(item: Any) -> bool:
    """Tell whether this is (X, y); two tuples of two are two samples (x, y).

    Unless all four are tensors or arrays of as many rows: those are inputs in two parts, and
    targets in two.
    """
    if not isinstance(item, tuple | list) or len(item) != 2:
        return False
    if not all(isinstance(part, tuple) and len(part) == 2 for part in item):
        return not all(isinstance(part, Mapping) for part in item) or isinstance(item, tuple)
    inner = [each for part in item for each in part]
    rows = isinstance(item, tuple) and all(_is_array(each) for each in inner)
    return rows and len({_length(each) for each in inner}) == 1
