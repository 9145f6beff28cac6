"""Where to measure: the start, a point after a few rounds, and the optimum if it can be had.

Lanczos's process, conjugate gradients and L-BFGS (Liu and Nocedal, 1989) are here because SciPy and
PyTorch take longer to import them, or to use them for the first time, than a diagnosis of a small
problem takes.
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
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.rules import RULES
from trimtab.simulation import Diverged, simulate

ROUNDS, K = 5, 5  # a point on the way is where 5 rounds of FedAvg with K = 5 lead
ON_THE_WAY = f"after {ROUNDS} rounds of FedAvg"

Product = Callable[[Vector], Vector]
"""v -> M v for a symmetric matrix M."""
Look = Callable[[Vector], tuple[float, Vector]]
"""x -> f(x) and its gradient."""


def steepest(
    panel: Panel, x: Vector, seed: int, out_of_time: OutOfTime, along: Vector | None = None
) -> float:
    """Return what a few products say of |Hess| at x, which is too little rather than too much."""
    draw = torch.randn(panel.problem.d, generator=stream(seed, NOISE), dtype=torch.float64).to(x)
    start = draw / draw.norm()
    if along is not None and float(along.norm()) > 0:
        start = along / along.norm() + 0.1 * start
    product = partial(panel.mean_products, x)
    return lanczos(product, start, most=8, tolerance=0.1, out_of_time=out_of_time)


def along_gradient(panel: Panel, x: Vector, gradient: Vector) -> float:
    """Return the curvature of f along its gradient, by a difference: one gradient of all data.

    The gradient lies along the steep directions, so this says a lot where a random vector in many
    dimensions says next to nothing.
    """
    size = float(gradient.norm())
    if size == 0:
        return 0.0
    h: float = torch.finfo(x.dtype).eps ** 0.5 * (1 + float(x.norm())) / size
    change = panel.gradient(x + h * gradient).detach() - gradient
    return float(change.norm()) / (h * size)


def after_rounds(panel: Panel, x: Vector, L: float, out_of_time: OutOfTime) -> Vector | None:
    """Return where FedAvg is after a few rounds; None if f rises even with small steps, or no time.

    Its mini-batches are those of seed 0, and its step is a power of 2, so that all seeds measure at
    the same point, though what they know of L differs a little.
    """
    near, f = 2.0 ** -ceil(log2(L)) if L > 0 else 0.0, panel.loss(x)
    for eta_l in (near, near / 8) if near else ():
        with suppress(Diverged):
            for done in simulate(FedAvg(eta_l=eta_l, K=K), panel.problem, x=x):
                if done.r == ROUNDS:
                    if panel.loss(done.x) <= f:
                        return done.x
                    break
                if out_of_time():
                    return None
    return None


# -- the optimum


@dataclass(frozen=True)
class Passed:
    """A point that a search came through."""

    x: Vector
    f: float
    slope: float  # |grad f|


@dataclass(frozen=True)
class BestPoint:
    """The best point that was found."""

    x: Vector
    reached: bool  # whether it is an optimum, as far as can be seen
    way: list[Passed]  # points on the way there, the start first


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


class _OverError(Exception):
    """The search is over: there is no more time, or it is close enough."""


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
            if len(self.way) * len(here) >= RULES.at_once:
                self.way.pop()
            self.way.append(Passed(here.clone(), loss, slope))
        self.seen.append((min(loss, least), min(slope, flattest)))
        if slope <= RULES.flat * self.start or self._stalls():
            raise _OverError
        return loss, gradient.to(at)

    def _stalls(self) -> bool:
        """Return whether neither f nor |grad f| got much less in the last gradients."""
        if len(self.seen) <= RULES.patience:
            return False
        first, before, now = (self.seen[j] for j in (0, -1 - RULES.patience, -1))
        fell = before[0] - now[0] > RULES.optimum * (first[0] - now[0])
        return not fell and now[1] > before[1] / 2


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


# -- iterations with products and gradients


def lanczos(
    product: Product,
    start: Vector,
    *,
    most: int = 60,
    tolerance: float = 2e-3,
    out_of_time: OutOfTime = lambda: False,
) -> float:
    """Return about the largest |eigenvalue| of a symmetric matrix, and never more than that.

    It stops when the residual is below `tolerance` of the value, or after `most` products. All
    directions are kept orthogonal.

    >>> round(lanczos(lambda v: torch.tensor([3.0, -4.0]) * v, torch.ones(2)), 5)
    4.0
    """
    d = start.numel()
    most = max(2, min(most, d, RULES.stored // d))
    basis, T = start.new_empty(most, d), torch.zeros(most, most, dtype=torch.float64)
    q, size = start / start.norm(), 0.0
    for j in range(most):
        basis[j] = q
        w = product(q)
        T[j, j] = float(w @ q)
        for _ in range(2):  # Twice is enough (Kahan, Parlett).
            w = w - (basis[: j + 1] @ w) @ basis[: j + 1]
        beta = float(w.norm())
        values, U = torch.linalg.eigh(T[: j + 1, : j + 1])
        i = int(values.abs().argmax())
        size, residual = abs(float(values[i])), abs(float(U[-1, i])) * beta
        over = beta <= 1e-6 * size or (j > 3 and residual <= tolerance * size)
        if over or j + 1 == most or out_of_time():
            break
        T[j, j + 1] = T[j + 1, j] = beta
        q = w / beta
    return size


def conjugate_gradients(
    product: Product,
    b: Vector,
    *,
    most: int = 200,
    tolerance: float = 1e-4,
    out_of_time: OutOfTime = lambda: False,
) -> tuple[Vector, float]:
    """Return x with M x = b for a positive definite M, and the relative residual that is left.

    >>> x, left = conjugate_gradients(lambda v: 2 * v, torch.ones(3))
    >>> x, left
    (tensor([0.5000, 0.5000, 0.5000]), 0.0)
    """
    x, r = torch.zeros_like(b), b.clone()
    p, rr, size = r, float(r @ r), float(b @ b)
    best = (x, 1.0)
    for _ in range(most):
        if rr <= tolerance**2 * size or out_of_time():
            break
        Mp = product(p)
        curvature = float(p @ Mp)
        if curvature <= 0:  # M is not positive definite along p.
            break
        x = x + rr / curvature * p
        r = r - rr / curvature * Mp
        old, rr = rr, float(r @ r)
        p = r + rr / old * p
        if rr < best[1] ** 2 * size:
            best = (x, (rr / size) ** 0.5)
    return best


ENOUGH = 1e-4  # a step is short enough if f falls by >= 1e-4 x what its slope promises,
FLATTER = 0.9  # and long enough if the slope at its end is <= 0.9 x that at its start
BISECTIONS = 12  # a line is given up after 12 points
CURVED = 1e-10  # a step is remembered if its curvature is > 1e-10 x the change of the gradient


def minimise(look: Look, x: Vector, *, memory: int, most: int) -> Vector:
    """Return where f is least, as far as the steps go: <= `most`, or until a line has no lower f.

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
    """Return a step along the direction that satisfies Wolfe's conditions, by bisection.

    With f and the gradient there; None if f is not lower.
    """
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
