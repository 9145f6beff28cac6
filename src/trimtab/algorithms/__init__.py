"""The algorithms, one file each; registry.py lists them by name.

Imports core, errors and _importing. A module is imported when one of its names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trimtab.algorithms import registry

if TYPE_CHECKING:
    from trimtab.algorithms.bases import (
        Adagrad,
        Adam,
        AdamW,
        AnyBase,
        Base,
        Clipped,
        Momentum,
        Yogi,
    )
    from trimtab.algorithms.dane import Dane
    from trimtab.algorithms.fedavg import FedAvg
    from trimtab.algorithms.feddyn import FedDyn
    from trimtab.algorithms.fednova import FedNova
    from trimtab.algorithms.fedopt import FedOpt
    from trimtab.algorithms.fedprox import FedProx
    from trimtab.algorithms.mime import Mime
    from trimtab.algorithms.mimelite import MimeLite
    from trimtab.algorithms.mimelitemvr import MimeLiteMvr
    from trimtab.algorithms.mimemvr import MimeMvr
    from trimtab.algorithms.richardsonromberg import RichardsonRomberg
    from trimtab.algorithms.scaffnew import Scaffnew
    from trimtab.algorithms.scaffold import Scaffold
    from trimtab.algorithms.scaffoldm import ScaffoldM
    from trimtab.algorithms.scaffoldopt import ScaffoldOpt
    from trimtab.algorithms.scallion import Scallion
    from trimtab.algorithms.scheduled import Cosine, Decay, Piecewise, Schedule, Scheduled, Warmup
    from trimtab.algorithms.servermvr import ServerMvr
    from trimtab.algorithms.serveronly import ServerOnly
    from trimtab.algorithms.sgd import Sgd
    from trimtab.algorithms.through import Rounding, Stage, Through

    ALGORITHMS: dict[str, type[Any]]
    BASES: dict[str, type[Base]]

__all__ = [
    "ALGORITHMS",
    "BASES",
    "Adagrad",
    "Adam",
    "AdamW",
    "AnyBase",
    "Base",
    "Clipped",
    "Cosine",
    "Dane",
    "Decay",
    "FedAvg",
    "FedDyn",
    "FedNova",
    "FedOpt",
    "FedProx",
    "Mime",
    "MimeLite",
    "MimeLiteMvr",
    "MimeMvr",
    "Momentum",
    "Piecewise",
    "RichardsonRomberg",
    "Rounding",
    "Scaffnew",
    "Scaffold",
    "ScaffoldM",
    "ScaffoldOpt",
    "Scallion",
    "Schedule",
    "Scheduled",
    "ServerMvr",
    "ServerOnly",
    "Sgd",
    "Stage",
    "Through",
    "Warmup",
    "Yogi",
]


# Names whose module has another name. An algorithm's module is its name in lower case, and all
# remaining names are in `bases`.
_ELSEWHERE = {
    **dict.fromkeys(("Rounding", "Stage", "Through"), "through"),
    **dict.fromkeys(
        ("Cosine", "Decay", "Piecewise", "Schedule", "Scheduled", "Warmup"), "scheduled"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'trimtab.algorithms' has no attribute {name!r}")
    globals()[name] = value = _first_use(
        name
    )  # Python calls __getattr__ only for names that are not here.
    return value


def _first_use(name: str) -> Any:
    # Both mappings import every algorithm or base, so that they are built only if they are used.
    if name == "ALGORITHMS":
        return {name: registry.kind(name).cls for name in registry.NAMES}
    if name == "BASES":
        return dict(registry.bases())
    home = name.lower() if name.lower() in registry.NAMES else _ELSEWHERE.get(name, "bases")
    return getattr(import_module(f"trimtab.algorithms.{home}"), name)
