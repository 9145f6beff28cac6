"""The loop of rounds, sampling, client memory and checkpoints."""

from trimtab.simulation.divergence import step_size
from trimtab.simulation.simulate import Diverged, Round, Simulation, cohort_size, simulate

__all__ = ["Diverged", "Round", "Simulation", "cohort_size", "simulate", "step_size"]
