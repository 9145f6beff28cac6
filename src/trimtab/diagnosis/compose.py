"""What a diagnosis says: all that was measured, what follows from it, and what is advised."""

from math import inf, isfinite

from trimtab.diagnosis import intervals, stages, theory
from trimtab.diagnosis.advise import Advice, confidence, decide, headline, rounds_of
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.confirm import Confirmed
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
from trimtab.diagnosis.rows import ConfirmedRow, TrialCurve
from trimtab.diagnosis.rules import RULES
from trimtab.diagnosis.sections import gradients_sentence, hessians_sentence
from trimtab.diagnosis.stages import Measured, Modelled
from trimtab.diagnosis.theory import Law
from trimtab.problems.metrics import LOSS
from trimtab.studies.entry import Entry


def composed(case: Case, measured: Measured, modelled: Modelled, confirmed: Confirmed) -> Diagnosis:
    """Put together what was measured, what follows from it, and what is advised."""
    advice = decide(confirmed, case.least, case.eps)
    here, hessians, choice = measured.here, measured.hessians, advice.choice
    at = _constants(case, measured)
    eta, K = (None, 1) if choice is None else (choice.eta, choice.K)
    law = theory.stationary(
        case, here, hessians, modelled.model, modelled.pull, eta, K, at, stages.BIAS
    )
    drift = theory.drift(case, eta, K, modelled.pull)
    errors, found = _intervals(case, measured, modelled, law, drift, eta, K, at)
    clients = case.panel.clients
    symmetric = case.panel.problem.symmetric
    return Diagnosis(
        setting=Setting(case.problem.N, case.problem.d, case.S, case.eps, case.cross_device),
        scalars=Scalars(
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
        ),
        evidence=Evidence(
            where=case.where,
            optimum=case.optimum,
            errors=errors,
            bounds=_bounds(hessians, all_clients=not case.some_clients),
            rough=hessians.rough,
            measured_on=sum(hessians.measured),
            intervals=found,
        ),
        tables=Tables(
            points=measured.points.rows,
            clients=stages.of_clients(case.panel, here, hessians),
            differences=measured.early.differences,
            spectra={clients[i]: values for i, values in hessians.spectra.items()},
        ),
        forecast=Forecast(
            rates=theory.rates(at, K) if at is not None and symmetric else {},
            convexity=_convexity(at, symmetric=symmetric),
            knee=theory.knees(at) if at is not None and symmetric else None,
            bias=law.bias,
            bias_by_K=theory.by_K(law.bias, modelled.model, eta, K),
            variance=law.variance,
            predicted=modelled.predicted,
        ),
        recommendation=_recommendation(case, advice, confirmed),
        sentences=_sentences(case, measured, law, confirmed, advice),
        cut=case.budget.cut,
        seconds=case.budget.spent,
    )


def _convexity(at: theory.Constants | None, *, symmetric: bool) -> str:
    if not symmetric:
        return theory.NO_GRADIENTS
    return "not known" if at is None else at.convexity


def _intervals(
    case: Case,
    measured: Measured,
    modelled: Modelled,
    law: Law,
    drift: float,
    eta: float | None,
    K: int,
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
    numbers |= theory.of_theory(sample, rates_hold, K)
    if eta is not None:
        numbers |= theory.of_bias(sample, draws, law.bias, drift, modelled.model, eta, K)
    finite = {name: one for name, one in numbers.items() if isfinite(one.value)}
    return sample.errors, finite


def _bounds(hessians: Hessians, *, all_clients: bool) -> dict[str, str]:
    """Return which numbers are bounds only: those of some clients, or of a process cut short."""
    bounds: dict[str, str] = {}
    if not (hessians.exact and all_clients):
        bounds |= {"L": "at least", "delta": "at least"}
    if not hessians.mu_exact:
        bounds["mu"] = "at most"
    values = {"L": hessians.L, "delta": hessians.delta, "mu": hessians.mu}
    return {name: bound for name, bound in bounds.items() if isfinite(values[name])}


def _recommendation(case: Case, advice: Advice, confirmed: Confirmed) -> Recommendation:
    choice = advice.choice
    each = list(zip(confirmed.entries, confirmed.expected, confirmed.R, strict=True))
    rows = [
        ConfirmedRow(
            algorithm=entry.name,
            K=entry.settings.get("K", 1),
            eta=entry.settings[entry.step],
            rounds=None if entry.failed else entry.rounds,
            range=entry.range,
            limit=limit,
            expected=one.rounds,
            complete=entry.complete,
            tried=len(entry.searched),
        )
        for entry, one, limit in each
    ]
    trials = [
        TrialCurve(row.algorithm, row.K, row.eta, tuple(_losses(entry)))
        for row, (entry, _, _) in zip(rows, each, strict=True)
    ]
    return Recommendation(
        advice=headline(advice, case.eps),
        saving=rounds_of(confirmed),
        verdict=advice.verdict,
        algorithm=None if choice is None else choice.algorithm,
        K=None if choice is None else choice.K,
        eta_l=None if choice is None else choice.eta,
        eta_g=None if choice is None else 1.0,
        why_not=advice.why_not,
        confirmed=tuple(rows),
        trials=tuple(trial for trial in trials if trial.losses),
        f_start=confirmed.f_start,
        gain=advice.gain,
    )


def _losses(entry: Entry) -> list[float]:
    losses = [line.metrics[LOSS.name] for line in entry.curve]
    return [inf if loss is None else loss for loss in losses]


def _sentences(
    case: Case, measured: Measured, law: Law, confirmed: Confirmed, advice: Advice
) -> Sentences:
    """Return why, in three sentences, and how sure that is."""
    here, hessians = measured.here, measured.hessians
    start = measured.points.rows[0]
    K = None if advice.choice is None else advice.choice.K
    reasons = [
        gradients_sentence(start.zeta, start.gradient, here.zeta, case.where, law.bias.limit, K),
        hessians_sentence(hessians.delta, hessians.L, K, rough=hessians.rough),
        rounds_of(confirmed),
    ]
    whole = case.panel.problem is case.problem
    exact = case.quadratic and case.S == case.problem.N and measured.noise.sigma == 0
    return Sentences(
        reasons=[sentence for sentence in reasons if sentence],
        sure=confidence(advice, exact=exact, measured=case.optimum and whole),
        doubts=[*case.doubts, *_doubts(case, measured), *advice.doubts],
    )


def _doubts(case: Case, measured: Measured) -> list[str]:
    """Return what of the measured numbers leaves the advice open."""
    doubts, hessians, change = [], measured.hessians, measured.change
    if case.panel.thinned is not None:
        doubts.append("Only some of the data were measured, and the runs used those alone.")
    elif case.some_clients:
        doubts.append("Only some of the clients were measured, and the runs used those alone.")
    if isfinite(change) and change > RULES.change:
        doubts.append(
            f"Curvature changes by a factor of {change:.2g} between start and end, so rounds on "
            "one quadratic model are rough."
        )
    if hessians.mu < -RULES.flat * hessians.L:
        doubts.append("f is not convex here; the model is shifted until it has a minimum.")
    return doubts


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
