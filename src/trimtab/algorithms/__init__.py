"""The algorithms, one file each; `ALGORITHMS` is the only registry."""

from typing import Any

from trimtab.algorithms.bases import Adagrad, Adam, Base, Momentum, Yogi
from trimtab.algorithms.fedavg import FedAvg
from trimtab.algorithms.fedopt import FedOpt
from trimtab.algorithms.fedprox import FedProx
from trimtab.algorithms.mime import Mime
from trimtab.algorithms.mimelite import MimeLite
from trimtab.algorithms.richardsonromberg import RichardsonRomberg
from trimtab.algorithms.scaffold import Scaffold
from trimtab.algorithms.serveronly import ServerOnly
from trimtab.algorithms.sgd import Sgd

ALGORITHMS: dict[str, type[Any]] = {
    cls.__name__.lower(): cls
    for cls in (
        Sgd,
        FedAvg,
        FedProx,
        Scaffold,
        FedOpt,
        MimeLite,
        Mime,
        ServerOnly,
        RichardsonRomberg,
    )
}
BASES: dict[str, type[Base]] = {
    cls.__name__.lower(): cls for cls in (Momentum, Adam, Yogi, Adagrad)
}

__all__ = [
    "ALGORITHMS",
    "BASES",
    "Adagrad",
    "Adam",
    "Base",
    "FedAvg",
    "FedOpt",
    "FedProx",
    "Mime",
    "MimeLite",
    "Momentum",
    "RichardsonRomberg",
    "Scaffold",
    "ServerOnly",
    "Sgd",
    "Yogi",
]
