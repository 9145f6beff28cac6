"""What a diagnosis found: numbers, predictions, runs, and advice or why there is none."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from trimtab._files import plain
from trimtab.core import Algorithm
from trimtab.core.sections import sections_html
from trimtab.diagnosis.advise import Gain
from trimtab.diagnosis.differences import Differences
from trimtab.diagnosis.intervals import Estimate
from trimtab.diagnosis.predict import Predicted
from trimtab.diagnosis.rows import (
    Bias,
    BiasAtK,
    ClientRow,
    ConfirmedRow,
    PointRow,
    TrialCurve,
    Variance,
)
from trimtab.diagnosis.rules import make
from trimtab.diagnosis.sections import answer, as_text, measured, sections, why
from trimtab.diagnosis.theory import Knees, Rate

KEYS = (  # These are the keys of the JSON, in its order.
    *("N", "d", "S", "eps", "G", "B", "delta", "L", "mu", "sigma", "zeta", "second", "weak"),
    *("drift", "errors", "least", "optimum", "points", "clients", "rates", "convexity", "knee"),
    *("bias", "bias_by_K", "variance", "algorithm", "K", "eta_l", "eta_g", "reasons", "sure"),
    *("doubts", "cut", "seconds", "cross_device", "name", "where", "norm", "why_not", "bounds"),
    *("rough", "measured_on", "trials", "f_start", "intervals", "differences", "verdict", "gain"),
    *("confirmed", "predicted", "advice", "saving"),
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
        return f"{as_text(sections(self))}\n\n{self.seconds:.0f} seconds."

    def __repr__(self) -> str:
        return f"<Diagnosis of {self.name}: {self.advice}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the advice, how sure it is, and the measured numbers."""
        shown = (answer(self), why(self), measured(self))
        return f"<div>{sections_html(shown, figures=False)}</div>"


PARTS = {
    "setting": Setting,
    "scalars": Scalars,
    "evidence": Evidence,
    "tables": Tables,
    "forecast": Forecast,
    "recommendation": Recommendation,
    "sentences": Sentences,
}
OWNERS = {field.name: part for part, kind in PARTS.items() for field in fields(kind)}


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
