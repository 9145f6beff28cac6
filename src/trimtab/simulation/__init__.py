"""The loop of rounds, sampling, client memory and checkpoints."""

from trimtab.simulation.simulate import (
    Diverged,
    Round,
    Simulation,
    cohort_size,
    simulate,
    step_size,
)

__all__ = ["Diverged", "Round", "Simulation", "cohort_size", "simulate", "step_size"]
