"""A range of virtual shards: it runs their clients, stores their states and adds their replies."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trimtab.cluster.wire import pack, unpack
from trimtab.compute.tape import Tapes
from trimtab.core import State, leaves
from trimtab.core.replies import Tally
from trimtab.core.threads import one_thread
from trimtab.problems.identity import matches_fingerprint
from trimtab.problems.loading import reload_problem
from trimtab.problems.origin import Origin
from trimtab.problems.problem import Problem
from trimtab.simulation.checkpoint import named_clients, write_tensors
from trimtab.simulation.client_states import ClientStates
from trimtab.simulation.cohort import Work
from trimtab.simulation.executors import Exchange, choose
from trimtab.simulation.executors.tree import Node, parts, shard_of, shard_sums


@dataclass(frozen=True)
class ShardSetup:
    """The arguments of a shard."""

    origin: Origin | None  # where to load the problem; None if the problem itself is sent
    problem: Any
    fingerprint: str  # of the driver's problem
    S: int
    V: int  # the number of virtual shards of the run
    begin: int  # the first virtual shard
    end: int  # exclusive
    memory: int | None  # bytes of states in memory


@dataclass(frozen=True)
class ShardReply:
    """The replies of a shard's clients, added in maximal subtrees of the tree of shards."""

    sums: dict[Node, Tally]
    work: int  # sample gradients


@dataclass(frozen=True)
class SnapshotFile:
    """A file with states of one virtual shard."""

    name: str
    rows: int  # the number of states


class Shard:
    """Runs programs on its own clients and stores their states; it does not know Ray."""

    def __init__(self, setup: ShardSetup) -> None:
        self.setup = setup
        self.problem = _load_problem(setup)
        self.device = self.problem.x0(0).device
        self.inner = choose(self.problem, setup.S)
        self.states = ClientStates(setup.memory)
        self.tapes = Tapes()
        self.committed = -1  # the last committed round
        self.unsaved = set[int]()  # clients whose states changed since the last snapshot
        # Results of repeated requests: by exchange in this round, and the last snapshot by mark.
        self._replies: dict[tuple[int, int], ShardReply] = {}
        self._snapshot: tuple[str, dict[int, SnapshotFile]] = "", {}

    @torch.no_grad()
    def run(self, r: int, number: int, sent: bytes, clients: Sequence[int]) -> ShardReply:
        """Run an exchange on own clients; a repeated request returns the first reply."""
        if (r, number) in self._replies:
            return self._replies[r, number]
        if number == 1:
            self.discard()
        reply = self._reply(self._exchange(r, number, sent), clients)
        self._replies[r, number] = reply
        return reply

    def commit(self, r: int, clients: Sequence[int]) -> None:
        """Commit the staged states of round r; a repeated request does nothing."""
        if r <= self.committed:
            return
        self.states.commit(clients)
        self.unsaved.update(i for i in clients if i in self.states)
        self.committed = r
        self._replies.clear()

    def discard(self) -> None:
        """Discard the round in progress."""
        self.states.discard()
        self._replies.clear()

    def replay(
        self, r: int, exchanges: Sequence[tuple[bytes, Sequence[int]]], answered: Sequence[int]
    ) -> None:
        """Repeat a committed round to rebuild the states it left."""
        for number, (sent, clients) in enumerate(exchanges, 1):
            self.run(r, number, sent, clients)
        self.commit(r, answered)

    # -- states, one by one

    def get(self, clients: Sequence[int], staged: bool) -> list[State | None]:
        """Return packed states, None for clients without one."""
        if staged:
            found = [self.states.latest(i) for i in clients]
        else:
            found = [self.states[i] if i in self.states else None for i in clients]  # noqa: SIM401
        return [None if state is None else pack(state) for state in found]

    def put(self, message: bytes, clients: Sequence[int]) -> None:
        """Store the states of own clients from a message of the driver."""
        given = dict(pickle.loads(message))
        for i in clients:
            state = given[i]
            self.states[i] = unpack(state, self.device)
            self.unsaved.add(i)

    def clients(self) -> list[int]:
        """Return the clients that have a state."""
        return list(self.states)

    def size(self) -> tuple[int, int]:
        """Return the bytes of states in memory and on disk."""
        return self.states.in_memory, self.states.on_disk

    def facts(self) -> dict[str, Any]:
        """Return the executor, the device and the peak memory of this process."""
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"executor": self.inner.name, "device": str(self.device), "peak_bytes": peak}

    # -- snapshots

    def snapshot(self, folder: str, mark: str, whole: Sequence[int]) -> dict[int, SnapshotFile]:
        """Write one file per virtual shard with the states that changed; return the files.

        mark: the part of file names that is unique to this request; a repeated request returns the
            files of the first.
        whole: virtual shards of which all states are written.
        """
        if mark == self._snapshot[0]:
            return self._snapshot[1]
        files: dict[int, SnapshotFile] = {}
        try:
            for v in range(self.setup.begin, self.setup.end):
                chosen = self.states if v in whole else self.unsaved
                own = [i for i in sorted(chosen) if shard_of(i, self.setup.V) == v]
                if own:
                    file = SnapshotFile(f"shard-{v:04}-{mark}.safetensors", len(own))
                    self._write(Path(folder) / file.name, own)
                    files[v] = file
        except OSError:
            # The driver never learns these names, and the disk is full.
            for file in files.values():
                (Path(folder) / file.name).unlink(missing_ok=True)
            raise
        self.unsaved.clear()
        self._snapshot = mark, files
        return files

    def _write(self, path: Path, clients: Sequence[int]) -> None:
        def tensors() -> Any:
            return named_clients((i, self.states[i]) for i in clients)

        try:
            write_tensors(path, tensors, {})
        except OSError as error:
            raise OSError(
                f"{path.parent} cannot take a snapshot ({error.strerror}); free space there, or "
                "pass another folder for snapshots."
            ) from error

    def load(self, paths: Sequence[str], like: State, r: int) -> None:
        """Load the states after round r from files, oldest first."""
        form = unpack(like, self.device)
        for path in paths:
            self.states.load(Path(path), form)
        self.committed = r

    # -- exchanges

    def _exchange(self, r: int, number: int, sent: bytes) -> Exchange:
        program, broadcast, new_state, seed, slow = pickle.loads(sent)
        new = unpack(new_state, self.device)

        def state(i: int) -> State:
            found = self.states.latest(i)
            return new if found is None else found

        return Exchange(
            problem=self.problem,
            program=program,
            broadcast=unpack(broadcast, self.device),
            state=state,
            states=lambda clients: [state(i) for i in clients],
            store_state=self.states.stage,
            allocate_states=self.states.allocate_states,
            seed=seed,
            r=r,
            number=number,
            tapes=self.tapes,
            work=Work(self.problem),
            new_state=lambda: new,
            slow=slow,
            store=self.states,
        )

    def _reply(self, exchange: Exchange, clients: Sequence[int]) -> ShardReply:
        V, setup = self.setup.V, self.setup
        with one_thread():
            sums = shard_sums(self.inner, exchange, clients, V)
            found = parts(sums, setup.begin, setup.end)
        return ShardReply(
            {n: tally.map_sums(pack) for n, tally in found.items()}, exchange.work.total
        )


def has_state(state: State) -> bool:
    """Return whether a client's state has any tensors."""
    return bool(leaves(state))


def _load_problem(setup: ShardSetup) -> Problem:
    """Load the problem; raise ValueError if it differs from the driver's."""
    problem: Problem = setup.problem if setup.origin is None else reload_problem(setup.origin)
    alike = matches_fingerprint(problem, setup.fingerprint)
    if alike.differs:
        name = "the problem" if setup.origin is None else setup.origin.spec
        raise ValueError(
            f"{name} differs from the driver's problem: {', '.join(alike.differs)}; put the same "
            "file and the same data on all machines."
        )
    return problem
