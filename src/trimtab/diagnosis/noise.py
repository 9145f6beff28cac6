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
TAIL = 0.05  # D3f[V] may leave out <= 0.05 x the trace of V
AT_ONCE = 64  # the gradients of <= 64 samples are computed between two looks at the clock
MOST_LEFT_OUT = 0.5  # D3f[V] is of no use if it leaves out >= 0.5 x the trace of V


@dataclass(frozen=True)
class NoiseLaw:
    """C, V with Hess V + V Hess = C, and D3f[V]."""

    C: Tensor  # N times the covariance of the clients' mean mini-batch gradient
    V: Tensor
    D3: Vector
    left_out: float  # the share of the trace of V that D3 leaves out


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
    quadratic, samples = panel.closed_forms, panel.samples
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


def third_derivative(
    panel: Panel, x: Vector, V: Tensor, out_of_time: OutOfTime
) -> tuple[Vector, float]:
    """Return D3f[V], the gradient of tr(Hess V), and the share of the trace of V it leaves out."""
    closed = panel.problem.third_derivative
    if panel.problem.constant_hessians:
        return torch.zeros(panel.problem.d, dtype=torch.float64), 0.0
    if closed is None:
        return _by_eigenvectors(panel, x, V, out_of_time)
    total = torch.zeros(panel.problem.d, dtype=torch.float64)
    for i, p in enumerate(panel.p.tolist()):
        if out_of_time():
            return total, 1.0
        total += p * closed(i, x, V.to(x)).cpu().double()
    return total, 0.0


def _by_eigenvectors(
    panel: Panel, x: Vector, V: Tensor, out_of_time: OutOfTime
) -> tuple[Vector, float]:
    """Return the same as the sum over eigenvectors u of V of value times D3f[u, u].

    D3f[u, u] is the derivative of Hess u along u, by a central difference of exact products. What
    there is no time for is left out.
    """
    total = torch.zeros(panel.problem.d, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(V)
    h = torch.finfo(x.dtype).eps ** 0.25 * (1 + float(x.norm()) / len(x) ** 0.5)
    left, trace = float(values.sum()), float(values.sum())
    for j in reversed(range(len(values))):
        if left <= TAIL * trace or out_of_time():
            break
        u = vectors[:, j].to(x)
        ahead, behind = (panel.mean_products(x + s * h * u, u) for s in (1, -1))
        total += float(values[j]) * ((ahead - behind) / (2 * h)).cpu().double()
        left -= float(values[j])
    return total, left / trace if trace > 0 else 0.0


def noise_law(
    panel: Panel, x: Vector, hessians: Hessians, seed: int, out_of_time: OutOfTime
) -> NoiseLaw | None:
    """Return what the stochastic parts need; None if there was no time."""
    C = covariance(panel, x, seed, out_of_time)
    if C is None:
        return None
    V = hessians.lyapunov(C, symmetric=panel.problem.symmetric)
    D3, left = third_derivative(panel, x, V, out_of_time)
    return NoiseLaw(C, V, D3, left) if left < MOST_LEFT_OUT else None
