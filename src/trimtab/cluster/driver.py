"""The driver's side: the actors of one simulation, asked, watched, and replaced when they die.

The rules, in order.
1. An exchange goes to the actors whose clients take part; each adds its own, and the driver adds
   what they return in the tree of virtual shards.
2. When the server has stepped, the round is written to the log, then committed at each actor.
   Nobody waits for that: an actor does in order what it is asked.
3. An actor that dies is replaced by one with the next incarnation. It takes up its last snapshot,
   runs the rounds since then once more on its own clients, and then what it was asked last.
4. An actor answers only who knows its incarnation, and a snapshot counts only if the driver was
   told of it. So one that was given up, but lives, can do no harm.
5. What an actor is asked a second time it answers as before: nothing is computed twice.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from logging import getLogger
from typing import Any
from weakref import ref

from trimtab.cluster.actor_pool import ActorLostError, ActorPool, ActorSlot, RaySettings
from trimtab.cluster.recovery import LoggedRound, RemoteStates, RoundLog, SentExchange, Snapshots
from trimtab.cluster.shard import ShardSetup, has_state
from trimtab.cluster.wire import pack, pack_compact, unpack
from trimtab.core.replies import Tally
from trimtab.problems.origin import origin_of
from trimtab.problems.problem import Problem
from trimtab.simulation.executors import Exchange, Executor
from trimtab.simulation.executors.tree import Node, added, shard_of

TRIES = 5  # a shard is given up when 5 actors in a row have died on it
AHEAD = 16  # <= 16 rounds are on their way to an actor that is rebuilt
_LOG = getLogger("trimtab")


@dataclass(frozen=True)
class Recovery:
    """How a shard was rebuilt."""

    r: int  # the round that was under way
    shards: tuple[int, int]
    node: str
    rounds: int  # that were run once more
    seconds: float


class Driver(Executor):
    """The actors of one simulation, as what runs its rounds."""

    def __init__(self, name: str, settings: RaySettings, problem: Problem, S: int) -> None:
        self.name, self.settings, self.problem, self.S = name, settings, problem, S
        self.V = settings.V
        self.pool = ActorPool(settings)
        self.log = RoundLog()
        self.snapshots = Snapshots(settings.folder, settings.V)
        self.recoveries: list[Recovery] = []
        self.memory: int | None = None
        self.r = 0  # the round that is under way, or was last
        self._exchanges: list[SentExchange] = []  # the exchanges of the round that is under way
        self._stateful = False
        self._state_form: Any = None  # a state of a new client, packed
        self._snapshot_count = 0  # how many snapshots
        self._store: ref[RemoteStates] | None = None  # what may hold states that were not sent yet

    @property
    def run_id(self) -> str:
        """What tells the files of this driver from those of another."""
        return self.pool.run_id

    # -- as an executor

    def states(self, memory: int | None) -> RemoteStates:
        """Return the states of the clients, which are where the clients are."""
        self.memory = memory
        store = RemoteStates(self)
        self._store = ref(store)
        return store

    def facts(self) -> dict[str, Any]:
        """Return the shards, who held them, and what was rebuilt."""
        slots = self.pool.slots
        told: dict[str, Any] = {"shards": self.V, "actors": len(slots)}
        told["nodes"] = len({slot.node for slot in slots})
        if self.recoveries:
            told["recoveries"] = [asdict(recovery) for recovery in self.recoveries]
        return told

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Have the actors run the program on their clients; add what they return in the tree."""
        slots = self.slots()
        new_state = exchange.new_state()
        if exchange.number == 1:
            self._begin_round(exchange.r, has_state(new_state))
        self._state_form = pack_compact(new_state)
        sent = SentExchange(self._encode(exchange), list(clients))
        reference = self.pool.ray.put(sent.message)
        self._exchanges.append(sent)
        asked = [
            (slot, ("run", exchange.r, exchange.number, reference, own))
            for slot in slots
            if (own := self.clients_of(slot, clients))
        ]
        sums: dict[Node, Tally] = {}
        for reply in self.call_all(asked):
            exchange.work.add(reply.work)
            sums |= {node: tally.map_sums(unpack) for node, tally in reply.sums.items()}
        tally = added(sums, self.V)
        assert tally is not None
        return tally

    def _begin_round(self, r: int, stateful: bool) -> None:
        """Begin a round; a snapshot is due from time to time, before anything is under way."""
        self._exchanges.clear()
        store = None if self._store is None else self._store()
        if store is not None:
            store.flush()
        self.r, self._stateful = r, stateful
        due = len(self.log) >= self.settings.every
        if due and self.snapshots.folder is not None:
            try:
                self.take_snapshot(r - 1)
            except OSError as error:
                _LOG.warning("%s The run goes on with its last snapshot.", error)

    def _encode(self, e: Exchange) -> bytes:
        parts = (e.program, pack(e.broadcast), pack_compact(e.new_state()), e.seed, e.slow)
        message: bytes = self.pool.ray.cloudpickle.dumps(parts)
        return message

    def clients_of(self, slot: ActorSlot, clients: Sequence[int]) -> list[int]:
        """Return those of some clients that an actor owns."""
        return [i for i in clients if slot.begin <= shard_of(i, self.V) < slot.end]

    # -- the end of a round

    def commit(self, answered: Sequence[int]) -> None:
        """Let what the clients have learnt in this round count."""
        if not self._stateful or not self._exchanges:
            self._exchanges.clear()
            return
        self.log.append(LoggedRound(self.r, tuple(self._exchanges), list(answered)))
        unsaved = [i for sent in self._exchanges for i in sent.clients]
        self._exchanges.clear()
        for slot in self.pool.slots:
            if self.clients_of(slot, unsaved):
                own = self.clients_of(slot, answered)
                slot.commits.append(self.pool.submit(slot, "commit", self.r, own))

    def discard(self) -> None:
        """Forget the round that is under way, if one is."""
        if self._exchanges:
            self._exchanges.clear()
            for slot in self.pool.slots:
                slot.commits.append(self.pool.submit(slot, "discard"))

    def assign_states(self, states: Sequence[tuple[int, Any]]) -> None:
        """Hand states to the actors that own them, before the next round."""
        slots, clients = self.slots(), [i for i, _ in states]
        message: bytes = self.pool.ray.cloudpickle.dumps(states)
        # A snapshot of the last round may be older than these, one of the next round is not.
        self.log.append(
            LoggedRound(self.r + 1, (SentExchange(message, clients),), clients, is_assignment=True)
        )
        reference = self.pool.ray.put(message)
        self.call_all([(m, ("put", reference, self.clients_of(m, clients))) for m in slots])

    # -- snapshots

    def take_snapshot(self, r: int) -> None:
        """Have all actors write what no snapshot has, as it is after round r."""
        whole, slots = self.snapshots.due_for_full_snapshot(), self.slots()
        self._snapshot_count += 1
        for slot in slots:
            mark = f"r{r:08}-i{slot.incarnation}-{self.run_id}-{self._snapshot_count}"
            (files,) = self.call_all(
                [(slot, ("snapshot", str(self.snapshots.folder), mark, whole))]
            )
            self.snapshots.add(slot.begin, slot.end, r, files, whole)
        self.log.drop_until(self.snapshots.oldest_round(slots))
        self.snapshots.delete_old_snapshots()

    def load_snapshots(self, kept: dict[str, Any], like: Any) -> None:
        """Have all actors take up their clients' states, after the last round, from files."""
        self._state_form = pack_compact(like)
        self.snapshots.resume_from(kept, self.r)
        for slot in self.slots():
            try:
                self._load(slot)
            except ActorLostError:
                self._recover(slot)

    def _load(self, slot: ActorSlot) -> None:
        paths = self.snapshots.paths(slot.begin, slot.end)
        r = self.snapshots.round_of(slot)
        if paths:
            self.pool.call(slot, "load", paths, self._state_form, r)

    # -- requests

    def slots(self) -> list[ActorSlot]:
        """Return the actors, which are started if they are not there yet."""
        if not self.pool.slots:
            self.pool.start(self._setup)
        return self.pool.slots

    def call_all(self, requests: Sequence[tuple[ActorSlot, tuple[Any, ...]]]) -> list[Any]:
        """Ask several actors at once; return their answers, after as many recoveries as needed."""
        asked = [self.pool.submit(slot, *request) for slot, request in requests]
        pairs = zip(requests, asked, strict=True)
        return [self._result(slot, call, request) for (slot, request), call in pairs]

    def _result(self, slot: ActorSlot, call: Any, request: tuple[Any, ...]) -> Any:
        for _ in range(TRIES):
            try:
                return self.pool.result(slot, call, request)
            except ActorLostError:
                self._recover(slot)
                call = self.pool.submit(slot, *request)
        raise _unrecoverable_error(slot, f"were asked for {request[0]!r}")

    def _setup(self, slot: ActorSlot) -> ShardSetup:
        return ShardSetup(
            origin=None if self.settings.ship else origin_of(self.problem),
            problem=self.problem if self.settings.ship else None,
            fingerprint=self.problem.fingerprint,
            S=self.S,
            V=self.V,
            begin=slot.begin,
            end=slot.end,
            memory=None if self.memory is None else self.memory // self.pool.count,
        )

    # -- recoveries

    def _recover(self, slot: ActorSlot) -> None:
        """Replace an actor that is gone, and rebuild what it knew."""
        started, was = time.perf_counter(), slot.node
        for _ in range(TRIES):
            self.pool.kill(slot)
            try:
                self.pool.replace(slot, self._setup)
                rounds = self._rebuild(slot)
            except ActorLostError:
                continue
            seconds = time.perf_counter() - started
            shards = (slot.begin, slot.end)
            self.recoveries.append(Recovery(self.r, shards, was, rounds, round(seconds, 3)))
            _LOG.info("%s", self.recoveries[-1])
            return
        raise _unrecoverable_error(slot, "were rebuilt")

    def _rebuild(self, slot: ActorSlot) -> int:
        """Bring a new shard to where the old one was; return how many rounds that took."""
        self._load(slot)

        def own(i: int) -> bool:
            return slot.begin <= shard_of(i, self.V) < slot.end

        waiting, rounds = list[Any](), 0
        for logged in self.log.since(self.snapshots.round_of(slot), own):
            if logged.is_assignment:
                request: tuple[Any, ...] = ("put", logged.exchanges[0].message, logged.answered)
            else:
                exchanges = [(sent.message, sent.clients) for sent in logged.exchanges]
                request = ("replay", logged.r, exchanges, logged.answered)
                rounds += 1
            waiting.append((self.pool.submit(slot, *request), request))
            if len(waiting) >= AHEAD:
                self.pool.result(slot, *waiting.pop(0))
        for call, request in waiting:
            self.pool.result(slot, call, request)
        for number, sent in enumerate(self._exchanges, 1):
            clients = self.clients_of(slot, sent.clients)
            self.pool.call(slot, "run", self.r, number, sent.message, clients)
        return rounds

    def close(self) -> None:
        """End the actors."""
        self.pool.close()


def _unrecoverable_error(slot: ActorSlot, when: str) -> ValueError:
    return ValueError(
        f"{TRIES} actors in a row died while shards {slot.begin} to {slot.end - 1} {when}; "
        "look at `ray status` and at the machines' memory, then resume."
    )
