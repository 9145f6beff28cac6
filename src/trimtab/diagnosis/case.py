"""What is known of a problem while it is diagnosed; with the budget all that changes on the way."""

from dataclasses import dataclass, field
from typing import Any

import torch

from trimtab.core import Vector
from trimtab.core.streams import NOISE, stream
from trimtab.diagnosis import optimum
from trimtab.diagnosis.budget import Budget, OutOfTime
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.rules import RULES
from trimtab.problems.problem import Problem

NO_GRADIENTS = (
    "The clients' matrices are not symmetric, so they are no Hessians and f is only what the "
    "problem calls its loss: L and delta are spectral norms, mu belongs to the symmetric part, and "
    "Lanczos, the quadratic model and the rates of the convex theory are left out."
)


PLACES = ("start", "best")  # the fields that are x0 itself until another point is found


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
    wanted: float | None  # the eps that was asked for, if one was
    cross_device: bool
    start: Vector  # where rounds are counted from: x0, unless that is the optimum
    best: Vector  # where all is measured: the optimum, if it was found
    least: float  # the least f found
    optimum: bool = False  # whether `best` is an optimum, as far as can be seen
    eps: float = 0.0
    pass_seconds: float = 0.0  # the time of a gradient of all data
    doubts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.aim_below(self.least)

    @property
    def quadratic(self) -> bool:
        """Whether the Hessians are the same everywhere."""
        return self.panel.problem.constant_hessians

    @property
    def some_clients(self) -> bool:
        """Whether only some of the clients are measured."""
        return self.panel.problem.N < self.problem.N

    @property
    def short(self) -> bool:
        """Whether the time is so short that all of it goes to rounds on the problem."""
        return self.pass_seconds * RULES.short > self.budget.seconds

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

    def state(self) -> dict[str, Any]:
        """Return what stages change, to restore it in another process."""
        names = ("least", "optimum", "eps", "pass_seconds", "doubts")
        places = {name: None if (x := getattr(self, name)) is self.x0 else x for name in PLACES}
        kept = {name: getattr(self, name) for name in names} | places
        return kept | {"cut": self.budget.cut, "spent": self.budget.spent}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.budget.cut, spent = state.pop("cut"), state.pop("spent")
        self.budget.started += self.budget.spent - spent
        for name, value in state.items():
            setattr(self, name, self.x0 if name in PLACES and value is None else value)

    def aim_below(self, least: float) -> None:
        """Aim at the eps that was asked for, else at a share of the way down to this f."""
        self.eps = self.wanted or RULES.eps * max(0.0, self.f0 - least) or 1e-6

    def saw(self, loss: float) -> None:
        """Remember a value of f that was seen in a run, if it is the least so far."""
        if loss < self.least and not self.optimum:
            self.least = loss
            if self.best is self.x0:  # Nobody has looked for the optimum.
                self.eps = self.wanted or RULES.eps * (self.f0 - loss)


def begin(
    problem: Problem,
    panel: Panel,
    budget: Budget,
    x0: Vector,
    S: int,
    seed: int = 0,
    eps: float | None = None,
    cross_device: bool = False,
) -> Case:
    """Return what is known at the start."""
    f0 = panel.loss(x0)
    case = Case(problem, panel, budget, S, seed, x0, f0, eps, cross_device, x0, x0, f0)
    if not panel.problem.symmetric:
        case.doubts.append(NO_GRADIENTS)
    return case


def explore(case: Case, out_of_time: OutOfTime) -> None:
    """Find the optimum, or the point to measure at where there is none."""
    search = optimum.best_point(case.panel, case.x0, case.budget, out_of_time)
    best, reached = search.x, search.reached
    least = case.panel.loss(best)
    case.aim_below(least)
    unknown = case.panel.problem.symmetric and case.panel.problem.x_star is None
    if not out_of_time() and unknown and _flat(case, best, out_of_time):
        near = (passed.x for passed in search.way if passed.f - least <= RULES.trifle * case.eps)
        best = next(near, best)
        reached = False
        case.doubts.append(
            "f has no minimum nearby (its Hessian vanishes on the way down, as for separable "
            "data), so all is measured where f is within eps/10 of the least value found."
        )
    elif not reached:
        case.doubts.append("No optimum was found; all is measured at the best point.")
    case.best, case.least, case.optimum = best, min(case.least, least), reached


def _flat(case: Case, best: Vector, out_of_time: OutOfTime) -> bool:
    """Return whether the Hessian vanishes on the way from the start to the best point."""
    start, end = (optimum.steepest(case.panel, x, case.seed, out_of_time) for x in (case.x0, best))
    return end < RULES.vanished * start


def leave_the_optimum(case: Case, size: float, L: float) -> None:
    """If training starts at the optimum, count rounds from a point about this far away."""
    if case.f0 - case.least > 1e-12 * (abs(case.f0) + 1e-30):
        return
    away = torch.randn(len(case.x0), generator=stream(case.seed, NOISE, 3), dtype=torch.float64)
    case.start = case.best + (away / away.norm() * size).to(case.best)
    case.eps = RULES.eps * L * size**2 / 2
    case.doubts.append("Training starts at the optimum, so rounds are counted from elsewhere.")
