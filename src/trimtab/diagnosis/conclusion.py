"""What a diagnosis says: all that was measured, what follows from it, and what is advised."""

from math import isfinite

from trimtab.diagnosis import intervals, prediction, reasons, stages, theory
from trimtab.diagnosis.advise import Choice, Gain, Reach, gain, reach
from trimtab.diagnosis.case import Case
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
from trimtab.diagnosis.hessians import Hessians
from trimtab.diagnosis.intervals import Estimate
from trimtab.diagnosis.prediction import Plan
from trimtab.diagnosis.stages import Measured, Modelled
from trimtab.diagnosis.text import drawn
from trimtab.diagnosis.theory import Law


def composed(case: Case, measured: Measured, modelled: Modelled, plan: Plan) -> Diagnosis:
    """Put together what was measured, what follows from it, and what is advised."""
    here, hessians, choice = measured.here, measured.hessians, plan.choice
    at = _constants(case, measured)
    eta, K = (None, 1) if choice is None else (choice.eta, choice.K)
    law = theory.stationary(
        case, here, hessians, modelled.model, modelled.pull, eta, K, at, stages.BIAS
    )
    holds = None if choice is None else reach(choice, modelled.predicted, case.eps)
    drift = theory.drift(case, eta, K, modelled.pull)
    errors, found = _intervals(case, measured, modelled, law, drift, choice, at)
    saved = _gain(case, measured, modelled, plan)
    clients = case.panel.clients
    return Diagnosis(
        setting=Setting(case.problem.N, case.problem.d, case.S, case.eps, case.cross_device),
        scalars=_scalars(case, measured, drift),
        evidence=_evidence(case, measured, errors, found),
        tables=Tables(
            points=measured.points.rows,
            clients=stages.of_clients(case.panel, here, hessians),
            differences=measured.early.differences,
            spectra={clients[i]: values for i, values in hessians.spectra.items()},
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
) -> tuple[dict[str, float], dict[str, Estimate]]:
    """Return standard errors, and the interval of every number, measured or derived."""
    points, left = measured.points, measured.left(case)
    there = left is not None or case.panel.problem.x_star is not None
    point = case.where if there else f"{case.where}, f = {case.panel.loss(case.best):.4g}"
    draws = measured.early.draws
    sample = intervals.at_point(
        point,
        case.best,
        draws,
        case.panel.p,
        measured.here,
        measured.hessians,
        measured.noise,
        points.differences,
        points.B,
        left,
    )
    numbers = sample.estimates()
    rates_hold = at if case.panel.problem.symmetric else None
    numbers |= theory.of_theory(sample, rates_hold, 1 if choice is None else choice.K)
    if choice is not None and choice.eta is not None:
        of = law.bias, drift, modelled.model, choice.eta, choice.K
        numbers |= theory.of_bias(sample, draws, *of)
    finite = {name: one for name, one in numbers.items() if isfinite(one.value)}
    return sample.errors, finite


def _evidence(
    case: Case, measured: Measured, errors: dict[str, float], found: dict[str, Estimate]
) -> Evidence:
    return Evidence(
        where=case.where,
        optimum=case.optimum,
        errors=errors,
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
    if not case.panel.problem.symmetric:
        at, convexity = None, theory.NO_GRADIENTS
    return Forecast(
        rates={} if at is None else theory.rates(at, K),
        convexity=convexity,
        knee=None if at is None else theory.knees(at),
        bias=law.bias,
        bias_by_K=theory.by_K(law.bias, modelled.model, None if choice is None else choice.eta, K),
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
        case.budget.until(1.0),
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
        reasons=reasons.why(
            case,
            plan,
            zeta,
            law.bias,
            hessians,
            modelled.predicted,
            drawn(case.S < case.problem.N, measured.noise.sigma),
        ),
        sure=confidence.sure,
        doubts=confidence.doubts,
        accuracy=reasons.accuracy(plan.choice, holds),
        about_K=reasons.about_K(
            plan.choice, at if case.panel.problem.symmetric else None, case.eps
        ),
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
