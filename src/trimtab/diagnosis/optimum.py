"""Where to measure: the start, a point after a few rounds, and the optimum if it can be had."""

from collections.abc import Iterator
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

ROUNDS, K = 5, 5
WAY = 20_000_000  # numbers in the points that are remembered
REACHED = 1e-3  # |grad f| there, against the start's


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
    change = panel.problem.gradient(x + h * gradient).detach() - gradient
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

    A search along a line may take many gradients, so each of them looks at the clock.
    """
    known = Abilities(problem).optimum
    if known is not None:
        yield known, float(problem.gradient(known).norm())
        return
    leaf = x.detach().clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [leaf],
        max_iter=4 if problem.d <= 1_000_000 else 1,
        history_size=10 if problem.d > 1_000_000 else 30,
        tolerance_grad=0,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )
    best, least, slope = x, problem.loss(x), float("inf")
    seen = (best, least, slope)  # the best of all points that the search looked at

    def closure() -> float:
        nonlocal seen
        if out_of_time():
            raise _OutOfTimeError
        here = leaf.detach()
        leaf.grad = problem.gradient(here).detach().clone()
        loss = problem.loss(here)
        if loss < seen[1]:
            seen = (here.clone(), loss, float(leaf.grad.norm()))
        return loss

    for _ in range(most):
        try:
            optimiser.step(closure)  # type: ignore[no-untyped-call]
        except _OutOfTimeError:
            if seen[1] < least:
                yield seen[0], seen[2]
            return
        here = leaf.detach().clone()
        loss = problem.loss(here)
        if not loss < least:  # NaN, or no progress within rounding
            return
        best, least = here, loss
        yield best, float(problem.gradient(best).norm())


def best_point(
    panel: Panel, x: Vector, budget: Budget, out_of_time: OutOfTime
) -> tuple[Vector, bool, list[tuple[Vector, float]]]:
    """Return the best point found, whether it is an optimum as far as can be seen, and the way."""
    slope = float(panel.problem.gradient(x).norm())
    best, found, way = x, slope, [(x, panel.problem.loss(x))]
    for best, found in descend(panel.problem, x, out_of_time):
        if len(way) * panel.problem.d < WAY:
            way.append((best, panel.problem.loss(best)))
        if found <= 1e-6 * slope or out_of_time():
            break
    reached = found <= REACHED * slope or panel.can.optimum is not None
    if not reached and out_of_time():
        budget.note("The search for the optimum was cut short.")
    return best, reached, way
