"""The actors of one simulation: made on the machines of a cluster, asked, and ended.

It knows nothing of rounds: what an actor that is made anew has to learn is the fleet's affair.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import finalize

from trimtab.cluster import engine
from trimtab.cluster.actor import Actor, Failed
from trimtab.cluster.engine import Machine, common_machine, this_machine
from trimtab.cluster.shard import Setup
from trimtab.compute.kernel.library import SHARE
from trimtab.errors import BadArgument

PATIENCE = 10.0  # an actor that cannot be reached for <= 10 s may come back
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


@dataclass
class Member:
    """One actor, and the virtual shards that it owns."""

    begin: int
    end: int
    incarnation: int = 0
    handle: Any = None
    node: str = ""
    commits: list[Any] = field(default_factory=list)  # that nobody has waited for


SetupOf = Callable[[Member], Setup]
"""What the shard of an actor is made of."""


class LostError(Exception):
    """An actor is gone."""


class Crew:
    """The actors, of which all that were ever made end with this."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.run_id = uuid4().hex[:8]  # tells what is of this driver from what is of another
        self.members: list[Member] = []
        self.count = 0  # how many there are, or are to be
        self.ray: Any = None
        self.machine: Machine | None = None  # what all machines have in common
        self._handles: list[Any] = []
        self._closed = False

    # -- they come and go

    def start(self, setup_of: SetupOf) -> None:
        """Make all actors, on what their machines have in common."""
        if self._closed:
            raise ValueError(
                "the actors of this simulation were ended, and the states of its clients with "
                "them; load it from what sim.save wrote."
            )
        self.ray = engine.connect(self.wanted.address)
        finalize(self, _end, self.ray, self._handles)
        room = engine.places(self.ray, self.wanted.resources)
        self.count = self.wanted.actors or min(self.wanted.V, room)
        if self.count > room or not room:
            raise BadArgument(
                "actors",
                "{actors:{_given}} with {_needs} each do not fit the cluster, which has room for "
                "{_room}; pass fewer, or add machines.",
                _given=self.count or 1,
                _needs=self._needs,
                _room=room,
            )
        members = [Member(*owned) for owned in engine.ranges(self.wanted.V, self.count)]
        try:
            self._settle(members, setup_of)
        except BaseException:
            _end(self.ray, self._handles)  # they would keep the places of those of the next start
            raise
        self.members = members

    def _settle(self, members: Sequence[Member], setup_of: SetupOf) -> None:
        for member in members:
            self._make(member, self.wanted.resources)
        machines = [self._first_hello(member) for member in members]
        self.machine = common = common_machine(machines)
        common_machine([this_machine("the driver"), *machines])
        for member, machine in zip(members, machines, strict=True):
            if machine.sets != common.sets:  # it has to begin anew with narrower instructions
                self.give_up(member)
                self._make(member, self.wanted.resources)
                self._first_hello(member).check_sets(common)
        for call in [self._prepare(member, setup_of) for member in members]:
            try:
                checked(self.ray.get(call))
            except self.ray.exceptions.RayError as error:
                raise ValueError(_died(error)) from None

    def replace(self, member: Member, setup_of: SetupOf) -> None:
        """Make a new actor in place of one that is gone; LostError if that one goes too.

        It takes what it needs on a machine that is free, or becomes free in time; else it shares
        the machine of others.
        """
        until = time.monotonic() + self.wanted.wait
        while not self._is_free() and time.monotonic() < until:
            time.sleep(0.2)
        try:
            machine = self._hello_in_time(member) or self._hello_beside_others(member)
            assert self.machine is not None
            common_machine([self.machine, machine])
            machine.check_sets(self.machine)
            member.node = machine.node
            checked(self.ray.get(self._prepare(member, setup_of)))
        except self.ray.exceptions.RayError:
            raise LostError from None

    def _is_free(self) -> bool:
        return engine.free_now(self.ray, self.wanted.resources)

    def _hello_in_time(self, member: Member) -> Machine | None:
        """Make an actor where there is room; None if there is none after all.

        For some seconds a machine that is lost looks as if it were free.
        """
        if not self._is_free():
            return None
        self._make(member, self.wanted.resources)
        call = member.handle.hello.remote()
        ready, _ = self.ray.wait([call], timeout=max(self.wanted.wait, PATIENCE))
        if not ready:
            self.give_up(member)
            return None
        machine: Machine = checked(self.ray.get(call))
        return machine

    def _hello_beside_others(self, member: Member) -> Machine:
        self._make(member, {**self.wanted.resources, "CPU": 0.0})
        machine: Machine = checked(self.ray.get(member.handle.hello.remote()))
        return machine

    def _make(self, member: Member, resources: dict[str, float]) -> None:
        member.incarnation += 1
        environment = {SHARE: str(max(1, int(self.wanted.resources["CPU"])))}
        if self.machine is not None:
            environment |= self.machine.environment
        kind = self.ray.remote(Actor).options(
            num_cpus=resources["CPU"],
            num_gpus=resources["GPU"],
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            name=f"trimtab-{self.run_id}-{member.begin}-{member.incarnation}",
        )
        member.handle = kind.remote(member.incarnation, environment)
        member.commits.clear()
        self._handles.append(member.handle)

    def _first_hello(self, member: Member) -> Machine:
        """Wait for an actor as long as it takes, and say so."""
        call = member.handle.hello.remote()
        ready, _ = self.ray.wait([call], timeout=self.wanted.wait)
        if not ready:
            message = "the cluster has no room yet for an actor with %s; waiting for it"
            _LOG.warning(message, self._needs)
        try:
            machine: Machine = checked(self.ray.get(call))
        except self.ray.exceptions.RayError as error:
            raise ValueError(_died(error)) from None
        member.node = machine.node
        return machine

    def _prepare(self, member: Member, setup_of: SetupOf) -> Any:
        return member.handle.prepare.remote(member.incarnation, setup_of(member))

    @property
    def _needs(self) -> str:
        needs = self.wanted.resources.items()
        return " and ".join(f"{amount:g} {name}" for name, amount in needs if amount)

    def give_up(self, member: Member) -> None:
        """End an actor for certain, if it can be reached at all."""
        try:
            self.ray.kill(member.handle)
        except Exception as error:  # It may be gone already, in many ways.
            _LOG.debug("an actor that was given up: %s", error)

    def close(self) -> None:
        """End all actors."""
        if self.members:
            self._closed = True
        if self.ray is not None:
            _end(self.ray, self._handles)
        self.members = []

    # -- they are asked

    def call(self, member: Member, *question: Any) -> Any:
        """Ask an actor, and do not wait."""
        return member.handle.ask.remote(member.incarnation, *question)

    def ask(self, member: Member, *question: Any) -> Any:
        """Ask an actor, and wait: LostError if it is gone."""
        return self.answer(member, self.call(member, *question), question)

    def answer(self, member: Member, call: Any, question: tuple[Any, ...]) -> Any:
        """Return an answer; LostError if its actor is gone, or cannot be reached for long."""
        errors = self.ray.exceptions
        until = time.monotonic() + PATIENCE
        while True:
            try:
                for commit in member.commits:
                    checked(self.ray.get(commit))
                member.commits.clear()
                return checked(self.ray.get(call))
            except (errors.ActorUnavailableError, errors.ObjectLostError):
                if time.monotonic() > until:
                    raise LostError from None
                time.sleep(0.1)
                call = self.call(member, *question)
            except (errors.RayActorError, errors.NodeDiedError, errors.OutOfMemoryError):
                raise LostError from None


def checked(answer: Any) -> Any:
    """Return an answer; raise what went wrong at the other end."""
    if isinstance(answer, Failed):
        raise OSError(answer.sentence) if answer.of_system else ValueError(answer.sentence)
    return answer


def _died(error: Exception) -> str:
    why = (str(error).strip().splitlines() or ["no reason was given"])[0].rstrip(".")
    return f"an actor died before its first round ({why}); look at `ray status`, then start again."


def _end(ray: Any, handles: list[Any]) -> None:
    while handles:
        handle = handles.pop()
        try:
            ray.kill(handle)
        except Exception as error:  # Ray may have ended before.
            _LOG.debug("an actor at the end: %s", error)
