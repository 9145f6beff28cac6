"""Where to measure: the start, a point after a few rounds, and the optimum if it can be had."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from trimtab.algorithms import FedAvg
from trimtab.core import Vector
from trimtab.diagnosis.clock import Clock
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.spectrum import lanczos
from trimtab.problems.problem import Problem
from trimtab.simulation import Diverged, simulate
from trimtab.streams import NOISE, stream

ROUNDS, K = 5, 5
WAY = 20_000_000  # numbers in the points that are remembered
REACHED = 1e-3  # |grad f| there, against the start's


@dataclass(frozen=True)
class Point:
    """A place with a name."""

    where: str
    x: Vector
    loss: float


def steepest(panel: Panel, x: Vector, seed: int, enough: Callable[[], bool]) -> float:
    """Return about the largest |eigenvalue| of Hess at x."""
    start = torch.randn(panel.problem.d, generator=stream(seed, NOISE), dtype=torch.float64)
    found = lanczos(
        lambda v: panel.mean_products(x, v), start.to(x), most=8, tolerance=0.1, enough=enough
    )
    return found.norm


def after_rounds(panel: Panel, x: Vector, L: float, seed: int) -> Vector | None:
    """Return where FedAvg is after a few rounds; None if even small steps diverge."""
    for eta_l in (1 / L, 0.1 / L) if L > 0 else ():
        try:
            sim = simulate(FedAvg(eta_l=eta_l, K=K), panel.problem, x=x, seed=seed)
            *_, last = islice(sim, ROUNDS)
            return last.x
        except Diverged:
            continue
    return None


def descend(problem: Problem, x: Vector, most: int = 400) -> Iterator[tuple[Vector, float]]:
    """Yield better and better points with |grad f| there (L-BFGS with a strong Wolfe search)."""
    known = getattr(problem, "x_star", None)
    if known is not None:
        yield known, float(problem.gradient(known).norm())
        return
    leaf = x.detach().clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [leaf],
        max_iter=4 if problem.d <= 1_000_000 else 1,  # between two looks at the clock
        history_size=10 if problem.d > 1_000_000 else 30,
        tolerance_grad=0,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        here = leaf.detach()
        leaf.grad = problem.gradient(here).detach().clone()
        return problem.loss(here)

    best, least = x, problem.loss(x)
    for _ in range(most):
        optimiser.step(closure)  # type: ignore[no-untyped-call]
        here = leaf.detach().clone()
        loss = problem.loss(here)
        if not loss < least:  # NaN, or no progress within rounding
            return
        best, least = here, loss
        yield best, float(problem.gradient(best).norm())


def best_point(
    panel: Panel, x: Vector, clock: Clock, enough: Callable[[], bool]
) -> tuple[Vector, bool, list[tuple[Vector, float]]]:
    """Return the best point found, whether it is an optimum as far as can be seen, and the way."""
    slope = float(panel.problem.gradient(x).norm())
    best, found, way = x, slope, [(x, panel.problem.loss(x))]
    for best, found in descend(panel.problem, x):
        if len(way) * panel.problem.d < WAY:
            way.append((best, panel.problem.loss(best)))
        if found <= 1e-6 * slope or enough():
            break
    reached = found <= REACHED * slope or hasattr(panel.problem, "x_star")
    if not reached and enough():
        clock.note("The search for the optimum was cut short.")
    return best, reached, way
