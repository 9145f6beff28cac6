"""Mini-batches of several clients in one call, with the bits that PyTorch draws."""

import ctypes
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from trimtab.compute.kernel import library
from trimtab.compute.kernel.errors import BadDataError
from trimtab.compute.kernel.program import Draws, longs
from trimtab.core.streams import mix

_MOST = 1 << 27  # of <= 2^27 samples; PyTorch draws orders of >= 2^32 / 20 otherwise
_KEPT = 1 << 25  # <= 32 MB of mini-batches are kept
_WORD = (1 << 64) - 1
# The generator makes 624 numbers at a time; at 2^15 and 2^16 a narrower type would end.
_TRIED = (*((n, seed) for n in (1, 2, 3, 50, 300, 624, 625, 1249) for seed in (0, -1, 1 << 40)),
          (32_769, 1), (65_537, 2))  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """Which samples make up the mini-batches of some clients, as kernels read them."""

    memory: Tensor  # the samples' numbers
    rows: Tensor  # (clients, batches): addresses in it; 0 for all samples in their order
    sizes: Tensor  # (clients, batches)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return self.memory.nbytes + self.rows.nbytes + self.sizes.nbytes

    def check(self, clients: int) -> None:
        """Refuse mini-batches of other clients, and empty ones."""
        if len(self) != clients:
            raise ValueError(f"a kernel takes mini-batches for {clients} clients, not {len(self)}.")
        if self.sizes.numel() and int(self.sizes.min()) < 1:
            place = int((self.sizes < 1).any(1).nonzero()[0])
            raise BadDataError(place, "no samples for a mini-batch")

    def of(self, client: int, batch: int) -> Tensor | None:
        """Return the samples of one mini-batch, by their places; None for all of them."""
        address, size = int(self.rows[client, batch]), int(self.sizes[client, batch])
        start = (address - self.memory.data_ptr()) // 8
        return self.memory[start : start + size] if address else None


class _Kept:
    """The last mini-batches: a search runs many candidates on the same ones."""

    def __init__(self, most: int) -> None:
        self.most, self.nbytes = most, 0
        self._drawn: OrderedDict[Any, Drawn] = OrderedDict()
        self._lock = Lock()

    def get(self, what: Any) -> Drawn | None:
        with self._lock:
            found = self._drawn.get(what)
            if found is not None:
                self._drawn.move_to_end(what)
            return found

    def keep(self, what: Any, drawn: Drawn) -> None:
        """Keep these, and drop the oldest while all together are too large."""
        with self._lock:
            if what in self._drawn:  # Another thread has drawn the same.
                return
            self._drawn[what] = drawn
            self.nbytes += drawn.nbytes
            while self.nbytes > self.most:
                _, oldest = self._drawn.popitem(last=False)
                self.nbytes -= oldest.nbytes


_DRAWN = _Kept(_KEPT)


def draw(
    key: tuple[int, int, int],
    clients: Sequence[int],
    lengths: Sequence[int],
    sizes: Sequence[int],
    batches: Sequence[int | None],
    independent: bool,
) -> Drawn | None:
    """Return mini-batches k of some clients; None where a kernel cannot draw them.

    key: the seed, what the numbers are for, and the round. Client i has lengths[i] samples and
    sizes[i] of them in a mini-batch. independent: each sample is drawn by itself, seeded by k; else
    the samples have an order in each pass, seeded by its number. None among the batches stands for
    all samples.
    """
    if not batches:
        none = torch.empty((len(clients), 0), dtype=torch.int64)
        return Drawn(none, none, none)
    below = any(k is not None and k < 0 for k in batches)  # which is "all of them" to the kernel
    if not draws_work() or max(lengths) > _MOST or below:
        return None
    what = (key, *map(tuple, (clients, lengths, sizes, batches)), independent)
    found = _DRAWN.get(what)
    if found is None:
        found = _drawn(key, clients, lengths, sizes, batches, independent)
        _DRAWN.keep(what, found)
    return found


def _drawn(
    key: tuple[int, int, int],
    clients: Sequence[int],
    lengths: Sequence[int],
    sizes: Sequence[int],
    batches: Sequence[int | None],
    independent: bool,
) -> Drawn:
    seed, use, r = (number & _WORD for number in key)
    numbers = longs(-1 if k is None else k for k in batches)
    arrays: list[array[Any]] = [array("q", clients), longs(lengths), longs(sizes), numbers]
    places = (part.buffer_info()[0] for part in arrays)
    draws = Draws(seed, use, r, independent, len(clients), len(batches), *places)
    count = library.common("numbers_to_draw")(ctypes.byref(draws))
    shape = len(clients), len(batches)
    drawn = Drawn(*(torch.empty(size, dtype=torch.int64) for size in (count, shape, shape)))
    tensors = drawn.memory, drawn.rows, drawn.sizes
    library.common("draw")(ctypes.byref(draws), *(tensor.data_ptr() for tensor in tensors))
    return drawn


@cache
def draws_work() -> bool:
    """Tell whether there are kernels, and what they draw are the numbers that PyTorch draws."""
    return library.level() is not None and all(_is_right(n, seed) for n, seed in _TRIED)


def _is_right(n: int, seed: int) -> bool:
    """Compare orders and independent draws with PyTorch's."""
    client, use, r, size = 2, 5, 3, max(1, n // 2)
    steps = -(-n // size)
    batches = list(range(2 * steps))
    orders, samples = (
        _drawn((seed, use, r), [client], [n], [size], batches, independent)
        for independent in (False, True)
    )
    generator, order = torch.Generator(), tuple[Tensor, ...]()
    for k in batches:
        if k % steps == 0:
            generator.manual_seed(mix(seed, use, client, r, k // steps))
            order = torch.split(torch.randperm(n, generator=generator), size)
        generator.manual_seed(mix(seed, use, client, r, k))
        sample = torch.randint(n, (size,), generator=generator)
        pairs = [(samples.of(0, k), sample), (orders.of(0, k), order[k % steps])]
        for found, expected in pairs[: 1 if size == n else 2]:
            if found is None or not torch.equal(found, expected):
                return False
    return True
