"""Rows of each client that are held out of its training data: for validation, not for learning."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from trimtab.core.streams import SPLIT, stream
from trimtab.problems.supervised.reading import size
from trimtab.problems.supervised.samples import Data, check_dataset, columns, is_columns
from trimtab.problems.supervised.trees import leaves, map_tree

_ENOUGH = 5  # a client gives up rows if it has n_i >= 5


@dataclass(frozen=True, eq=False)
class Part:
    """One side of a split of every client: the rows to learn from, or those held out.

    A sequence as lazy as `whole`: a client is read when it is asked for. Which rows are held out
    depends on (seed, client) and on how many it has; the others stay in their order.
    """

    whole: Sequence[Any]
    fraction: float
    seed: int
    held: bool  # whether these are the rows held out
    loose: bool = False  # whether a client is a sequence of samples for a `collate`
    on_batch: bool = False  # whether samples may be anything, for a loss of module and batch

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, i: int) -> Any:
        item, who = self.whole[i], f"client {i}"
        if isinstance(item, TensorDataset) and len(item.tensors) == 2:
            item = item.tensors
        if isinstance(item, Data):
            return item.take(self._rows(i, len(item)).to(item.device))
        if self.loose or not is_columns(item, on_batch=self.on_batch):
            check_dataset(who, item)
            return Subset(item, self._rows(i, len(item)).tolist())
        whole = Data(*columns(who, item, on_batch=self.on_batch))
        sizes = {len(leaf) if leaf.dim() else 0 for leaf in leaves(whole.batch)}
        if len(sizes) > 1 or 0 in sizes:
            return whole.batch  # Whoever reads them says what is wrong.
        rows = self._rows(i, len(whole))
        return map_tree(lambda leaf: leaf[rows.to(leaf.device)], whole.batch)

    def size(self, i: int) -> int:
        """Return how many rows client i has on this side."""
        n = self.whole_size(i)
        out = held_out(n, self.fraction)
        return out if self.held else n - out

    def whole_size(self, i: int) -> int:
        """Return how many rows client i has on both sides."""
        return size(self.whole[i], loose=self.loose, on_batch=self.on_batch)

    def _rows(self, i: int, n: int) -> Tensor:
        order = torch.randperm(n, generator=stream(self.seed, SPLIT, i))
        out = held_out(n, self.fraction)
        return (order[:out] if self.held else order[out:]).sort().values


def held_out(n: int, fraction: float) -> int:
    """Return how many of n rows are held out: at least one of five or more, of fewer none.

    >>> [held_out(n, 0.1) for n in (1, 4, 5, 20, 100)]
    [0, 0, 1, 2, 10]
    """
    return min(n - 1, max(1, round(fraction * n))) if n >= _ENOUGH else 0


def check_fraction(fraction: float) -> None:
    """Refuse what is no part of a client's rows."""
    number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if not number or not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction!r} of each client's rows; pass one between 0 and 1.")
