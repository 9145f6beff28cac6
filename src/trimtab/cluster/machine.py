"""What the machines of a cluster have in common, so that they compute the same bits.

Nothing imports torch before a function is called: an actor chooses instruction sets before that.
"""

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_INSTRUCTIONS = ("DEFAULT", "AVX2", "AVX512")  # of PyTorch, from narrow to wide


@dataclass(frozen=True)
class Machine:
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
    def sets(self) -> tuple[str, str]:
        """The instruction sets of our kernels and of PyTorch."""
        return self.kernel, self.instructions

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which another machine computes as this one does."""
        kernel = "0" if self.kernel == "none" else self.kernel
        return {"TRIMTAB_NATIVE": kernel, "ATEN_CPU_CAPABILITY": self.instructions.lower()}

    def check_sets(self, common: "Machine") -> None:
        """Refuse this machine if it cannot compute as the others do."""
        if self.sets != common.sets:
            raise ValueError(
                f"{self.node} computes with {' and '.join(self.sets)}, this run with "
                f"{' and '.join(common.sets)}; save it, and resume it on machines that are alike."
            )


def this_machine(node: str) -> Machine:
    """Return what there is on this machine."""
    import torch

    from trimtab._version import RESULTS, __version__
    from trimtab.compute.kernel import LEVELS, level, works

    best = level()
    usable = best is not None and works(torch.float32)
    return Machine(
        node=node,
        python=".".join(platform.python_version_tuple()[:2]),
        torch=torch.__version__,
        trimtab=__version__,
        results=RESULTS,
        kernel=LEVELS[best] if best is not None and usable else "none",
        instructions=torch.backends.cpu.get_cpu_capability(),
    )


def common_machine(machines: Sequence[Machine]) -> Machine:
    """Return what all machines have: equal versions, or a refusal, and the narrowest kernel."""
    from trimtab.compute.kernel import LEVELS

    first, *others = machines
    for other in others:
        for name, ours in first.versions().items():
            theirs = other.versions()[name]
            if theirs != ours:
                raise ValueError(
                    f"{other.node} has {name} {theirs}, {first.node} has {ours}; install the same "
                    "versions on all machines."
                )
    kernel = min((m.kernel for m in machines), key=("none", *LEVELS).index)
    known = [m.instructions for m in machines if m.instructions in _INSTRUCTIONS]
    alike = len(known) == len(machines)
    narrow = min(known, key=_INSTRUCTIONS.index) if alike else first.instructions
    return Machine(**asdict(first) | {"kernel": kernel, "instructions": narrow})
