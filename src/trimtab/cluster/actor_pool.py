"""The actors of one simulation: made on the machines of a cluster, asked, and ended.

It knows nothing of rounds: what an actor that is made anew has to learn is the driver's affair.
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
from trimtab.cluster.actor import Failure, ShardActor
from trimtab.cluster.engine import MachineInfo, common_machine, this_machine
from trimtab.cluster.shard import ShardSetup
from trimtab.compute.kernel.library import CORES_VARIABLE
from trimtab.errors import BadArgument

PATIENCE = 10.0  # an actor that cannot be reached for <= 10 s may come back
_LOG = getLogger("trimtab")


@dataclass(frozen=True)
class RaySettings:
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
class ActorSlot:
    """One actor, and the virtual shards that it owns."""

    begin: int
    end: int
    incarnation: int = 0
    handle: Any = None
    node: str = ""
    commits: list[Any] = field(default_factory=list)  # that nobody has waited for


SetupFactory = Callable[[ActorSlot], ShardSetup]
"""What the shard of an actor is made of."""


class ActorLostError(Exception):
    """An actor is gone."""


class ActorPool:
    """The actors, of which all that were ever made end with this."""

    def __init__(self, settings: RaySettings) -> None:
        self.settings = settings
        self.run_id = uuid4().hex[:8]  # tells what is of this driver from what is of another
        self.slots: list[ActorSlot] = []
        self.count = 0  # how many there are, or are to be
        self.ray: Any = None
        self.machine: MachineInfo | None = None  # what all machines have in common
        self._handles: list[Any] = []
        self._closed = False

    # -- they come and go

    def start(self, make_setup: SetupFactory) -> None:
        """Make all actors, on what their machines have in common."""
        if self._closed:
            raise ValueError(
                "the actors of this simulation were ended, and the states of its clients with "
                "them; load it from what sim.save wrote."
            )
        self.ray = engine.connect(self.settings.address)
        finalize(self, _kill_all, self.ray, self._handles)
        room = engine.capacity(self.ray, self.settings.resources)
        self.count = self.settings.actors or min(self.settings.V, room)
        if self.count > room or not room:
            raise BadArgument(
                "actors",
                "{actors:{_given}} with {_needs} each do not fit the cluster, which has room for "
                "{_room}; pass fewer, or add machines.",
                _given=self.count or 1,
                _needs=self._resource_text,
                _room=room,
            )
        slots = [ActorSlot(*owned) for owned in engine.shard_ranges(self.settings.V, self.count)]
        try:
            self._start_all(slots, make_setup)
        except BaseException:
            # They would keep the places of those of the next start.
            _kill_all(self.ray, self._handles)
            raise
        self.slots = slots

    def _start_all(self, slots: Sequence[ActorSlot], make_setup: SetupFactory) -> None:
        for slot in slots:
            self._start_actor(slot, self.settings.resources)
        machines = [self._wait_for_start(slot) for slot in slots]
        self.machine = common = common_machine(machines)
        common_machine([this_machine("the driver"), *machines])
        for slot, machine in zip(slots, machines, strict=True):
            if machine.instruction_sets != common.instruction_sets:
                # It has to begin again with narrower instructions.
                self.kill(slot)
                self._start_actor(slot, self.settings.resources)
                self._wait_for_start(slot).check_instruction_sets(common)
        for call in [self._create_shard(slot, make_setup) for slot in slots]:
            try:
                unwrap(self.ray.get(call))
            except self.ray.exceptions.RayError as error:
                raise ValueError(_died_message(error)) from None

    def replace(self, slot: ActorSlot, make_setup: SetupFactory) -> None:
        """Make a new actor in place of one that is gone; ActorLostError if that one goes too.

        It takes what it needs on a machine that is free, or becomes free in time; else it shares
        the machine of others.
        """
        until = time.monotonic() + self.settings.wait
        while not self._has_free_node() and time.monotonic() < until:
            time.sleep(0.2)
        try:
            machine = self._start_on_free_node(slot) or self._start_on_shared_node(slot)
            assert self.machine is not None
            common_machine([self.machine, machine])
            machine.check_instruction_sets(self.machine)
            slot.node = machine.node
            unwrap(self.ray.get(self._create_shard(slot, make_setup)))
        except self.ray.exceptions.RayError:
            raise ActorLostError from None

    def _has_free_node(self) -> bool:
        return engine.has_free_node(self.ray, self.settings.resources)

    def _start_on_free_node(self, slot: ActorSlot) -> MachineInfo | None:
        """Make an actor where there is room; None if there is none after all.

        For some seconds a machine that is lost looks as if it were free.
        """
        if not self._has_free_node():
            return None
        self._start_actor(slot, self.settings.resources)
        call = slot.handle.machine_info.remote()
        ready, _ = self.ray.wait([call], timeout=max(self.settings.wait, PATIENCE))
        if not ready:
            self.kill(slot)
            return None
        machine: MachineInfo = unwrap(self.ray.get(call))
        return machine

    def _start_on_shared_node(self, slot: ActorSlot) -> MachineInfo:
        self._start_actor(slot, {**self.settings.resources, "CPU": 0.0})
        machine: MachineInfo = unwrap(self.ray.get(slot.handle.machine_info.remote()))
        return machine

    def _start_actor(self, slot: ActorSlot, resources: dict[str, float]) -> None:
        slot.incarnation += 1
        environment = {CORES_VARIABLE: str(max(1, int(self.settings.resources["CPU"])))}
        if self.machine is not None:
            environment |= self.machine.environment
        kind = self.ray.remote(ShardActor).options(
            num_cpus=resources["CPU"],
            num_gpus=resources["GPU"],
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            name=f"trimtab-{self.run_id}-{slot.begin}-{slot.incarnation}",
        )
        slot.handle = kind.remote(slot.incarnation, environment)
        slot.commits.clear()
        self._handles.append(slot.handle)

    def _wait_for_start(self, slot: ActorSlot) -> MachineInfo:
        """Wait for an actor as long as it takes, and say so."""
        call = slot.handle.machine_info.remote()
        ready, _ = self.ray.wait([call], timeout=self.settings.wait)
        if not ready:
            message = "the cluster has no room yet for an actor with %s; waiting for it"
            _LOG.warning(message, self._resource_text)
        try:
            machine: MachineInfo = unwrap(self.ray.get(call))
        except self.ray.exceptions.RayError as error:
            raise ValueError(_died_message(error)) from None
        slot.node = machine.node
        return machine

    def _create_shard(self, slot: ActorSlot, make_setup: SetupFactory) -> Any:
        return slot.handle.create_shard.remote(slot.incarnation, make_setup(slot))

    @property
    def _resource_text(self) -> str:
        needs = self.settings.resources.items()
        return " and ".join(f"{amount:g} {name}" for name, amount in needs if amount)

    def kill(self, slot: ActorSlot) -> None:
        """End an actor for certain, if it can be reached at all."""
        try:
            self.ray.kill(slot.handle)
        except Exception as error:  # It may be gone already, in many ways.
            _LOG.debug("an actor that was given up: %s", error)

    def close(self) -> None:
        """End all actors."""
        if self.slots:
            self._closed = True
        if self.ray is not None:
            _kill_all(self.ray, self._handles)
        self.slots = []

    # -- they are asked

    def submit(self, slot: ActorSlot, *request: Any) -> Any:
        """Ask an actor, and do not wait."""
        return slot.handle.invoke.remote(slot.incarnation, *request)

    def call(self, slot: ActorSlot, *request: Any) -> Any:
        """Ask an actor, and wait: ActorLostError if it is gone."""
        return self.result(slot, self.submit(slot, *request), request)

    def result(self, slot: ActorSlot, call: Any, request: tuple[Any, ...]) -> Any:
        """Return an answer; ActorLostError if its actor is gone, or cannot be reached for long."""
        errors = self.ray.exceptions
        until = time.monotonic() + PATIENCE
        while True:
            try:
                for commit in slot.commits:
                    unwrap(self.ray.get(commit))
                slot.commits.clear()
                return unwrap(self.ray.get(call))
            except (errors.ActorUnavailableError, errors.ObjectLostError):
                if time.monotonic() > until:
                    raise ActorLostError from None
                time.sleep(0.1)
                call = self.submit(slot, *request)
            except (errors.RayActorError, errors.NodeDiedError, errors.OutOfMemoryError):
                raise ActorLostError from None


def unwrap(answer: Any) -> Any:
    """Return an answer; raise what went wrong at the other end."""
    if isinstance(answer, Failure):
        raise OSError(answer.sentence) if answer.is_os_error else ValueError(answer.sentence)
    return answer


def _died_message(error: Exception) -> str:
    why = (str(error).strip().splitlines() or ["no reason was given"])[0].rstrip(".")
    return f"an actor died before its first round ({why}); look at `ray status`, then start again."


def _kill_all(ray: Any, handles: list[Any]) -> None:
    while handles:
        handle = handles.pop()
        try:
            ray.kill(handle)
        except Exception as error:  # Ray may have ended before.
            _LOG.debug("an actor at the end: %s", error)
