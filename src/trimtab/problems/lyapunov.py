"""Lyapunov equations whose matrix need not be symmetric: the covariance of a linear recursion."""

import torch
from torch import Tensor

DOUBLINGS = 64  # a recursion that has not settled after 2^64 steps does not settle


def discrete(T: Tensor, Q: Tensor) -> Tensor:
    """Solve X = T X T' + Q, where every eigenvalue of T is smaller than 1.

    X is the sum of T^j Q T'^j over all j, of which each step here doubles the number.

    >>> discrete(torch.tensor([[0.5]]), torch.tensor([[3.0]]))
    tensor([[4.]])
    """
    if not float(torch.linalg.eigvals(T).abs().max()) < 1:
        raise ValueError("an eigenvalue of T is 1 or larger, so X grows for ever; pass another T.")
    X, power = Q, T
    for _ in range(DOUBLINGS):
        more = power @ X @ power.mT
        X, power = X + more, power @ power
        if not bool((more != 0).any()):
            break
    return (X + X.mT) / 2


def continuous(A: Tensor, C: Tensor) -> Tensor:
    """Solve A X + X A' = C, where every eigenvalue of A has a positive real part.

    With a > 0 this is (A + aI) X (A + aI)' = (A - aI) X (A - aI)' + 2a C, a discrete equation.

    >>> continuous(torch.tensor([[2.0]]), torch.tensor([[3.0]]))
    tensor([[0.7500]])
    """
    a = float(torch.linalg.matrix_norm(A, 2))
    shift = a * torch.eye(len(A)).to(A)
    T = torch.linalg.solve(A + shift, A - shift)
    half = torch.linalg.solve(A + shift, C)
    return discrete(T, 2 * a * torch.linalg.solve(A + shift, half.mT).mT)
