"""Start the actors of one simulation, send them requests, replace lost ones, and end them.

The pool does not know rounds: the driver brings the shard of a replaced actor up to date.
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

_LOG = getLogger("trimtab")


@dataclass(frozen=True)
class RaySettings:
    """The checked arguments of `Ray`, and limits that users do not set."""

    address: str | None
    V: int  # the number of virtual shards
    actors: int | None
    folder: Path | None  # for snapshots
    resources: dict[str, float]  # per actor, by Ray's names
    every: int  # rounds between two snapshots
    wait: float  # seconds to wait for a free machine
    ship: bool
    # Ray may not reach an actor during a short network fault, so it is lost only after this many
    # seconds.
    unreachable: float = 10.0
    # The run ends when this many actors in a row died in one slot: then their work kills them.
    max_deaths: int = 5
    # This many logged rounds are submitted to a rebuilt shard before the driver waits for the
    # first: enough to keep the actor busy, few enough for the memory of their messages.
    replays_ahead: int = 16


@dataclass
class ActorSlot:
    """A range of virtual shards, and the actor that owns them at present."""

    begin: int
    end: int  # exclusive
    incarnation: int = 0
    handle: Any = None
    node: str = ""
    commits: list[Any] = field(default_factory=list)  # submitted; their results are unread


SetupFactory = Callable[[ActorSlot], ShardSetup]
"""Returns the arguments of the shard in a slot."""


class ActorLostError(Exception):
    """An actor died or cannot be reached."""


class ActorPool:
    """The actors of one simulation; all that were ever started end with the pool."""

    def __init__(self, settings: RaySettings) -> None:
        self.settings = settings
        self.run_id = uuid4().hex[:8]  # distinguishes actors and files of several drivers
        self.slots: list[ActorSlot] = []
        self.count = 0  # the number of slots, known before they are filled
        self.ray: Any = None
        self.machine: MachineInfo | None = None  # what all machines share
        self._handles: list[Any] = []
        self._closed = False

    # -- start, replace, end

    def start(self, make_setup: SetupFactory) -> None:
        """Start all actors, with the widest instruction sets that all machines have."""
        if self._closed:
            raise ValueError(
                "the actors of this simulation were ended, and the states of its clients with "
                "them; load it from a checkpoint that sim.save wrote."
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
            # The next start needs the resources that these actors hold.
            _kill_all(self.ray, self._handles)
            raise
        self.slots = slots

    def _start_all(self, slots: Sequence[ActorSlot], make_setup: SetupFactory) -> None:
        for slot in slots:
            self._start_actor(slot, self.settings.resources)
        machines = [self._wait_for_start(slot) for slot in slots]
        self.machine = common = common_machine(machines)
        # The driver adds the sums and steps the server, so its versions have to be equal too.
        common_machine([this_machine("the driver"), *machines])
        for slot, machine in zip(slots, machines, strict=True):
            if machine.instruction_sets != common.instruction_sets:
                # Instruction sets are chosen before torch loads, so this needs a new process.
                self.kill(slot)
                self._start_actor(slot, self.settings.resources)
                self._wait_for_start(slot).check_instruction_sets(common)
        for call in [self._create_shard(slot, make_setup) for slot in slots]:
            try:
                unwrap(self.ray.get(call))
            except self.ray.exceptions.RayError as error:
                raise ValueError(_died_message(error)) from None

    def replace(self, slot: ActorSlot, make_setup: SetupFactory) -> None:
        """Start a new actor in a slot; raise ActorLostError if that one is lost too.

        It starts on a machine with free resources, if there is one within `wait` seconds, else
        beside another actor.
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
        """Start an actor on a free machine; return None if it does not start there.

        For some seconds Ray counts a lost machine as free.
        """
        if not self._has_free_node():
            return None
        self._start_actor(slot, self.settings.resources)
        call = slot.handle.machine_info.remote()
        ready, _ = self.ray.wait([call], timeout=max(self.settings.wait, self.settings.unreachable))
        if not ready:
            self.kill(slot)
            return None
        machine: MachineInfo = unwrap(self.ray.get(call))
        return machine

    def _start_on_shared_node(self, slot: ActorSlot) -> MachineInfo:
        # All cores are reserved, so this actor reserves none and shares those of another.
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
            max_restarts=0,  # the driver replaces actors: Ray's restarts would lose their states
            max_task_retries=0,  # a retry by Ray could run a round twice
            scheduling_strategy="SPREAD",
            name=f"trimtab-{self.run_id}-{slot.begin}-{slot.incarnation}",
        )
        slot.handle = kind.remote(slot.incarnation, environment)
        slot.commits.clear()
        self._handles.append(slot.handle)

    def _wait_for_start(self, slot: ActorSlot) -> MachineInfo:
        """Wait for an actor without a limit, and log a warning after `wait` seconds."""
        call = slot.handle.machine_info.remote()
        ready, _ = self.ray.wait([call], timeout=self.settings.wait)
        if not ready:
            message = "the cluster has no free machine for an actor with %s; waiting for one"
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
        """Kill the actor in a slot, if Ray can reach it."""
        try:
            self.ray.kill(slot.handle)
        except Exception as error:  # Ray raises several classes for actors that are gone.
            _LOG.debug("an actor could not be killed: %s", error)

    def close(self) -> None:
        """Kill all actors."""
        if self.slots:
            self._closed = True
        if self.ray is not None:
            _kill_all(self.ray, self._handles)
        self.slots = []

    # -- requests

    def submit(self, slot: ActorSlot, *request: Any) -> Any:
        """Send a request (a method of Shard and its arguments); return Ray's reference."""
        return slot.handle.invoke.remote(slot.incarnation, *request)

    def call(self, slot: ActorSlot, *request: Any) -> Any:
        """Send a request and return its result; raise ActorLostError if the actor is lost."""
        return self.result(slot, self.submit(slot, *request), request)

    def result(self, slot: ActorSlot, call: Any, request: tuple[Any, ...]) -> Any:
        """Return the result of a submitted request; raise ActorLostError if the actor is lost.

        The results of earlier commits are read first, so that their errors are not missed. If the
        actor cannot be reached, the request is sent again: a shard runs an exchange only once.
        """
        errors = self.ray.exceptions
        until = time.monotonic() + self.settings.unreachable
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


def unwrap(result: Any) -> Any:
    """Return an actor's result; raise the error of a Failure."""
    if isinstance(result, Failure):
        raise OSError(result.sentence) if result.is_os_error else ValueError(result.sentence)
    return result


def _died_message(error: Exception) -> str:
    why = (str(error).strip().splitlines() or ["no reason was given"])[0].rstrip(".")
    return f"an actor died before its first round ({why}); check `ray status`, then start again."


def _kill_all(ray: Any, handles: list[Any]) -> None:
    while handles:
        handle = handles.pop()
        try:
            ray.kill(handle)
        except Exception as error:  # Ray may have shut down before.
            _LOG.debug("an actor could not be killed at the end: %s", error)
