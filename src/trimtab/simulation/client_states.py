"""The states of the clients seen so far: in memory up to a limit, beyond it in a temporary file."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from threading import Lock
from typing import Any, Protocol
from weakref import finalize

import torch
from torch import Tensor

from trimtab.core import State, leaves, map_leaves, nbytes
from trimtab.simulation.tensor_file import reading

_LINE = 64  # bytes; every tensor of a row begins at a multiple
_SLAB = 1 << 26  # bytes that are taken from the system at once,
_ROWS = 512  # for so many states at most


class StateStore(Protocol):
    """Where a simulation keeps the states of its clients, in this process or elsewhere."""

    def __setitem__(self, client: int, state: State) -> None: ...
    def __getitem__(self, client: int) -> State: ...
    def __contains__(self, client: int) -> bool: ...
    def __iter__(self) -> Iterator[int]: ...
    def __len__(self) -> int: ...

    @property
    def in_memory(self) -> int:
        """How many bytes they take in memory."""
        ...

    @property
    def on_disk(self) -> int:
        """How many bytes they take in temporary files."""
        ...

    def items(self) -> Iterator[tuple[int, State]]:
        """Go through the clients seen and their states, in the order of their numbers."""
        ...

    def stage(self, client: int, state: State) -> None:
        """Keep a state that counts once it is committed."""
        ...

    def rooms(self, like: State, count: int) -> list[State]:
        """Return memory for new states that are to be staged; as many as there is room for."""
        ...

    def latest(self, client: int) -> State | None:
        """Return the staged state, else the one that counts, else None."""
        ...

    def commit(self, clients: Iterable[int]) -> None:
        """Let the staged states of these clients count; forget others."""
        ...

    def discard(self) -> None:
        """Forget the staged states."""
        ...

    def keep(self, checkpoint: Path, r: int) -> dict[str, Any]:
        """Keep the states after round r where a checkpoint will find them, and return where.

        An empty answer: nowhere but here, so that the checkpoint has to hold them.
        """
        ...

    def restore(self, kept: dict[str, Any], like: State, r: int) -> None:
        """Take up the states that `keep` has kept, in the form of another state."""
        ...


class ClientStates:
    """A mapping from client to state that holds `limit` bytes in memory at most (None: no limit).

    What lies beyond the limit is in a temporary file, which vanishes with this object or with the
    process. Its folder is that of `tempfile` (TMPDIR): let it be on a disk, since a file in a
    memory file system takes the memory that the limit should save.

    The new states of a round are staged: they count against the limit, but are not in the mapping
    until they are committed. States are copied on the way in and on the way out.

    >>> states = ClientStates(limit=0)
    >>> states[3] = torch.arange(2.0)
    >>> states.stage(3, torch.ones(2))
    >>> states[3], states.latest(3)
    (tensor([0., 1.]), tensor([1., 1.]))
    >>> states.commit([3])
    >>> states[3], len(states)
    (tensor([1., 1.]), 1)
    """

    def __init__(self, limit: int | None = None) -> None:
        whole = isinstance(limit, int) and not isinstance(limit, bool)
        if limit is not None and (not whole or limit < 0):
            raise ValueError(f"memory={limit!r}; pass a number of bytes, or None for no limit.")
        self.limit = limit
        self.in_memory = 0
        self._committed: dict[int, _Place] = {}
        self._staged: dict[int, _Place] = {}
        self._lent: dict[int, _Slot] = {}  # by the id of its state
        self._slabs: dict[Any, _Slabs] = {}  # one for each form of state: one, as a rule
        self._files: dict[Any, _File] = {}

    def __setitem__(self, client: int, state: State) -> None:
        self._keep(self._committed, client, state)

    def __getitem__(self, client: int) -> State:
        return map_leaves(torch.clone, self._committed[client].read())

    def __contains__(self, client: int) -> bool:
        return client in self._committed

    def __iter__(self) -> Iterator[int]:
        """Go through the clients seen, in the order of their numbers."""
        return iter(sorted(self._committed))

    def __len__(self) -> int:
        return len(self._committed)

    def items(self) -> Iterator[tuple[int, State]]:
        """Go through the clients seen and their states, in the order of their numbers."""
        return ((i, self[i]) for i in self)

    @property
    def on_disk(self) -> int:
        """How many bytes the temporary file has."""
        return sum(file.size for file in self._files.values())

    def stage(self, client: int, state: State) -> None:
        """Keep a state that is not in the mapping yet."""
        self._keep(self._staged, client, state)

    def room(self, like: State) -> State | None:
        """Return memory for a new state, to be filled and staged; None if the limit is reached.

        What is staged so is not copied. What is not staged in this round is taken back.
        """
        return next(iter(self.rooms(like, 1)), None)

    def rooms(self, like: State, count: int) -> list[State]:
        """Return memory for several new states of one form, or for as many as the limit allows."""
        size = nbytes(like)
        if self.limit is not None and size:
            count = min(count, max(0, self.limit - self.in_memory) // size)
        if not count:
            return []
        form = _form(like)
        if form not in self._slabs:
            self._slabs[form] = _Slabs(like)
        self.in_memory += count * size
        slots = [self._slabs[form].take() for _ in range(count)]
        self._lent.update((id(slot.state), slot) for slot in slots)
        return [slot.state for slot in slots]

    def latest(self, client: int) -> State | None:
        """Return the staged state, else that of the mapping, else None.

        Not a copy: once a newer one is staged or committed, its memory is another state's.
        """
        place = self._staged.get(client) or self._committed.get(client)
        return None if place is None else place.read()

    def commit(self, clients: Iterable[int]) -> None:
        """Let the staged states of these clients replace those in the mapping; forget others."""
        for client in clients:
            place = self._staged.pop(client, None)
            if place is not None:
                self._replace(self._committed, client, place)
        self.discard()

    def discard(self) -> None:
        """Forget the staged states."""
        while self._staged:
            self._free(self._staged.popitem()[1])
        while self._lent:
            self._free(self._lent.popitem()[1])

    def keep(self, checkpoint: Path, r: int) -> dict[str, Any]:
        """Keep nothing elsewhere."""
        return {}

    def restore(self, kept: dict[str, Any], like: State, r: int) -> None:
        """Take up what another store kept in snapshots."""
        for path in files_of(kept):
            self.load(path, like)

    def load(self, path: Path, like: State) -> None:
        """Take up the states in a file."""
        with reading(path) as file:
            for i in file.clients:
                self[i] = file.state(f"client.{i}", like)

    # -- inside

    def _keep(self, index: "dict[int, _Place]", client: int, state: State) -> None:
        lent = self._lent.pop(id(state), None)
        if lent is not None:
            self._replace(index, client, lent)
        elif leaves(state):  # else there is nothing to remember
            with torch.no_grad():
                self._replace(index, client, self._copied(state))

    def _copied(self, state: State) -> "_Place":
        """Return the place of a copy, in memory if the limit allows."""
        room = self.room(state)
        if room is not None:
            map_leaves(Tensor.copy_, room, state)
            return self._lent.pop(id(room))
        form = _form(state)
        if form not in self._files:
            self._files[form] = _File(state)
        return self._files[form].put(state)

    def _replace(self, index: "dict[int, _Place]", client: int, place: "_Place") -> None:
        old = index.get(client)
        index[client] = place
        if old is not None:
            self._free(old)

    def _free(self, place: "_Place") -> None:
        place.free()
        self.in_memory -= place.in_memory


def files_of(kept: dict[str, Any]) -> Iterator[Path]:
    """Go through the files of snapshots that a checkpoint names, older ones first."""
    for names in kept.get("files", {}).values():
        yield from (Path(kept["folder"]) / name for name in names)


@dataclass(frozen=True, slots=True)
class _Row:
    """Where a state lies on disk."""

    file: "_File"
    number: int
    in_memory = 0  # bytes

    def read(self) -> State:
        return self.file.get(self.number)

    def free(self) -> None:
        self.file.spare.append(self.number)


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """Where a state lies in memory, and how many bytes it takes there."""

    slabs: "_Slabs"
    state: State
    in_memory: int

    def read(self) -> State:
        return self.state

    def free(self) -> None:
        self.slabs.spare.append(self)


_Place = _Row | _Slot


class _Slabs:
    """Rows of memory for states of one form; those that are spare are used again.

    Many are taken at once. One by one they would lie between the vectors that come and go in a
    round, and the heap would grow to several times what they take.
    """

    def __init__(self, state: State) -> None:
        self.like, self.size = _like(state), nbytes(state)
        self.spare: list[_Slot] = []
        self._rows: Iterator[State] = iter(())

    def take(self) -> _Slot:
        if self.spare:
            return self.spare.pop()
        state = next(self._rows, None)
        if state is None:
            self._rows = self._slab()
            state = next(self._rows)
        return _Slot(self, state, self.size)

    def _slab(self) -> Iterator[State]:
        """Return the rows of a new slab, cut when they are taken."""
        if any(leaf.device.type != "cpu" for leaf in leaves(self.like)):
            return iter([map_leaves(lambda leaf: leaf.new_empty(leaf.shape), self.like)])
        size = _row_bytes(self.like)
        rows = max(1, min(_ROWS, _SLAB // max(1, size)))
        slab = torch.empty(rows, size, dtype=torch.uint8)
        return (_cut(slab[row], self.like) for row in range(rows))


class _File:
    """Rows of a temporary file for states of one form; those that are spare are used again.

    It is read and written, not mapped: the pages of a mapping count as memory of the process, and
    a full disk would kill it.
    """

    def __init__(self, state: State) -> None:
        self.like, self.row = _like(state), _row_bytes(state)
        self.rows = 0
        self.spare: list[int] = []
        self._file: Any = TemporaryFile(prefix="trimtab-states-", buffering=0)  # noqa: SIM115
        self._lock = Lock()  # of the position in the file; executors read from several threads
        finalize(self, self._file.close)

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def put(self, state: State) -> _Row:
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
        return _Row(self, number)

    def get(self, number: int) -> State:
        data = torch.empty(self.row, dtype=torch.uint8)
        self._transfer(self._file.readinto, number, data)
        return map_leaves(lambda part, leaf: part.to(leaf.device), _cut(data, self.like), self.like)

    def _transfer(self, some: Callable[[memoryview], int], number: int, data: Tensor) -> None:
        """Read or write a row; the system may take several calls for it."""
        rest = data.numpy().data
        with self._lock:
            self._file.seek(number * self.row)
            while rest:
                rest = rest[some(rest) :]


def _form(state: State) -> Any:
    """Return what states that fit the same rows have in common."""
    if isinstance(state, Tensor):
        return state.shape, state.dtype, state.device
    if isinstance(state, tuple):
        return (type(state), *map(_form, state))
    return state


def _like(state: State) -> State:
    """Return a state of the same form that takes no memory."""
    return map_leaves(lambda leaf: leaf.new_zeros(()).expand(leaf.shape), state)


def _row_bytes(like: State) -> int:
    return sum(_padded(leaf) for leaf in leaves(like))


def _padded(leaf: Tensor) -> int:
    return -(-leaf.numel() * leaf.element_size() // _LINE) * _LINE


def _cut(row: Tensor, like: State) -> State:
    """Return a row of bytes as a state whose tensors are views of it."""
    start = 0

    def part(leaf: Tensor) -> Tensor:
        nonlocal start
        data = row[start : start + leaf.numel() * leaf.element_size()]
        start += _padded(leaf)
        return data.view(leaf.dtype).view(leaf.shape)

    return map_leaves(part, like)
