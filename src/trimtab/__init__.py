"""Federated optimisation that does not drift."""

from trimtab.algorithms import (
    ALGORITHMS,
    Adagrad,
    Adam,
    FedAvg,
    FedOpt,
    FedProx,
    Mime,
    MimeLite,
    Momentum,
    RichardsonRomberg,
    Scaffold,
    ServerOnly,
    Sgd,
    Yogi,
)
from trimtab.compare import compare
from trimtab.comparison import Comparison
from trimtab.diagnosis import Diagnosis, diagnose
from trimtab.problems import Problem, Quadratic, Supervised
from trimtab.simulation import Diverged, Round, Simulation, simulate

__version__ = "0.1.0"

from trimtab import testing  # last: its checks use the names above

__all__ = [
    "ALGORITHMS",
    "Adagrad",
    "Adam",
    "Comparison",
    "Diagnosis",
    "Diverged",
    "FedAvg",
    "FedOpt",
    "FedProx",
    "Mime",
    "MimeLite",
    "Momentum",
    "Problem",
    "Quadratic",
    "RichardsonRomberg",
    "Round",
    "Scaffold",
    "ServerOnly",
    "Sgd",
    "Simulation",
    "Supervised",
    "Yogi",
    "compare",
    "diagnose",
    "simulate",
    "testing",
]
