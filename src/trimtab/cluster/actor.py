"""The process that holds a shard: it checks who asks, and says where it is if something fails.

Nothing here imports torch, so that an actor can choose instruction sets before torch is loaded.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.cluster.engine import this_machine

if TYPE_CHECKING:
    from trimtab.cluster.shard import Shard, ShardSetup


@dataclass(frozen=True)
class Failure:
    """What went wrong at a shard, in a sentence that names its machine."""

    sentence: str
    is_os_error: bool = False  # it was an OSError


class ShardActor:
    """A shard behind its fence: it answers only those who know its number.

    environment: variables to be set before torch is loaded.
    """

    def __init__(self, incarnation: int, environment: dict[str, str]) -> None:
        os.environ.update(environment)
        self.incarnation = incarnation
        self.shard: Shard | None = None
        self.node = node_name()

    def machine_info(self) -> Any:
        """Return what there is on this machine."""
        try:
            return this_machine(self.node)
        except Exception as error:
            return self._failure(error)

    def pid(self) -> int:
        """Return the number of this process."""
        return os.getpid()

    def create_shard(self, incarnation: int, setup: "ShardSetup") -> Any:
        """Make the problem, and the shard; None if all is well."""
        try:
            from trimtab.cluster.shard import Shard

            self._check_incarnation(incarnation)
            self.shard = Shard(setup)
        except Exception as error:
            return self._failure(error)
        return None

    def invoke(self, incarnation: int, method: str, *arguments: Any) -> Any:
        """Return what a method of the shard returns, or how it failed."""
        try:
            self._check_incarnation(incarnation)
            return getattr(self.shard, method)(*arguments)
        except Exception as error:
            return self._failure(error)

    def _check_incarnation(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            raise ValueError(
                f"this shard is number {self.incarnation}, and number {incarnation} was asked; "
                "another has taken its place, so it does nothing more."
            )

    def _failure(self, error: Exception) -> Failure:
        from trimtab._importing import describe_error

        ours = isinstance(error, ValueError | OSError)
        sentence = (
            (str(error).strip().splitlines() or [""])[0] if ours else f"{describe_error(error)}."
        )
        return Failure(f"{self.node}: {sentence}", isinstance(error, OSError))


def node_name() -> str:
    """Return this machine's name in a sentence."""
    import ray

    short = ray.get_runtime_context().get_node_id()[:6]
    return f"node {ray.util.get_node_ip_address()} ({short})"
