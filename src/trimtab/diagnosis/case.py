"""What is known of a problem while it is diagnosed."""

from dataclasses import dataclass, field

import torch

from trimtab.core import Vector
from trimtab.core.streams import NOISE, stream
from trimtab.diagnosis import optimum
from trimtab.diagnosis.budget import Budget, OutOfTime
from trimtab.diagnosis.panel import Panel
from trimtab.problems.problem import Problem

SHORT = 800  # gradients of all data: if the time allows fewer, rounds on the problem take it all
SHARE = 0.01  # of the start's f - f*: the eps that is aimed at unless told


@dataclass
class Case:
    """The problem, who is measured, where, and in what time."""

    problem: Problem
    panel: Panel
    budget: Budget
    S: int
    seed: int
    x0: Vector
    f0: float
    wanted: float | None  # the eps that was asked for
    start: Vector  # where rounds are counted from: x0, unless that is the optimum
    best: Vector  # where all is measured: the optimum if it was found
    least: float  # the least f found
    optimum: bool = False
    eps: float = 0.0
    pass_seconds: float = 0.0  # of a gradient of all data
    step_seconds: float = 0.0  # of a local step of all clients, the fastest that was seen
    doubts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.eps = self.wanted or SHARE * max(0.0, self.f0 - self.least) or 1e-6

    @property
    def quadratic(self) -> bool:
        """Whether the Hessians are the same everywhere."""
        return self.panel.can.constant_hessians

    @property
    def short(self) -> bool:
        """Whether the time is so short that all of it goes to rounds on the problem."""
        return self.pass_seconds * SHORT > self.budget.seconds

    @property
    def where(self) -> str:
        """Where all is measured."""
        if self.best is self.x0:
            return "start"
        return "optimum" if self.optimum else "best point found"

    @property
    def cohort(self) -> int:
        """How many of the clients that are measured stand for S of all N."""
        return max(1, round(self.S * self.panel.problem.N / self.problem.N))

    def found(self, loss: float) -> None:
        """Remember a value of f that was seen in a run, if it is the least so far."""
        if loss < self.least and not self.optimum:
            self.least = loss
            if self.best is self.x0:  # nobody has looked for the optimum
                self.eps = self.wanted or SHARE * (self.f0 - loss)


def begin(
    problem: Problem, panel: Panel, budget: Budget, x0: Vector, S: int, seed: int, eps: float | None
) -> Case:
    """Return what is known at the start."""
    f0 = panel.problem.loss(x0)
    return Case(problem, panel, budget, S, seed, x0, f0, eps, x0, x0, f0)


def explore(case: Case, out_of_time: OutOfTime) -> None:
    """Find the optimum, or the point to measure at where there is none."""
    panel, x0, own = case.panel, case.x0, case.panel.problem
    best, reached, way = optimum.best_point(panel, x0, case.budget, out_of_time)
    least = own.loss(best)
    case.eps = case.wanted or SHARE * max(0.0, case.f0 - least) or 1e-6
    if (
        not out_of_time()
        and panel.can.optimum is None
        and _flat(panel, x0, best, case.seed, out_of_time)
    ):
        best = next((x for x, f in way if f - least <= 0.1 * case.eps), best)
        reached = False
        case.doubts.append(
            "f has no minimum nearby (its Hessian vanishes on the way down, as for separable "
            "data), so all is measured where f is within eps/10 of the least value found."
        )
    elif not reached:
        case.doubts.append("No optimum was found; all is measured at the best point.")
    case.best, case.least, case.optimum = best, min(case.least, least), reached


def _flat(panel: Panel, x0: Vector, best: Vector, seed: int, out_of_time: OutOfTime) -> bool:
    """Tell whether the Hessian vanishes on the way from the start to the best point."""
    start, end = (optimum.steepest(panel, x, seed, out_of_time).norm for x in (x0, best))
    return end < 0.1 * start


def leave_the_optimum(case: Case, size: float, L: float) -> None:
    """If training starts at the optimum, count rounds from a point about this far away."""
    if case.f0 - case.least > 1e-12 * (abs(case.f0) + 1e-30):
        return
    away = torch.randn(len(case.x0), generator=stream(case.seed, NOISE, 3), dtype=torch.float64)
    case.start = case.best + (away / away.norm() * size).to(case.best)
    case.eps = SHARE * L * size**2 / 2
    case.doubts.append("Training starts at the optimum, so rounds are counted from elsewhere.")
