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
from dataclasses import asdict, dataclass, field
from logging import getLogger
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import finalize

from trimtab.cluster import engine
from trimtab.cluster.actor import Actor, Failed, Machine, this_machine
from trimtab.cluster.log import Log, Logged, Sent
from trimtab.cluster.remote_states import RemoteStates
from trimtab.cluster.shard import Reply, Setup, stateful
from trimtab.cluster.snapshots import Snapshots
from trimtab.cluster.wire import pack, pack_small, unpack
from trimtab.compute.kernel import LEVELS
from trimtab.compute.kernel.library import SHARE
from trimtab.core.replies import Tally
from trimtab.errors import BadArgument
from trimtab.problems.origin import origin_of
from trimtab.problems.problem import Problem, fingerprint
from trimtab.simulation.executors import Exchange, Executor
from trimtab.simulation.executors.tree import Node, added, shard_of

TRIES = 5  # a shard is given up when <= 5 actors in a row have died while it was rebuilt
PATIENCE = 10.0  # an actor that cannot be reached for <= 10 s may come back
AHEAD = 16  # <= 16 rounds are on their way to an actor that is rebuilt
_INSTRUCTIONS = ("DEFAULT", "AVX2", "AVX512")  # of PyTorch, from narrow to wide
_LOG = getLogger("trimtab")


@dataclass(frozen=True)
class Wanted:
    """What `Ray` was told, checked."""

    address: str | None
    V: int
    actors: int | None
    folder: Path | None
    resources: dict[str, float]
    every: int
    wait: float
    ship: bool


@dataclass(frozen=True)
class Recovery:
    """How a shard was rebuilt."""

    r: int  # the round that was under way
    shards: tuple[int, int]
    node: str
    rounds: int  # that were run once more
    seconds: float


@dataclass
class Member:
    """One actor, and the virtual shards that it owns."""

    begin: int
    end: int
    incarnation: int = 0
    handle: Any = None
    node: str = ""
    commits: list[Any] = field(default_factory=list)  # that nobody has waited for


class LostError(Exception):
    """An actor is gone."""


class Fleet(Executor):
    """The actors of one simulation."""

    def __init__(self, name: str, wanted: Wanted, problem: Problem, S: int) -> None:
        self.name, self.wanted, self.problem, self.S = name, wanted, problem, S
        self.V = wanted.V
        self.log = Log()
        self.snapshots = Snapshots(wanted.folder, wanted.V)
        self.recoveries: list[Recovery] = []
        self.memory: int | None = None
        self.run_id = uuid4().hex[:8]  # tells the files of this driver from those of another
        self._members: list[Member] = []
        self._count = 0  # how many there are, or are to be
        self._machine: Machine | None = None  # what all machines have in common
        self._handles: list[Any] = []  # of all actors ever made, to be ended with this
        self._round: list[Sent] = []  # the exchanges of the round that is under way
        self._r = 0  # its number
        self._stateful = False
        self._like: Any = None  # a state of a new client, packed
        self._ray: Any = None

    # -- as an executor

    def states(self, memory: int | None) -> RemoteStates:
        """Return the states of the clients, which are where the clients are."""
        self.memory = memory
        return RemoteStates(self)

    def facts(self) -> dict[str, Any]:
        """Return the shards, who held them, and what was rebuilt."""
        told: dict[str, Any] = {"shards": self.V, "actors": len(self._members)}
        told["nodes"] = len({member.node for member in self._members})
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
        reference = self._ray.put(sent.message)
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
        self._r, self._stateful = r, stateful
        due = len(self.log) >= self.wanted.every
        if due and self.snapshots.folder is not None:
            try:
                self.take_snapshot(r - 1)
            except OSError as error:
                _LOG.warning("%s The run goes on with its last snapshot.", error)

    def _message(self, e: Exchange) -> bytes:
        parts = (e.program, pack(e.broadcast), pack_small(e.fresh()), e.seed, e.slow)
        message: bytes = self._ray.cloudpickle.dumps(parts)
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
        self.log.append(Logged(self._r, tuple(self._round), list(answered)))
        touched = [i for sent in self._round for i in sent.clients]
        self._round.clear()
        for member in self._members:
            if self.own(member, touched):
                member.commits.append(
                    self._call(member, "commit", self._r, self.own(member, answered))
                )

    def discard(self) -> None:
        """Forget the round that is under way, if one is."""
        if self._round:
            self._round.clear()
            for member in self._members:
                member.commits.append(self._call(member, "discard"))

    def give(self, states: Sequence[tuple[int, Any]], r: int) -> None:
        """Hand states to the actors that own them."""
        members, clients = self.members(), [i for i, _ in states]
        message: bytes = self._ray.cloudpickle.dumps(states)
        self.log.append(Logged(r, (Sent(message, clients),), clients, given=True))
        reference = self._ray.put(message)
        self.ask_all([(m, ("put", reference, self.own(m, clients))) for m in members])

    # -- snapshots

    def take_snapshot(self, r: int) -> None:
        """Have all actors write what no snapshot has, as it is after round r."""
        whole = self.snapshots.due_whole()
        members = self.members()
        for member in members:
            mark = f"r{r:08}-i{member.incarnation}-{self.run_id}"
            (pieces,) = self.ask_all(
                [(member, ("snapshot", str(self.snapshots.folder), mark, whole))]
            )
            self.snapshots.add(member.begin, member.end, r, pieces, whole)
        self.log.forget(self.snapshots.oldest(members))
        self.snapshots.tidy()

    def load_snapshots(self, kept: dict[str, Any], like: Any, r: int) -> None:
        """Have all actors take up their clients' states from files."""
        self._like = pack_small(like)
        self.snapshots.adopt(kept, r)
        for member in self.members():
            self._load(member)

    def _load(self, member: Member) -> None:
        paths = self.snapshots.paths(member.begin, member.end)
        r = self.snapshots.round_of(member)
        if paths:
            self.ask_one(member, "load", paths, self._like, r)

    # -- questions

    def members(self) -> list[Member]:
        """Return the actors, which are started if they are not there yet."""
        if not self._members:
            self._start()
        return self._members

    def ask_all(self, questions: Sequence[tuple[Member, tuple[Any, ...]]]) -> list[Any]:
        """Ask several actors at once; return their answers, after as many recoveries as needed."""
        asked = [self._call(member, *question) for member, question in questions]
        answers = []
        for (member, question), call in zip(questions, asked, strict=True):
            while True:
                try:
                    answers.append(self._answer(member, call, question))
                    break
                except LostError:
                    self._recover(member)
                    call = self._call(member, *question)
        return answers

    def ask_one(self, member: Member, *question: Any) -> Any:
        """Ask an actor that is being rebuilt: LostError if it is gone too."""
        return self._answer(member, self._call(member, *question), question)

    def _call(self, member: Member, *question: Any) -> Any:
        return member.handle.ask.remote(member.incarnation, *question)

    def _answer(self, member: Member, call: Any, question: tuple[Any, ...]) -> Any:
        """Return an answer; LostError if its actor is gone, or cannot be reached for long."""
        errors = self._ray.exceptions
        until = time.monotonic() + PATIENCE
        while True:
            try:
                for commit in member.commits:
                    _checked(self._ray.get(commit))
                member.commits.clear()
                return _checked(self._ray.get(call))
            except (errors.ActorUnavailableError, errors.ObjectLostError):
                if time.monotonic() > until:
                    raise LostError from None
                time.sleep(0.1)
                call = self._call(member, *question)
            except (errors.RayActorError, errors.NodeDiedError):
                raise LostError from None

    # -- actors come and go

    def _start(self) -> None:
        self._ray = engine.connect(self.wanted.address)
        finalize(self, _end, self._ray, self._handles)
        room = engine.places(self._ray, self.wanted.resources)
        count = self.wanted.actors or min(self.V, room)
        if count > room or not room:
            raise BadArgument(
                "actors",
                "{actors:{_given}} with {_needs} each do not fit the cluster, which has room for "
                "{_room}; pass fewer, or add machines.",
                _given=count or 1,
                _needs=_listed(self.wanted.resources),
                _room=room,
            )
        self._count = count
        members = [Member(*owned) for owned in engine.ranges(self.V, count)]
        self._settle(members)
        self._members = members

    def _settle(self, members: Sequence[Member]) -> None:
        """Start all actors on what their machines have in common."""
        for member in members:
            self._make(member, self.wanted.resources)
        machines = [self._hello(member) for member in members]
        self._machine = common = common_machine(machines)
        common_machine([this_machine("the driver"), *machines])
        for member, machine in zip(members, machines, strict=True):
            if _sets(machine) != _sets(common):  # it has to begin anew with narrower instructions
                self._give_up(member)
                self._make(member, self.wanted.resources)
                _check_sets(self._hello(member), common)
        for call in [self._prepare(member) for member in members]:
            try:
                _checked(self._ray.get(call))
            except self._ray.exceptions.RayActorError as error:
                raise ValueError(_died(error)) from None

    def _make(self, member: Member, resources: dict[str, float]) -> None:
        member.incarnation += 1
        cpus = self.wanted.resources["CPU"]
        environment = {SHARE: str(max(1, int(cpus)))}
        if self._machine is not None:
            environment |= _chosen(self._machine)
        kind = self._ray.remote(Actor).options(
            num_cpus=resources["CPU"],
            num_gpus=resources["GPU"],
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            name=f"trimtab-{self.run_id}-{id(self):x}-{member.begin}-{member.incarnation}",
        )
        member.handle = kind.remote(member.incarnation, environment)
        member.commits.clear()
        self._handles.append(member.handle)

    def _hello(self, member: Member) -> Machine:
        call = member.handle.hello.remote()
        ready, _ = self._ray.wait([call], timeout=self.wanted.wait)
        if not ready:
            needs = _listed(self.wanted.resources)
            _LOG.warning("the cluster has no room yet for an actor with %s; waiting for it", needs)
        try:
            machine: Machine = _checked(self._ray.get(call))
        except self._ray.exceptions.RayActorError as error:
            raise ValueError(_died(error)) from None
        member.node = machine.node
        return machine

    def _prepare(self, member: Member) -> Any:
        setup = Setup(
            origin=None if self.wanted.ship else origin_of(self.problem),
            problem=self.problem if self.wanted.ship else None,
            fingerprint=fingerprint(self.problem),
            S=self.S,
            V=self.V,
            begin=member.begin,
            end=member.end,
            memory=None if self.memory is None else self.memory // self._count,
        )
        return member.handle.prepare.remote(member.incarnation, setup)

    def _recover(self, member: Member) -> None:
        """Replace an actor that is gone, and rebuild what it knew."""
        started, was = time.perf_counter(), member.node
        for _ in range(TRIES):
            self._give_up(member)
            try:
                self._replace(member)
                rounds = self._rebuild(member)
            except LostError:
                continue
            seconds = time.perf_counter() - started
            shards = (member.begin, member.end)
            self.recoveries.append(Recovery(self._r, shards, was, rounds, round(seconds, 3)))
            _LOG.info("%s", self.recoveries[-1])
            return
        raise ValueError(
            f"{TRIES} actors in a row died while shards {member.begin} to {member.end - 1} were "
            "rebuilt; look at `ray status` and at the machines' memory, then resume."
        )

    def _replace(self, member: Member) -> None:
        """Make a new actor, and its shard; on a machine of others if no other is there in time."""
        until = time.monotonic() + self.wanted.wait
        while not engine.free_now(self._ray, self.wanted.resources) and time.monotonic() < until:
            time.sleep(0.2)
        shared = {**self.wanted.resources, "CPU": 0.0}
        free = engine.free_now(self._ray, self.wanted.resources)
        self._make(member, self.wanted.resources if free else shared)
        assert self._machine is not None
        try:
            machine = _checked(self._ray.get(member.handle.hello.remote()))
            common_machine([self._machine, machine])
            _check_sets(machine, self._machine)
            member.node = machine.node
            _checked(self._ray.get(self._prepare(member)))
        except self._ray.exceptions.RayError:
            raise LostError from None

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
            waiting.append((self._call(member, *question), question))
            if len(waiting) >= AHEAD:
                self._answer(member, *waiting.pop(0))
        for call, question in waiting:
            self._answer(member, call, question)
        for number, sent in enumerate(self._round, 1):
            clients = self.own(member, sent.clients)
            self.ask_one(member, "run", self._r, number, sent.message, clients)
        return rounds

    def _give_up(self, member: Member) -> None:
        """End an actor for certain, if it can be reached at all."""
        try:
            self._ray.kill(member.handle)
        except Exception as error:  # It may be gone already, in many ways.
            _LOG.debug("an actor that was given up: %s", error)

    def close(self) -> None:
        """End the actors."""
        if self._ray is not None:
            _end(self._ray, self._handles)
        self._members = []


def common_machine(machines: Sequence[Machine]) -> Machine:
    """Return what all machines have: equal versions, or a refusal, and the narrowest kernel."""
    first, *others = machines
    for other in others:
        for name, ours in first.versions().items():
            theirs = other.versions()[name]
            if theirs != ours:
                raise ValueError(
                    f"{other.node} has {name} {theirs}, {first.node} has {ours}; install the same "
                    "versions on all machines."
                )
    levels, sets = ("none", *LEVELS), _INSTRUCTIONS
    kernel = min((m.kernel for m in machines), key=levels.index)
    known = [m.instructions for m in machines if m.instructions in sets]
    narrow = min(known, key=sets.index) if len(known) == len(machines) else first.instructions
    return Machine(**asdict(first) | {"kernel": kernel, "instructions": narrow})


def _check_sets(machine: Machine, common: Machine) -> None:
    """Refuse a machine that cannot compute as the others do."""
    if _sets(machine) != _sets(common):
        raise ValueError(
            f"{machine.node} computes with {' and '.join(_sets(machine))}, this run with "
            f"{' and '.join(_sets(common))}; save it, and resume it on machines that are alike."
        )


def _sets(machine: Machine) -> tuple[str, str]:
    return machine.kernel, machine.instructions


def _chosen(machine: Machine) -> dict[str, str]:
    """Return the environment in which another machine computes as this one does."""
    kernel = "0" if machine.kernel == "none" else machine.kernel
    return {"TRIMTAB_NATIVE": kernel, "ATEN_CPU_CAPABILITY": machine.instructions.lower()}


def _checked(answer: Any) -> Any:
    """Return an answer; raise what went wrong at the other end."""
    if isinstance(answer, Failed):
        raise OSError(answer.sentence) if answer.of_system else ValueError(answer.sentence)
    return answer


def _died(error: Exception) -> str:
    why = (str(error).strip().splitlines() or ["no reason was given"])[0].rstrip(".")
    return f"an actor died before its first round ({why}); look at `ray status`, then start again."


def _listed(resources: dict[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items() if amount)


def _end(ray: Any, handles: list[Any]) -> None:
    while handles:
        handle = handles.pop()
        try:
            ray.kill(handle)
        except Exception as error:  # Ray may have ended before.
            _LOG.debug("an actor at the end: %s", error)


__all__ = ["Fleet", "Member", "Recovery", "Reply", "Wanted", "common_machine"]
