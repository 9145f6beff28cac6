"""L-BFGS (Liu and Nocedal, 1989), with steps that satisfy Wolfe's conditions by bisection.

SciPy and PyTorch have it too, but take longer to import, or to be used for the first time, than a
diagnosis of a small problem takes.
"""

from collections import deque
from collections.abc import Callable
from math import inf

from torch import Tensor

from trimtab.core import Vector

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
