"""How far two ways to compute one gradient may be apart: by rounding, and no more."""

import torch

from trimtab.core import Vector

_ROUNDINGS = 2_000  # two orders of a sum differ by <= 2,000 roundings
_MOST = 0.1  # two orders of a sum in 16 bits differ by <= 0.1 of its size


def distance(found: Vector, expected: Vector) -> float:
    """Return how far gradients are apart, relative to their length."""
    return float((found - expected).norm() / expected.norm().clamp_min(1e-300))


def rounding(dtype: torch.dtype) -> float:
    """Return how far gradients in a dtype may be apart.

    >>> round(rounding(torch.float32), 5), rounding(torch.bfloat16)
    (0.00024, 0.1)
    """
    return min(_MOST, _ROUNDINGS * torch.finfo(dtype).eps)
