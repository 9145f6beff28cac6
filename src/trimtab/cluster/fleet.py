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

from trimtab.cluster.crew import Crew, LostError, Member, Wanted
from trimtab.cluster.log import Log, Logged, Sent
from trimtab.cluster.remote_states import RemoteStates
from trimtab.cluster.shard import Setup, stateful
from trimtab.cluster.snapshots import Snapshots
from trimtab.cluster.wire import pack, pack_small, unpack
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


class Fleet(Executor):
    """The actors of one simulation, as what runs its rounds."""

    def __init__(self, name: str, wanted: Wanted, problem: Problem, S: int) -> None:
        self.name, self.wanted, self.problem, self.S = name, wanted, problem, S
        self.V = wanted.V
        self.crew = Crew(wanted)
        self.log = Log()
        self.snapshots = Snapshots(wanted.folder, wanted.V)
        self.recoveries: list[Recovery] = []
        self.memory: int | None = None
        self.r = 0  # the round that is under way, or was last
        self._round: list[Sent] = []  # the exchanges of the round that is under way
        self._stateful = False
        self._like: Any = None  # a state of a new client, packed
        self._taken = 0  # how many snapshots
        self._store: ref[RemoteStates] | None = None  # what may hold states that were not sent yet

    @property
    def run_id(self) -> str:
        """What tells the files of this driver from those of another."""
        return self.crew.run_id

    # -- as an executor

    def states(self, memory: int | None) -> RemoteStates:
        """Return the states of the clients, which are where the clients are."""
        self.memory = memory
        store = RemoteStates(self)
        self._store = ref(store)
        return store

    def facts(self) -> dict[str, Any]:
        """Return the shards, who held them, and what was rebuilt."""
        members = self.crew.members
        told: dict[str, Any] = {"shards": self.V, "actors": len(members)}
        told["nodes"] = len({member.node for member in members})
        if self.recoveries:
            told["recoveries"] = [asdict(recovery) for recovery in self.recoveries]
        return told

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Have the actors run the program on their clients; add what they return in the tree."""
        members = self.members()
        fresh = exchange.fresh()
        if exchange.number == 1:
            self._open(exchange.r, stateful(fresh))
        self._like = pack_small(fresh)
        sent = Sent(self._message(exchange), list(clients))
        reference = self.crew.ray.put(sent.message)
        self._round.append(sent)
        asked = [
            (member, ("run", exchange.r, exchange.number, reference, own))
            for member in members
            if (own := self.own(member, clients))
        ]
        sums: dict[Node, Tally] = {}
        for reply in self.ask_all(asked):
            exchange.work.add(reply.work)
            sums |= {node: tally.mapped(unpack) for node, tally in reply.sums.items()}
        tally = added(sums, self.V)
        assert tally is not None
        return tally

    def _open(self, r: int, stateful: bool) -> None:
        """Begin a round; a snapshot is due from time to time, before anything is under way."""
        self._round.clear()
        store = None if self._store is None else self._store()
        if store is not None:
            store.send()
        self.r, self._stateful = r, stateful
        due = len(self.log) >= self.wanted.every
        if due and self.snapshots.folder is not None:
            try:
                self.take_snapshot(r - 1)
            except OSError as error:
                _LOG.warning("%s The run goes on with its last snapshot.", error)

    def _message(self, e: Exchange) -> bytes:
        parts = (e.program, pack(e.broadcast), pack_small(e.fresh()), e.seed, e.slow)
        message: bytes = self.crew.ray.cloudpickle.dumps(parts)
        return message

    def own(self, member: Member, clients: Sequence[int]) -> list[int]:
        """Return those of some clients that an actor owns."""
        return [i for i in clients if member.begin <= shard_of(i, self.V) < member.end]

    # -- the end of a round

    def commit(self, answered: Sequence[int]) -> None:
        """Let what the clients have learnt in this round count."""
        if not self._stateful or not self._round:
            self._round.clear()
            return
        self.log.append(Logged(self.r, tuple(self._round), list(answered)))
        touched = [i for sent in self._round for i in sent.clients]
        self._round.clear()
        for member in self.crew.members:
            if self.own(member, touched):
                own = self.own(member, answered)
                member.commits.append(self.crew.call(member, "commit", self.r, own))

    def discard(self) -> None:
        """Forget the round that is under way, if one is."""
        if self._round:
            self._round.clear()
            for member in self.crew.members:
                member.commits.append(self.crew.call(member, "discard"))

    def give(self, states: Sequence[tuple[int, Any]]) -> None:
        """Hand states to the actors that own them, before the next round."""
        members, clients = self.members(), [i for i, _ in states]
        message: bytes = self.crew.ray.cloudpickle.dumps(states)
        # A snapshot of the last round may be older than these, one of the next round is not.
        self.log.append(Logged(self.r + 1, (Sent(message, clients),), clients, given=True))
        reference = self.crew.ray.put(message)
        self.ask_all([(m, ("put", reference, self.own(m, clients))) for m in members])

    # -- snapshots

    def take_snapshot(self, r: int) -> None:
        """Have all actors write what no snapshot has, as it is after round r."""
        whole, members = self.snapshots.due_whole(), self.members()
        self._taken += 1
        for member in members:
            mark = f"r{r:08}-i{member.incarnation}-{self.run_id}-{self._taken}"
            (pieces,) = self.ask_all(
                [(member, ("snapshot", str(self.snapshots.folder), mark, whole))]
            )
            self.snapshots.add(member.begin, member.end, r, pieces, whole)
        self.log.forget(self.snapshots.oldest(members))
        self.snapshots.tidy()

    def load_snapshots(self, kept: dict[str, Any], like: Any) -> None:
        """Have all actors take up their clients' states, after the last round, from files."""
        self._like = pack_small(like)
        self.snapshots.adopt(kept, self.r)
        for member in self.members():
            try:
                self._load(member)
            except LostError:
                self._recover(member)

    def _load(self, member: Member) -> None:
        paths = self.snapshots.paths(member.begin, member.end)
        r = self.snapshots.round_of(member)
        if paths:
            self.crew.ask(member, "load", paths, self._like, r)

    # -- questions

    def members(self) -> list[Member]:
        """Return the actors, which are started if they are not there yet."""
        if not self.crew.members:
            self.crew.start(self._setup)
        return self.crew.members

    def ask_all(self, questions: Sequence[tuple[Member, tuple[Any, ...]]]) -> list[Any]:
        """Ask several actors at once; return their answers, after as many recoveries as needed."""
        asked = [self.crew.call(member, *question) for member, question in questions]
        pairs = zip(questions, asked, strict=True)
        return [self._answer(member, call, question) for (member, question), call in pairs]

    def _answer(self, member: Member, call: Any, question: tuple[Any, ...]) -> Any:
        for _ in range(TRIES):
            try:
                return self.crew.answer(member, call, question)
            except LostError:
                self._recover(member)
                call = self.crew.call(member, *question)
        raise _hopeless(member, f"were asked for {question[0]!r}")

    def _setup(self, member: Member) -> Setup:
        return Setup(
            origin=None if self.wanted.ship else origin_of(self.problem),
            problem=self.problem if self.wanted.ship else None,
            fingerprint=self.problem.fingerprint,
            S=self.S,
            V=self.V,
            begin=member.begin,
            end=member.end,
            memory=None if self.memory is None else self.memory // self.crew.count,
        )

    # -- recoveries

    def _recover(self, member: Member) -> None:
        """Replace an actor that is gone, and rebuild what it knew."""
        started, was = time.perf_counter(), member.node
        for _ in range(TRIES):
            self.crew.give_up(member)
            try:
                self.crew.replace(member, self._setup)
                rounds = self._rebuild(member)
            except LostError:
                continue
            seconds = time.perf_counter() - started
            shards = (member.begin, member.end)
            self.recoveries.append(Recovery(self.r, shards, was, rounds, round(seconds, 3)))
            _LOG.info("%s", self.recoveries[-1])
            return
        raise _hopeless(member, "were rebuilt")

    def _rebuild(self, member: Member) -> int:
        """Bring a new shard to where the old one was; return how many rounds that took."""
        self._load(member)

        def own(i: int) -> bool:
            return member.begin <= shard_of(i, self.V) < member.end

        waiting, rounds = list[Any](), 0
        for logged in self.log.since(self.snapshots.round_of(member), own):
            if logged.given:
                question: tuple[Any, ...] = ("put", logged.exchanges[0].message, logged.answered)
            else:
                exchanges = [(sent.message, sent.clients) for sent in logged.exchanges]
                question = ("replay", logged.r, exchanges, logged.answered)
                rounds += 1
            waiting.append((self.crew.call(member, *question), question))
            if len(waiting) >= AHEAD:
                self.crew.answer(member, *waiting.pop(0))
        for call, question in waiting:
            self.crew.answer(member, call, question)
        for number, sent in enumerate(self._round, 1):
            clients = self.own(member, sent.clients)
            self.crew.ask(member, "run", self.r, number, sent.message, clients)
        return rounds

    def close(self) -> None:
        """End the actors."""
        self.crew.close()


def _hopeless(member: Member, when: str) -> ValueError:
    return ValueError(
        f"{TRIES} actors in a row died while shards {member.begin} to {member.end - 1} {when}; "
        "look at `ray status` and at the machines' memory, then resume."
    )
