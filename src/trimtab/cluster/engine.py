"""Ray itself: imported where it is used, connected to, and asked for its machines.

Nothing imports torch before a function is called: an actor chooses instruction sets before that.
"""

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trimtab.errors import BadArgument

_INSTRUCTIONS = ("DEFAULT", "AVX2", "AVX512")  # of PyTorch, from narrow to wide
MISSING = "a cluster needs Ray, which is not installed; run `pip install 'trimtab[cluster]'`."


def import_ray() -> Any:
    """Return the module of Ray; say what to install where there is none."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as later versions do
    try:
        import ray
    except ImportError:
        raise ValueError(MISSING) from None
    return ray


def connect(address: str | None) -> Any:
    """Return Ray, connected: to a cluster, or with no address to one on this machine alone.

    Where the process is connected already, that connection is used.
    """
    ray = import_ray()
    if not ray.is_initialized():
        address = address or os.environ.get("RAY_ADDRESS")
        alone = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            ray.init(
                **({"address": address} if address else alone),
                log_to_driver=False,
                logging_level="ERROR",
                configure_logging=False,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise BadArgument(
                "cluster",
                "there is no cluster at {_address} ({_why}); start one with `ray start`, or pass "
                "its address as {cluster}.",
                _address=address,
                _why=(str(error).strip().splitlines() or [""])[0].rstrip("."),
            ) from None
    _pickle_user_modules_by_value(ray)
    return ray


def _pickle_user_modules_by_value(ray: Any) -> None:
    """Let algorithms from users' own files travel as code: shards cannot import those files."""
    for name, module in list(sys.modules.items()):
        if name.startswith("users_"):
            ray.cloudpickle.register_pickle_by_value(module)


def capacity(ray: Any, resources: dict[str, float]) -> int:
    """Return for how many shards with such needs the machines have room, were they empty."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {name: amount for name, amount in resources.items() if amount}
    if not wanted:
        return len(alive)
    return sum(
        min(int(node.get(name, 0.0) // amount) for name, amount in wanted.items()) for node in alive
    )


def has_free_node(ray: Any, resources: dict[str, float]) -> bool:
    """Tell whether a shard with such needs could start somewhere at once."""
    free = ray._private.state.available_resources_per_node()
    return any(
        all(node.get(name, 0.0) >= amount for name, amount in resources.items())
        for node in free.values()
    )


def shard_ranges(shards: int, actors: int) -> Sequence[tuple[int, int]]:
    """Return the ranges of virtual shards that so many actors own.

    >>> shard_ranges(16, 3)
    [(0, 5), (5, 10), (10, 16)]
    """
    return [(a * shards // actors, (a + 1) * shards // actors) for a in range(actors)]


# -- what machines have in common


@dataclass(frozen=True)
class MachineInfo:
    """What must be alike on all machines for their bits to be: versions; and instruction sets."""

    node: str
    python: str
    torch: str
    trimtab: str
    results: int
    kernel: str  # "none" where there is no kernel
    instructions: str  # of PyTorch

    def versions(self) -> dict[str, Any]:
        """Return what cannot be chosen, and so must be the same everywhere."""
        names = ("python", "torch", "trimtab", "results")
        return {name: getattr(self, name) for name in names}

    @property
    def instruction_sets(self) -> tuple[str, str]:
        """The instruction sets of our kernels and of PyTorch."""
        return self.kernel, self.instructions

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which another machine computes as this one does."""
        kernel = "0" if self.kernel == "none" else self.kernel
        return {"TRIMTAB_NATIVE": kernel, "ATEN_CPU_CAPABILITY": self.instructions.lower()}

    def check_instruction_sets(self, common: "MachineInfo") -> None:
        """Refuse this machine if it cannot compute as the others do."""
        if self.instruction_sets != common.instruction_sets:
            raise ValueError(
                f"{self.node} computes with {' and '.join(self.instruction_sets)}, this run with "
                f"{' and '.join(common.instruction_sets)}; save it, and resume it on machines "
                "that are alike."
            )


def this_machine(node: str) -> MachineInfo:
    """Return what there is on this machine."""
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
    """Return what all machines have: equal versions, or a refusal, and the narrowest kernel."""
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
    return MachineInfo(**asdict(first) | {"kernel": kernel, "instructions": narrow})
