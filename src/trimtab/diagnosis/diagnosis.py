"""What a diagnosis found: numbers, predictions, runs, and advice or why there is none."""

from dataclasses import dataclass, fields, is_dataclass
from math import inf, isfinite
from typing import Any, get_type_hints

from trimtab._files import plain
from trimtab.core import Algorithm
from trimtab.core.sections import sections_html
from trimtab.diagnosis import sections, stages, theory
from trimtab.diagnosis.advise import (
    NEAREST,
    Advice,
    Gain,
    confidence,
    decide,
)
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.confirm import Confirmed
from trimtab.diagnosis.differences import Differences
from trimtab.diagnosis.hessians import Hessians
from trimtab.diagnosis.intervals import Estimate
from trimtab.diagnosis.predict import Predicted
from trimtab.diagnosis.rules import RULES, make
from trimtab.diagnosis.stages import ClientRow, Measured, Modelled, PointRow
from trimtab.diagnosis.theory import Bias, BiasAtK, Knees, Law, Rate, Variance
from trimtab.problems.metrics import LOSS


@dataclass(frozen=True)
class Setting:
    """What was asked."""

    N: int
    d: int
    S: int
    eps: float  # the f(x) - f(x*) that is wanted
    cross_device: bool


@dataclass(frozen=True)
class Scalars:
    """The measured numbers; NaN stands for what there was no time to measure."""

    G: float
    B: float
    delta: float
    L: float
    mu: float  # below 0: f is not convex there
    sigma: float
    zeta: float
    second: float  # second-order heterogeneity, sqrt of the mean |Hess_i - Hess|^2
    weak: float  # the least eigenvalue of any Hess_i if that is below 0, else 0
    drift: float  # |x* - mean_c y_c|/(eta_l K), local steps started at x*
    norm: float  # |Hess|, the largest |eigenvalue| of the mean Hessian
    least: float  # the least f found


@dataclass(frozen=True)
class Evidence:
    """Where the numbers were measured, and how well."""

    where: str
    optimum: bool  # whether that is an optimum
    errors: dict[str, float]  # standard errors by scalar, where something was sampled
    bounds: dict[str, str]  # "at least" or "at most" by scalar, where it is only a bound
    rough: bool  # whether L and delta were cut so short that their ratio says nothing
    measured_on: int  # the number of clients whose Hessians were looked at one by one
    intervals: dict[str, Estimate]  # of what was measured, and of what is derived from it


@dataclass(frozen=True)
class Tables:
    """The measured rows."""

    points: tuple[PointRow, ...]  # the best last
    clients: tuple[ClientRow, ...]  # those that differ most first
    differences: Differences  # in what their data differ
    spectra: dict[int, tuple[float, ...]]  # eigenvalues of Hess_i - Hess by client


@dataclass(frozen=True)
class Forecast:
    """What theory and the quadratic model predict."""

    rates: dict[str, Rate]  # Table 2 by algorithm, term by term; empty if constants are missing
    convexity: str
    knee: Knees | None
    bias: Bias
    bias_by_K: tuple[BiasAtK, ...]  # at eta_l
    variance: Variance
    predicted: tuple[Predicted, ...]


@dataclass(frozen=True)
class ConfirmedRow:
    """What an algorithm did on the problem, with the best settings found near the expected ones."""

    algorithm: str
    K: int
    eta: float
    rounds: int | None  # the median of the seeds; None if it did not reach the target
    range: tuple[int, int] | None  # the fewest and the most of the seeds
    limit: int  # the rounds that it had at most
    expected: int | None  # the rounds that the model expected
    complete: bool  # whether its search was not cut short
    tried: int  # how many step sizes ran


@dataclass(frozen=True)
class TrialCurve:
    """What was tried on the problem: f after each round."""

    algorithm: str
    K: int
    eta: float
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Recommendation:
    """What to do, and the runs that it rests on; without advice, algorithm and K are None."""

    advice: str  # the first sentence
    saving: str  # the rounds of all algorithms that ran, in a sentence
    verdict: str  # choice, no difference, nearest or no advice
    algorithm: str | None
    K: int | None
    eta_l: float | None
    eta_g: float | None
    why_not: str  # why there is no advice
    confirmed: tuple[ConfirmedRow, ...]
    trials: tuple[TrialCurve, ...]
    f_start: float  # f where the runs started
    gain: Gain | None = None  # what the advice saves; None: no other algorithm ran


@dataclass(frozen=True)
class Sentences:
    """Why, and how sure."""

    reasons: list[str]
    sure: str
    doubts: list[str]


@dataclass(frozen=True)
class Diagnosis:
    """What was measured, what follows from it, and what to do.

    The fields of its parts are read as its own: `found.zeta`, `found.algorithm`. Scalars are at the
    optimum, or at the best point found where there is none; NaN stands for what there was no time
    to measure. `print` shows it.
    """

    setting: Setting
    scalars: Scalars
    evidence: Evidence
    tables: Tables
    forecast: Forecast
    recommendation: Recommendation
    sentences: Sentences
    cut: list[str]  # what was cut short
    seconds: float
    name: str = "problem"

    def __getattr__(self, name: str) -> Any:
        if name in OWNERS:
            return getattr(object.__getattribute__(self, OWNERS[name]), name)
        raise AttributeError(f"a Diagnosis has no {name!r}; it has {', '.join(OWNERS)}.")

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *OWNERS]

    def advised(self) -> Algorithm:
        """Return the advised algorithm, ready for `simulate`; a ValueError if there is none."""
        if self.algorithm is None or self.K is None or self.eta_l is None:
            raise ValueError(
                f"diagnose has no advice for {self.name}, because {self.why_not}; "
                "run `trimtab compare`, or pass more minutes."
            )
        return make(self.algorithm, self.K, self.eta_l)

    def to_json(self) -> dict[str, Any]:
        """Return what `trimtab diagnose --json` prints."""
        content = {name: _as_json(getattr(self, name)) for name in KEYS}
        shown: dict[str, Any] = plain(content | {"knee": content["knee"] or {}})
        return shown

    def __str__(self) -> str:
        return f"{sections.as_text(sections.sections(self))}\n\n{self.seconds:.0f} seconds."

    def __repr__(self) -> str:
        return f"<Diagnosis of {self.name}: {self.advice}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the advice, how sure it is, and the measured numbers."""
        shown = (sections.answer(self), sections.why(self), sections.measured(self))
        return f"<div>{sections_html(shown, figures=False)}</div>"


OWNERS = {
    field.name: part
    for part, kind in get_type_hints(Diagnosis).items()
    if is_dataclass(kind)
    for field in fields(kind)
}
"""The part of a diagnosis that holds a field."""
KEYS = ("name", *(field for field in OWNERS if field != "spectra"), "cut", "seconds")  # of the JSON


def _as_json(value: Any) -> Any:
    """Return rows by their fields, or as they write themselves."""
    if is_dataclass(value):
        row: Any = value
        own = {field.name: _as_json(getattr(row, field.name)) for field in fields(row)}
        return row.to_json() if "to_json" in dir(row) else own
    if isinstance(value, tuple):
        return [_as_json(each) for each in value]
    if isinstance(value, dict):
        return {name: _as_json(each) for name, each in value.items()}
    return value


# -- putting it together


def composed(case: Case, measured: Measured, modelled: Modelled, confirmed: Confirmed) -> Diagnosis:
    """Put together what was measured, what follows from it, and what is advised."""
    advice = decide(confirmed, case.least, case.eps)
    here, hessians, choice = measured.here, measured.hessians, advice.choice
    eta, K = (None, 1) if choice is None else (choice.eta, choice.K)
    model, pull, symmetric = modelled.model, modelled.pull, case.panel.problem.symmetric
    at = _constants(case, measured)
    law = theory.stationary(case, here, hessians, model, pull, eta, K, at, stages.BIAS)
    drift = theory.drift(case, eta, K, pull)
    sample, at = measured.points.best, at if symmetric else None  # Table 2 is about gradients.
    intervals = sample.estimates() | theory.of_theory(sample, at, K)
    intervals |= {} if eta is None else theory.of_bias(sample, law.bias, drift, eta, K)
    known = "not known" if at is None else at.convexity
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
            errors=sample.errors,
            bounds=_bounds(hessians, all_clients=not case.some_clients),
            rough=hessians.rough,
            measured_on=sum(hessians.measured),
            intervals={name: one for name, one in intervals.items() if isfinite(one.value)},
        ),
        tables=Tables(
            points=measured.points.rows,
            clients=stages.of_clients(case.panel, here, hessians),
            differences=measured.early.differences,
            spectra={case.panel.clients[i]: values for i, values in hessians.spectra.items()},
        ),
        forecast=Forecast(
            rates={} if at is None else theory.rates(at, K),
            convexity=known if symmetric else theory.NO_GRADIENTS,
            knee=None if at is None else theory.knees(at),
            bias=law.bias,
            bias_by_K=theory.by_K(law.bias, model, eta, K),
            variance=law.variance,
            predicted=modelled.predicted,
        ),
        recommendation=_recommendation(case, advice, confirmed),
        sentences=_sentences(case, measured, law, confirmed, advice),
        cut=case.budget.cut,
        seconds=case.budget.spent,
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


def _recommendation(case: Case, advice: Advice, confirmed: Confirmed) -> Recommendation:
    choice = advice.choice
    rows, trials = list[ConfirmedRow](), list[TrialCurve]()
    each = zip(confirmed.entries, confirmed.expected, confirmed.R, strict=True)
    for entry, one, limit in each:
        K, eta = entry.settings.get("K", 1), entry.settings[entry.step]
        rows.append(
            ConfirmedRow(
                algorithm=entry.name,
                K=K,
                eta=eta,
                rounds=None if entry.failed else entry.rounds,
                range=entry.range,
                limit=limit,
                expected=one.rounds,
                complete=entry.complete,
                tried=len(entry.searched),
            )
        )
        losses = [line.metrics[LOSS.name] for line in entry.curve]
        if losses:
            finite = tuple(inf if loss is None else loss for loss in losses)
            trials.append(TrialCurve(entry.name, K, eta, finite))
    return Recommendation(
        advice=sections.headline(advice, case.eps),
        saving=sections.rounds_of(confirmed),
        verdict=advice.verdict,
        algorithm=None if choice is None else choice.algorithm,
        K=None if choice is None else choice.K,
        eta_l=None if choice is None else choice.eta,
        eta_g=None if choice is None else 1.0,
        why_not=advice.why_not,
        confirmed=tuple(rows),
        trials=tuple(trials),
        f_start=confirmed.f_start,
        gain=advice.gain,
    )


def _sentences(
    case: Case, measured: Measured, law: Law, confirmed: Confirmed, advice: Advice
) -> Sentences:
    """Return why, in three sentences, how sure that is, and what leaves it open."""
    here, hessians, change = measured.here, measured.hessians, measured.change
    start, choice = measured.points.rows[0], advice.choice
    K = None if choice is None else choice.K
    got_there = K if advice.verdict != NEAREST else None
    reasons = [
        sections.gradients_sentence(
            start.zeta, start.gradient, here.zeta, case.where, law.bias.limit, K
        ),
        sections.hessians_sentence(
            hessians.delta, hessians.L, got_there, rough=hessians.rough, alike=bool(advice.alike)
        ),
        sections.rounds_of(confirmed),
    ]
    doubts = []
    if isfinite(change) and change > RULES.change:
        doubts.append(
            f"Curvature changes by a factor of {change:.2g} between start and end, so rounds on "
            "one quadratic model are rough."
        )
    if hessians.mu < -RULES.flat * hessians.L:
        doubts.append("f is not convex here; the model is shifted until it has a minimum.")
    whole = case.panel.problem is case.problem
    exact = case.quadratic and case.S == case.problem.N and measured.noise.sigma == 0
    return Sentences(
        reasons=[sentence for sentence in reasons if sentence],
        sure=confidence(advice, exact=exact, measured=case.optimum and whole),
        doubts=[*case.doubts, *doubts, *advice.doubts],
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
