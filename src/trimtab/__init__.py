"""Federated optimisation that does not drift.

Names are found when they are first used, so that `import trimtab` loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trimtab._version import __version__

# Type checkers and editors read these imports; at run time `__getattr__` does the same work.
if TYPE_CHECKING:
    from trimtab.algorithms import (
        ALGORITHMS,
        Adagrad,
        Adam,
        AdamW,
        Clipped,
        Cosine,
        Dane,
        Decay,
        FedAvg,
        FedDyn,
        FedNova,
        FedOpt,
        FedProx,
        Mime,
        MimeLite,
        MimeLiteMvr,
        MimeMvr,
        Momentum,
        Piecewise,
        RichardsonRomberg,
        Rounding,
        Scaffnew,
        Scaffold,
        ScaffoldM,
        ScaffoldOpt,
        Scallion,
        Schedule,
        Scheduled,
        ServerMvr,
        ServerOnly,
        Sgd,
        Stage,
        Through,
        Warmup,
        Yogi,
    )
    from trimtab.algorithms.registry import register
    from trimtab.cluster.executor import Ray
    from trimtab.core.hyper import Epochs
    from trimtab.diagnosis import Diagnosis
    from trimtab.diagnosis.diagnose import diagnose
    from trimtab.errors import BadArgument, DataError, Diverged, InUse
    from trimtab.problems import (
        Columns,
        Fields,
        GarnetTD,
        LinearSystem,
        OnBatch,
        Problem,
        Quadratic,
        Supervised,
    )
    from trimtab.problems.loading import load_problem
    from trimtab.problems.metrics import Metric
    from trimtab.problems.trained import load
    from trimtab.simulation.arrivals import Speeds
    from trimtab.simulation.executors.tree import Tree
    from trimtab.simulation.rounds import Round
    from trimtab.simulation.simulate import Simulation, simulate
    from trimtab.studies.compare import compare
    from trimtab.studies.comparison import Comparison

    from trimtab import testing  # isort: skip

__all__ = [
    "ALGORITHMS",
    "Adagrad",
    "Adam",
    "AdamW",
    "BadArgument",
    "Clipped",
    "Columns",
    "Comparison",
    "Cosine",
    "Dane",
    "DataError",
    "Decay",
    "Diagnosis",
    "Diverged",
    "Epochs",
    "FedAvg",
    "FedDyn",
    "FedNova",
    "FedOpt",
    "FedProx",
    "Fields",
    "GarnetTD",
    "InUse",
    "LinearSystem",
    "Metric",
    "Mime",
    "MimeLite",
    "MimeLiteMvr",
    "MimeMvr",
    "Momentum",
    "OnBatch",
    "Piecewise",
    "Problem",
    "Quadratic",
    "Ray",
    "RichardsonRomberg",
    "Round",
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
    "Simulation",
    "Speeds",
    "Stage",
    "Supervised",
    "Through",
    "Tree",
    "Warmup",
    "Yogi",
    "__version__",
    "compare",
    "diagnose",
    "load",
    "load_problem",
    "register",
    "simulate",
    "testing",
]

# The module of each name, below trimtab. All other names are in `algorithms`.
_HOMES = {
    **dict.fromkeys(("BadArgument", "DataError", "Diverged", "InUse"), "errors"),
    "Epochs": "core",
    "Metric": "problems.metrics",
    "Ray": "cluster.executor",
    "Speeds": "simulation.arrivals",
    "Tree": "simulation.executors",
    "load": "problems.trained",
    "load_problem": "problems.loading",
    "compare": "studies.compare",
    "register": "algorithms.registry",
    "Comparison": "studies.comparison",
    **dict.fromkeys(("Diagnosis", "diagnose"), "diagnosis"),
    **dict.fromkeys(("GarnetTD", "LinearSystem", "OnBatch", "Problem"), "problems"),
    **dict.fromkeys(("Columns", "Fields", "Quadratic", "Supervised"), "problems"),
    **dict.fromkeys(("Round", "Simulation", "simulate"), "simulation"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    # `testing` is a module, not an attribute of one.
    if name == "testing":
        return import_module("trimtab.testing")
    value = getattr(import_module(f"trimtab.{_HOMES.get(name, 'algorithms')}"), name)
    globals()[name] = value  # Python calls __getattr__ only for names that are not here.
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
