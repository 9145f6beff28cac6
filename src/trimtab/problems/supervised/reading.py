"""Read and check the data of clients: pairs (X, y), dicts, arrays, lists and Datasets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from trimtab._importing import describe_error
from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.flat import Tree, describe, first_line, form, leaves, map_tree

Collate = Callable[[list[Any]], Any]
"""A function that makes a batch of a list of samples: (X, y), or for OnBatch any tree."""


@dataclass(frozen=True)
class Reader:
    """Reads data as tensors on one device.

    dtype: of all floating-point numbers.
    device: of all tensors.
    collate: the user's function that makes a batch of samples; None by default.
    """

    dtype: torch.dtype
    device: torch.device
    collate: Collate | None = None
    # Whether the loss takes module and batch; samples then need not be pairs.
    on_batch: bool = False

    def read(self, owner: str, item: Any) -> Data:
        """Return a pair (X, y), or a map-style Dataset of such pairs, as tensors; check them."""
        data = self.unchecked(owner, item)
        check_data(owner, data)
        return data

    def unchecked(self, owner: str, item: Any) -> Data:
        """Return the same without a check of its rows and values."""
        if isinstance(item, Data):
            return item
        # The usual pair of tensors needs none of the general case, which takes three times as long.
        plain = type(item) is tuple and len(item) == 2 and all(map(_is_plain, item))
        if plain and self.collate is None:
            return Data(self._input(item[0]), self._target(item[1]), owner)
        if self.collate is not None:
            return Data(owner=owner, samples=tuple(samples_of(owner, item)), collate=self.collated)
        return self.data(owner, item if self.is_columns(item) else self.stacked(owner, item))

    def data(self, owner: str, item: Any) -> Data:
        """Return columns as tensors of this dtype, on this device."""
        X, y = self.columns(owner, item)
        if y is None:
            return Data(map_tree(self._whole_numbers, X), None, owner)
        return Data(map_tree(self._input, X), map_tree(self._target, y), owner)

    def collated(self, owner: str, samples: Sequence[Any]) -> Data:
        """Return the batch that the user's `collate` makes of samples, after checks."""
        assert self.collate is not None
        # A collate runs again for every mini-batch, and must return the same batch each time.
        state = torch.get_rng_state()
        try:
            batch = self.collate(list(samples))
        except Exception as error:
            raise ValueError(
                f"collate fails on samples of {owner} ({describe_error(error)}); fix it."
            ) from error
        if not torch.equal(state, torch.get_rng_state()):
            raise ValueError(
                "collate draws random numbers, so that a mini-batch would differ from call to "
                "call; draw them in the module, or in a loss of module and batch, OnBatch(f)."
            )
        if not self.on_batch and not (isinstance(batch, tuple | list) and len(batch) == 2):
            raise ValueError(
                f"collate returns a {type(batch).__name__}; return a pair (X, y), or pass a loss "
                "of module and batch, OnBatch(f)."
            )
        data = self.data(owner, tuple(batch) if isinstance(batch, list) else batch)
        self._check_counts(owner, data, len(samples))
        return data

    def _check_counts(self, owner: str, data: Data, n: int) -> None:
        counts = [len(leaf) if leaf.dim() else 0 for leaf in leaves(data.batch)]
        # A batch for OnBatch may have parts without a row per sample, such as a mask of the batch.
        if not counts or (n not in counts if self.on_batch else any(c != n for c in counts)):
            made = next((count for count in counts if count != n), 0)
            raise ValueError(
                f"collate made {made} rows of {n} samples of {owner}; return a row for each "
                "sample, and leave samples out before you pass the data."
            )

    def size(self, item: Any) -> int:
        """Return the number of samples without reading them."""
        has_rows = self.collate is None and self.is_columns(item)
        return rows_of(item) if has_rows else len(item)

    def is_columns(self, item: Any) -> bool:
        """Return whether data have a row per sample: a pair (X, y), for OnBatch also a dict."""
        if self.on_batch and isinstance(item, tuple) and len(item) > 2:
            return all(_is_array(each) and _length(each) == _length(item[0]) for each in item)
        return is_pair(item) or (self.on_batch and isinstance(item, Mapping))

    def columns(self, owner: str, item: Any) -> tuple[Tree, Tree]:
        """Return inputs and targets as trees of tensors, which have a row for each sample."""
        n = rows_of(item)
        if not self.on_batch or is_pair(item):
            X = as_tree(f"the inputs of {owner}", item[0], n)
            return X, as_tree(f"the targets of {owner}", item[1], n)
        what = f"the data of {owner}"
        several = isinstance(item, tuple)
        return tuple(as_tree(what, p, n) for p in item) if several else as_tree(what, item, n), None

    def stacked(self, owner: str, dataset: Any) -> Any:
        """Return all samples of a map-style Dataset as (X, y); for OnBatch in their structure."""
        given = samples_of(owner, dataset)
        if not given:
            return torch.empty(0), torch.empty(0)
        # On a sample of another form, default_collate fails with an error that does not name it.
        samples = [_parts(owner, j, sample, self.on_batch) for j, sample in enumerate(given)]
        for j, sample in enumerate(samples):
            if form(sample) != form(samples[0]):
                raise ValueError(
                    f"sample {j} of {owner} is made of {_made_of(sample)}, sample 0 of "
                    f"{_made_of(samples[0])}; give all samples the same parts."
                )
        try:
            return _tuples(default_collate(samples), samples[0])
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"the samples of {owner} do not fit together ({first_line(error)}); make them "
                "tensors of one shape, or pass collate=…, which makes a batch of them."
            ) from error

    def _input(self, t: Tensor) -> Tensor:
        t = t.to(self.dtype) if t.is_floating_point() else t
        return t.to(self.device).contiguous()

    def _target(self, t: Tensor) -> Tensor:
        return self._input(t if t.is_floating_point() else t.long())

    def _whole_numbers(self, t: Tensor) -> Tensor:
        """Return whole numbers as int64, which both embeddings and losses take."""
        return self._input(t.long() if t.dtype in (torch.int32, torch.int16, torch.int8) else t)


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
    """Return the number of samples in a pair, or in a dict or tuple of columns."""
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
    """Return whether a tuple holds tensors of n rows each, and is not itself n rows."""
    if not isinstance(part, tuple) or len(part) in (0, n):
        return False
    return all(
        isinstance(each, Mapping) or (_is_array(each) and _length(each) == n) for each in part
    )


def _is_plain(part: Any) -> bool:
    """Return whether `as_tensor` would return this as it is."""
    if type(part) is not Tensor or part.requires_grad or part.is_inference():
        return False
    return part.layout is torch.strided and not part.is_complex()


def _is_array(part: Any) -> bool:
    return bool(getattr(part, "shape", ()))


def is_sparse(part: Any) -> bool:
    """Return whether this is a sparse tensor, or a sparse matrix of SciPy, which has no length."""
    # SciPy is not imported for this: it may not be installed.
    if isinstance(part, Tensor):
        return part.layout is not torch.strided
    return type(part).__module__.startswith("scipy.sparse")


def _check_dense(what: str, part: Any) -> None:
    if is_sparse(part):
        how = "to_dense" if isinstance(part, Tensor) else "toarray"
        raise ValueError(
            f"{what} are sparse, a {type(part).__name__}; pass them dense, as .{how}() returns "
            "them."
        )


def _length(part: Any) -> int:
    return int(part.shape[0]) if len(part.shape) else 0


def as_tensor(what: str, part: Any) -> Tensor:
    """Return a tensor, array, table or list of numbers as a plain tensor."""
    _check_dense(what, part)
    if "complex" in str(getattr(part, "dtype", "")):
        raise ValueError(
            f"{what} are complex; pass real numbers, e.g. real and imaginary parts as columns."
        )
    if isinstance(part, Tensor):
        as_is = type(part) is Tensor and not part.requires_grad
        plain: Tensor = part if as_is else part.detach().as_subclass(Tensor)
        # Autograd cannot save tensors of inference mode.
        return plain.clone() if plain.is_inference() else plain
    try:
        if isinstance(part, list | tuple) and part and isinstance(part[0], Tensor):
            return torch.stack([as_tensor(what, row) for row in part])
        array = numpy.asarray(part)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"a {type(part).__name__} of {array.dtype}")
        # PyTorch takes no foreign byte order and no negative stride, and warns of read-only memory.
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        usable = array.flags.writeable and min(array.strides, default=0) >= 0
        return torch.as_tensor(array if usable else array.copy())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{what} are not numbers ({first_line(error)}); pass a tensor or an array of them."
        ) from error


def samples_of(owner: str, dataset: Any) -> list[Any]:
    """Return all samples of a map-style Dataset as they are."""
    check_dataset(owner, dataset)
    return [_sample(owner, dataset, j) for j in range(len(dataset))]


def _tuples(batch: Tree, sample: Tree) -> Tree:
    """Return a batch with the tuples of a sample, which default_collate turns into lists."""
    if isinstance(sample, Mapping):
        return {key: _tuples(batch[key], part) for key, part in sample.items()}
    if isinstance(sample, tuple | list):
        return tuple(_tuples(*both) for both in zip(batch, sample, strict=True))
    return batch


def _made_of(sample: Any) -> str:
    if isinstance(sample, Mapping | tuple | list):
        return describe(map_tree(lambda part: torch.as_tensor(part)[None], sample))
    return f"a {type(sample).__name__}"


def check_dataset(owner: str, dataset: Any) -> None:
    """Raise ValueError unless this is a map-style Dataset."""
    if isinstance(dataset, DataLoader):
        raise ValueError(
            f"{owner} is a DataLoader; pass its dataset, and the size of mini-batches as batch=…."
        )
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not sized or isinstance(dataset, IterableDataset):
        raise ValueError(
            f"{owner} is a {type(dataset).__name__}; pass a pair (X, y), or a Dataset with a "
            "length whose samples are such pairs."
        )
    if isinstance(dataset, Mapping | str | Tensor | numpy.ndarray) or is_sparse(dataset):
        raise ValueError(
            f"{owner} is a {type(dataset).__name__}; pass a pair (X, y) of inputs and targets."
        )


def _sample(owner: str, dataset: Any, j: int) -> Any:
    try:
        return dataset[j]
    except (KeyError, NotImplementedError) as error:
        raise ValueError(
            f"sample {j} of {owner} cannot be read ({type(error).__name__}); pass a pair (X, y), "
            "or a Dataset whose samples are numbered from 0."
        ) from error


def _parts(owner: str, j: int, sample: Any, on_batch: bool) -> Any:
    """Return a sample with numbers as tensors; raise ValueError if it should be a pair."""
    several = isinstance(sample, tuple | list)
    if not on_batch and not (several and len(sample) == 2):
        count = f" of {len(sample)} parts" if several else ""
        raise ValueError(
            f"sample {j} of {owner} is a {type(sample).__name__}{count}; make it a pair (x, y), or "
            "pass a loss of module and batch, OnBatch(f)."
        )
    what = f"parts of sample {j} of {owner}"
    return tuple(_numbers(what, part) for part in sample) if several else _numbers(what, sample)


def _numbers(what: str, part: Any) -> Any:
    """Return lists and tuples of numbers as tensors; dicts, and tuples of tensors, as they are."""
    _check_dense(what, part)
    if isinstance(part, Mapping):
        return {key: _numbers(what, each) for key, each in part.items()}
    if isinstance(part, tuple) and any(isinstance(p, Mapping) or _is_array(p) for p in part):
        return tuple(_numbers(what, each) for each in part)
    return as_tensor(what, part) if isinstance(part, list | tuple) else part


def is_pair(item: Any) -> bool:
    """Return whether this is (X, y); two tuples of two are two samples (x, y).

    If all four are tensors or arrays with the same number of rows, they are inputs and targets in
    two parts each.
    """
    if not isinstance(item, tuple | list) or len(item) != 2:
        return False
    # Two dicts in a list are two samples, in a tuple inputs and targets.
    if not all(isinstance(part, tuple) and len(part) == 2 for part in item):
        return not all(isinstance(part, Mapping) for part in item) or isinstance(item, tuple)
    inner = [each for part in item for each in part]
    rows = isinstance(item, tuple) and all(_is_array(each) for each in inner)
    return rows and len({_length(each) for each in inner}) == 1


# -- checks of what was read

_PIECE = 256  # Samples with a collate are checked for NaN in such batches, to bound memory.


def check_data(owner: str, data: Data) -> None:
    """Raise ValueError if there are no samples, NaN, or parts with different numbers of rows."""
    if data.samples is None:
        _check_rows(owner, data)
        _check_finite(owner, data, 0)
        return
    if not len(data):
        raise no_samples(owner)
    for start in range(0, len(data), _PIECE):
        _check_finite(owner, data.cut(start, start + _PIECE), start)


def _check_rows(owner: str, data: Data) -> None:
    inputs, targets = leaves(data.X), leaves(data.y)
    if not all(leaf.dim() for leaf in inputs):
        raise ValueError(f"{owner} has one number as its inputs; pass samples, one in each row.")
    if not len(data):
        raise no_samples(owner)
    counts = [len(leaf) for leaf in inputs]
    if len(set(counts)) > 1:
        raise ValueError(
            f"{owner} has {counts[0]} rows in one part of its inputs but "
            f"{next(count for count in counts if count != counts[0])} in another; pass a row for "
            "each sample in every part."
        )
    for y in targets:
        if y.dim() == 0 or y.shape[0] != counts[0]:
            raise ValueError(
                f"{owner} has {counts[0]} inputs but {y.shape[0] if y.dim() else 0} targets; "
                "pass as many of one as of the other."
            )


def _check_finite(owner: str, data: Data, first: int) -> None:
    for name, tree in (("inputs", data.X), ("targets", data.y)):
        for part in leaves(tree):
            if part.is_floating_point() and not bool(part.isfinite().all()):
                row = int((~part.isfinite().reshape(len(part), -1).all(1)).nonzero()[0])
                raise ValueError(
                    f"{owner} has NaN or infinity in its {name} (first in sample {first + row}); "
                    "drop or fill in such samples."
                )


def no_samples(owner: str) -> ValueError:
    """Return the error for data without samples."""
    return ValueError(f"{owner} has no samples; leave it out, or give it data.")
