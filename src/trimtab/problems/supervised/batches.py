"""Mini-batches: how large they are, and which samples make up the k-th one of a round."""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from trimtab.compute import kernel
from trimtab.core.streams import BATCH, stream
from trimtab.errors import BadArgument
from trimtab.problems.supervised.data import Data

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
    """Raise ValueError unless this is a size, a fraction or None."""
    if batch is None:
        return
    whole = isinstance(batch, int) and not isinstance(batch, bool) and batch >= 1
    if not whole and not (isinstance(batch, float) and 0 < batch <= 1):
        raise BadArgument(
            "batch",
            "{batch:{_given}}; pass a number of samples, or a fraction of the local data such as "
            "0.2; without {batch}, a step uses all of it.",
            _given=repr(batch),
        )


def drawn(
    clients: Sequence[int],
    samples: kernel.ClientSamples,
    batch: int | float | None,
    sampling: Sampling,
    seed: int,
    r: int,
    numbers: Sequence[int | None],
) -> kernel.DrawnBatches | None:
    """Return the samples of mini-batches k of clients in round r, drawn by the kernel in one call.

    They are those that `Batches` draws one by one. None if the kernel cannot draw them.
    """
    # The sizes do not change from round to round, so that plans are cached with the samples.
    how = batch, sampling, tuple(numbers)
    if how not in samples.plans:
        sizes = [batch_size(batch, n) for n in samples.lengths]
        independent = sampling == "iid" and batch is not None
        samples.plans[how] = kernel.BatchPlan(clients, samples.lengths, sizes, numbers, independent)
    plan: kernel.BatchPlan = samples.plans[how]
    return plan.drawn((seed, BATCH, r)) if plan.works else None


def one_pass(data: Data, batch: int | float | None, least: int = 1) -> Iterator[Data]:
    """Yield all samples in mini-batches, always the same ones.

    least: the fewest samples of a mini-batch; fewer go into the one before.
    """
    n = len(data)
    b = batch_size(batch, n)
    if n < least:
        yield data.take(torch.zeros(least, dtype=torch.long, device=data.device))
        return
    if b >= n:
        yield data
        return
    # Samples may be sorted by their labels, so they are not taken in their order.
    order = torch.randperm(n, generator=stream(0, BATCH, n)).to(data.device)
    parts = list(torch.split(order, b))
    if len(parts[-1]) < least:
        parts[-2:] = [torch.cat(parts[-2:])]
    for rows in parts:
        yield data.take(rows)


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
        """Return the numbers of the samples in mini-batch k; None for all samples."""
        if self.whole:
            return None
        device = self.data.device
        if self.sampling == "iid":
            return torch.randint(self.n, (self.b,), generator=self._stream(k)).to(device)
        number, step = divmod(k, self.steps)
        # Steps are taken in order, so that one permutation at a time is enough.
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
