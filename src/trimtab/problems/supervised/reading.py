"""How the data of clients are read: as columns with a row for each sample, or sample by sample."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from trimtab._importing import told
from trimtab.problems.supervised.flat import leaves, map_tree
from trimtab.problems.supervised.samples import (
    Data,
    columns,
    is_columns,
    rows_of,
    samples_of,
    stacked,
)

Collate = Callable[[list[Any]], Any]
"""What makes a batch of a list of samples: (X, y), or for OnBatch anything."""


@dataclass(frozen=True)
class Reader:
    """What data become: floating-point numbers of one dtype, on one device."""

    dtype: torch.dtype
    device: torch.device
    collate: Collate | None = None
    on_batch: bool = False  # whether the loss takes module and batch, so that samples may be any

    def read(self, who: str, item: Any) -> Data:
        """Return a pair (X, y), or a map-style Dataset of such pairs, as tensors."""
        if isinstance(item, Data):
            return item
        if self.collate is not None:
            return Data(who=who, samples=tuple(samples_of(who, item)), collate=self.collated)
        if not is_columns(item, on_batch=self.on_batch):
            item = stacked(who, item, on_batch=self.on_batch)
        return self.data(who, item)

    def data(self, who: str, item: Any) -> Data:
        """Return columns as tensors of this dtype, on this device."""
        X, y = columns(who, item, on_batch=self.on_batch)
        if y is None:
            return Data(map_tree(self._whole_numbers, X), None, who)
        return Data(map_tree(self._input, X), map_tree(self._target, y), who)

    def collated(self, who: str, samples: Sequence[Any]) -> Data:
        """Return the batch that a user's `collate` makes of samples; refuse one that is none."""
        assert self.collate is not None
        state = torch.get_rng_state()
        try:
            batch = self.collate(list(samples))
        except Exception as error:
            raise ValueError(
                f"collate fails on samples of {who} ({told(error)}); mend it."
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
        data = self.data(who, tuple(batch) if isinstance(batch, list) else batch)
        counts = [len(leaf) if leaf.dim() else 0 for leaf in leaves(data.batch)]
        n = len(samples)
        if not counts or (n not in counts if self.on_batch else any(c != n for c in counts)):
            made = next((count for count in counts if count != n), 0)
            raise ValueError(
                f"collate made {made} rows of {n} samples of {who}; return a row for each sample, "
                "and leave samples out before you pass the data."
            )
        return data

    def size(self, item: Any) -> int:
        """Return how many samples there are, without reading them."""
        return size(item, loose=self.collate is not None, on_batch=self.on_batch)

    def _input(self, t: Tensor) -> Tensor:
        t = t.to(self.dtype) if t.is_floating_point() else t
        return t.to(self.device).contiguous()

    def _target(self, t: Tensor) -> Tensor:
        return self._input(t if t.is_floating_point() else t.long())

    def _whole_numbers(self, t: Tensor) -> Tensor:
        """Return whole numbers as int64, which both embeddings and losses take."""
        return self._input(t.long() if t.dtype in (torch.int32, torch.int16, torch.int8) else t)


def size(item: Any, *, loose: bool = False, on_batch: bool = False) -> int:
    """Return how many samples a pair or a Dataset has, without reading them."""
    if isinstance(item, TensorDataset | Data) or loose:
        return len(item)
    return rows_of(item) if is_columns(item, on_batch=on_batch) else len(item)
