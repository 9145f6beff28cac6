"""Diagnose a problem: measure its heterogeneity, predict, advise."""

from collections.abc import Generator
from dataclasses import replace
from math import inf, isfinite

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.task import Progress, task
from trimtab.core.threads import one_thread
from trimtab.diagnosis import (
    intervals,
    measure,
    prediction,
    reasons,
    stages,
    stationary,
    tables,
    theory,
)
from trimtab.diagnosis.abilities import Abilities
from trimtab.diagnosis.budget import Budget
from trimtab.diagnosis.case import Case, begin
from trimtab.diagnosis.choice import Choice, Reach, reach
from trimtab.diagnosis.diagnosis import (
    Diagnosis,
    Evidence,
    Forecast,
    Recommendation,
    Scalars,
    Sentences,
    Setting,
    Tables,
)
from trimtab.diagnosis.estimate import Estimate
from trimtab.diagnosis.first_facts import FirstFacts
from trimtab.diagnosis.gain import Gain, gain
from trimtab.diagnosis.hessians import Hessians
from trimtab.diagnosis.panel import choose_panel
from trimtab.diagnosis.prediction import Plan
from trimtab.diagnosis.stages import Measured, Modelled
from trimtab.diagnosis.stationary import Law
from trimtab.problems.loading import load_problem
from trimtab.problems.problem import Problem
from trimtab.simulation import cohort_size


@task
def diagnose(
    problem: Problem | str,
    x: Vector | None = None,
    *,
    S: int | float | None = None,
    eps: float | None = None,
    cross_device: bool = False,
    seed: int = 0,
    minutes: float = 5,
) -> Generator[Progress | FirstFacts, None, Diagnosis]:
    """Measure how the clients differ, predict what follows from it, and advise.

    problem: one, or the name of one as for `trimtab diagnose`. x: where training starts (the
    problem's x0). S: clients a round. eps: the f(x) - f(x*) that is wanted, by default a hundredth
    of the start's. cross_device: clients come once and keep nothing. seed: of all that is drawn to
    measure (clients, samples, mini-batches, directions), so that two seeds measure the same thing.

    >>> import torch, trimtab
    >>> A = torch.tensor([[1.0, 0.1], [0.8, 0.05]])  # the diagonals of two Hessians
    >>> pair = trimtab.Quadratic(A, b=torch.tensor([[2.0, 0.3], [-1.0, 0.1]]))
    >>> found = trimtab.diagnose(pair)
    >>> print(found.advice)
    Use Scaffold with K = 8, eta_l = 1 and eta_g = 1.
    >>> [round(value, 2) for value in (found.zeta, found.delta, found.L, found.mu)]
    [1.44, 0.1, 1.0, 0.08]
    """
    name = problem if isinstance(problem, str) else "problem"
    if isinstance(problem, str):
        problem = load_problem(problem, seed=seed)
    budget = Budget(60 * minutes if _positive(minutes) else 0.0)
    size = _checked_size(problem, S, eps, minutes)
    x0 = _start(problem, x)
    with one_thread(when=not Abilities(problem).uses_all_cores):
        diagnosis = yield from _stages(problem, x0, budget, size, seed, eps, cross_device)
    return replace(diagnosis, name=name)


def _stages(
    problem: Problem,
    x0: Vector,
    budget: Budget,
    S: int,
    seed: int,
    eps: float | None,
    cross_device: bool,
) -> Generator[Progress | FirstFacts, None, Diagnosis]:
    """Run the stages in order; each takes what was measured so far."""
    yield Progress("who is measured", 0.0)
    panel = choose_panel(problem, seed, budget)
    yield Progress("gradients at the start", 0.01)
    case = begin(problem, panel, budget, x0, S, seed, eps, cross_device)
    first = measure.at_point(panel, x0, case.some_clients)
    yield Progress("curvature at the start", 0.02)
    steep = stages.curvature(case, first)
    early = yield from stages.first_facts(case, first, steep)
    look = yield from stages.first_look(case, steep)
    here = yield from stages.best_gradients(case, first)
    noise = yield from stages.batch_noise(case)
    seen = yield from stages.client_hessians(case, steep)
    points = tables.of_points(case, first, early, here, seen, stages.POINTS)
    measured = Measured(steep, here, noise, seen, points, early)
    modelled = yield from stages.model(case, measured)
    plan = yield from stages.trials(case, measured, modelled, look)
    yield Progress("bias and variance", stages.TRIALS)
    return _composed(case, measured, modelled, plan)


# -- what was asked


def _checked_size(
    problem: Problem, S: int | float | None, eps: float | None, minutes: float
) -> int:
    """Return how many clients a round has; refuse what nobody can diagnose."""
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
    return size


def _positive(value: float) -> bool:
    return isinstance(value, int | float) and 0 < value < inf


def _start(problem: Problem, x: Vector | None) -> Vector:
    """Return the problem's own start, so that two seeds measure at the same point; or x."""
    x0 = problem.x0(0) if x is None else x
    if not isinstance(x0, Tensor) or x0.shape != (problem.d,):
        raise ValueError(f"x is no vector of length d={problem.d}; pass one.")
    if not x0.is_floating_point() or not bool(torch.isfinite(x0).all()):
        raise ValueError("x must hold finite floating-point numbers.")
    return x0.detach().clone()


# -- what was found


def _composed(case: Case, measured: Measured, modelled: Modelled, plan: Plan) -> Diagnosis:
    """Put together what was measured, what follows from it, and what is advised."""
    here, hessians, choice = measured.here, measured.hessians, plan.choice
    at = _constants(case, measured)
    law = stationary.stationary(
        case, here, hessians, modelled.model, modelled.pull, choice, at, stages.BIAS
    )
    holds = None if choice is None else reach(choice, modelled.predicted, case.eps)
    drift = stationary.drift(case, choice, modelled.pull)
    found = _intervals(case, measured, modelled, law, drift, choice, at)
    saved = _gain(case, measured, modelled, plan)
    clients = case.panel.clients
    return Diagnosis(
        setting=Setting(case.problem.N, case.problem.d, case.S, case.eps, case.cross_device),
        scalars=_scalars(case, measured, drift),
        evidence=_evidence(case, measured, found),
        tables=Tables(
            points=measured.points.rows,
            clients=tables.of_clients(case.panel, here, hessians),
            differences=measured.early.differences,
            spectra={clients[i]: (s.values, s.weights) for i, s in hessians.spectra.items()},
        ),
        forecast=_forecast(case, at, law, modelled, choice),
        recommendation=_recommendation(plan, holds, saved),
        sentences=_sentences(case, measured, modelled, plan, at, law, holds),
        cut=case.budget.cut,
        seconds=case.budget.spent,
    )


def _scalars(case: Case, measured: Measured, drift: float) -> Scalars:
    here, hessians = measured.here, measured.hessians
    return Scalars(
        G=here.G,
        B=measured.points.B,
        delta=hessians.delta,
        L=hessians.L,
        mu=hessians.mu,
        sigma=measured.noise.sigma,
        zeta=here.zeta,
        second=hessians.second,
        weak=hessians.weak,
        drift=drift,
        norm=hessians.norm,
        least=case.least,
    )


def _intervals(
    case: Case,
    measured: Measured,
    modelled: Modelled,
    law: Law,
    drift: float,
    choice: Choice | None,
    at: theory.Constants | None,
) -> dict[str, Estimate]:
    """Return the interval of every number, measured or derived."""
    points = measured.points
    point = (
        case.where if case.optimum else f"{case.where}, f = {case.panel.can.loss(case.best):.4g}"
    )
    sample = intervals.at_point(
        point,
        case.best,
        measured.early.draws,
        case.seed,
        measured.here,
        measured.hessians,
        measured.noise,
        points.ratios,
        points.B,
        measured.short_of if case.optimum else 0.0,
    )
    numbers = sample.estimates()
    rates_hold = at if case.panel.can.symmetric else None
    numbers |= intervals.of_theory(sample, rates_hold, 1 if choice is None else choice.K)
    if choice is not None and choice.eta is not None:
        numbers |= intervals.of_bias(sample, law.bias, drift, modelled.model, choice.eta, choice.K)
    return {name: one for name, one in numbers.items() if isfinite(one.value)}


def _evidence(case: Case, measured: Measured, found: dict[str, Estimate]) -> Evidence:
    errors = {"zeta": measured.here.zeta_error, "sigma": measured.noise.error}
    return Evidence(
        where=case.where,
        optimum=case.optimum,
        errors={name: value for name, value in errors.items() if value},
        bounds=_bounds(measured.hessians, all_clients=not case.some_clients),
        rough=measured.hessians.rough,
        measured_on=sum(measured.hessians.measured),
        intervals=found,
    )


def _bounds(hessians: Hessians, *, all_clients: bool) -> dict[str, str]:
    """Return which numbers are bounds only: those of some clients, or of a process cut short."""
    bounds: dict[str, str] = {}
    if not (hessians.exact and all_clients):
        bounds |= {"L": "at least", "delta": "at least"}
    if not hessians.mu_exact:
        bounds["mu"] = "at most"
    values = {"L": hessians.L, "delta": hessians.delta, "mu": hessians.mu}
    return {name: bound for name, bound in bounds.items() if isfinite(values[name])}


def _forecast(
    case: Case,
    at: theory.Constants | None,
    law: Law,
    modelled: Modelled,
    choice: Choice | None,
) -> Forecast:
    K = 1 if choice is None else choice.K
    convexity = "not known" if at is None else at.convexity
    if not case.panel.can.symmetric:
        at, convexity = None, theory.NO_GRADIENTS
    return Forecast(
        rates={} if at is None else theory.rates(at, K),
        convexity=convexity,
        knee=None if at is None else theory.knees(at),
        bias=law.bias,
        bias_by_K=stationary.by_K(law.bias, modelled.model, choice),
        variance=law.variance,
        predicted=modelled.predicted,
    )


def _gain(case: Case, measured: Measured, modelled: Modelled, plan: Plan) -> Gain | None:
    """Return what the advice saves, as far as the model tells."""
    model = modelled.model
    return gain(
        case,
        plan.choice,
        modelled.predicted,
        model,
        0.0 if model is None else prediction.share_of(case, model),
        plan.lanes,
        measured.early.draws,
        case.budget.until(stages.GAIN),
    )


def _recommendation(plan: Plan, holds: Reach | None, saved: Gain | None) -> Recommendation:
    choice = plan.choice
    return Recommendation(
        algorithm=None if choice is None else choice.algorithm,
        K=None if choice is None else choice.K,
        eta_l=None if choice is None else choice.eta,
        eta_g=None if choice is None else 1.0,
        why_not=plan.why_not,
        holds=None if holds is None else holds.eps,
        trials=tuple(lane.curve for lane in plan.lanes if lane.losses),
        f_start=plan.f_start,
        gain=saved,
    )


def _sentences(
    case: Case,
    measured: Measured,
    modelled: Modelled,
    plan: Plan,
    at: theory.Constants | None,
    law: Law,
    holds: Reach | None,
) -> Sentences:
    hessians, zeta = measured.hessians, measured.here.zeta
    confidence = reasons.confidence(case, plan, measured.change, hessians, holds)
    return Sentences(
        reasons=reasons.why(case, plan, zeta, law.bias, hessians, modelled.predicted),
        sure=confidence.sure,
        doubts=confidence.doubts,
        accuracy=reasons.accuracy(plan.choice, holds),
        about_K=reasons.about_K(plan.choice, at if case.panel.can.symmetric else None, case.eps),
    )


def _constants(case: Case, measured: Measured) -> theory.Constants | None:
    """Return what the rates of theory depend on; None if not all of it was measured."""
    hessians, B, sigma = measured.hessians, measured.points.B, measured.noise.sigma
    needed = (hessians.delta, hessians.mu, B, sigma)
    if hessians.rough or not all(map(isfinite, needed)) or not hessians.L > 0:
        return None
    constants = theory.Constants(
        L=hessians.L,
        mu=0.0 if hessians.mu_may_be_zero else hessians.mu,
        delta=hessians.delta,
        G=measured.here.G,
        B=B,
        sigma=sigma,
        N=case.problem.N,
        S=case.S,
        eps=case.eps,
        D=float((case.start - case.best).norm()),
        F=max(case.f0 - case.least, case.eps),
    )
    return constants if constants.usable else None
