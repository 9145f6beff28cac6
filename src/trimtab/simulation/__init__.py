"""The loop of rounds, sampling, client memory and checkpoints."""

from trimtab.core.hyper import step_size
from trimtab.errors import Diverged
from trimtab.simulation.executors import bits_depend_on_threads
from trimtab.simulation.simulate import Round, Simulation, cohort_size, simulate

__all__ = [
    "Diverged",
    "Round",
    "Simulation",
    "bits_depend_on_threads",
    "cohort_size",
    "simulate",
    "step_size",
]
