"""Where to measure: the start, a point after a few rounds, and the optimum if it can be had."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import torch

from trimtab.algorithms import FedAvg
from trimtab.core import Vector
from trimtab.core.streams import NOISE, stream
from trimtab.diagnosis.abilities import Abilities
from trimtab.diagnosis.budget import Budget, OutOfTime
from trimtab.diagnosis.lanczos import Spectrum, lanczos
from trimtab.diagnosis.panel import Panel
from trimtab.problems.problem import Problem
from trimtab.simulation import Diverged, simulate

ROUNDS, K = 5, 5  # a point on the way is where 5 rounds of FedAvg with K = 5 lead
REMEMBERED = 20_000_000  # the points that are remembered hold <= 20,000,000 numbers, and one more
REACHED = 1e-3  # a point counts as an optimum if |grad f| there is <= 1e-3 x the start's
CLOSE = 1e-6  # the search ends if |grad f| is <= 1e-6 x the start's
LARGE = 1_000_000  # L-BFGS remembers less, and asks more often whether to stop, if d > 1,000,000


class _OutOfTimeError(Exception):
    """The time was over in the middle of a step of L-BFGS."""


def steepest(
    panel: Panel, x: Vector, seed: int, out_of_time: OutOfTime, along: Vector | None = None
) -> Spectrum:
    """Return what a few products say of Hess at x: its `norm` is about the largest |eigenvalue|."""
    draw = torch.randn(panel.problem.d, generator=stream(seed, NOISE), dtype=torch.float64).to(x)
    start = draw / draw.norm()
    if along is not None and float(along.norm()) > 0:
        start = along / along.norm() + 0.1 * start
    return lanczos(
        lambda v: panel.mean_products(x, v), start, most=8, tolerance=0.1, out_of_time=out_of_time
    )


def along_gradient(panel: Panel, x: Vector, gradient: Vector) -> Spectrum:
    """Return the curvature of f along its gradient, by a difference: one gradient of all data.

    The gradient lies along the steep directions, so this says a lot where a random vector in many
    dimensions says next to nothing.
    """
    size = float(gradient.norm())
    if size == 0:
        return Spectrum((0.0,), (1.0,), error=inf, products=1)
    h = torch.finfo(x.dtype).eps ** 0.5 * (1 + float(x.norm())) / size
    change = panel.can.gradient(x + h * gradient).detach() - gradient
    return Spectrum((float(change.norm()) / (h * size),), (1.0,), error=inf, products=1)


def after_rounds(
    panel: Panel, x: Vector, L: float, seed: int, out_of_time: OutOfTime
) -> Vector | None:
    """Return where FedAvg is after a few rounds; None if even small steps diverge, or no time."""
    for eta_l in (1 / L, 0.1 / L) if L > 0 else ():
        try:
            for done in simulate(FedAvg(eta_l=eta_l, K=K), panel.problem, x=x, seed=seed):
                if done.r == ROUNDS:
                    return done.x
                if out_of_time():
                    return None
        except Diverged:
            continue
    return None


def descend(
    problem: Problem, x: Vector, out_of_time: OutOfTime = lambda: False, most: int = 400
) -> Iterator[tuple[Vector, float]]:
    """Yield better and better points with |grad f| there (L-BFGS with a strong Wolfe search).

    A search along a line may take many gradients, so each of them asks for the time.
    """
    can = Abilities(problem)
    known = can.optimum
    if known is not None:
        yield known, float(can.gradient(known).norm())
        return
    if not can.symmetric:  # A search along a line wants gradients of f.
        return
    search = _Search(problem, x, out_of_time)
    least = search.least
    for _ in range(most):
        try:
            here = search.step()
        except _OutOfTimeError:
            if search.least < least:
                yield search.best, search.slope
            return
        loss = can.loss(here)
        if not loss < least:  # f is NaN, or falls no further within rounding.
            return
        least = loss
        yield here, float(can.gradient(here).norm())


class _Search:
    """L-BFGS from x; remembers the best of all points at which it looked."""

    def __init__(self, problem: Problem, x: Vector, out_of_time: OutOfTime) -> None:
        self.can, self.out_of_time = Abilities(problem), out_of_time
        self.best, self.least, self.slope = x, self.can.loss(x), inf
        self.leaf = x.detach().clone().requires_grad_()
        large = problem.d > LARGE
        self.optimiser = torch.optim.LBFGS(
            [self.leaf],
            max_iter=1 if large else 4,
            history_size=10 if large else 30,
            tolerance_grad=0,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )

    def step(self) -> Vector:
        """Go on for a few line searches, and return where that leads."""
        self.optimiser.step(self._look)  # type: ignore[no-untyped-call]
        return self.leaf.detach().clone()

    def _look(self) -> float:
        """Return f at the leaf, and leave its gradient there."""
        if self.out_of_time():
            raise _OutOfTimeError
        here = self.leaf.detach()
        self.leaf.grad = self.can.gradient(here).detach().clone()
        loss = self.can.loss(here)
        if loss < self.least:
            self.best, self.least, self.slope = here.clone(), loss, float(self.leaf.grad.norm())
        return loss


@dataclass(frozen=True)
class BestPoint:
    """The best point that was found."""

    x: Vector
    reached: bool  # whether it is an optimum, as far as can be seen
    way: list[tuple[Vector, float]]  # points on the way there, with f


def best_point(panel: Panel, x: Vector, budget: Budget, out_of_time: OutOfTime) -> BestPoint:
    """Search for the optimum from x."""
    problem, can = panel.problem, panel.can
    start = float(can.gradient(x).norm())
    best, slope, way = x, start, [(x, can.loss(x))]
    for best, slope in descend(problem, x, out_of_time):
        if len(way) * problem.d < REMEMBERED:
            way.append((best, can.loss(best)))
        if slope <= CLOSE * start or out_of_time():
            break
    reached = slope <= REACHED * start or can.optimum is not None
    if not reached and out_of_time():
        budget.note("The search for the optimum was cut short.")
    return BestPoint(best, reached, way)
