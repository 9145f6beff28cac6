"""The states of the clients seen so far: in memory up to a limit, beyond it in a temporary file."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab.core import State, leaves, map_leaves, nbytes
from trimtab.simulation.checkpoint import reading
from trimtab.simulation.state_rows import DiskRows, MemoryRow, MemoryRows, Place, form_of


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

    def allocate_states(self, like: State, count: int) -> list[State]:
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

    def save_states(self, checkpoint: Path, r: int) -> dict[str, Any]:
        """Keep the states after round r where a checkpoint will find them, and return where.

        An empty answer: nowhere but here, so that the checkpoint has to hold them.
        """
        ...

    def restore(self, kept: dict[str, Any], like: State, r: int) -> None:
        """Take up the states that `save_states` has kept, in the form of another state."""
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
        self._committed: dict[int, Place] = {}
        self._staged: dict[int, Place] = {}
        self._allocated: dict[int, MemoryRow] = {}  # by the id of its state
        self._allocated_rows: list[MemoryRow] = []
        self._rows: dict[Any, MemoryRows] = {}  # one for each form of state: one, as a rule
        self._files: dict[Any, DiskRows] = {}

    def __setitem__(self, client: int, state: State) -> None:
        self._store(self._committed, client, state)

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
        self._store(self._staged, client, state)

    def allocate_state(self, like: State) -> State | None:
        """Return memory for a new state, to be filled and staged; None if the limit is reached.

        What is staged so is not copied. What is not staged in this round is taken back.
        """
        return next(iter(self.allocate_states(like, 1)), None)

    def allocate_states(self, like: State, count: int) -> list[State]:
        """Return memory for several new states of one form, or for as many as the limit allows."""
        size = nbytes(like)
        if self.limit is not None and size:
            count = min(count, max(0, self.limit - self.in_memory) // size)
        slots = self._take(like, count)
        self._allocated.update((id(slot.state), slot) for slot in slots)
        return [slot.state for slot in slots]

    def addresses(self, clients: Sequence[int], new: State) -> Sequence[tuple[int, ...]] | None:
        """Return where the tensors of clients' latest states lie, which are read and not changed.

        That of a client that has none is `new`. None where they do not all lie in memory, in one
        form.
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
        """Return where new states are written, for `stage_allocated`; None beyond the limit."""
        self._free(self._allocated_rows)  # Nobody has staged these.
        self._allocated_rows = []
        if self.limit is not None and self.in_memory + count * nbytes(like) > self.limit:
            return None
        self._allocated_rows = self._take(like, count)
        return [row.at for row in self._allocated_rows]

    def allocated_row(self, j: int) -> State:
        """Return the j-th of the new states that `allocate_rows` has made room for."""
        return self._allocated_rows[j].state

    def stage_allocated(self, clients: Sequence[int]) -> None:
        """Keep what was written where `allocate_rows` said."""
        old = [self._staged[i] for i in clients if i in self._staged]
        self._staged.update(zip(clients, self._allocated_rows, strict=True))
        self._allocated_rows = []
        self._free(old)

    def latest(self, client: int) -> State | None:
        """Return the staged state, else that of the mapping, else None.

        Not a copy: once a newer one is staged or committed, its memory is another state's.
        """
        place = self._staged.get(client) or self._committed.get(client)
        return None if place is None else place.read()

    def commit(self, clients: Iterable[int]) -> None:
        """Let the staged states of these clients replace those in the mapping; forget others."""
        if not self._staged:
            return self.discard()
        keep = set(clients)
        new = {client: place for client, place in self._staged.items() if client in keep}
        old = [self._committed[client] for client in new if client in self._committed]
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

    def _store(self, index: "dict[int, Place]", client: int, state: State) -> None:
        allocated = self._allocated.pop(id(state), None)
        if allocated is not None:
            self._replace(index, client, allocated)
        elif leaves(state):  # else there is nothing to remember
            with torch.no_grad():
                self._replace(index, client, self._copied(state))

    def _copied(self, state: State) -> "Place":
        """Return the place of a copy, in memory if the limit allows."""
        allocated = self.allocate_state(state)
        if allocated is not None:
            map_leaves(Tensor.copy_, allocated, state)
            return self._allocated.pop(id(allocated))
        form = form_of(state)
        if form not in self._files:
            self._files[form] = DiskRows(state)
        return self._files[form].put(state)

    def _take(self, like: State, count: int) -> list[MemoryRow]:
        """Return memory for some states of one form."""
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
        """Let other states lie here."""
        for place in places:
            place.free()
            self.in_memory -= place.in_memory


def files_of(kept: dict[str, Any]) -> Iterator[Path]:
    """Go through the files of snapshots that a checkpoint names, older ones first."""
    for names in kept.get("files", {}).values():
        yield from (Path(kept["folder"]) / name for name in names)
