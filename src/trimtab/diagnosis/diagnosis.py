"""What a diagnosis found: numbers, predictions, and advice or why there is none."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, overload

from trimtab._files import plain
from trimtab.core import Algorithm
from trimtab.diagnosis import text
from trimtab.diagnosis.advise import Gain
from trimtab.diagnosis.candidates import make
from trimtab.diagnosis.differences import Differences
from trimtab.diagnosis.intervals import Estimate
from trimtab.diagnosis.model_rounds import Predicted
from trimtab.diagnosis.rows import Bias, BiasAtK, ClientRow, PointRow, TrialCurve, Variance
from trimtab.diagnosis.theory import Knees, Rate

T = TypeVar("T")

CHOICE, NO_DIFFERENCE, NO_ADVICE = "choice", "no difference", "no advice"

KEYS = (  # These are the keys of the JSON, in its order; `predicted` and `advice` follow.
    *("N", "d", "S", "eps", "G", "B", "delta", "L", "mu", "sigma", "zeta", "second", "weak"),
    *("drift", "errors", "least", "optimum", "points", "clients", "rates", "convexity", "knee"),
    *("bias", "bias_by_K", "variance", "algorithm", "K", "eta_l", "eta_g", "reasons", "sure"),
    *("doubts", "cut", "seconds", "cross_device", "name", "where", "norm", "why_not", "bounds"),
    *("rough", "measured_on", "trials", "f_start", "holds", "accuracy", "about_K"),
    *("intervals", "differences", "verdict", "gain"),
)


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
class Recommendation:
    """What to use; without advice, algorithm, K and step sizes are None."""

    algorithm: str | None
    K: int | None
    eta_l: float | None
    eta_g: float | None
    why_not: str  # why there is no advice
    holds: float | None  # the least f - f* for which the advice holds on the model
    trials: tuple[TrialCurve, ...]
    f_start: float  # f where the trials started
    gain: Gain | None = None  # what the advice saves; None: the model says nothing of it

    @property
    def verdict(self) -> str:
        """One of three: a choice, no difference to expect, or no advice."""
        if self.algorithm is None:
            return NO_ADVICE
        return NO_DIFFERENCE if self.gain is not None and self.gain.none_to_expect else CHOICE


@dataclass(frozen=True)
class Sentences:
    """Why, and how sure."""

    reasons: list[str]
    sure: str
    doubts: list[str]
    accuracy: str  # for which accuracy the advice holds, and what changes beyond it
    about_K: str  # why K and the knee differ, where they do


class _Of(Generic[T]):
    """A field of one of the parts, read as if it were the diagnosis's own."""

    def __init__(self, read: Callable[["Diagnosis"], T]) -> None:
        self.read = read

    @overload
    def __get__(self, diagnosis: None, kind: object) -> Self: ...
    @overload
    def __get__(self, diagnosis: "Diagnosis", kind: object) -> T: ...
    def __get__(self, diagnosis: "Diagnosis | None", kind: object) -> Self | T:
        return self if diagnosis is None else self.read(diagnosis)


@dataclass(frozen=True)
class Diagnosis:
    """What was measured, what theory predicts from it, and what to do.

    Scalars are at the optimum, or at the best point found where there is none; NaN stands for what
    there was no time to measure. Without advice, algorithm, K and step sizes are None. `print`
    shows it.
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

    N = _Of(lambda self: self.setting.N)
    d = _Of(lambda self: self.setting.d)
    S = _Of(lambda self: self.setting.S)
    eps = _Of(lambda self: self.setting.eps)
    cross_device = _Of(lambda self: self.setting.cross_device)
    G = _Of(lambda self: self.scalars.G)
    B = _Of(lambda self: self.scalars.B)
    delta = _Of(lambda self: self.scalars.delta)
    L = _Of(lambda self: self.scalars.L)
    mu = _Of(lambda self: self.scalars.mu)
    sigma = _Of(lambda self: self.scalars.sigma)
    zeta = _Of(lambda self: self.scalars.zeta)
    second = _Of(lambda self: self.scalars.second)
    weak = _Of(lambda self: self.scalars.weak)
    drift = _Of(lambda self: self.scalars.drift)
    norm = _Of(lambda self: self.scalars.norm)
    least = _Of(lambda self: self.scalars.least)
    where = _Of(lambda self: self.evidence.where)
    optimum = _Of(lambda self: self.evidence.optimum)
    errors = _Of(lambda self: self.evidence.errors)
    bounds = _Of(lambda self: self.evidence.bounds)
    rough = _Of(lambda self: self.evidence.rough)
    measured_on = _Of(lambda self: self.evidence.measured_on)
    intervals = _Of(lambda self: self.evidence.intervals)
    points = _Of(lambda self: self.tables.points)
    clients = _Of(lambda self: self.tables.clients)
    differences = _Of(lambda self: self.tables.differences)
    spectra = _Of(lambda self: self.tables.spectra)
    rates = _Of(lambda self: self.forecast.rates)
    convexity = _Of(lambda self: self.forecast.convexity)
    knee = _Of(lambda self: self.forecast.knee)
    bias = _Of(lambda self: self.forecast.bias)
    bias_by_K = _Of(lambda self: self.forecast.bias_by_K)
    variance = _Of(lambda self: self.forecast.variance)
    predicted = _Of(lambda self: self.forecast.predicted)
    algorithm = _Of(lambda self: self.recommendation.algorithm)
    K = _Of(lambda self: self.recommendation.K)
    eta_l = _Of(lambda self: self.recommendation.eta_l)
    eta_g = _Of(lambda self: self.recommendation.eta_g)
    why_not = _Of(lambda self: self.recommendation.why_not)
    holds = _Of(lambda self: self.recommendation.holds)
    trials = _Of(lambda self: self.recommendation.trials)
    f_start = _Of(lambda self: self.recommendation.f_start)
    gain = _Of(lambda self: self.recommendation.gain)
    verdict = _Of(lambda self: self.recommendation.verdict)
    reasons = _Of(lambda self: self.sentences.reasons)
    sure = _Of(lambda self: self.sentences.sure)
    doubts = _Of(lambda self: self.sentences.doubts)
    accuracy = _Of(lambda self: self.sentences.accuracy)
    about_K = _Of(lambda self: self.sentences.about_K)

    @property
    def advice(self) -> str:
        """The first sentence."""
        return text.first_sentence(self)

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
        content = {name: getattr(self, name) for name in KEYS} | {
            "intervals": {name: one.to_json() for name, one in self.intervals.items()},
            "gain": None if self.gain is None else self.gain.to_json(),
            "differences": self.differences.to_json(),
            "points": [row.to_json() for row in self.points],
            "clients": [row.to_json() for row in self.clients],
            "knee": {} if self.knee is None else self.knee.to_json(),
            "bias": self.bias.to_json(),
            "bias_by_K": [row.to_json() for row in self.bias_by_K],
            "variance": self.variance.to_json(),
            "trials": [curve.to_json() for curve in self.trials],
            "predicted": [predicted.to_json() for predicted in self.predicted],
            "advice": self.advice,
        }
        shown: dict[str, Any] = plain(content)
        return shown

    def __str__(self) -> str:
        return text.whole(self)

    def __repr__(self) -> str:
        return f"<Diagnosis of {self.name}: {self.advice}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the advice, how sure it is, and the measured numbers."""
        return text.html(self)
