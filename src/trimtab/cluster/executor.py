"""`executor=Ray(…)`: what is asked of a cluster."""

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
    """A cohort over the machines of a Ray cluster; the bits are those of `Tree(shards)`.

    address: of the cluster, such as 10.0.0.1:6379 or auto; None for one on this machine alone.
    shards: virtual shards, on which bits depend, and at most as many actors run. actors: by default
    as many as there is room for. snapshots: a folder that all machines see; what a lost shard has
    done since the last one is run once more, and without a folder all of it. cpus and gpus: what an
    actor takes. every: a snapshot is taken after so many rounds. wait: seconds for which the place
    of a lost actor is kept free for a machine that returns, before it has to share another's. ship:
    send a problem that was made in this process, as code and data, to all actors.
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
        """Return what runs one simulation; it takes nothing of the cluster before its first round.

        A problem that other machines cannot make is refused.
        """
        import_ray()
        if origin_of(problem) is None and not self.ship:
            raise ValueError(
                f"a cluster makes the problem anew on each machine, and this {_kind(problem)} was "
                "made here; load it with trimtab.load_problem('file.py:function'), or pass "
                "Ray(ship=True) to send it with its data."
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
        """Return the number of shards."""
        return {"shards": self.shards}

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Refuse: what `begin` returns does it."""
        raise ValueError("a cluster runs simulations; pass it as simulate(…, executor=Ray(…)).")


def _kind(problem: Problem) -> str:
    return type(problem).__name__
