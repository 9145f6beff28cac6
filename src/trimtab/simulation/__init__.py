"""The loop of rounds, sampling of clients, client states and checkpoints."""

from trimtab.core.hyper import step_size
from trimtab.errors import Diverged
from trimtab.simulation.executors import Executor
from trimtab.simulation.rounds import Round, Rounds, check_seed
from trimtab.simulation.sampling import cohort_size
from trimtab.simulation.simulate import Simulation, simulate

__all__ = [
    "Diverged",
    "Executor",
    "Round",
    "Rounds",
    "Simulation",
    "check_seed",
    "cohort_size",
    "simulate",
    "step_size",
]
