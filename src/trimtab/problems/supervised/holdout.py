"""Rows of each client that are held out of its training data: for validation, not for learning."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from trimtab.core.streams import SPLIT, stream
from trimtab.problems.supervised.samples import as_tensor, check_dataset, is_pair, size

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

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, i: int) -> Any:
        item, who = self.whole[i], f"client {i}"
        if isinstance(item, TensorDataset) and len(item.tensors) == 2:
            item = item.tensors
        if not is_pair(item):
            check_dataset(who, item)
            return Subset(item, self._rows(i, len(item)).tolist())
        X = as_tensor(f"the inputs of {who}", item[0])
        y = as_tensor(f"the targets of {who}", item[1])
        if not X.dim() or not y.dim() or len(X) != len(y):
            return X, y  # Whoever reads them says what is wrong.
        rows = self._rows(i, len(y)).to(X.device)
        return X[rows], y[rows.to(y.device)]

    def size(self, i: int) -> int:
        """Return how many rows client i has on this side."""
        n = size(self.whole[i])
        out = held_out(n, self.fraction)
        return out if self.held else n - out

    def whole_size(self, i: int) -> int:
        """Return how many rows client i has on both sides."""
        return size(self.whole[i])

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
