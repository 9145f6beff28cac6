"""What mini-batch noise does to first order: for i.i.d. mini-batches and small d only."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.hessians import Hessians
from trimtab.diagnosis.measure import noise_sample
from trimtab.diagnosis.panel import Panel
from trimtab.problems.problem import Problem
from trimtab.problems.supervised.batches import batch_size
from trimtab.problems.supervised.problem import Supervised

SAMPLES = 4000  # C is made of about 4000 gradients of single samples, over all clients
AT_ONCE = 64  # the gradients of <= 64 samples are computed between two looks at the clock


@dataclass(frozen=True)
class NoiseLaw:
    """C, and V with Hess V + V Hess = C."""

    C: Tensor  # N times the covariance of the clients' mean mini-batch gradient
    V: Tensor


def counted(p: Tensor) -> Tensor:
    """Return N p_i^2, by which noises count in N times the covariance of their weighted mean.

    >>> counted(torch.tensor([0.5, 0.5])), counted(torch.tensor([0.75, 0.25]))
    (tensor([0.5000, 0.5000]), tensor([1.1250, 0.1250]))
    """
    return len(p) * p.square()


def covariance(panel: Panel, x: Vector, seed: int, out_of_time: OutOfTime) -> Tensor | None:
    """Return C = N sum p_i^2 C_i, C_i the covariance of one i.i.d. mini-batch gradient.

    With equal weights that is the mean of the C_i.
    """
    problem, d, share = panel.problem, panel.problem.d, counted(panel.p)
    quadratic, samples = panel.can.closed_forms, panel.can.samples
    if quadratic is not None:
        same = torch.eye(d, dtype=torch.float64) * quadratic.sigma**2 / d
        return float(share.sum()) * same
    C = torch.zeros(d, d, dtype=torch.float64)
    for i in range(problem.N):
        if samples is not None:
            C_i = _of_samples(samples, i, x, seed, SAMPLES // problem.N + 2, out_of_time)
        else:
            C_i = _of_pairs(problem, i, x, seed, SAMPLES // problem.N + 2, out_of_time)
        if C_i is None or out_of_time():
            return None
        C += float(share[i]) * C_i
    return C


def _of_pairs(
    problem: Problem, i: int, x: Vector, seed: int, most: int, out_of_time: OutOfTime
) -> Tensor | None:
    """Return the covariance of a mini-batch gradient, from pairs of them."""
    draws: list[Vector] = []
    for j in range(most):
        draws.append(noise_sample(problem, i, x, seed, j))
        if out_of_time():
            return None
    rows = torch.stack(draws).cpu().double()
    return rows.T @ rows / len(rows)


def _of_samples(
    problem: Supervised, i: int, x: Vector, seed: int, most: int, out_of_time: OutOfTime
) -> Tensor | None:
    """Return the covariance of the gradient of one sample, divided by the size of a mini-batch."""
    data = problem.clients[i]
    if problem.batch is None:
        return torch.zeros(problem.d, problem.d, dtype=torch.float64)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:most]
    rows = []
    for some in torch.split(order, AT_ONCE):
        found = problem.sample_gradients(x, data.take(some.to(data.device)))
        rows.append(found.detach().cpu().double())
        if out_of_time():
            return None
    each = torch.cat(rows)
    each = each - each.mean(0)
    return each.T @ each / len(each) / batch_size(problem.batch, len(data))


def noise_law(
    panel: Panel, x: Vector, hessians: Hessians, seed: int, out_of_time: OutOfTime
) -> NoiseLaw | None:
    """Return what the variance needs; None if there was no time."""
    C = covariance(panel, x, seed, out_of_time)
    if C is None:
        return None
    return NoiseLaw(C, hessians.lyapunov(C, symmetric=panel.can.symmetric))
