"""Where to measure: the start, a point after a few rounds, and the optimum if it can be had.

L-BFGS (Liu and Nocedal, 1989) takes steps that satisfy Wolfe's conditions by bisection. SciPy and
PyTorch have it too, but take longer to import, or to be used for the first time, than a diagnosis
of a small problem takes.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import ceil, inf, log2

import torch
from torch import Tensor

from trimtab.algorithms import FedAvg
from trimtab.core import Vector
from trimtab.core.streams import NOISE, stream
from trimtab.diagnosis.budget import Budget, OutOfTime
from trimtab.diagnosis.lanczos import Spectrum, conjugate_gradients, lanczos
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.rules import RULES
from trimtab.simulation import Diverged, simulate

ROUNDS, K = 5, 5  # a point on the way is where 5 rounds of FedAvg with K = 5 lead
ON_THE_WAY = f"after {ROUNDS} rounds of FedAvg"


class _OverError(Exception):
    """The search is over: there is no more time, or it is close enough."""


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
    change = panel.gradient(x + h * gradient).detach() - gradient
    return Spectrum((float(change.norm()) / (h * size),), (1.0,), error=inf, products=1)


def after_rounds(panel: Panel, x: Vector, L: float, out_of_time: OutOfTime) -> Vector | None:
    """Return where FedAvg is after a few rounds; None if even small steps diverge, or no time.

    Its mini-batches are those of seed 0, and its step is a power of 2, so that all seeds measure at
    the same point, though what they know of L differs a little.
    """
    near = 2.0 ** -ceil(log2(L)) if L > 0 else 0.0
    for eta_l in (near, near / 8) if near else ():
        try:
            for done in simulate(FedAvg(eta_l=eta_l, K=K), panel.problem, x=x):
                if done.r == ROUNDS:
                    return done.x
                if out_of_time():
                    return None
        except Diverged:
            continue
    return None


@dataclass(frozen=True)
class Passed:
    """A point that a search came through."""

    x: Vector
    f: float
    slope: float  # |grad f|


def descend(
    panel: Panel, x: Vector, out_of_time: OutOfTime = lambda: False, most: int = 1600
) -> list[Passed]:
    """Return better and better points, by L-BFGS in float64.

    A search along a line may take many gradients, so each of them asks for the time.
    """
    known = panel.problem.x_star
    if known is not None:
        return [Passed(known, panel.loss(known), float(panel.gradient(known).norm()))]
    if not panel.problem.symmetric:  # A search along a line wants gradients of f.
        return []
    search = _Search(panel, x, out_of_time)
    memory = max(4, min(40, RULES.at_once // (2 * panel.problem.d)))
    with suppress(_OverError):
        minimise(search.look, x.cpu().double(), memory=memory, most=most)
    return search.way


class _Search:
    """What L-BFGS saw: the points that were better than all before."""

    def __init__(self, panel: Panel, x: Vector, out_of_time: OutOfTime) -> None:
        self.panel, self.like, self.out_of_time = panel, x, out_of_time
        self.way: list[Passed] = []
        self.start = 0.0  # |grad f| at the start
        self.seen: list[tuple[float, float]] = []  # the least f and |grad f| after each gradient

    def look(self, at: Vector) -> tuple[float, Vector]:
        """Return f and its gradient; end when there is no more to be had."""
        if self.out_of_time():
            raise _OverError
        here = at.to(self.like)
        loss, gradient = self.panel.loss_and_gradient(here)
        slope = float(gradient.norm())
        least, flattest = self.seen[-1] if self.seen else (inf, inf)
        if not self.seen:
            self.start = slope
        elif loss < least:
            self._keep(here, loss, slope)
        self.seen.append((min(loss, least), min(slope, flattest)))
        if slope <= RULES.flat * self.start or self._stalls():
            raise _OverError
        return loss, gradient.to(at)

    def _keep(self, here: Vector, loss: float, slope: float) -> None:
        if len(self.way) * len(self.like) >= RULES.at_once:
            self.way.pop()
        self.way.append(Passed(here.clone(), loss, slope))

    def _stalls(self) -> bool:
        """Tell whether neither f nor |grad f| got much less in the last gradients."""
        if len(self.seen) <= RULES.patience:
            return False
        (f0, _), (before, steeper), (now, slope) = (
            self.seen[j] for j in (0, -1 - RULES.patience, -1)
        )
        return before - now <= RULES.optimum * (f0 - now) and slope > steeper / 2


@dataclass(frozen=True)
class BestPoint:
    """The best point that was found."""

    x: Vector
    reached: bool  # whether it is an optimum, as far as can be seen
    way: list[Passed]  # points on the way there, the start first


def _polished(panel: Panel, point: Passed, out_of_time: OutOfTime) -> Passed:
    """Return the minimum near a point up to rounding, by Newton steps, where f is convex.

    A search ends where |grad f| is a millionth of the start's. Along a direction whose curvature is
    a millionth of L that may be as far from the optimum as the start is.
    """
    for _ in range(6):
        gradient = panel.gradient(point.x).detach()
        hessian = partial(panel.mean_products, point.x)
        step, left = conjugate_gradients(hessian, gradient, tolerance=1e-3, out_of_time=out_of_time)
        if out_of_time():
            break
        x = point.x - step
        slope = float(panel.gradient(x).norm())
        if not (left < 0.1 and slope < point.slope / 2):
            break
        point = Passed(x, panel.loss(x), slope)
    return point


def best_point(panel: Panel, x: Vector, budget: Budget, out_of_time: OutOfTime) -> BestPoint:
    """Search for the optimum from x."""
    f, gradient = panel.loss_and_gradient(x)
    start = Passed(x, f, float(gradient.norm()))
    way = [start, *descend(panel, x, out_of_time)]
    best, known = way[-1], panel.problem.x_star is not None
    reached = known or best.slope <= RULES.optimum * start.slope
    # Beyond that many dimensions what the directions leave out of the Hessians is more.
    if reached and not known and panel.problem.symmetric and panel.problem.d <= RULES.small:
        best = _polished(panel, best, out_of_time)
    if not reached and out_of_time():
        budget.note("The search for the optimum was cut short.")
    return BestPoint(best.x, reached, [start, *way[1:][-RULES.patience :]])


Look = Callable[[Vector], tuple[float, Vector]]
"""x -> f(x) and its gradient."""

ENOUGH = 1e-4  # a step is short enough if f falls by >= 1e-4 x what its slope promises,
FLATTER = 0.9  # and long enough if the slope at its end is <= 0.9 x that at its start
BISECTIONS = 12  # a line is given up after 12 points
CURVED = 1e-10  # a step is remembered if its curvature is > 1e-10 x the change of the gradient


def minimise(look: Look, x: Vector, *, memory: int, most: int) -> Vector:
    """Return where f is least, as far as the steps go: <= `most`, or until a line has no lower f.

    >>> import torch
    >>> def look(x):
    ...     return float((x - 3).square().sum()), 2 * (x - 3)
    >>> minimise(look, torch.zeros(2).double(), memory=5, most=20)
    tensor([3., 3.], dtype=torch.float64)
    """
    f, gradient = look(x)
    past = deque[tuple[Vector, Vector, float]](maxlen=memory)
    for _ in range(most):
        direction = _direction(gradient, past)
        slope = float(direction @ gradient)
        if not slope < 0:
            break
        first = 1.0 if past else min(1.0, 1 / float(gradient.abs().sum()))
        found = _along(look, x, f, direction, slope, first)
        if found is None:
            break
        step, f, new = found
        s, y = step * direction, new - gradient
        curvature = float(s @ y)
        if curvature > CURVED * float(y @ y):
            past.append((s, y, curvature))
        x, gradient = x + s, new
    return x


def _direction(gradient: Vector, past: deque[tuple[Vector, Vector, float]]) -> Vector:
    """Return minus the gradient times the inverse Hessian that the past steps suggest."""
    q, shares = gradient.clone(), []
    for s, y, curvature in reversed(past):
        shares.append(float(s @ q) / curvature)
        q.add_(y, alpha=-shares[-1])
    if past:
        _, y, curvature = past[-1]
        q.mul_(curvature / float(y @ y))
    for (s, y, curvature), share in zip(past, reversed(shares), strict=True):
        q.add_(s, alpha=share - float(y @ q) / curvature)
    return -q


def _along(
    look: Look, x: Vector, f: float, direction: Vector, slope: float, step: float
) -> tuple[float, float, Tensor] | None:
    """Return a step along the direction, with f and the gradient there; None if f is not lower."""
    low, high = 0.0, inf
    lower: tuple[float, float, Tensor] | None = None
    for _ in range(BISECTIONS):
        there, gradient = look(x + step * direction)
        if not there <= f + ENOUGH * step * slope:  # So it is for NaN.
            high = step
        else:
            lower = step, there, gradient
            if float(direction @ gradient) >= FLATTER * slope:
                return lower
            low = step
        step = (low + high) / 2 if high < inf else 2 * low
    return lower
