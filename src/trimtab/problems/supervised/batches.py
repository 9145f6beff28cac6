"""Mini-batches: how large they are, and which samples make up the k-th one of a round."""

from array import array
from collections.abc import Sequence
from math import ceil
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trimtab.compute.kernel import Rows, rows_of
from trimtab.core.streams import BATCH, mix, stream
from trimtab.problems.supervised.samples import Data

Sampling = Literal["reshuffle", "iid"]
"""A fresh order at each pass, or independent draws with replacement."""


def batch_size(batch: int | float | None, n: int) -> int:
    """Return the size of a mini-batch of n samples.

    >>> batch_size(None, 15), batch_size(20, 15), batch_size(0.2, 15)
    (15, 15, 3)
    """
    if batch is None:
        return n
    if isinstance(batch, float):
        return max(1, ceil(batch * n - 1e-9))  # In floats, 0.2 * 15 is a little more than 3.
    return min(n, batch)


def check_batch(batch: int | float | None) -> None:
    """Refuse a batch that is neither a size nor a fraction."""
    if batch is None:
        return
    whole = isinstance(batch, int) and not isinstance(batch, bool) and batch >= 1
    if not whole and not (isinstance(batch, float) and 0 < batch <= 1):
        raise ValueError(
            f"batch={batch!r}; pass a number of samples, a fraction of the local data such as "
            "0.2, or None for all of it."
        )


class Batches:
    """The mini-batches of one client in one round, a function of (seed, i, r, k) alone."""

    def __init__(
        self,
        data: Data,
        batch: int | float | None,
        sampling: Sampling,
        key: tuple[int, int, int],
    ) -> None:
        self.data, self.sampling, self.key = data, sampling, key
        self.n, self.b = len(data), batch_size(batch, len(data))
        self.steps = ceil(self.n / self.b)  # mini-batches in one pass
        self.whole = batch is None or (sampling == "reshuffle" and self.b == self.n)
        self._pass, self._order = -1, tuple[Tensor, ...]()

    def rows(self, k: int) -> Tensor | None:
        """Return which samples make up mini-batch k; None for all of them."""
        if self.whole:
            return None
        device = self.data.device
        if self.sampling == "iid":
            return torch.randint(self.n, (self.b,), generator=self._stream(k)).to(device)
        number, step = divmod(k, self.steps)
        if number != self._pass:
            order = torch.randperm(self.n, generator=self._stream(number))
            self._pass, self._order = number, torch.split(order.to(device), self.b)
        return self._order[step]

    def __getitem__(self, k: int) -> Data:
        rows = self.rows(k)
        if rows is None:
            return self.data
        return self.data.take(rows)

    def _stream(self, number: int) -> torch.Generator:
        seed, i, r = self.key
        return stream(seed, BATCH, i, r, number)


def drawn(cut: Sequence[Batches], ks: Sequence[int | None]) -> Rows:
    """Return mini-batches ks of several clients for a kernel: the same samples as `Batches.rows`.

    The orders of all clients and passes lie one after the other in one tensor.
    """
    if all(batches.whole for batches in cut):
        sizes = array("l", [batches.n for batches in cut for _ in ks])
        return Rows(len(ks), array("Q", bytes(8 * len(sizes))), sizes)
    if any(batches.sampling == "iid" and not batches.whole for batches in cut):
        return rows_of(
            [[None if k is None else batches.rows(k) for k in ks] for batches in cut],
            [batches.n for batches in cut],
        )
    found: dict[tuple[int, int], _Layout] = {}  # by n and b: many clients have the same
    layouts = [
        found.get((each.n, each.b)) or found.setdefault((each.n, each.b), _layout(each, ks))
        for each in cut
    ]
    orders = torch.empty(
        sum(len(layout.passes) * each.n for each, layout in zip(cut, layouts, strict=True)),
        dtype=torch.int64,
    )
    places, sizes, draw, start = array("Q"), array("l"), torch.Generator(), 0
    for each, layout in zip(cut, layouts, strict=True):
        at, (seed, i, r) = orders.data_ptr() + 8 * start, each.key
        places.extend([0 if offset is None else at + offset for offset in layout.offsets])
        sizes.extend(layout.sizes)
        for number in layout.passes:
            draw.manual_seed(mix(seed, BATCH, i, r, number))
            torch.randperm(each.n, generator=draw, out=orders[start : start + each.n])
            start += each.n
    return Rows(len(ks), places, sizes, orders)


class _Layout(NamedTuple):
    """Where mini-batches lie in the orders of a client's passes."""

    passes: list[int]  # the numbers of those that are needed
    offsets: list[int | None]  # of each mini-batch, in bytes; None: it is all samples
    sizes: list[int]


def _layout(batches: Batches, ks: Sequence[int | None]) -> _Layout:
    n, b = batches.n, batches.b
    if batches.whole:
        return _Layout([], [None] * len(ks), [n] * len(ks))
    cut = [None if k is None else divmod(k, batches.steps) for k in ks]
    places = {part[0]: 0 for part in cut if part is not None}
    places = {number: 8 * n * place for place, number in enumerate(places)}
    offsets = [None if part is None else places[part[0]] + 8 * b * part[1] for part in cut]
    return _Layout(
        list(places), offsets, [n if part is None else min(b, n - b * part[1]) for part in cut]
    )
