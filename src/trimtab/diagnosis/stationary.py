"""Bias, variance and drift at a step size and K, from what was measured."""

from math import nan

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis import measure, noise, quadratic_model, theory
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.choice import Choice
from trimtab.diagnosis.lanczos import conjugate_gradients
from trimtab.diagnosis.measure import Gradients, Hessians
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.quadratic_model import KS, QuadraticModel

Law = dict[str, float | None]
"""Numbers by name; None where theory does not hold, or there was no time."""


def pull_of(panel: Panel, x: Vector, moved: Tensor) -> Vector:
    """Return sum p_i (Hess_i - Hess) grad f_i, which is sum p_i Hess_i (grad f_i - grad f)."""
    total = torch.zeros_like(x)
    for i in range(panel.problem.N):
        total.add_(panel.products(i, x, moved[i]), alpha=float(panel.p[i]))
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
) -> tuple[Law, Law]:
    """Return FedAvg's and Scaffold's bias as advised, and the traces of their covariances."""
    names = ("heterogeneity", "stochastic", "scaffold", "limit", "richardson_romberg")
    bias: Law = dict.fromkeys(names)
    variance: Law = dict.fromkeys(("fedavg", "scaffold"))
    if at is None or at.convexity == "non-convex" or not case.optimum:
        return bias, variance
    if pull is None or choice is None or choice.eta is None or case.budget.out_of_time(until):
        return bias, variance
    if hessians.matrix is not None and not case.budget.decomposes(case.problem.d, 1.0):
        return bias, variance
    eta, K = choice.eta, choice.K
    bias["heterogeneity"] = eta * (K - 1) / 2 * _solved(case, hessians, pull)
    if model is not None:
        limit, twice = (quadratic_model.fedavg_limit(model, step, K) for step in (eta, 2 * eta))
        bias["limit"] = None if limit is None else float(limit.norm())
        if limit is not None and twice is not None and eta * at.L < 1:  # else 2 eta diverges
            bias["richardson_romberg"] = float((2 * limit - twice).norm())
    if at.sigma == 0:
        bias["stochastic"] = bias["scaffold"] = variance["fedavg"] = variance["scaffold"] = 0.0
        return bias, variance
    if at.convexity != "strongly convex":
        case.budget.note("Without strong convexity there is no stationary law of the noise.")
        return bias, variance
    return _with_noise(case, here, hessians.matrix, K, eta, at, bias)


def by_K(bias: Law, model: QuadraticModel | None, choice: Choice | None) -> list[Law]:
    """Return FedAvg's bias for other K at the same step size: first order, and on the model."""
    first = bias["heterogeneity"]
    if first is None or choice is None or choice.eta is None or choice.K == 1:
        return []
    eta, K = choice.eta, choice.K
    rows: list[Law] = []
    for other in KS:
        limit = None if model is None else quadratic_model.fedavg_limit(model, eta, other)
        row: Law = {"K": other, "heterogeneity": first * (other - 1) / (K - 1)}
        rows.append(row | {"limit": None if limit is None else float(limit.norm())})
    return rows


def _solved(case: Case, hessians: Hessians, pull: Vector) -> float:
    """Return |Hess^-1 pull|, leaving out directions in which f is flat."""
    if hessians.matrix is not None:
        values, U = torch.linalg.eigh(hessians.matrix)
        steep = values > 1e-6 * hessians.L
        return float(((U.T @ pull.double().cpu())[steep] / values[steep]).norm())
    found, left = conjugate_gradients(
        lambda v: case.panel.mean_products(case.best, v), pull, out_of_time=case.budget.until(0.97)
    )
    if left > 0.05:
        case.budget.note(f"FedAvg's bias is known up to a relative residual of {left:.0%}.")
    return float(found.double().norm())


def _with_noise(
    case: Case,
    here: Gradients,
    H: Tensor | None,
    K: int,
    eta: float,
    at: theory.Constants,
    bias: Law,
) -> tuple[Law, Law]:
    variance: Law = dict.fromkeys(("fedavg", "scaffold"))
    budget, panel = case.budget, case.panel
    if H is None:
        large = case.problem.d > measure.DENSE
        why = f"d is above {measure.DENSE:,}" if large else "there was no time"
        budget.note(f"The stochastic parts of bias and variance are left out ({why}).")
        return bias, variance
    batches = noise.stationary(panel, case.best, H, case.seed, budget.until(0.98))
    if batches is None:
        budget.note("There was no time for the stochastic parts of bias and variance.")
        return bias, variance
    if batches.left_out > 0.05:
        budget.note(f"The stochastic bias leaves out {batches.left_out:.0%} of the noise.")
    by_noise = float(theory.noise_bias(H, batches.D3, eta, at.N).norm())
    bias["stochastic"] = bias["scaffold"] = by_noise
    rows = here.rows.double().cpu()
    spread = (panel.p[:, None] * rows).T @ rows
    for name in variance:
        C = theory.sampled_noise(batches.C, spread, name, K, at.N, at.S)
        variance[name] = float(theory.lyapunov(H, eta * C).trace())
    if panel.can.steps_in_a_pass is not None:
        case.budget.note(
            "Stochastic bias and variance are those of i.i.d. mini-batches; reshuffled ones "
            "have less."
        )
    return bias, variance


def drift(case: Case, choice: Choice | None, pull: Vector | None) -> float:
    """Return |x* - mean_c y_c|/(eta K) after K local steps on all data, started at x*.

    NaN without advice, or without time.
    """
    if choice is None or choice.eta is None or pull is None or case.budget.out_of_time(1.0):
        return nan
    panel, x, out_of_time = case.panel, case.best, case.budget.until(1.0)
    eta, K = choice.eta, choice.K
    mean = torch.zeros_like(x)
    for i in range(panel.problem.N):
        y = x
        for _ in range(K):
            if out_of_time():
                case.budget.note("The average drift is that of the first-order formula.")
                return float(eta * (K - 1) / 2 * pull.norm())
            y = y - eta * panel.problem.client_gradient(i, y).detach()
        mean.add_(y, alpha=float(panel.p[i]))
    return float((x - mean).norm()) / (eta * K)
