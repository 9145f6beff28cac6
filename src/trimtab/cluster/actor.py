"""The Ray actor that holds a shard: it rejects outdated callers and reports failures.

Nothing here imports torch at module level: an actor sets the environment variables that choose
instruction sets, and torch reads them when it is loaded.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.cluster.engine import this_machine

if TYPE_CHECKING:
    from trimtab.cluster.shard import Shard, ShardSetup


@dataclass(frozen=True)
class Failure:
    """An error at a shard, as a sentence that names the machine.

    Ray would wrap an exception in its own class, with a traceback of another machine, so errors
    travel as values; `unwrap` raises them at the driver.
    """

    sentence: str
    is_os_error: bool = False  # raised as OSError at the driver, else as ValueError


class ShardActor:
    """A shard that runs requests of one incarnation only.

    An actor on a machine that Ray took for lost may still be running. The driver has replaced it by
    an actor with a higher incarnation number, so it refuses requests that carry another number.

    incarnation: the number that every request has to carry.
    environment: variables to set before torch is loaded.
    """

    def __init__(self, incarnation: int, environment: dict[str, str]) -> None:
        os.environ.update(environment)
        self.incarnation = incarnation
        self.shard: Shard | None = None
        self.node = node_name()

    def machine_info(self) -> Any:
        """Return the MachineInfo of this machine, or a Failure."""
        try:
            return this_machine(self.node)
        except Exception as error:
            return self._failure(error)

    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def create_shard(self, incarnation: int, setup: "ShardSetup") -> Any:
        """Load the problem and create the shard; return None or a Failure."""
        try:
            from trimtab.cluster.shard import Shard

            self._check_incarnation(incarnation)
            self.shard = Shard(setup)
        except Exception as error:
            return self._failure(error)
        return None

    def invoke(self, incarnation: int, method: str, *arguments: Any) -> Any:
        """Return the result of a method of the shard, or a Failure."""
        try:
            self._check_incarnation(incarnation)
            return getattr(self.shard, method)(*arguments)
        except Exception as error:
            return self._failure(error)

    def _check_incarnation(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            raise ValueError(
                f"this actor has incarnation {self.incarnation}, and the request is for "
                f"incarnation {incarnation}; another actor has replaced it, so it does nothing."
            )

    def _failure(self, error: Exception) -> Failure:
        from trimtab._importing import describe_error

        # Errors of trimtab are one sentence; those of user code also need their place in a file.
        ours = isinstance(error, ValueError | OSError)
        sentence = (
            (str(error).strip().splitlines() or [""])[0] if ours else f"{describe_error(error)}."
        )
        return Failure(f"{self.node}: {sentence}", isinstance(error, OSError))


def node_name() -> str:
    """Return the address and Ray's short id of this machine, for sentences."""
    import ray

    short = ray.get_runtime_context().get_node_id()[:6]
    return f"node {ray.util.get_node_ip_address()} ({short})"
