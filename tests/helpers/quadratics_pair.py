"""The two scalar quadratics of Figure 3, moved so that the optimum is at 1."""

import torch

from trimtab import Quadratic


def pair(G: float) -> Quadratic:
    return Quadratic(A=[2.0, 0.0], b=torch.tensor([1 - G, 1 + G], dtype=torch.float64))
