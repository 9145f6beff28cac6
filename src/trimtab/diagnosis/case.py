"""What is known of a problem while it is diagnosed."""

from collections.abc import Callable
from dataclasses import dataclass, field

from trimtab.core import Vector
from trimtab.diagnosis import points
from trimtab.diagnosis.clock import Clock
from trimtab.diagnosis.panel import Panel
from trimtab.problems.problem import Problem
from trimtab.problems.quadratic import Quadratic

SHARE = 0.01  # of the start's f - f*: the eps that is aimed at unless told


@dataclass
class Case:
    """The problem, who is measured, where, and in what time."""

    problem: Problem
    panel: Panel
    clock: Clock
    S: int
    seed: int
    x0: Vector
    f0: float
    best: Vector  # where all is measured: the optimum if it was found
    least: float  # the least f found
    optimum: bool
    eps: float
    doubts: list[str] = field(default_factory=list)

    @property
    def quadratic(self) -> bool:
        """Whether the Hessians are the same everywhere."""
        return isinstance(self.panel.problem, Quadratic)


def _flat(panel: Panel, x0: Vector, best: Vector, seed: int, enough: Callable[[], bool]) -> bool:
    """Tell whether the Hessian vanishes on the way from the start to the best point."""
    start, end = (points.steepest(panel, x, seed, enough) for x in (x0, best))
    return end < 0.1 * start


def find(
    problem: Problem, panel: Panel, clock: Clock, x0: Vector, S: int, seed: int, eps: float | None
) -> Case:
    """Find the optimum, or the point to measure at where there is none."""
    enough, own = clock.until(0.25), panel.problem
    f0 = own.loss(x0)
    best, optimum, way = points.best_point(panel, x0, clock, enough)
    least = own.loss(best)
    wanted = eps if eps is not None else (SHARE * max(0.0, f0 - least) or 1e-6)
    doubts = []
    if not enough() and not hasattr(own, "x_star") and _flat(panel, x0, best, seed, enough):
        best = next((x for x, f in way if f - least <= 0.1 * wanted), best)
        optimum = False
        doubts.append(
            "f has no minimum nearby (its Hessian vanishes on the way down, as for separable "
            "data), so all is measured where f is within eps/10 of the least value found."
        )
    elif not optimum:
        doubts.append("No optimum was found; all is measured at the best point.")
    return Case(problem, panel, clock, S, seed, x0, f0, best, least, optimum, wanted, doubts)
