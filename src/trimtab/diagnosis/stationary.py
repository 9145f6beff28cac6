"""Bias, variance and drift at a step size and K, from what was measured."""

from dataclasses import dataclass, field, replace
from math import nan

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis import noise, quadratic_model, theory
from trimtab.diagnosis.abilities import AT_ONCE
from trimtab.diagnosis.candidates import FEDAVG, SCAFFOLD
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.choice import Choice
from trimtab.diagnosis.hessians import DENSE, Hessians
from trimtab.diagnosis.lanczos import conjugate_gradients
from trimtab.diagnosis.measure import Gradients
from trimtab.diagnosis.model_rounds import KS
from trimtab.diagnosis.noise import NoiseLaw
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.quadratic_model import QuadraticModel
from trimtab.diagnosis.rows import Bias, BiasAtK, Variance

SOLVE, LAW = 0.97, 0.98  # the shares of the time at which the bias and the noise's law are due
FLAT = 1e-6  # a direction is left out of Hess^-1 if its eigenvalue is <= 1e-6 L
TOLD = 0.05  # a relative residual is told if it is > 0.05


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
    for K in KS:
        limit = None if model is None else quadratic_model.fedavg_limit(model, choice.eta, K)
        norm = None if limit is None else float(limit.norm())
        rows.append(BiasAtK(K, first * (K - 1) / (choice.K - 1), norm))
    return tuple(rows)


def _solved(case: Case, hessians: Hessians, pull: Vector) -> float:
    """Return |Hess^-1 pull|, leaving out directions in which f is flat."""
    if hessians.matrix is not None and not case.panel.can.symmetric:
        return float(torch.linalg.solve(hessians.matrix, pull.cpu().double()).norm())
    if hessians.matrix is not None:
        values, U = hessians.eigen
        steep = values > FLAT * hessians.L
        return float(((U.T @ pull.cpu().double())[steep] / values[steep]).norm())
    solution, left = conjugate_gradients(
        lambda v: case.panel.mean_products(case.best, v),
        pull,
        out_of_time=case.budget.until(SOLVE),
    )
    if left > TOLD:
        case.budget.note(f"FedAvg's bias is known up to a relative residual of {left:.0%}.")
    return float(solution.cpu().double().norm())


def _noise_law(case: Case, hessians: Hessians) -> NoiseLaw | None:
    """Return what the variance needs; None, and a note, if it cannot be had."""
    budget = case.budget
    if hessians.matrix is None:
        why = f"d is above {DENSE:,}" if case.problem.d > DENSE else "there was no time"
        budget.note(f"The stationary variance is left out ({why}).")
        return None
    law = noise.noise_law(case.panel, case.best, hessians, case.seed, budget.until(LAW))
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
    by_noise = 0.0 if panel.can.constant_hessians else None
    spread = torch.zeros(())
    if at.S < at.N:
        rows = here.rows.cpu().double()
        of_all = (noise.counted(panel.p)[:, None] * rows).T @ rows
        spread = hessians.lyapunov(of_all, symmetric=panel.can.symmetric).trace()

    def trace(algorithm: str) -> float:
        """Return the trace of the solution, which depends linearly on C and the spread."""
        return eta * float(theory.sampled_noise(law.V.trace(), spread, algorithm, K, at.N, at.S))

    if panel.can.steps_in_a_pass is not None:
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
    at_once = 1 if panel.can.gradients_at_once is None else AT_ONCE
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
