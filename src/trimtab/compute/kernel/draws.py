"""Draw the mini-batches of several clients in one call, bit for bit as PyTorch does."""

import ctypes
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import eq
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from trimtab.compute.kernel import library
from trimtab.compute.kernel.program import DrawsStruct
from trimtab.core.streams import mix

# PyTorch draws permutations of 2^32 / 20 or more samples by another method; 2^27 is below that.
_MAX_SAMPLES = 1 << 27
# A search runs many candidates on the same mini-batches. 32 MiB hold 4 million row numbers.
_CACHE_BYTES = 1 << 25
_UINT64_MASK = (1 << 64) - 1
# (n, seed) of the self-check: the generator makes 624 numbers at a time, and at 2^15 and 2^16 an
# integer type that is too narrow would overflow.
_CHECKED_CASES = (
    *((n, seed) for n in (1, 2, 3, 50, 300, 624, 625, 1249) for seed in (0, -1, 1 << 40)),
    *((32_769, 1), (65_537, 2)),
)


@dataclass(frozen=True)
class DrawnBatches:
    """The rows of the mini-batches of several clients, in the layout of the kernels."""

    memory: Tensor  # addresses of mini-batches, then their sizes, then row numbers
    clients: int
    batches: int
    samples_per_batch: Sequence[int]  # summed over clients, by mini-batch

    def __len__(self) -> int:
        return self.clients

    @property
    def nbytes(self) -> int:
        """The size of the memory."""
        return self.memory.nbytes

    @property
    def addresses(self) -> tuple[int, int]:
        """The addresses of `rows` and `sizes`."""
        start = self.memory.data_ptr()
        return start, start + self.memory.element_size() * self.clients * self.batches

    @property
    def rows(self) -> Tensor:
        """The addresses of mini-batches, (clients, batches); 0 for all samples in order."""
        return self.memory[: self.clients * self.batches].view(self.clients, self.batches)

    @property
    def sizes(self) -> Tensor:
        """The numbers of samples, (clients, batches)."""
        cells = self.clients * self.batches
        return self.memory[cells : 2 * cells].view(self.clients, self.batches)

    def of(self, client: int, batch: int) -> Tensor | None:
        """Return the row numbers of one mini-batch; None for all samples in order."""
        address, size = int(self.rows[client, batch]), int(self.sizes[client, batch])
        start = (address - self.memory.data_ptr()) // self.memory.element_size()
        return self.memory[start : start + size] if address else None


class _BatchCache:
    """The mini-batches of the last calls, up to max_bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.nbytes = max_bytes, 0
        self._batches: OrderedDict[Any, DrawnBatches] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Any) -> DrawnBatches | None:
        with self._lock:
            found = self._batches.get(key)
            if found is not None:
                self._batches.move_to_end(key)
            return found

    def keep(self, key: Any, drawn: DrawnBatches) -> None:
        """Add mini-batches, and drop the oldest ones beyond max_bytes."""
        with self._lock:
            if key in self._batches:  # Another thread was faster.
                return
            self._batches[key] = drawn
            self.nbytes += drawn.nbytes
            while self.nbytes > self.max_bytes:
                _, oldest = self._batches.popitem(last=False)
                self.nbytes -= oldest.nbytes


_CACHE = _BatchCache(_CACHE_BYTES)


class BatchPlan:
    """The mini-batches of several clients; `drawn` draws those of a round.

    clients: their numbers, which are part of the seed.
    lengths: the number of samples of each client.
    sizes: the mini-batch size of each client.
    batches: the numbers k; None for all samples.
    independent: draw each sample independently, seeded by k; else each pass over the data has an
        order, seeded by the number of the pass.
    check: whether the kernel is first compared with PyTorch.
    """

    def __init__(
        self,
        clients: Sequence[int],
        lengths: Sequence[int],
        sizes: Sequence[int],
        batches: Sequence[int | None],
        independent: bool,
        check: bool = True,
    ) -> None:
        numbers = [-1 if k is None else k for k in batches]
        self._numbers = array("l", (*clients, *lengths, *sizes, *numbers))
        self._counts = len(clients), len(batches)
        self._independent = independent
        self._key = self._numbers.tobytes(), self._counts, independent
        # To the kernel, k < 0 means all samples.
        below = any(k is not None and k < 0 for k in batches)
        right = draws_work() if check else True
        self.works = right and max(lengths) <= _MAX_SAMPLES and not below
        self._max_numbers: int = self._call("numbers_to_draw", (0, 0, 0)) if self.works else 0
        self._samples_per_batch: list[int] | None = None
        whole = not independent and all(map(eq, lengths, sizes))
        self._is_drawn = not whole and any(k is not None for k in batches)
        self._fixed: DrawnBatches | None = None  # for all rounds, if nothing is random

    def drawn(self, key: tuple[int, int, int]) -> DrawnBatches:
        """Return the mini-batches of a round, from the cache if possible.

        key: the seed, the purpose of the random numbers, and the round.
        """
        if not self._is_drawn:
            self._fixed = self._fixed or self.draw(key)
            return self._fixed
        found = _CACHE.get((key, self._key))
        if found is None:
            found = self.draw(key)
            _CACHE.keep((key, self._key), found)
        return found

    def draw(self, key: tuple[int, int, int]) -> DrawnBatches:
        """Draw the mini-batches of a round."""
        clients, batches = self._counts
        cells = clients * batches
        memory = torch.empty(2 * cells + self._max_numbers, dtype=torch.int64)
        start, word = memory.data_ptr(), memory.element_size()
        self._call("draw", key, start + 2 * cells * word, start, start + cells * word)
        if self._samples_per_batch is None:  # equal in all rounds
            self._samples_per_batch = (
                memory[cells : 2 * cells].view(clients, batches).sum(0).tolist()
            )
        return DrawnBatches(memory, clients, batches, self._samples_per_batch)

    def _call(self, function: str, key: tuple[int, int, int], *places: int) -> Any:
        seed, use, r = (number & _UINT64_MASK for number in key)
        start, step = self._numbers.buffer_info()[0], self._numbers.itemsize * self._counts[0]
        told = (start, start + step, start + 2 * step, start + 3 * step)
        draws = DrawsStruct(seed, use, r, self._independent, *self._counts, *told)
        return library.common(function)(ctypes.byref(draws), *places)


@cache
def draws_work() -> bool:
    """Return whether there is a kernel that draws the same numbers as PyTorch."""
    return library.simd_level() is not None and all(
        _matches_torch(n, seed) for n, seed in _CHECKED_CASES
    )


def _matches_torch(n: int, seed: int) -> bool:
    """Return whether orders and independent draws equal PyTorch's."""
    client, use, r, size = 2, 5, 3, max(1, n // 2)
    steps = -(-n // size)
    batches = list(range(2 * steps))
    orders, samples = (
        BatchPlan([client], [n], [size], batches, independent, check=False).draw((seed, use, r))
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
