"""Diagnose a problem: measure its heterogeneity, predict, advise."""

from collections.abc import Generator
from dataclasses import replace
from math import inf, sqrt

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis import laws, measure, plan, rows, theory, words
from trimtab.diagnosis.advice import ALIKE, CHANGES, Diagnosis, named
from trimtab.diagnosis.case import Case, find
from trimtab.diagnosis.clock import Clock
from trimtab.diagnosis.measure import Hessians
from trimtab.diagnosis.panel import seat
from trimtab.problems.problem import Problem
from trimtab.simulation import cohort_size
from trimtab.threads import one_thread

Stage = tuple[str, float]
"""What is being done, and about how much of it all is over."""


def diagnose(
    problem: Problem,
    x: Vector | None = None,
    *,
    S: int | float | None = None,
    eps: float | None = None,
    cross_device: bool = False,
    seed: int = 0,
    minutes: float = 5,
) -> Diagnosis:
    """Measure how the clients differ, predict what follows from it, and advise.

    x: where training starts (the problem's x0). S: clients a round. eps: the f(x) - f(x*) that is
    wanted, by default a hundredth of the start's. cross_device: clients come once and keep nothing.

    >>> import torch, trimtab
    >>> A = torch.tensor([[1.0, 0.1], [0.8, 0.05]])  # the diagonals of two Hessians
    >>> pair = trimtab.Quadratic(A, b=torch.tensor([[2.0, 0.3], [-1.0, 0.1]]))
    >>> found = trimtab.diagnose(pair)
    >>> print(found.advice)
    Use Scaffold with K = 8, eta_l = 1 and eta_g = 1.
    >>> [round(value, 2) for value in (found.zeta, found.delta, found.L, found.mu)]
    [1.44, 0.1, 1.0, 0.08]
    """
    steps = diagnosing(
        problem,
        x,
        S=S,
        eps=eps,
        cross_device=cross_device,
        seed=seed,
        minutes=minutes,
    )
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Diagnosis = done.value
            return result


def diagnosing(
    problem: Problem,
    x: Vector | None = None,
    *,
    S: int | float | None = None,
    eps: float | None = None,
    cross_device: bool = False,
    seed: int = 0,
    minutes: float = 5,
    name: str = "problem",
) -> Generator[Stage, None, Diagnosis]:
    """Do what `diagnose` does; yield what is being done, for progress."""
    size = cohort_size(S, problem.N)
    if not isinstance(minutes, int | float) or not 0 < minutes < inf:
        raise ValueError(f"minutes={minutes}; pass a number of minutes that is positive.")
    if eps is not None and not 0 < eps < inf:
        raise ValueError(f"eps={eps}; pass the f(x) - f(x*) that is wanted, a positive number.")
    x0 = _start(problem, seed, x)
    with one_thread(when=getattr(problem, "executor", "loop") != "wide"):
        found = yield from _steps(problem, x0, size, eps, cross_device, seed, minutes)
    return replace(found, name=name)


def _start(problem: Problem, seed: int, x: Vector | None) -> Vector:
    x0 = problem.x0(seed) if x is None else x
    if not isinstance(x0, Tensor) or x0.shape != (problem.d,):
        raise ValueError(f"x is no vector of length d={problem.d}; pass one.")
    if not x0.is_floating_point() or not bool(torch.isfinite(x0).all()):
        raise ValueError("x must hold finite floating-point numbers.")
    return x0.detach().clone()


def _steps(
    problem: Problem,
    x0: Vector,
    S: int,
    eps: float | None,
    cross_device: bool,
    seed: int,
    minutes: float,
) -> Generator[Stage, None, Diagnosis]:
    clock = Clock(60 * minutes)
    yield "who is measured", 0.0
    panel = seat(problem, seed, clock)
    yield "the optimum", 0.02
    case = find(problem, panel, clock, x0, S, seed, eps)
    yield "gradients", 0.3
    here = measure.at_point(panel, case.best, panel.problem.N < problem.N)
    yield "mini-batches", 0.35
    square, error = measure.noise(panel.problem, panel.p, case.best, seed, clock.until(0.4))
    sigma = sqrt(max(0.0, square))
    hessians = start = yield from _hessians(case, case.best, 0.4, 0.6)
    if clock.until(0.68)():
        clock.note("The Hessians at the start were not looked at.")
    elif not case.quadratic:
        start = yield from _hessians(case, x0, 0.6, 0.68, worst=3)
    points, B = rows.of_points(case, here, hessians, start)

    yield "the quadratic model", 0.68
    moved = here.rows - here.mean
    pull = laws.pull_of(panel, case.best, moved)
    model, away = plan.build(case, hessians, moved, pull, sigma)
    predicted = []
    for one in () if model is None else plan.predictions(case, model, cross_device):
        predicted.append(one)
        at_least = 0.75 + 0.005 * len(predicted)
        yield f"{named(one.algorithm)} with K = {one.K} on the model", at_least
    alike = all(row["zeta"] <= ALIKE * row["gradient"] for row in points[:-1])
    change = max(start.L, hessians.L) / max(min(start.L, hessians.L), 1e-30)
    choice = plan.decide(
        predicted, hessians, cross_device=cross_device, alike=alike, trusted=change <= CHANGES
    )
    yield "step sizes", 0.85
    eta = plan.try_out(case, choice, max(hessians.L, start.L, 1e-30))

    yield "bias and variance", 0.9
    at = theory.Constants(
        L=hessians.L,
        mu=hessians.mu,
        delta=hessians.delta,
        G=here.G,
        B=B,
        sigma=sigma,
        N=problem.N,
        S=S,
        eps=case.eps,
        D=float(away.norm()),
        F=max(case.f0 - case.least, case.eps),
    )
    bias, variance = laws.stationary(case, here, hessians, model, pull, choice.K, eta, at)
    errors = {"zeta": here.zeta_error, "sigma": error / (2 * sigma) if sigma else 0.0}
    sure, doubts = words.how_sure(case, choice, change, hessians, predicted)
    where = "optimum" if case.optimum else "best point found"
    return Diagnosis(
        N=problem.N,
        d=problem.d,
        S=S,
        eps=case.eps,
        G=here.G,
        B=B,
        delta=hessians.delta,
        L=hessians.L,
        mu=hessians.mu,
        sigma=sigma,
        zeta=here.zeta,
        second=hessians.second,
        weak=hessians.weak,
        drift=laws.drift(case, eta, choice.K, pull),
        errors={name: value for name, value in errors.items() if value},
        least=case.least,
        optimum=case.optimum,
        points=points,
        clients=rows.of_clients(panel, here, hessians),
        rates=theory.rates(at, choice.K),
        convexity=at.convexity,
        knee={
            "I": theory.knee(at.L, at.delta, at.mu, "I"),
            "II": theory.knee(at.L, at.delta, at.mu, "II"),
        },
        bias=bias,
        bias_by_K=laws.by_K(bias, model, eta, choice.K),
        variance=variance,
        predicted=predicted,
        algorithm=choice.algorithm,
        K=choice.K,
        eta_l=eta,
        eta_g=1.0,
        reasons=words.reasons(choice, at, here.zeta, bias, predicted, where),
        sure=sure,
        doubts=doubts,
        cut=clock.cut,
        seconds=clock.spent,
        cross_device=cross_device,
        spectra={panel.clients[i]: (s.values, s.weights) for i, s in hessians.spectra.items()},
    )


def _hessians(
    case: Case, x: Vector, begin: float, end: float, worst: int = measure.WORST
) -> Generator[Stage, None, Hessians]:
    """Measure the Hessians at x: all eigenvalues if d is small, else the extreme ones."""
    yield "Hessians", begin
    enough, half = case.clock.until(end), case.clock.until((begin + end) / 2)
    matrices = measure.full_hessians(case.panel, x, half)
    if matrices is not None:
        return measure.by_matrices(case.panel, matrices)
    found: Hessians | None = None
    for item in measure.by_products(case.panel, x, case.seed, case.clock, enough, worst):
        if isinstance(item, Hessians):
            found = item
        else:
            yield item, begin
    assert found is not None
    if x is case.best:
        yield "the mean Hessian", (begin + end) / 2
        found.matrix = measure.full_hessian(case.panel, x, enough)
        if found.matrix is not None:
            found.mu = float(torch.linalg.eigvalsh(found.matrix)[0])
    return found
