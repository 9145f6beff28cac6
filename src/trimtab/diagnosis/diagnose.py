"""Diagnose a problem: measure its heterogeneity, predict, advise."""

from collections.abc import Generator
from dataclasses import replace
from math import inf, isfinite

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.threads import one_thread
from trimtab.diagnosis import (
    measure,
    optimum,
    prediction,
    reasons,
    stages,
    stationary,
    tables,
    theory,
)
from trimtab.diagnosis.abilities import Abilities
from trimtab.diagnosis.budget import Budget
from trimtab.diagnosis.candidates import named
from trimtab.diagnosis.case import SHORT, Case, begin, leave_the_optimum
from trimtab.diagnosis.choice import CHANGES, reach
from trimtab.diagnosis.diagnosis import Diagnosis
from trimtab.diagnosis.measure import Hessians
from trimtab.diagnosis.panel import choose_panel
from trimtab.diagnosis.quadratic_model import Predicted, QuadraticModel
from trimtab.problems.catalogue import load_problem
from trimtab.problems.problem import Problem
from trimtab.simulation import cohort_size


def diagnose(
    problem: Problem | str,
    x: Vector | None = None,
    *,
    S: int | float | None = None,
    eps: float | None = None,
    cross_device: bool = False,
    seed: int = 0,
    minutes: float = 5,
) -> Diagnosis:
    """Measure how the clients differ, predict what follows from it, and advise.

    problem: one, or the name of one as for `trimtab diagnose`. x: where training starts (the
    problem's x0). S: clients a round. eps: the f(x) - f(x*) that is wanted, by default a hundredth
    of the start's. cross_device: clients come once and keep nothing.

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
    problem: Problem | str,
    x: Vector | None = None,
    *,
    S: int | float | None = None,
    eps: float | None = None,
    cross_device: bool = False,
    seed: int = 0,
    minutes: float = 5,
    name: str | None = None,
) -> Generator[stages.Stage, None, Diagnosis]:
    """Do what `diagnose` does; yield what is being done, for progress."""
    name = name or (problem if isinstance(problem, str) else "problem")
    if isinstance(problem, str):
        problem, _ = load_problem(problem, seed=seed)
    budget = Budget(60 * minutes if _positive(minutes) else 0.0)
    if problem.N < 2:
        raise ValueError(
            f"the problem has N={problem.N} client, and a diagnosis compares clients with each "
            "other; pass a problem with two or more, or train this one with trimtab.Sgd."
        )
    size = cohort_size(S, problem.N)
    if not _positive(minutes):
        raise ValueError(f"minutes={minutes}; pass a number of minutes that is positive.")
    if eps is not None and not _positive(eps):
        raise ValueError(f"eps={eps}; pass the f(x) - f(x*) that is wanted, a positive number.")
    x0 = _start(problem, seed, x)
    with one_thread(when=not Abilities(problem).uses_all_cores):
        found = yield from _steps(problem, x0, size, eps, cross_device, seed, budget)
    return replace(found, name=name)


def _positive(value: float) -> bool:
    return isinstance(value, int | float) and 0 < value < inf


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
    budget: Budget,
) -> Generator[stages.Stage, None, Diagnosis]:
    yield "who is measured", 0.0
    panel = choose_panel(problem, seed, budget)
    yield "gradients at the start", 0.01
    case = begin(problem, panel, budget, x0, S, seed, eps)
    first = measure.at_point(panel, x0, panel.problem.N < problem.N)
    yield "curvature at the start", 0.02
    seconds = []
    for _ in range(stages.TIMINGS):  # others use the machine too: the least counts
        started = budget.spent
        steep = optimum.along_gradient(panel, x0, first.mean)
        seconds.append(budget.spent - started)
        if sum(seconds) * SHORT > budget.seconds:
            break
    case.pass_seconds = case.step_seconds = min(seconds)
    if case.short:
        budget.note("The time sufficed for little more than a few rounds.")
    elif not budget.out_of_time(stages.CURVATURE):
        steep = optimum.steepest(panel, x0, seed, budget.until(stages.CURVATURE), first.mean)
    L = max(steep.norm, 1e-30)
    until = stages.TRIALS if case.short else stages.LOOK
    chosen = yield from _told(prediction.first_look(case, L, cross_device, until), stages.CURVATURE)
    found = yield from stages.measure_all(case, first, steep)
    model, pull, predicted = yield from _model(case, found, cross_device)
    if not case.short:
        trials = prediction.trials(
            case,
            predicted,
            found.L if predicted else L,
            chosen,
            cross_device=cross_device,
            alike=found.alike,
            trusted=found.change <= CHANGES,
            until=stages.TRIALS,
        )
        chosen = yield from _told(trials, stages.PREDICTIONS)
    yield "bias and variance", stages.TRIALS
    return _diagnosis(case, found, model, pull, predicted, chosen, cross_device)


def _told(
    steps: Generator[str, None, prediction.Plan], begin: float
) -> Generator[stages.Stage, None, prediction.Plan]:
    """Say what is being tried, and return what came of it."""
    while True:
        try:
            yield next(steps), begin
        except StopIteration as done:
            result: prediction.Plan = done.value
            return result


def _model(
    case: Case, found: stages.Measured, cross_device: bool
) -> Generator[stages.Stage, None, tuple[QuadraticModel | None, Vector | None, list[Predicted]]]:
    """Build the quadratic model and count rounds on it."""
    predicted: list[Predicted] = []
    if case.budget.out_of_time(stages.BASIS) or case.best is case.x0:
        case.budget.note("There was no time for the quadratic model.")
        return None, None, predicted
    yield "the quadratic model", stages.POINTS
    moved = found.here.rows - found.here.mean
    size = float(moved.norm(dim=1).max()) / found.hessians.L or 1.0
    leave_the_optimum(case, size, found.hessians.L)
    pull = stationary.pull_of(case.panel, case.best, moved)
    model = prediction.build(case, moved, pull, found.sigma > 0, (stages.BASIS, stages.MODEL))
    if model is None:
        return model, pull, predicted
    for one in prediction.predictions(case, model, cross_device, stages.PREDICTIONS):
        predicted.append(one)
        yield f"{named(one.algorithm)} with K = {one.K} on the model", stages.MODEL
    return model, pull, predicted


def _diagnosis(
    case: Case,
    found: stages.Measured,
    model: QuadraticModel | None,
    pull: Vector | None,
    predicted: list[Predicted],
    chosen: prediction.Plan,
    cross_device: bool,
) -> Diagnosis:
    """Put together what was measured, what follows from it, and what is advised."""
    budget, panel, problem = case.budget, case.panel, case.problem
    here, hessians, choice = found.here, found.hessians, chosen.choice
    at = _constants(case, found)
    bias, variance = stationary.stationary(
        case, here, hessians, model, pull, choice, at, stages.BIAS
    )
    holds = None if choice is None else reach(choice, predicted, case.eps)
    sure, doubts = reasons.how_sure(case, chosen, found.change, hessians, holds)
    errors = {"zeta": here.zeta_error, "sigma": found.sigma_error}
    looked = sum(hessians.measured)
    return Diagnosis(
        N=problem.N,
        d=problem.d,
        S=case.S,
        eps=case.eps,
        G=here.G,
        B=found.B,
        delta=hessians.delta,
        L=hessians.L,
        mu=hessians.mu,
        sigma=found.sigma,
        zeta=here.zeta,
        second=hessians.second,
        weak=hessians.weak,
        drift=stationary.drift(case, choice, pull),
        errors={name: value for name, value in errors.items() if value},
        least=case.least,
        optimum=case.optimum,
        points=found.rows,
        clients=tables.of_clients(panel, here, hessians),
        rates={} if at is None else theory.rates(at, 1 if choice is None else choice.K),
        convexity="not known" if at is None else at.convexity,
        knee={} if at is None else theory.knees(at),
        bias=bias,
        bias_by_K=stationary.by_K(bias, model, choice),
        variance=variance,
        predicted=predicted,
        algorithm=None if choice is None else choice.algorithm,
        K=None if choice is None else choice.K,
        eta_l=None if choice is None else choice.eta,
        eta_g=None if choice is None else 1.0,
        reasons=reasons.why(case, chosen, here.zeta, bias, hessians, predicted),
        sure=sure,
        doubts=doubts,
        cut=budget.cut,
        seconds=budget.spent,
        cross_device=cross_device,
        spectra={panel.clients[i]: (s.values, s.weights) for i, s in hessians.spectra.items()},
        where=case.where,
        norm=hessians.norm,
        why_not=chosen.why_not,
        bounds=_bounds(hessians, all_clients=panel.problem.N == problem.N),
        rough=hessians.rough,
        measured_on=looked,
        trials=[
            {"algorithm": o.algorithm, "K": o.K, "eta": o.eta, "losses": o.losses}
            for o in chosen.lanes
            if o.losses
        ],
        f_start=chosen.f_start,
        holds=None if holds is None else holds.eps,
        accuracy=reasons.accuracy(choice, holds),
        about_K=reasons.about_K(choice, at, case.eps),
    )


def _bounds(hessians: Hessians, *, all_clients: bool) -> dict[str, str]:
    """Return which numbers are bounds only: those of some clients, or of a process cut short."""
    found = {} if hessians.exact and all_clients else {"L": "at least", "delta": "at least"}
    found |= {} if hessians.mu_exact else {"mu": "at most"}
    return {name: bound for name, bound in found.items() if isfinite(getattr(hessians, name))}


def _constants(case: Case, found: stages.Measured) -> theory.Constants | None:
    """Return what the rates of theory depend on; None if not all of it was measured."""
    hessians = found.hessians
    needed = (hessians.delta, hessians.mu, found.B, found.sigma)
    if hessians.rough or not all(map(isfinite, needed)) or not hessians.L > 0:
        return None
    return theory.Constants(
        L=hessians.L,
        mu=hessians.mu,
        delta=hessians.delta,
        G=found.here.G,
        B=found.B,
        sigma=found.sigma,
        N=case.problem.N,
        S=case.S,
        eps=case.eps,
        D=float((case.start - case.best).norm()),
        F=max(case.f0 - case.least, case.eps),
    )
