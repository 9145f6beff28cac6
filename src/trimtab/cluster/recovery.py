"""The driver's side of the clients' states: the store, its snapshots, and the log of rounds.

Mini-batches depend on (seed, client, round, k) alone, so that running a round once more on the same
broadcasts leaves the same states. The log lies in a temporary file of the driver.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import TYPE_CHECKING, Any, Protocol
from weakref import finalize

from trimtab._files import write_json
from trimtab.cluster.shard import SnapshotFile
from trimtab.cluster.wire import pack, unpack
from trimtab.core import State, leaves, nbytes
from trimtab.simulation.checkpoint import reading
from trimtab.simulation.client_states import files_of

if TYPE_CHECKING:
    from trimtab.cluster.driver import Driver

WHOLE = 3  # a chain of files with > 3 x as many rows as clients is written anew
BLOCK = 1 << 24  # the states that travel at once have <= 16 MB
MOST = 1024  # they are those of <= 1,024 clients


# -- the store of client states


class RemoteStates:
    """States that are where their clients run; asked for by number, they travel here."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._unsent: dict[int, State] = {}  # by `states[i] = …`, and not yet sent
        self._bytes = 0

    def __setitem__(self, client: int, state: State) -> None:
        if leaves(state):
            self._unsent[client] = pack(state)
            self._bytes += nbytes(state)
            if self._bytes > BLOCK or len(self._unsent) >= MOST:
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
        """How many bytes they take in memory, on all machines."""
        return self._sizes()[0]

    @property
    def on_disk(self) -> int:
        """How many bytes they take in temporary files, on all machines."""
        return self._sizes()[1]

    def _sizes(self) -> tuple[int, int]:
        self.flush()
        driver = self._driver
        sizes = driver.call_all([(slot, ("size",)) for slot in driver.slots()])
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
        self._driver.commit(list(clients))

    def discard(self) -> None:
        """Forget the staged states."""
        self._driver.discard()

    def save_states(self, checkpoint: Path, r: int) -> dict[str, Any]:
        """Have the shards write what no snapshot has, if there is a folder for snapshots."""
        self.flush()
        driver = self._driver
        if driver.snapshots.folder is None:
            return {}
        driver.take_snapshot(r)
        return driver.snapshots.pin(checkpoint)

    def restore(self, kept: dict[str, Any], like: State, r: int) -> None:
        """Take up the states that were kept."""
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
        """Hand the states that were given to the shards that own them."""
        given, self._unsent, self._bytes = self._unsent, {}, 0
        if given:
            self._driver.assign_states(list(given.items()))

    def _fetch(self, clients: Sequence[int], staged: bool) -> list[Any]:
        self.flush()
        driver, found = self._driver, dict[int, Any]()
        slots = [(slot, driver.clients_of(slot, clients)) for slot in driver.slots()]
        asked = [(slot, own) for slot, own in slots if own]
        answers = driver.call_all([(slot, ("get", own, staged)) for slot, own in asked])
        for (_, own), states in zip(asked, answers, strict=True):
            found |= dict(zip(own, states, strict=True))
        return [None if found[i] is None else unpack(found[i]) for i in clients]


# -- snapshots


class Owner(Protocol):
    """Whoever owns a range of virtual shards."""

    begin: int
    end: int


@dataclass
class SnapshotChain:
    """The files of one virtual shard, the oldest first, and the round they go up to."""

    files: list[SnapshotFile] = field(default_factory=list)
    r: int = -1

    @property
    def rows(self) -> int:
        """How many states there are in all files."""
        return sum(file.rows for file in self.files)


class Snapshots:
    """The chains of all virtual shards in a folder that all machines see.

    A file is removed once neither the chains nor any checkpoint that is still there names it. What
    checkpoints name is written beside the files.
    """

    def __init__(self, folder: Path | None, V: int) -> None:
        self.folder = folder
        self.chains = [SnapshotChain() for _ in range(V)]
        self._known_files = set[str]()  # files that this driver was told of

    def due_for_full_snapshot(self) -> list[int]:
        """Return the virtual shards whose chains are to be written anew."""
        return [
            v
            for v, chain in enumerate(self.chains)
            if chain.files and chain.rows > self._max_rows(v)
        ]

    def _max_rows(self, v: int) -> int:
        return WHOLE * max(file.rows for file in self.chains[v].files)

    def add(
        self, begin: int, end: int, r: int, files: dict[int, SnapshotFile], whole: Sequence[int]
    ) -> None:
        """Note what an actor has written."""
        for v in range(begin, end):
            chain, file = self.chains[v], files.get(v)
            if file is not None:
                chain.files = [file] if v in whole else [*chain.files, file]
                self._known_files.add(file.name)
            chain.r = r

    def oldest_round(self, owners: Sequence[Owner]) -> int:
        """Return the round that all shards have a snapshot of."""
        return min(self.round_of(owner) for owner in owners)

    def round_of(self, owner: Owner) -> int:
        """Return the round that an actor would go on from."""
        return min(self.chains[v].r for v in range(owner.begin, owner.end))

    def paths(self, begin: int, end: int) -> list[str]:
        """Return the files of some virtual shards, the older ones first."""
        if self.folder is None:
            return []
        chains = self.chains[begin:end]
        return [str(self.folder / file.name) for chain in chains for file in chain.files]

    # -- checkpoints

    def pin(self, checkpoint: Path) -> dict[str, Any]:
        """Return what a checkpoint is to name, and keep these files as long as it is there."""
        assert self.folder is not None
        files = {str(v): [p.name for p in chain.files] for v, chain in enumerate(self.chains)}
        rows = {str(v): [p.rows for p in chain.files] for v, chain in enumerate(self.chains)}
        path = checkpoint.resolve()
        note = f"kept-{sha256(str(path).encode()).hexdigest()[:12]}.json"
        now = sorted(name for names in files.values() for name in names)
        # Until the new checkpoint is whole, the one before it may be the one that is read.
        before = _read_note(self.folder / note).get("files", [])
        said = {"checkpoint": str(path), "files": now, "before": before}
        write_json(self.folder / note, said)
        return {"folder": str(self.folder), "files": files, "rows": rows}

    def resume_from(self, kept: dict[str, Any], r: int) -> None:
        """Go on from what a checkpoint names."""
        if len(kept["files"]) != len(self.chains):
            raise ValueError(
                f"the snapshots in {kept['folder']} are of {len(kept['files'])} shards, not "
                f"{len(self.chains)}; pass the number of shards that they were made with."
            )
        for v, chain in enumerate(self.chains):
            named = zip(kept["files"][str(v)], kept["rows"][str(v)], strict=True)
            chain.files, chain.r = [SnapshotFile(*each) for each in named], r
            self._known_files.update(file.name for file in chain.files)

    def delete_old_snapshots(self) -> None:
        """Remove files that nobody names any more, of those that this driver knows."""
        assert self.folder is not None
        named = {file.name for chain in self.chains for file in chain.files}
        for note in self.folder.glob("kept-*.json"):
            named |= _pinned_files(note)
        for name in self._known_files - named:
            (self.folder / name).unlink(missing_ok=True)
            self._known_files.discard(name)


def _pinned_files(note: Path) -> set[str]:
    """Return the files that a checkpoint names, if it is still there."""
    said = _read_note(note)
    there = bool(said) and Path(said["checkpoint"]).exists()
    return {*said["files"], *said["before"]} if there else set()


def _read_note(path: Path) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return said


# -- the log of rounds


@dataclass(frozen=True)
class SentExchange:
    """One exchange: what was sent, and to whom of those that answered."""

    message: bytes
    clients: Sequence[int]


@dataclass(frozen=True)
class LoggedRound:
    """A round that was committed, or states that were given after it."""

    r: int
    exchanges: tuple[SentExchange, ...]
    answered: Sequence[int]
    is_assignment: bool = False


@dataclass(frozen=True)
class _StoredRound:
    r: int
    places: tuple[tuple[int, int, Sequence[int]], ...]  # offset, length, clients
    answered: Sequence[int]
    is_assignment: bool

    def of(self, own: Callable[[int], bool]) -> "_StoredRound":
        """Return the same for some of the clients alone."""
        places = tuple((at, n, [*filter(own, clients)]) for at, n, clients in self.places)
        return replace(self, places=places, answered=[*filter(own, self.answered)])


class RoundLog:
    """The rounds since the oldest snapshot."""

    def __init__(self) -> None:
        self._file: Any = TemporaryFile(prefix="trimtab-log-", buffering=0)  # noqa: SIM115
        self._rounds: list[_StoredRound] = []
        self._end = 0
        finalize(self, self._file.close)

    def __len__(self) -> int:
        return len(self._rounds)

    def append(self, logged: LoggedRound) -> None:
        """Add a round; if the disk is full, nothing is added."""
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
                f"{gettempdir()} cannot take more of what was sent ({error.strerror}); free space "
                "there, set TMPDIR to a folder on another disk, or pass a folder for snapshots."
            ) from error

    def since(self, r: int, own: Callable[[int], bool]) -> Iterator[LoggedRound]:
        """Go through the rounds after round r in which some clients took part, for those alone."""
        for place in (place.of(own) for place in list(self._rounds) if place.r > r):
            if any(clients for *_, clients in place.places):
                sent = [SentExchange(self._read(at, n), clients) for at, n, clients in place.places]
                yield LoggedRound(place.r, tuple(sent), place.answered, place.is_assignment)

    def drop_until(self, r: int) -> None:
        """Drop the rounds up to round r."""
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
                raise OSError("the temporary file of what was sent has been cut off.")
            left -= len(parts[-1])
        return b"".join(parts)
