"""`executor=Ray(…)`: the public settings of a run on a cluster."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from trimtab.cluster.actor_pool import RaySettings
from trimtab.cluster.driver import Driver
from trimtab.cluster.engine import import_ray
from trimtab.core.replies import Tally
from trimtab.errors import BadArgument
from trimtab.problems.origin import origin_of
from trimtab.problems.problem import Problem
from trimtab.simulation.executors import Exchange, Executor
from trimtab.simulation.executors.tree import SHARDS, check_shards


@dataclass(frozen=True)
class Ray(Executor):
    """Run cohorts on a Ray cluster; results have the bits of `Tree(shards)`.

    address: of the cluster, e.g. 10.0.0.1:6379 or auto; None starts Ray on this machine only.
    shards: number of virtual shards (16); it decides the bits and limits the number of actors.
    actors: number of actors; None for as many as fit the cluster.
    snapshots: a folder that all machines can write to. A lost shard recomputes the rounds since its
        last snapshot; without a folder, all rounds.
    cpus: cores per actor (1).
    gpus: GPUs per actor (0).
    every: rounds between two snapshots (100).
    wait: seconds to wait for a free machine when an actor is lost (60), before its replacement
        shares a machine with another actor.
    ship: send a problem that was created in this process to all actors, as code and data (False).
    """

    address: str | None = None
    shards: int = SHARDS
    actors: int | None = None
    snapshots: str | Path | None = None
    _: KW_ONLY
    cpus: float = 1
    gpus: float = 0
    every: int = 100
    wait: float = 60.0
    ship: bool = False
    name: str = field(init=False, default="ray")

    def __post_init__(self) -> None:
        check_shards(self.shards)
        if self.actors is not None and not 1 <= self.actors <= self.shards:
            raise BadArgument(
                "actors",
                "{actors:{_given}}; pass a whole number from 1 to the {_shards} shards.",
                _given=self.actors,
                _shards=self.shards,
            )
        if self.every < 1:
            raise BadArgument("every", "{every:{_given}}; pass rounds >= 1.", _given=self.every)
        object.__setattr__(self, "name", f"ray-{self.shards}")

    def begin(self, problem: Problem, S: int) -> Executor:
        """Return the driver of one simulation; actors start with its first round.

        Raise ValueError if other machines cannot load the problem.
        """
        import_ray()
        if origin_of(problem) is None and not self.ship:
            raise ValueError(
                "a cluster loads the problem on each machine, and this "
                f"{type(problem).__name__} was made here; load it with "
                "trimtab.load_problem('file.py:function'), or pass Ray(ship=True) to send it with "
                "its data."
            )
        settings = RaySettings(
            address=self.address,
            V=self.shards,
            actors=self.actors,
            folder=None if self.snapshots is None else Path(self.snapshots).resolve(),
            resources={"CPU": float(self.cpus), "GPU": float(self.gpus)},
            every=self.every,
            wait=self.wait,
            ship=self.ship,
        )
        return Driver(self.name, settings, problem, S)

    def facts(self) -> dict[str, Any]:
        """Return the number of shards, on which the bits depend."""
        return {"shards": self.shards}

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Raise ValueError: the driver that `begin` returns runs exchanges."""
        raise ValueError("a cluster runs simulations; pass it as simulate(…, executor=Ray(…)).")
