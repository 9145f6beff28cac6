"""Bias, variance and drift at a step size and K, from what was measured.

What mini-batch noise does is to first order, for i.i.d. mini-batches and small d only.
"""

from dataclasses import dataclass, field, replace
from math import nan

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis import quadratic_model, theory
from trimtab.diagnosis.advise import Choice
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.candidates import FEDAVG, SCAFFOLD
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.hessians import Hessians
from trimtab.diagnosis.lanczos import conjugate_gradients
from trimtab.diagnosis.measure import Gradients, noise_sample
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.quadratic_model import QuadraticModel
from trimtab.diagnosis.rows import Bias, BiasAtK, Variance
from trimtab.diagnosis.rules import RULES
from trimtab.problems.problem import Problem
from trimtab.problems.supervised.batches import batch_size
from trimtab.problems.supervised.problem import Supervised

SAMPLES = 4000  # C is made of about 4000 gradients of single samples, over all clients


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
    for some in torch.split(order, 4 * RULES.step):
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
    return NoiseLaw(C, hessians.lyapunov(C, symmetric=panel.problem.symmetric))


@dataclass(frozen=True)
class Law:
    """FedAvg's and Scaffold's bias as advised, and the traces of their stationary covariances."""

    bias: Bias = field(default_factory=Bias)
    variance: Variance = field(default_factory=Variance)


def pull_of(panel: Panel, x: Vector, moved: Tensor) -> Vector:
    """Return sum p_i (Hess_i - Hess) grad f_i, which is sum p_i Hess_i (grad f_i - grad f)."""
    total = torch.zeros_like(x)
    for p, products in zip(panel.p.tolist(), panel.all_products(x, moved[:, None]), strict=True):
        total.add_(products[0], alpha=p)
    return total


def stationary(
    case: Case,
    here: Gradients,
    hessians: Hessians,
    model: QuadraticModel | None,
    pull: Vector | None,
    choice: Choice | None,
    at: theory.Constants | None,
    until: float,
) -> Law:
    """Return the stationary law of the choice; an empty one where theory does not hold."""
    if at is None or at.convexity == theory.NON_CONVEX or not case.optimum:
        return Law()
    if pull is None or choice is None or choice.eta is None or case.budget.out_of_time(until):
        return Law()
    if hessians.matrix is not None and not case.budget.decomposes(case.problem.d, 1.0):
        return Law()
    eta, K = choice.eta, choice.K
    bias = Bias(heterogeneity=eta * (K - 1) / 2 * _solved(case, hessians, pull))
    if model is not None:
        bias = _on_the_model(bias, model, eta, K, at.L)
    if at.sigma == 0:
        return Law(replace(bias, stochastic=0.0, scaffold=0.0), Variance(0.0, 0.0))
    if at.convexity != theory.STRONGLY_CONVEX:
        case.budget.note("Without strong convexity there is no stationary law of the noise.")
        return Law(bias)
    noise_law = _noise_law(case, hessians)
    if noise_law is None:
        return Law(bias)
    return _with_noise(case, here, hessians, noise_law, choice.K, eta, at, bias)


def _on_the_model(bias: Bias, model: QuadraticModel, eta: float, K: int, L: float) -> Bias:
    """Add where FedAvg stops on the quadratic model, and what Richardson-Romberg leaves there."""
    limit, twice = (quadratic_model.fedavg_limit(model, step, K) for step in (eta, 2 * eta))
    if limit is None:
        return bias
    bias = replace(bias, limit=float(limit.norm()))
    if twice is None or not eta * L < 1:  # Twice the step diverges.
        return bias
    return replace(bias, richardson_romberg=float((2 * limit - twice).norm()))


def by_K(bias: Bias, model: QuadraticModel | None, choice: Choice | None) -> tuple[BiasAtK, ...]:
    """Return FedAvg's bias for other K at the same step size: first order, and on the model."""
    first = bias.heterogeneity
    if first is None or choice is None or choice.eta is None or choice.K == 1:
        return ()
    rows = []
    for K in RULES.local_steps:
        limit = None if model is None else quadratic_model.fedavg_limit(model, choice.eta, K)
        norm = None if limit is None else float(limit.norm())
        rows.append(BiasAtK(K, first * (K - 1) / (choice.K - 1), norm))
    return tuple(rows)


def _solved(case: Case, hessians: Hessians, pull: Vector) -> float:
    """Return |Hess^-1 pull|, leaving out directions in which f is flat."""
    if hessians.matrix is not None and not case.panel.problem.symmetric:
        return float(torch.linalg.solve(hessians.matrix, pull.cpu().double()).norm())
    if hessians.matrix is not None:
        values, U = hessians.eigen
        steep = values > RULES.flat * hessians.L
        return float(((U.T @ pull.cpu().double())[steep] / values[steep]).norm())
    solution, left = conjugate_gradients(
        lambda v: case.panel.mean_products(case.best, v),
        pull,
        out_of_time=case.budget.until(1.0),
    )
    if left > RULES.noise_error:
        case.budget.note(f"FedAvg's bias is known up to a relative residual of {left:.0%}.")
    return float(solution.cpu().double().norm())


def _noise_law(case: Case, hessians: Hessians) -> NoiseLaw | None:
    """Return what the variance needs; None, and a note, if it cannot be had."""
    budget = case.budget
    if hessians.matrix is None:
        why = f"d is above {RULES.dense:,}" if case.problem.d > RULES.dense else "there was no time"
        budget.note(f"The stationary variance is left out ({why}).")
        return None
    law = noise_law(case.panel, case.best, hessians, case.seed, budget.until(1.0))
    if law is None:
        budget.note("There was no time for the stationary variance.")
    return law


def _with_noise(
    case: Case,
    here: Gradients,
    hessians: Hessians,
    law: NoiseLaw,
    K: int,
    eta: float,
    at: theory.Constants,
    bias: Bias,
) -> Law:
    """Add the variance that mini-batch noise causes.

    The bias by noise is half eta_l/N Hess^-1 D3f[V] and more work than all else: it is given where
    third derivatives vanish, and left out elsewhere.
    """
    panel = case.panel
    by_noise = 0.0 if panel.problem.constant_hessians else None
    spread = torch.zeros(())
    if at.S < at.N:
        rows = here.rows.cpu().double()
        of_all = (counted(panel.p)[:, None] * rows).T @ rows
        spread = hessians.lyapunov(of_all, symmetric=panel.problem.symmetric).trace()

    def trace(algorithm: str) -> float:
        """Return the trace of the solution, which depends linearly on C and the spread."""
        return eta * float(theory.sampled_noise(law.V.trace(), spread, algorithm, K, at.N, at.S))

    if panel.steps_in_a_pass is not None:
        case.budget.note(
            "The stationary variance is that of i.i.d. mini-batches; reshuffled ones have less."
        )
    return Law(
        replace(bias, stochastic=by_noise, scaffold=by_noise),
        Variance(fedavg=trace(FEDAVG), scaffold=trace(SCAFFOLD)),
    )


def drift(case: Case, choice: Choice | None, pull: Vector | None) -> float:
    """Return |x* - mean_c y_c|/(eta K) after K local steps on all data, started at x*.

    NaN without advice, or without time.
    """
    if choice is None or choice.eta is None or pull is None or case.budget.out_of_time(1.0):
        return nan
    panel, x, out_of_time = case.panel, case.best, case.budget.until(1.0)
    eta, K = choice.eta, choice.K
    mean = torch.zeros_like(x)
    at_once = 1 if panel.gradients_at_once is None else RULES.step
    for some in torch.split(torch.arange(panel.problem.N), at_once):
        ends = x.expand(len(some), -1)
        for _ in range(K):
            if out_of_time():
                case.budget.note("The average drift is that of the first-order formula.")
                return float(eta * (K - 1) / 2 * pull.norm())
            ends = ends - eta * panel.gradients_of(some.tolist(), ends)
        for p, end in zip(panel.p[some].tolist(), ends, strict=True):
            mean.add_(end, alpha=p)
    return float((x - mean).norm()) / (eta * K)
