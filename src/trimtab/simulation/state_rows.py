"""Rows of memory, and of a temporary file, that hold states of one form."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from tempfile import TemporaryFile, gettempdir
from threading import Lock
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from trimtab.core import State, leaves, map_leaves, nbytes

# Every tensor begins at a multiple of 64 bytes: the cache line of x86 and most ARM processors, and
# the width of AVX-512 loads, which then never cross a line.
_CACHE_LINE = 64
# A block of rows has at most 64 MB and 512 rows: enough that blocks are few, and little enough that
# a simulation with few or small states does not reserve memory that it never uses.
_BLOCK_BYTES = 1 << 26
_BLOCK_ROWS = 512


@dataclass(frozen=True, slots=True)
class DiskRow:
    """The place of a state on disk."""

    file: "DiskRows"
    number: int
    in_memory = 0  # bytes

    def read(self) -> State:
        """Return a copy of the state."""
        return self.file.get(self.number)

    def free(self) -> None:
        """Make the row available for another state."""
        self.file.spare.append(self.number)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryRow:
    """The place of a state in memory."""

    rows: "MemoryRows"
    state: State
    in_memory: int
    at: tuple[int, ...]  # the addresses of its tensors

    def read(self) -> State:
        """Return the state itself, not a copy."""
        return self.state

    def free(self) -> None:
        """Make the row available for another state."""
        self.rows.spare.append(self)


Place = DiskRow | MemoryRow


class MemoryRows:
    """Rows of memory for states of one form; free rows are reused.

    They are allocated in blocks. One by one they would lie between the temporary vectors of a
    round, and the heap would grow to several times their size.
    """

    def __init__(self, state: State) -> None:
        self.like, self.size = _like(state), nbytes(state)
        self.spare: list[MemoryRow] = []
        self._rows: Iterator[State] = iter(())

    def take(self, count: int) -> list[MemoryRow]:
        """Return free rows, new ones where too few are spare."""
        kept = max(0, len(self.spare) - count)
        taken, self.spare[kept:] = self.spare[kept:], []
        return taken + [self._new() for _ in range(count - len(taken))]

    def _new(self) -> MemoryRow:
        state = next(self._rows, None)
        if state is None:
            self._rows = self._block()
            state = next(self._rows)
        return MemoryRow(self, state, self.size, tuple(leaf.data_ptr() for leaf in leaves(state)))

    def _block(self) -> Iterator[State]:
        """Allocate a block and return its rows, which are cut on demand."""
        if any(leaf.device.type != "cpu" for leaf in leaves(self.like)):
            return iter([map_leaves(lambda leaf: leaf.new_empty(leaf.shape), self.like)])
        size = _row_bytes(self.like)
        rows = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, size)))
        block = torch.empty(rows, size, dtype=torch.uint8)
        return (_cut(block[row], self.like) for row in range(rows))


class DiskRows:
    """Rows of a temporary file for states of one form; free rows are reused.

    The file is read and written, not mapped: the pages of a mapping count as memory of the process,
    and a full disk would kill it.
    """

    def __init__(self, state: State) -> None:
        self.like, self.row = _like(state), _row_bytes(state)
        self.rows = 0
        self.spare: list[int] = []
        self._file: Any = TemporaryFile(prefix="trimtab-states-", buffering=0)  # noqa: SIM115
        self._lock = Lock()  # Threads share the position in the file.
        finalize(self, self._file.close)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._file.fileno()).st_size

    def put(self, state: State) -> DiskRow:
        """Write a state and return its place."""
        data = torch.empty(self.row, dtype=torch.uint8)
        map_leaves(Tensor.copy_, _cut(data, self.like), state)
        number = self.spare[-1] if self.spare else self.rows
        try:
            self._transfer(self._file.write, number, data)
        except OSError as error:
            raise OSError(
                f"{gettempdir()} cannot take more client states ({error.strerror}); free space "
                "there, set TMPDIR to a folder on another disk, or pass a larger memory."
            ) from error
        if self.spare:
            self.spare.pop()
        else:
            self.rows += 1
        return DiskRow(self, number)

    def get(self, number: int) -> State:
        """Read the state in a row."""
        data = torch.empty(self.row, dtype=torch.uint8)
        self._transfer(self._file.readinto, number, data)
        return map_leaves(lambda part, leaf: part.to(leaf.device), _cut(data, self.like), self.like)

    def _transfer(self, some: Callable[[memoryview], int], number: int, data: Tensor) -> None:
        """Read or write a row. The operating system may transfer only a part of it per call."""
        rest = data.numpy().data
        with self._lock:
            self._file.seek(number * self.row)
            while rest:
                count = some(rest)
                if not count:
                    raise OSError("the temporary file of client states has been cut off.")
                rest = rest[count:]


def form_of(state: State) -> Any:
    """Return a key that is equal for states that fit the same rows."""
    if isinstance(state, Tensor):
        return state.shape, state.dtype, state.device
    if isinstance(state, tuple):
        return (type(state), *map(form_of, state))
    return state


def _like(state: State) -> State:
    """Return a state of the same form that takes no memory."""
    return map_leaves(lambda leaf: leaf.new_zeros(()).expand(leaf.shape), state)


def _row_bytes(like: State) -> int:
    return sum(_padded(leaf) for leaf in leaves(like))


def _padded(leaf: Tensor) -> int:
    return -(-leaf.numel() * leaf.element_size() // _CACHE_LINE) * _CACHE_LINE


def _cut(row: Tensor, like: State) -> State:
    """Return a row of bytes as a state whose tensors are views of it."""
    start = 0

    def part(leaf: Tensor) -> Tensor:
        nonlocal start
        data = row[start : start + leaf.numel() * leaf.element_size()]
        start += _padded(leaf)
        return data.view(leaf.dtype).view(leaf.shape)

    return map_leaves(part, like)
