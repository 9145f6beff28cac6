"""A range of virtual shards: their clients, their states, and the sums of their replies."""

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
from trimtab.problems.fingerprint import same_problem
from trimtab.problems.loading import load_again
from trimtab.problems.origin import Origin
from trimtab.problems.problem import Problem
from trimtab.simulation.client_states import ClientStates
from trimtab.simulation.executors import Exchange, choose
from trimtab.simulation.executors.tree import Node, parts, shard_of, shard_sums
from trimtab.simulation.tensor_file import named_clients, write_tensors
from trimtab.simulation.work import Work


@dataclass(frozen=True)
class Setup:
    """What a shard is made of."""

    origin: Origin | None  # None: the problem itself is sent
    problem: Any
    fingerprint: str  # of the driver's problem
    S: int
    V: int
    begin: int  # the first virtual shard
    end: int  # the one after the last
    memory: int | None


@dataclass(frozen=True)
class Reply:
    """What the clients of an exchange sent, added up subtree by subtree, and what it took."""

    sums: dict[Node, Tally]
    work: int


@dataclass(frozen=True)
class Piece:
    """A file of a snapshot: states of one virtual shard."""

    name: str
    rows: int


class Shard:
    """Runs programs on its own clients, and keeps their states. It knows nothing of Ray."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.problem = _problem(setup)
        self.device = self.problem.x0(0).device
        self.inner = choose(self.problem, setup.S)
        self.states = ClientStates(setup.memory)
        self.tapes = Tapes()
        self.committed = -1  # the last round whose states count
        self.touched = set[int]()  # clients with states that no snapshot has
        self._replies: dict[tuple[int, int], Reply] = {}  # of this round
        self._snapshot: tuple[str, dict[int, Piece]] = "", {}  # the last one

    @torch.no_grad()
    def run(self, r: int, number: int, sent: bytes, clients: Sequence[int]) -> Reply:
        """Run an exchange on own clients; asked twice, it answers the same and does nothing."""
        if (r, number) in self._replies:
            return self._replies[r, number]
        if number == 1:
            self.discard()
        reply = self._reply(self._exchange(r, number, sent), clients)
        self._replies[r, number] = reply
        return reply

    def commit(self, r: int, clients: Sequence[int]) -> None:
        """Let the staged states of a round count; a second time it does nothing."""
        if r <= self.committed:
            return
        self.states.commit(clients)
        self.touched.update(i for i in clients if i in self.states)
        self.committed = r
        self._replies.clear()

    def discard(self) -> None:
        """Forget the round that is under way."""
        self.states.discard()
        self._replies.clear()

    def replay(
        self, r: int, exchanges: Sequence[tuple[bytes, Sequence[int]]], answered: Sequence[int]
    ) -> None:
        """Run a round of the past once more, for the states that it left."""
        for number, (sent, clients) in enumerate(exchanges, 1):
            self.run(r, number, sent, clients)
        self.commit(r, answered)

    # -- states, one by one

    def get(self, clients: Sequence[int], staged: bool) -> list[State | None]:
        """Return states of clients, None for those that have none."""
        if staged:
            found = [self.states.latest(i) for i in clients]
        else:
            found = [self.states[i] if i in self.states else None for i in clients]  # noqa: SIM401
        return [None if state is None else pack(state) for state in found]

    def put(self, message: bytes, clients: Sequence[int]) -> None:
        """Take over the states of own clients that somebody else kept."""
        given = dict(pickle.loads(message))
        for i in clients:
            state = given[i]
            self.states[i] = unpack(state, self.device)
            self.touched.add(i)

    def clients(self) -> list[int]:
        """Return the clients that have a state."""
        return list(self.states)

    def size(self) -> tuple[int, int]:
        """Return how many bytes the states take in memory and on disk."""
        return self.states.in_memory, self.states.on_disk

    def facts(self) -> dict[str, Any]:
        """Return what others may want to know: the executor, the device, the memory it took."""
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"executor": self.inner.name, "device": str(self.device), "peak_bytes": peak}

    # -- snapshots

    def snapshot(self, folder: str, mark: str, whole: Sequence[int]) -> dict[int, Piece]:
        """Write states that no snapshot has, a file for each virtual shard; all of some shards.

        mark: what tells these files from those of another round, or of another incarnation; asked
        twice for one, it answers the same.
        """
        if mark == self._snapshot[0]:
            return self._snapshot[1]
        pieces: dict[int, Piece] = {}
        try:
            for v in range(self.setup.begin, self.setup.end):
                chosen = self.states if v in whole else self.touched
                own = [i for i in sorted(chosen) if shard_of(i, self.setup.V) == v]
                if own:
                    piece = Piece(f"shard-{v:04}-{mark}.safetensors", len(own))
                    self._write(Path(folder) / piece.name, own)
                    pieces[v] = piece
        except OSError:
            for piece in pieces.values():  # nobody will be told of these, and the disk is full
                (Path(folder) / piece.name).unlink(missing_ok=True)
            raise
        self.touched.clear()
        self._snapshot = mark, pieces
        return pieces

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
        """Take up the states in files, older ones first, which are those after round r."""
        form = unpack(like, self.device)
        for path in paths:
            self.states.load(Path(path), form)
        self.committed = r

    # -- inside

    def _exchange(self, r: int, number: int, sent: bytes) -> Exchange:
        program, broadcast, fresh, seed, slow = pickle.loads(sent)
        new = unpack(fresh, self.device)

        def state(i: int) -> State:
            found = self.states.latest(i)
            return new if found is None else found

        return Exchange(
            problem=self.problem,
            program=program,
            broadcast=unpack(broadcast, self.device),
            state=state,
            states=lambda clients: [state(i) for i in clients],
            keep=self.states.stage,
            rooms=self.states.rooms,
            seed=seed,
            r=r,
            number=number,
            tapes=self.tapes,
            work=Work(self.problem),
            fresh=lambda: new,
            slow=slow,
            store=self.states,
        )

    def _reply(self, exchange: Exchange, clients: Sequence[int]) -> Reply:
        V, setup = self.setup.V, self.setup
        with one_thread():
            sums = shard_sums(self.inner, exchange, clients, V)
            found = parts(sums, setup.begin, setup.end)
        return Reply({n: tally.mapped(pack) for n, tally in found.items()}, exchange.work.total)


def stateful(state: State) -> bool:
    """Tell whether there is anything to remember in a client's state."""
    return bool(leaves(state))


def _problem(setup: Setup) -> Problem:
    """Make the problem; refuse one that differs from the driver's."""
    problem: Problem = setup.problem if setup.origin is None else load_again(setup.origin)
    alike = same_problem(problem, setup.fingerprint)
    if alike.differs:
        name = "the problem" if setup.origin is None else setup.origin.spec
        raise ValueError(
            f"{name} is another problem here than at the driver: {', '.join(alike.differs)}; put "
            "the same file and the same data on all machines."
        )
    return problem
