"""Import Ray, connect to a cluster, and compare its machines.

Nothing here imports torch at module level: an actor chooses instruction sets before torch loads.
"""

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from socket import create_connection
from typing import Any

from trimtab.errors import BadArgument

_INSTRUCTIONS = ("DEFAULT", "AVX2", "AVX512")  # PyTorch's names, from narrow to wide
MISSING = "a cluster needs Ray, which is not installed; run `pip install 'trimtab[cluster]'`."


def import_ray() -> Any:
    """Return the module ray; raise ValueError if it is not installed."""
    # Ray would send usage statistics to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Actors without GPUs keep CUDA_VISIBLE_DEVICES, as in later versions of Ray.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ValueError(MISSING) from None
    return ray


def connect(address: str | None) -> Any:
    """Return the module ray, connected to a cluster.

    address: of the cluster; None for the one in RAY_ADDRESS, else Ray starts on this machine only.
        An existing connection of this process is used, whatever the address.
    """
    ray = import_ray()
    if not ray.is_initialized():
        address = address or os.environ.get("RAY_ADDRESS")
        if address is not None:
            _check_reachable(address)
        alone = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            ray.init(
                **({"address": address} if address else alone),
                log_to_driver=False,
                logging_level="ERROR",
                configure_logging=False,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _no_cluster(address, error) from None
    _pickle_user_modules_by_value(ray)
    return ray


def _check_reachable(address: str) -> None:
    """Raise BadArgument if no process listens at HOST:PORT; Ray would try for five minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "/" not in address and port.isdigit():
        try:
            create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster(address, error) from None


def _no_cluster(address: str | None, error: Exception) -> BadArgument:
    return BadArgument(
        "cluster",
        "there is no cluster at {_address} ({_why}); start one with `ray start`, or pass its "
        "address as {cluster}.",
        _address=address,
        _why=(str(error).strip().splitlines() or [""])[0].rstrip("."),
    )


def _pickle_user_modules_by_value(ray: Any) -> None:
    """Send classes of user files as code: shards cannot import those files by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("users_"):
            ray.cloudpickle.register_pickle_by_value(module)


def capacity(ray: Any, resources: dict[str, float]) -> int:
    """Return how many actors with these resources fit the cluster when it is idle."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {name: amount for name, amount in resources.items() if amount}
    if not wanted:
        return len(alive)
    return sum(
        min(int(node.get(name, 0.0) // amount) for name, amount in wanted.items()) for node in alive
    )


def has_free_node(ray: Any, resources: dict[str, float]) -> bool:
    """Return whether an actor with these resources could start now."""
    free = ray._private.state.available_resources_per_node()
    return any(
        all(node.get(name, 0.0) >= amount for name, amount in resources.items())
        for node in free.values()
    )


def shard_ranges(shards: int, actors: int) -> Sequence[tuple[int, int]]:
    """Return the range of virtual shards that each actor owns.

    >>> shard_ranges(16, 3)
    [(0, 5), (5, 10), (10, 16)]
    """
    return [(a * shards // actors, (a + 1) * shards // actors) for a in range(actors)]


# -- machines


@dataclass(frozen=True)
class MachineInfo:
    """The versions and instruction sets of a machine, which decide the bits it computes."""

    node: str
    python: str
    torch: str
    trimtab: str
    results: int
    kernel: str  # the kernel's instruction set; "none" without a kernel
    instructions: str  # PyTorch's instruction set

    def versions(self) -> dict[str, Any]:
        """Return the facts that a run cannot choose, so they have to be equal."""
        names = ("python", "torch", "trimtab", "results")
        return {name: getattr(self, name) for name in names}

    @property
    def instruction_sets(self) -> tuple[str, str]:
        """The instruction sets of trimtab's kernel and of PyTorch."""
        return self.kernel, self.instructions

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that select these instruction sets on another machine."""
        kernel = "0" if self.kernel == "none" else self.kernel
        return {"TRIMTAB_NATIVE": kernel, "ATEN_CPU_CAPABILITY": self.instructions.lower()}

    def check_instruction_sets(self, common: "MachineInfo") -> None:
        """Raise ValueError if this machine does not use the run's instruction sets."""
        if self.instruction_sets != common.instruction_sets:
            raise ValueError(
                f"{self.node} computes with {' and '.join(self.instruction_sets)}, this run with "
                f"{' and '.join(common.instruction_sets)}; save it, and resume it on machines "
                "that have the same instruction sets."
            )


def this_machine(node: str) -> MachineInfo:
    """Return the facts of this machine; node: its name in sentences."""
    import torch

    from trimtab._version import RESULTS, __version__
    from trimtab.compute.kernel import SIMD_LEVELS, simd_level, works

    best = simd_level()
    usable = best is not None and works(torch.float32)
    return MachineInfo(
        node=node,
        python=".".join(platform.python_version_tuple()[:2]),
        torch=torch.__version__,
        trimtab=__version__,
        results=RESULTS,
        kernel=SIMD_LEVELS[best] if best is not None and usable else "none",
        instructions=torch.backends.cpu.get_cpu_capability(),
    )


def common_machine(machines: Sequence[MachineInfo]) -> MachineInfo:
    """Return the widest instruction sets that all machines have.

    Raise ValueError if their versions differ.
    """
    from trimtab.compute.kernel import SIMD_LEVELS

    first, *others = machines
    for other in others:
        for name, ours in first.versions().items():
            theirs = other.versions()[name]
            if theirs != ours:
                raise ValueError(
                    f"{other.node} has {name} {theirs}, {first.node} has {ours}; install the same "
                    "versions on all machines."
                )
    kernel = min((m.kernel for m in machines), key=("none", *SIMD_LEVELS).index)
    known = [m.instructions for m in machines if m.instructions in _INSTRUCTIONS]
    alike = len(known) == len(machines)
    narrow = min(known, key=_INSTRUCTIONS.index) if alike else first.instructions
    return replace(first, kernel=kernel, instructions=narrow)
