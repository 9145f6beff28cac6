"""The driver of one simulation: it sends exchanges to actors and rebuilds the shards of lost ones.

The rules, in order.
1. An exchange goes to the actors whose clients take part. Each actor adds the replies of its own
   clients, and the driver adds the actors' sums in the binary tree of virtual shards.
2. After the server's step the driver appends the round to the log, then sends a commit to each
   actor. It does not wait for them, because an actor runs requests in the order they arrive.
3. The driver replaces a lost actor by one with the next incarnation number. The new actor loads the
   last snapshot, repeats the logged rounds since then for its own clients, and then the request
   that failed.
4. An actor runs only requests with its own incarnation number, and a snapshot counts only once the
   driver has its file names. So an actor that was replaced but still runs does no harm.
5. An actor that receives a request a second time returns the same result without computing again.
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

_LOG = getLogger("trimtab")


@dataclass(frozen=True)
class Recovery:
    """How the shards of a lost actor were rebuilt, as in the record of a run."""

    r: int  # the round in progress
    shards: tuple[int, int]  # begin, end
    node: str  # the lost actor's machine
    rounds: int  # repeated for these shards
    seconds: float


class Driver(Executor):
    """The executor of one simulation on a cluster."""

    def __init__(self, name: str, settings: RaySettings, problem: Problem, S: int) -> None:
        self.name, self.settings, self.problem, self.S = name, settings, problem, S
        self.V = settings.V
        self.pool = ActorPool(settings)
        self.log = RoundLog()
        self.snapshots = Snapshots(settings.folder, settings.V)
        self.recoveries: list[Recovery] = []
        self.memory: int | None = None
        self.r = 0  # the round in progress, or the last one
        self._exchanges: list[SentExchange] = []  # of the round in progress
        self._stateful = False
        self._state_form: Any = None  # the state of a new client, packed
        self._snapshot_count = 0
        self._store: ref[RemoteStates] | None = None  # may hold states that were not sent yet

    @property
    def run_id(self) -> str:
        """The part of file names that distinguishes several drivers."""
        return self.pool.run_id

    # -- exchanges

    def states(self, memory: int | None) -> RemoteStates:
        """Return the store of client states; memory: bytes for all actors together."""
        self.memory = memory
        store = RemoteStates(self)
        self._store = ref(store)
        return store

    def facts(self) -> dict[str, Any]:
        """Return numbers of shards, actors and machines, and all recoveries."""
        slots = self.pool.slots
        facts: dict[str, Any] = {"shards": self.V, "actors": len(slots)}
        facts["nodes"] = len({slot.node for slot in slots})
        if self.recoveries:
            facts["recoveries"] = [asdict(recovery) for recovery in self.recoveries]
        return facts

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Run the program on the actors' clients, and add the sums in the tree of shards."""
        slots = self.slots()
        new_state = exchange.new_state()
        if exchange.number == 1:
            self._begin_round(exchange.r, has_state(new_state))
        self._state_form = pack_compact(new_state)
        sent = SentExchange(self._encode(exchange), list(clients))
        reference = self.pool.ray.put(sent.message)
        self._exchanges.append(sent)
        requests = [
            (slot, ("run", exchange.r, exchange.number, reference, own))
            for slot in slots
            if (own := self.clients_of(slot, clients))
        ]
        sums: dict[Node, Tally] = {}
        for reply in self.call_all(requests):
            exchange.work.add(reply.work)
            sums |= {node: tally.map_sums(unpack) for node, tally in reply.sums.items()}
        tally = added(sums, self.V)
        assert tally is not None
        return tally

    def _begin_round(self, r: int, stateful: bool) -> None:
        """Begin a round; if a snapshot is due, take it first, while nothing is staged."""
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
                # The log still covers these rounds, so a full disk costs time, not results.
                _LOG.warning("%s The run continues with its last snapshot.", error)

    def _encode(self, e: Exchange) -> bytes:
        parts = (e.program, pack(e.broadcast), pack_compact(e.new_state()), e.seed, e.slow)
        message: bytes = self.pool.ray.cloudpickle.dumps(parts)
        return message

    def clients_of(self, slot: ActorSlot, clients: Sequence[int]) -> list[int]:
        """Return the clients that the actor in a slot owns."""
        return [i for i in clients if slot.begin <= shard_of(i, self.V) < slot.end]

    # -- the end of a round

    def commit(self, answered: Sequence[int]) -> None:
        """Log the round, and commit the staged states of the clients that answered."""
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
        """Discard the round in progress, if there is one."""
        if self._exchanges:
            self._exchanges.clear()
            for slot in self.pool.slots:
                slot.commits.append(self.pool.submit(slot, "discard"))

    def assign_states(self, states: Sequence[tuple[int, Any]]) -> None:
        """Send states to the actors that own their clients, before the next round."""
        slots, clients = self.slots(), [i for i, _ in states]
        message: bytes = self.pool.ray.cloudpickle.dumps(states)
        # A snapshot of round r may have been taken before this assignment, so the log files it
        # under round r + 1.
        self.log.append(
            LoggedRound(self.r + 1, (SentExchange(message, clients),), clients, is_assignment=True)
        )
        reference = self.pool.ray.put(message)
        self.call_all([(m, ("put", reference, self.clients_of(m, clients))) for m in slots])

    # -- snapshots

    def take_snapshot(self, r: int) -> None:
        """Write the states that changed since the last snapshot, as they are after round r."""
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
        """Load the states after the last round from the files that a checkpoint names."""
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
        """Return the slots; the first call starts the actors."""
        if not self.pool.slots:
            self.pool.start(self._setup)
        return self.pool.slots

    def call_all(self, requests: Sequence[tuple[ActorSlot, tuple[Any, ...]]]) -> list[Any]:
        """Send several requests at once; return their results, after recoveries if needed."""
        calls = [self.pool.submit(slot, *request) for slot, request in requests]
        pairs = zip(requests, calls, strict=True)
        return [self._result(slot, call, request) for (slot, request), call in pairs]

    def _result(self, slot: ActorSlot, call: Any, request: tuple[Any, ...]) -> Any:
        for _ in range(self.settings.max_deaths):
            try:
                return self.pool.result(slot, call, request)
            except ActorLostError:
                self._recover(slot)
                call = self.pool.submit(slot, *request)
        raise self._unrecoverable_error(slot, f"ran {request[0]!r}")

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
        """Replace a lost actor and rebuild its shards."""
        started, lost_node = time.perf_counter(), slot.node
        for _ in range(self.settings.max_deaths):
            self.pool.kill(slot)
            try:
                self.pool.replace(slot, self._setup)
                rounds = self._rebuild(slot)
            except ActorLostError:
                continue
            seconds = time.perf_counter() - started
            shards = (slot.begin, slot.end)
            self.recoveries.append(Recovery(self.r, shards, lost_node, rounds, round(seconds, 3)))
            _LOG.info("%s", self.recoveries[-1])
            return
        raise self._unrecoverable_error(slot, "were rebuilt")

    def _rebuild(self, slot: ActorSlot) -> int:
        """Bring a new shard up to date; return the number of rounds it repeated."""
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
            if len(waiting) >= self.settings.replays_ahead:
                self.pool.result(slot, *waiting.pop(0))
        for call, request in waiting:
            self.pool.result(slot, call, request)
        for number, sent in enumerate(self._exchanges, 1):
            clients = self.clients_of(slot, sent.clients)
            self.pool.call(slot, "run", self.r, number, sent.message, clients)
        return rounds

    def close(self) -> None:
        """End all actors."""
        self.pool.close()

    def _unrecoverable_error(self, slot: ActorSlot, when: str) -> ValueError:
        return ValueError(
            f"{self.settings.max_deaths} actors in a row died while shards {slot.begin} to "
            f"{slot.end - 1} {when}; check `ray status` and the machines' memory, then resume."
        )
