"""Samples as tensors with a row per sample, or as a list for a collate; what clients share."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from trimtab.compute.kernel import Layers, Samples
from trimtab.problems.supervised.flat import Tree, describe, form, join, leaves, map_tree
from trimtab.problems.supervised.losses import Loss, loss_kind

WHOLE_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Data:
    """Inputs and targets: tensors, or tuples and dicts of them, with a row for each sample.

    X, y: trees of tensors; y is None if samples are not pairs, for a loss of module and batch.
    owner: "client 3" or "the test set", for errors.
    samples, collate: samples without a common shape, such as sentences, and the function that
        makes X and y of those in a mini-batch, each time.
    """

    def __init__(
        self,
        X: Tree = None,
        y: Tree = None,
        owner: str = "the data",
        *,
        samples: Sequence[Any] | None = None,
        collate: Callable[[str, Sequence[Any]], "Data"] | None = None,
    ) -> None:
        self.owner = owner
        self.samples, self._collate = samples, collate
        if samples is None:
            self.X, self.y = X, y

    @cached_property
    def X(self) -> Tree:
        """The inputs; those of samples are collated into one batch."""
        return self._collated.X

    @cached_property
    def y(self) -> Tree:
        """The targets; those of samples are collated into one batch."""
        return self._collated.y

    @cached_property
    def _collated(self) -> "Data":
        assert self._collate is not None
        assert self.samples is not None
        return self._collate(self.owner, self.samples)

    def __len__(self) -> int:
        if self.samples is not None:
            return len(self.samples)
        return self.X.shape[0] if isinstance(self.X, Tensor) else len(leaves(self.batch)[0])

    @cached_property
    def labelled(self) -> bool:
        """Whether y has one label per sample, none of them negative, as ignored labels are."""
        if not self.plain:
            return False
        # A negative label is ignored by the loss, which the kernel does not know.
        one = self.y.dim() == 1 and not self.y.is_floating_point()
        return one and int(self.y.min()) >= 0

    def fits_kernel(self, layers: Layers) -> bool:
        """Return whether inputs and targets have the dtypes and shapes that the kernel takes."""
        if not self.plain:
            return False
        X, y = self.X, self.y
        if not X.is_floating_point() or not (X.dim() == 2 or (layers.flattens and X.dim() > 2)):
            return False
        if layers.loss == "cross_entropy":
            return self.labelled
        return bool(y.dtype == X.dtype and y.dim() == (1 if layers.single else 2))

    def for_kernel(self, layers: Layers, dtype: torch.dtype) -> Samples | None:
        """Return the samples as the kernel reads them; None if it cannot."""
        # Only the last entry is cached: a problem has one module and one dtype.
        kept: tuple[Any, ...] | None = self.__dict__.get("_for_kernel")
        if kept is not None and kept[0] is layers and kept[1] == dtype:
            samples: Samples = kept[2]
            if samples.is_unchanged(self.X, self.y):
                return samples
        if not self.fits_kernel(layers):
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
        """(X, y), or X if there are no targets."""
        return self.X if self.y is None else (self.X, self.y)

    @property
    def device(self) -> torch.device:
        """The device on which `take` expects the numbers of rows."""
        return torch.device("cpu") if self.samples is not None else leaves(self.X)[0].device

    @property
    def row_bytes(self) -> int:
        """The bytes of the inputs of one sample; with a collate, of the first one."""
        X = self.X if self.samples is None else self.cut(0, 1).X
        return sum(leaf[0].numel() * leaf.element_size() for leaf in leaves(X))

    @property
    def form(self) -> Any:
        """The structure and the shape of one input, which all clients must have in common."""
        # With a collate shapes may differ, as sentences have different lengths.
        if self.samples is not None:
            return form(self.cut(0, 1).batch)
        return form(self.batch), [leaf.shape[1:] for leaf in leaves(self.X)]

    @property
    def kind(self) -> Any:
        """All that a check on a few samples depends on but values; None with a collate."""
        if self.samples is not None:
            return None
        if self.plain:
            X, y = self.X, self.y
            return len(X) > 1, X.shape[1:], X.dtype, y.shape[1:], y.dtype
        each = [(leaf.shape[1:], leaf.dtype) for leaf in leaves(self.batch)]
        return len(self) > 1, form(self.batch), *each

    def take(self, rows: Tensor) -> "Data":
        """Return the samples with these numbers."""
        if self.samples is not None:
            return self._of([self.samples[j] for j in rows.tolist()], self.owner)
        # For mini-batches, index_select is about five times as fast as X[rows].
        return self._each(lambda leaf: leaf.index_select(0, rows))

    def cut(self, start: int, end: int) -> "Data":
        """Return the samples from number `start` to number `end`, without the last."""
        if self.samples is not None:
            return self._of(self.samples[start:end], self.owner)
        return self._each(lambda leaf: leaf[start:end])

    def joined(self, others: Sequence["Data"], owner: str) -> "Data":
        """Return these samples followed by others."""
        both = [self, *others]
        if self.samples is not None:
            return self._of([sample for data in both for sample in data.samples or ()], owner)
        return Data(join([data.X for data in both]), join([data.y for data in both]), owner)

    def copy(self) -> "Data":
        """Return the same samples in new tensors; those of a collate as a new batch."""
        if self.samples is not None:
            return self._of(self.samples, self.owner)._collated
        return self._each(torch.clone)

    def _of(self, samples: Sequence[Any], owner: str) -> "Data":
        return Data(owner=owner, samples=samples, collate=self._collate)

    def _each(self, f: Any) -> "Data":
        # Every mini-batch passes here; the usual case needs no traversal of a tree.
        if self.plain:
            return Data(f(self.X), f(self.y), self.owner)
        return Data(map_tree(f, self.X), map_tree(f, self.y), self.owner)


class FirstBatch:
    """The structure of the first data that were read, which all others must have."""

    def __init__(self) -> None:
        self._first: tuple[Any, Data] | None = None  # the form of samples, and one of them

    def check(self, owner: str, data: Data) -> None:
        """Raise ValueError if the data have another structure."""
        if self._first is None or data.form == self._first[0]:
            return
        first = self._first[1]
        own, others = (describe(each.cut(0, 1).X) for each in (data, first))
        if own == others:
            raise ValueError(
                f"{owner} has samples {describe(data.cut(0, 1).batch)}, others "
                f"{describe(first.batch)}; give all clients samples of the same parts."
            )
        raise ValueError(
            f"{owner} has inputs of shape {own}, others of {others}; give all clients the same "
            "features."
        )

    def keep(self, data: Data) -> None:
        """Keep the structure of the first data that passed all checks."""
        self._first = self._first or (data.form, data.cut(0, 1).copy())


class PassedValues:
    """The whole numbers that data of one kind may hold, as far as checks on few samples have shown.

    loss, output: of data that passed.
    before: the same of other data of this kind; None for none.
    """

    def __init__(self, loss: Loss, output: Any, data: Data, before: "PassedValues | None") -> None:
        self.loss, self._ranges = loss, _ranges(data)
        if before is not None and before.loss is loss:
            pairs = zip(self._ranges, before._ranges, strict=True)
            self._ranges = [(min(a, c), max(b, d)) for (a, b), (c, d) in pairs]
        known = loss_kind(loss)
        labels = known is not None and known.takes_labels and not data.y.is_floating_point()
        if labels and output.dim() >= 2:
            self._ranges[-1] = 0, output.shape[1] - 1

    def allow(self, data: Data) -> bool:
        """Return whether inputs and labels are in these ranges."""
        pairs = zip(_ranges(data), self._ranges, strict=True)
        return all(low <= a and b <= high for (a, b), (low, high) in pairs)


def _ranges(data: Data) -> list[tuple[int, int]]:
    """Return the least and the largest number of each tensor of whole numbers; labels are last."""
    whole = [leaf for leaf in leaves(data.batch) if leaf.dtype in WHOLE_NUMBERS and leaf.numel()]
    return [(int(low), int(high)) for low, high in map(torch.aminmax, whole)]
