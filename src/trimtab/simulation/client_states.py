"""Store the clients' states: in memory up to a limit, beyond it in a temporary file."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab.core import State, leaves, map_leaves, nbytes
from trimtab.simulation.checkpoint import reading
from trimtab.simulation.state_rows import DiskRows, MemoryRow, MemoryRows, Place, form_of


class StateStore(Protocol):
    """Stores the states of a simulation's clients, in this process or on other machines."""

    def __setitem__(self, client: int, state: State) -> None: ...
    def __getitem__(self, client: int) -> State: ...
    def __contains__(self, client: int) -> bool: ...
    def __iter__(self) -> Iterator[int]: ...
    def __len__(self) -> int: ...

    @property
    def in_memory(self) -> int:
        """Bytes of states in memory."""
        ...

    @property
    def on_disk(self) -> int:
        """Bytes of states in temporary files."""
        ...

    def items(self) -> Iterator[tuple[int, State]]:
        """Yield the clients with a state and their states, by increasing number."""
        ...

    def stage(self, client: int, state: State) -> None:
        """Store a state that counts once it is committed."""
        ...

    def allocate_states(self, like: State, count: int) -> list[State]:
        """Return memory for `count` new states, or for as many as the limit allows."""
        ...

    def latest(self, client: int) -> State | None:
        """Return the staged state, else the one that counts, else None."""
        ...

    def commit(self, clients: Iterable[int]) -> None:
        """Make the staged states of these clients count, and forget the others."""
        ...

    def discard(self) -> None:
        """Forget the staged states."""
        ...

    def save_states(self, checkpoint: Path, r: int) -> dict[str, Any]:
        """Save the states after round r for a checkpoint, and return where they are.

        An empty dictionary means that the checkpoint itself must hold them.
        """
        ...

    def restore(self, kept: dict[str, Any], like: State, r: int) -> None:
        """Read the states that `save_states` saved; `like` is a state of their form."""
        ...


class ClientStates:
    """A mapping from client to state.

    limit: bytes of states in memory; None for no limit. States beyond it are in a temporary file,
        which is deleted with this object or with the process. Its folder is that of `tempfile`
        (TMPDIR) and should be on a disk: a file in a memory file system takes the memory that the
        limit should save.

    The new states of a round are staged: they count against the limit, but are not in the mapping
    until they are committed. States are copied when they are stored and when they are read.

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
        self._committed: dict[int, Place] = {}
        self._staged: dict[int, Place] = {}
        self._allocated: dict[int, MemoryRow] = {}  # by the id of its state
        self._allocated_rows: list[MemoryRow] = []
        self._rows: dict[Any, MemoryRows] = {}  # by form of state; algorithms usually have one
        self._files: dict[Any, DiskRows] = {}

    def __setitem__(self, client: int, state: State) -> None:
        self._store(self._committed, client, state)

    def __getitem__(self, client: int) -> State:
        return map_leaves(torch.clone, self._committed[client].read())

    def __contains__(self, client: int) -> bool:
        return client in self._committed

    def __iter__(self) -> Iterator[int]:
        # By number, so that a checkpoint does not depend on the order of the rounds.
        return iter(sorted(self._committed))

    def __len__(self) -> int:
        return len(self._committed)

    def items(self) -> Iterator[tuple[int, State]]:
        """Yield the clients with a state and their states, by increasing number."""
        # One copy at a time: all states together may not fit into memory.
        return ((i, self[i]) for i in self)

    @property
    def on_disk(self) -> int:
        """Bytes of the temporary files."""
        return sum(file.size for file in self._files.values())

    def stage(self, client: int, state: State) -> None:
        """Store a state that is not in the mapping yet."""
        self._store(self._staged, client, state)

    def allocate_state(self, like: State) -> State | None:
        """Return memory for a new state, to be filled and staged; None if the limit is reached.

        Staging it makes no copy. Memory that is not staged in this round is freed.
        """
        return next(iter(self.allocate_states(like, 1)), None)

    def allocate_states(self, like: State, count: int) -> list[State]:
        """Return memory for `count` new states of one form, or for as many as the limit allows."""
        size = nbytes(like)
        if self.limit is not None and size:
            count = min(count, max(0, self.limit - self.in_memory) // size)
        slots = self._take(like, count)
        self._allocated.update((id(slot.state), slot) for slot in slots)
        return [slot.state for slot in slots]

    def addresses(self, clients: Sequence[int], new: State) -> Sequence[tuple[int, ...]] | None:
        """Return the addresses of the tensors in the clients' latest states, to be read only.

        A client without a state has `new`. None if the states are not all in memory in one form.
        """
        of_new = tuple(leaf.data_ptr() for leaf in leaves(new))
        if not of_new or not (self._committed or self._staged):
            return [of_new] * len(clients)
        if self._files or list(self._rows) != [form_of(new)]:
            return None
        staged, committed = self._staged.get, self._committed.get
        places: list[Any] = [staged(i) or committed(i) for i in clients]
        return [place.at if place else of_new for place in places]

    def allocate_rows(self, like: State, count: int) -> Sequence[tuple[int, ...]] | None:
        """Return the addresses of memory for new states; None if the limit allows fewer.

        `stage_allocated` stages all of them at once, which costs less per client than `stage`.
        """
        self._free(self._allocated_rows)  # A kernel that gave up has not staged these.
        self._allocated_rows = []
        if self.limit is not None and self.in_memory + count * nbytes(like) > self.limit:
            return None
        self._allocated_rows = self._take(like, count)
        return [row.at for row in self._allocated_rows]

    def allocated_row(self, j: int) -> State:
        """Return the j-th of the states from `allocate_rows`."""
        return self._allocated_rows[j].state

    def stage_allocated(self, clients: Sequence[int]) -> None:
        """Stage the states that were written to the memory from `allocate_rows`."""
        old = [self._staged[i] for i in clients if i in self._staged]
        self._staged.update(zip(clients, self._allocated_rows, strict=True))
        self._allocated_rows = []
        self._free(old)

    def latest(self, client: int) -> State | None:
        """Return the staged state, else the committed one, else None.

        It is not a copy: its memory is reused once a newer state is staged or committed.
        """
        place = self._staged.get(client) or self._committed.get(client)
        return None if place is None else place.read()

    def commit(self, clients: Iterable[int]) -> None:
        """Replace the states in the mapping by the staged ones of these clients; forget others."""
        if not self._staged:
            return self.discard()
        keep = set(clients)
        new = {client: place for client, place in self._staged.items() if client in keep}
        old = [self._committed[client] for client in new if client in self._committed]
        # Freed only after the update: a row must not be reused while the mapping has it.
        self._committed.update(new)
        dropped = [place for client, place in self._staged.items() if client not in keep]
        self._staged = {}
        self._free(old + dropped)
        self.discard()

    def discard(self) -> None:
        """Forget the staged states."""
        if not (self._staged or self._allocated or self._allocated_rows):
            return
        places = [*self._staged.values(), *self._allocated.values(), *self._allocated_rows]
        self._staged, self._allocated, self._allocated_rows = {}, {}, []
        self._free(places)

    def save_states(self, checkpoint: Path, r: int) -> dict[str, Any]:
        """Return {}: the checkpoint itself holds these states."""
        return {}

    def restore(self, kept: dict[str, Any], like: State, r: int) -> None:
        """Read the states that a cluster saved as snapshots."""
        for path in files_of(kept):
            self.load(path, like)

    def load(self, path: Path, like: State) -> None:
        """Read the states in a file."""
        with reading(path) as file:
            for i in file.clients:
                self[i] = file.state(f"client.{i}", like)

    # -- private

    def _store(self, index: "dict[int, Place]", client: int, state: State) -> None:
        allocated = self._allocated.pop(id(state), None)
        if allocated is not None:
            self._replace(index, client, allocated)
        elif leaves(state):  # Clients of many algorithms have no state.
            with torch.no_grad():
                self._replace(index, client, self._copied(state))

    def _copied(self, state: State) -> "Place":
        """Copy a state, to memory if the limit allows, and return its place."""
        allocated = self.allocate_state(state)
        if allocated is not None:
            map_leaves(Tensor.copy_, allocated, state)
            return self._allocated.pop(id(allocated))
        form = form_of(state)
        if form not in self._files:
            self._files[form] = DiskRows(state)
        return self._files[form].put(state)

    def _take(self, like: State, count: int) -> list[MemoryRow]:
        if not count:
            return []
        form = form_of(like)
        if form not in self._rows:
            self._rows[form] = MemoryRows(like)
        self.in_memory += count * nbytes(like)
        return self._rows[form].take(count)

    def _replace(self, index: "dict[int, Place]", client: int, place: "Place") -> None:
        old = index.get(client)
        index[client] = place
        if old is not None:
            self._free([old])

    def _free(self, places: "Sequence[Place]") -> None:
        for place in places:
            place.free()
            self.in_memory -= place.in_memory


def files_of(kept: dict[str, Any]) -> Iterator[Path]:
    """Yield the files of snapshots that a checkpoint names, older ones first."""
    for names in kept.get("files", {}).values():
        yield from (Path(kept["folder"]) / name for name in names)
