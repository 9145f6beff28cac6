"""The driver's side of the client states: the store that a simulation knows, kept elsewhere."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.cluster.wire import pack, unpack
from trimtab.core import State, leaves, nbytes
from trimtab.simulation.checkpoint import reading
from trimtab.simulation.client_states import files_of

if TYPE_CHECKING:
    from trimtab.cluster.fleet import Fleet

BLOCK = 1 << 24  # the states that travel at once have <= 16 MB
MOST = 1024  # they are those of <= 1,024 clients


class RemoteStates:
    """States that are where their clients run; asked for by number, they travel here."""

    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._given: dict[int, State] = {}  # by `states[i] = …`, and not yet sent
        self._bytes = 0

    def __setitem__(self, client: int, state: State) -> None:
        if leaves(state):
            self._given[client] = pack(state)
            self._bytes += nbytes(state)
            if self._bytes > BLOCK or len(self._given) >= MOST:
                self.send()

    def __getitem__(self, client: int) -> State:
        (state,) = self._fetch([client], staged=False)
        if state is None:
            raise KeyError(client)
        return state

    def __contains__(self, client: int) -> bool:
        return self._fetch([client], staged=False) != [None]

    def __iter__(self) -> Iterator[int]:
        self.send()
        fleet = self._fleet
        known = fleet.ask_all([(member, ("clients",)) for member in fleet.members()])
        return iter(sorted(i for clients in known for i in clients))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def in_memory(self) -> int:
        """How many bytes they take in memory, on all machines."""
        return self._sizes()[0]

    @property
    def on_disk(self) -> int:
        """How many bytes they take in temporary files, on all machines."""
        return self._sizes()[1]

    def _sizes(self) -> tuple[int, int]:
        self.send()
        fleet = self._fleet
        sizes = fleet.ask_all([(member, ("size",)) for member in fleet.members()])
        return sum(m for m, _ in sizes), sum(d for _, d in sizes)

    def items(self) -> Iterator[tuple[int, State]]:
        """Go through the clients seen and their states, some at a time."""
        rest, block = iter(self), 1
        while clients := list(islice(rest, block)):
            states = self._fetch(clients, staged=False)
            yield from zip(clients, states, strict=True)
            block = max(1, min(MOST, BLOCK // max(1, nbytes(states[-1]))))

    def stage(self, client: int, state: State) -> None:
        """Refuse: the states of a round never come here."""
        raise AssertionError("clients of a cluster stage their states themselves")

    def allocate_states(self, like: State, count: int) -> list[State]:
        """Return no memory: states are written where they stay."""
        return []

    def latest(self, client: int) -> State | None:
        """Return the staged state, else the one that counts, else None."""
        (state,) = self._fetch([client], staged=True)
        return state

    def commit(self, clients: Iterable[int]) -> None:
        """Let the staged states of these clients count."""
        self._fleet.commit(list(clients))

    def discard(self) -> None:
        """Forget the staged states."""
        self._fleet.discard()

    def save_states(self, checkpoint: Path, r: int) -> dict[str, Any]:
        """Have the shards write what no snapshot has, if there is a folder for snapshots."""
        self.send()
        fleet = self._fleet
        if fleet.snapshots.folder is None:
            return {}
        fleet.take_snapshot(r)
        return fleet.snapshots.kept(checkpoint)

    def restore(self, kept: dict[str, Any], like: State, r: int) -> None:
        """Take up the states that were kept."""
        self._fleet.r = r
        self.send()
        if not kept:
            return
        if self._fleet.snapshots.folder == Path(kept["folder"]):
            self._fleet.load_snapshots(kept, like)
            return
        for path in files_of(kept):
            with reading(path) as file:
                for i in file.clients:
                    self[i] = file.state(f"client.{i}", like)
        self.send()

    def send(self) -> None:
        """Hand the states that were given to the shards that own them."""
        given, self._given, self._bytes = self._given, {}, 0
        if given:
            self._fleet.give(list(given.items()))

    def _fetch(self, clients: Sequence[int], staged: bool) -> list[Any]:
        self.send()
        fleet, found = self._fleet, dict[int, Any]()
        members = [(member, fleet.own(member, clients)) for member in fleet.members()]
        asked = [(member, own) for member, own in members if own]
        answers = fleet.ask_all([(member, ("get", own, staged)) for member, own in asked])
        for (_, own), states in zip(asked, answers, strict=True):
            found |= dict(zip(own, states, strict=True))
        return [None if found[i] is None else unpack(found[i]) for i in clients]
