"""The driver's side of client states: a store that fetches them, snapshots, and a log of rounds.

Mini-batches depend on (seed, client, round, k) alone, so repeating a round with the same broadcasts
gives the same states. A lost shard is therefore rebuilt from its last snapshot and the log.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import TYPE_CHECKING, Any
from weakref import finalize

from trimtab._files import write_json
from trimtab.cluster.actor_pool import ActorSlot
from trimtab.cluster.shard import SnapshotFile
from trimtab.cluster.wire import pack, unpack
from trimtab.core import State, leaves, nbytes
from trimtab.simulation.checkpoint import reading
from trimtab.simulation.client_states import files_of

if TYPE_CHECKING:
    from trimtab.cluster.driver import Driver


# -- the store of client states


class RemoteStates:
    """The client states of a simulation, which are stored by the actors.

    It has the methods of the local store, `ClientStates`.

    max_bytes, max_clients: limits of one message, 16 MiB and 1,024 states: large enough that the
        cost of a call does not count, small against the memory of driver and actors.
    """

    def __init__(self, driver: "Driver", max_bytes: int = 1 << 24, max_clients: int = 1024) -> None:
        self._driver, self._max_bytes, self._max_clients = driver, max_bytes, max_clients
        self._unsent: dict[int, State] = {}  # set by `states[i] = …`
        self._bytes = 0

    def __setitem__(self, client: int, state: State) -> None:
        if leaves(state):
            self._unsent[client] = pack(state)
            self._bytes += nbytes(state)
            if self._bytes > self._max_bytes or len(self._unsent) >= self._max_clients:
                self.flush()

    def __getitem__(self, client: int) -> State:
        (state,) = self._fetch([client], staged=False)
        if state is None:
            raise KeyError(client)
        return state

    def __contains__(self, client: int) -> bool:
        return self._fetch([client], staged=False) != [None]

    def __iter__(self) -> Iterator[int]:
        self.flush()
        driver = self._driver
        known = driver.call_all([(slot, ("clients",)) for slot in driver.slots()])
        return iter(sorted(i for clients in known for i in clients))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def in_memory(self) -> int:
        """The bytes of states in memory, on all machines."""
        return self._sizes()[0]

    @property
    def on_disk(self) -> int:
        """The bytes of states in temporary files, on all machines."""
        return self._sizes()[1]

    def _sizes(self) -> tuple[int, int]:
        self.flush()
        driver = self._driver
        sizes = driver.call_all([(slot, ("size",)) for slot in driver.slots()])
        return sum(m for m, _ in sizes), sum(d for _, d in sizes)

    def items(self) -> Iterator[tuple[int, State]]:
        """Iterate over clients and their states; blocks of them are fetched at once."""
        # The first block has one state, whose size decides how many fit the next ones.
        rest, block = iter(self), 1
        while clients := list(islice(rest, block)):
            states = self._fetch(clients, staged=False)
            yield from zip(clients, states, strict=True)
            block = max(1, min(self._max_clients, self._max_bytes // max(1, nbytes(states[-1]))))

    def stage(self, client: int, state: State) -> None:
        """Raise AssertionError: actors stage the states of a round."""
        raise AssertionError("clients of a cluster stage their states themselves")

    def allocate_states(self, like: State, count: int) -> list[State]:
        """Return no memory: actors write states where they stay."""
        return []

    def latest(self, client: int) -> State | None:
        """Return the staged state, else the committed one, else None."""
        (state,) = self._fetch([client], staged=True)
        return state

    def commit(self, clients: Iterable[int]) -> None:
        """Commit the staged states of these clients."""
        self._driver.commit(list(clients))

    def discard(self) -> None:
        """Discard the staged states."""
        self._driver.discard()

    def save_states(self, checkpoint: Path, r: int) -> dict[str, Any]:
        """Take a snapshot for a checkpoint; return {} if there is no folder for snapshots."""
        self.flush()
        driver = self._driver
        if driver.snapshots.folder is None:
            return {}
        driver.take_snapshot(r)
        return driver.snapshots.pin(checkpoint)

    def restore(self, kept: dict[str, Any], like: State, r: int) -> None:
        """Load the states that a checkpoint names.

        Actors read the files themselves if they are in this run's folder; else the driver reads
        them and sends the states.
        """
        self._driver.r = r
        self.flush()
        if not kept:
            return
        if self._driver.snapshots.folder == Path(kept["folder"]):
            self._driver.load_snapshots(kept, like)
            return
        for path in files_of(kept):
            with reading(path) as file:
                for i in file.clients:
                    self[i] = file.state(f"client.{i}", like)
        self.flush()

    def flush(self) -> None:
        """Send the states that were set to the actors that own their clients."""
        unsent, self._unsent, self._bytes = self._unsent, {}, 0
        if unsent:
            self._driver.assign_states(list(unsent.items()))

    def _fetch(self, clients: Sequence[int], staged: bool) -> list[Any]:
        self.flush()
        driver, found = self._driver, dict[int, Any]()
        slots = [(slot, driver.clients_of(slot, clients)) for slot in driver.slots()]
        involved = [(slot, own) for slot, own in slots if own]
        results = driver.call_all([(slot, ("get", own, staged)) for slot, own in involved])
        for (_, own), states in zip(involved, results, strict=True):
            found |= dict(zip(own, states, strict=True))
        return [None if found[i] is None else unpack(found[i]) for i in clients]


# -- snapshots


@dataclass
class SnapshotChain:
    """The snapshot files of one virtual shard, oldest first; each has the states that changed."""

    files: list[SnapshotFile] = field(default_factory=list)
    r: int = -1  # the round of the newest file

    @property
    def rows(self) -> int:
        """The number of states in all files."""
        return sum(file.rows for file in self.files)

    @property
    def largest(self) -> int:
        """The number of states in the file with most of them."""
        return max((file.rows for file in self.files), default=0)


class Snapshots:
    """The snapshot chains of all virtual shards, in a folder that all machines can write to.

    A file is deleted once no chain and no existing checkpoint names it. A note beside the files
    lists the ones that a checkpoint needs.

    rewrite_ratio: a chain is written as one new file when it has more than this many times the
        states of its largest file; at 3, old versions take about twice the space of the states.
    """

    def __init__(self, folder: Path | None, V: int, rewrite_ratio: int = 3) -> None:
        self.folder, self._rewrite_ratio = folder, rewrite_ratio
        self.chains = [SnapshotChain() for _ in range(V)]
        self._known_files = set[str]()  # the files this driver may delete

    def due_for_full_snapshot(self) -> list[int]:
        """Return the virtual shards whose chains should be written as one file."""
        ratio = self._rewrite_ratio
        return [v for v, chain in enumerate(self.chains) if chain.rows > ratio * chain.largest]

    def add(
        self, begin: int, end: int, r: int, files: dict[int, SnapshotFile], whole: Sequence[int]
    ) -> None:
        """Add the files that an actor wrote after round r; whole: shards with all states."""
        for v in range(begin, end):
            chain, file = self.chains[v], files.get(v)
            if file is not None:
                chain.files = [file] if v in whole else [*chain.files, file]
                self._known_files.add(file.name)
            chain.r = r

    def oldest_round(self, slots: Sequence[ActorSlot]) -> int:
        """Return the last round of which all shards have a snapshot."""
        return min(self.round_of(slot) for slot in slots)

    def round_of(self, slot: ActorSlot) -> int:
        """Return the round from which a new actor in a slot would continue."""
        return min(self.chains[v].r for v in range(slot.begin, slot.end))

    def paths(self, begin: int, end: int) -> list[str]:
        """Return the files of a range of virtual shards, oldest first in each shard."""
        if self.folder is None:
            return []
        chains = self.chains[begin:end]
        return [str(self.folder / file.name) for chain in chains for file in chain.files]

    # -- checkpoints

    def pin(self, checkpoint: Path) -> dict[str, Any]:
        """Return the files for a checkpoint to name; they are kept as long as it exists."""
        assert self.folder is not None
        files = {str(v): [p.name for p in chain.files] for v, chain in enumerate(self.chains)}
        rows = {str(v): [p.rows for p in chain.files] for v, chain in enumerate(self.chains)}
        path = checkpoint.resolve()
        note = f"kept-{sha256(str(path).encode()).hexdigest()[:12]}.json"
        now = sorted(name for names in files.values() for name in names)
        # Until the new checkpoint is complete, a resume reads the one before it.
        before = _read_note(self.folder / note).get("files", [])
        write_json(self.folder / note, {"checkpoint": str(path), "files": now, "before": before})
        return {"folder": str(self.folder), "files": files, "rows": rows}

    def resume_from(self, kept: dict[str, Any], r: int) -> None:
        """Continue the chains that a checkpoint names, which end with round r."""
        if len(kept["files"]) != len(self.chains):
            raise ValueError(
                f"the snapshots in {kept['folder']} are of {len(kept['files'])} shards, not "
                f"{len(self.chains)}; pass the number of shards of the run that wrote them."
            )
        for v, chain in enumerate(self.chains):
            named = zip(kept["files"][str(v)], kept["rows"][str(v)], strict=True)
            chain.files, chain.r = [SnapshotFile(*each) for each in named], r
            self._known_files.update(file.name for file in chain.files)

    def delete_old_snapshots(self) -> None:
        """Delete the files of this driver that no chain and no checkpoint names."""
        assert self.folder is not None
        named = {file.name for chain in self.chains for file in chain.files}
        for note in self.folder.glob("kept-*.json"):
            named |= _pinned_files(note)
        for name in self._known_files - named:
            (self.folder / name).unlink(missing_ok=True)
            self._known_files.discard(name)


def _pinned_files(note: Path) -> set[str]:
    """Return the files that a checkpoint names; none if it does not exist any more."""
    content = _read_note(note)
    exists = bool(content) and Path(content["checkpoint"]).exists()
    return {*content["files"], *content["before"]} if exists else set()


def _read_note(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content


# -- the log of rounds


@dataclass(frozen=True)
class SentExchange:
    """The message of an exchange, and the clients it was sent to."""

    message: bytes
    clients: Sequence[int]


@dataclass(frozen=True)
class LoggedRound:
    """A committed round, or an assignment of states between two rounds."""

    r: int
    exchanges: tuple[SentExchange, ...]
    answered: Sequence[int]  # the clients whose states were committed
    is_assignment: bool = False


@dataclass(frozen=True)
class _StoredRound:
    r: int
    places: tuple[tuple[int, int, Sequence[int]], ...]  # offset, length, clients
    answered: Sequence[int]
    is_assignment: bool

    def of(self, own: Callable[[int], bool]) -> "_StoredRound":
        """Return the round restricted to the clients for which own(i) holds."""
        places = tuple((at, n, [*filter(own, clients)]) for at, n, clients in self.places)
        return replace(self, places=places, answered=[*filter(own, self.answered)])


class RoundLog:
    """The rounds since the oldest snapshot; their messages are in a temporary file."""

    def __init__(self) -> None:
        self._file: Any = TemporaryFile(prefix="trimtab-log-", buffering=0)  # noqa: SIM115
        self._rounds: list[_StoredRound] = []
        self._end = 0
        finalize(self, self._file.close)

    def __len__(self) -> int:
        return len(self._rounds)

    def append(self, logged: LoggedRound) -> None:
        """Add a round; if the disk is full, raise OSError and add nothing."""
        places, at = [], self._end
        for sent in logged.exchanges:
            self._write(at, sent.message)
            places.append((at, len(sent.message), sent.clients))
            at += len(sent.message)
        self._rounds.append(
            _StoredRound(logged.r, tuple(places), logged.answered, logged.is_assignment)
        )
        self._end = at

    def _write(self, at: int, message: bytes) -> None:
        rest = memoryview(message)
        try:
            self._file.seek(at)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise OSError(
                f"{gettempdir()} cannot take more of the log of rounds ({error.strerror}); free "
                "space there, set TMPDIR to a folder on another disk, or pass a folder for "
                "snapshots."
            ) from error

    def since(self, r: int, own: Callable[[int], bool]) -> Iterator[LoggedRound]:
        """Iterate over the rounds after r that involved own clients, restricted to them."""
        for place in (place.of(own) for place in list(self._rounds) if place.r > r):
            if any(clients for *_, clients in place.places):
                sent = [SentExchange(self._read(at, n), clients) for at, n, clients in place.places]
                yield LoggedRound(place.r, tuple(sent), place.answered, place.is_assignment)

    def drop_until(self, r: int) -> None:
        """Drop the rounds up to round r.

        The file shrinks only when it is empty: messages of later rounds stay in place.
        """
        self._rounds = [place for place in self._rounds if place.r > r]
        if not self._rounds:
            self._file.truncate(0)
            self._end = 0

    def _read(self, at: int, length: int) -> bytes:
        self._file.seek(at)
        parts, left = [], length
        while left:
            parts.append(self._file.read(left))
            if not parts[-1]:
                raise OSError(
                    f"the temporary file of the log in {gettempdir()} was truncated; resume from "
                    "a checkpoint."
                )
            left -= len(parts[-1])
        return b"".join(parts)
