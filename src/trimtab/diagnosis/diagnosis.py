"""What a diagnosis found: numbers, predictions, and advice or why there is none."""

from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from trimtab._files import plain
from trimtab.core import Algorithm
from trimtab.diagnosis.candidates import BETA, FEDAVG, MIMELITE, SCAFFOLD, has_K, make, named
from trimtab.diagnosis.quadratic_model import Predicted


@dataclass
class Diagnosis:
    """What was measured, what theory predicts from it, and what to do.

    Scalars are at the optimum, or at the best point found where there is none; NaN stands for what
    there was no time to measure. Without advice, algorithm, K and step sizes are None. `print`
    shows it.
    """

    N: int
    d: int
    S: int
    eps: float  # the f(x) - f(x*) that is wanted
    # -- measured
    G: float
    B: float
    delta: float
    L: float
    mu: float  # below 0: f is not convex there
    sigma: float
    zeta: float
    second: float  # second-order heterogeneity, sqrt of the mean |Hess_i - Hess|^2
    weak: float  # the least eigenvalue of any Hess_i if below 0
    drift: float  # |x* - mean_c y_c|/(eta_l K), local steps started at x*
    errors: dict[str, float]  # standard errors where something was sampled
    least: float  # the least f found
    optimum: bool  # whether the scalars are at an optimum
    points: list[dict[str, Any]]
    clients: list[dict[str, Any]]  # worst first
    # -- predicted
    rates: dict[str, dict[str, float]]  # Table 2, term by term
    convexity: str
    knee: dict[str, float]  # by option
    bias: dict[str, float | None]
    bias_by_K: list[dict[str, float | None]]  # at eta_l
    variance: dict[str, float | None]  # trace of the stationary covariance
    predicted: list[Predicted]
    # -- advised
    algorithm: str | None
    K: int | None
    eta_l: float | None
    eta_g: float | None
    reasons: list[str]
    sure: str
    doubts: list[str]
    cut: list[str]
    seconds: float
    cross_device: bool = False
    spectra: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)
    name: str = "problem"
    where: str = "optimum"  # where the scalars were measured
    norm: float = nan  # |Hess|, the largest |eigenvalue| of the mean Hessian
    why_not: str = ""  # why there is no advice
    bounds: dict[str, str] = field(default_factory=dict)  # "at least", "at most", where only that
    rough: bool = False  # whether L and delta were cut so short that their ratio says nothing
    measured_on: int = 0  # clients whose Hessians were looked at one by one
    trials: list[dict[str, Any]] = field(default_factory=list)  # f after each round, from f_start
    f_start: float = nan
    holds: float | None = None  # the least f - f* for which the advice holds on the model
    accuracy: str = ""  # the same in a sentence, with what changes beyond it
    about_K: str = ""  # why K and the knee differ, where they do

    @property
    def advice(self) -> str:
        """The first sentence."""
        if self.algorithm is None:
            return f"No advice: {self.why_not}; run `trimtab compare`."
        return f"Use {named(self.algorithm)} with {self._settings(self.algorithm)}."

    def advised(self) -> Algorithm:
        """Return the advised algorithm, ready for `simulate`; a ValueError if there is none."""
        if self.algorithm is None or self.K is None or self.eta_l is None:
            raise ValueError(
                f"diagnose has no advice for {self.name}, because {self.why_not}; "
                "run `trimtab compare`, or pass more minutes."
            )
        return make(self.algorithm, self.K, self.eta_l)

    def _settings(self, name: str) -> str:
        if not has_K(name):
            return f"eta = {self.eta_l:.3g}"
        if name == MIMELITE:
            return f"K = {self.K}, eta = {self.eta_l:.3g} and momentum {BETA:g}"
        return f"K = {self.K}, eta_l = {self.eta_l:.3g} and eta_g = {self.eta_g:g}"

    def to_json(self) -> dict[str, Any]:
        """Return what `trimtab diagnose --json` prints."""
        skip = {"spectra", "predicted"}
        found = {k: v for k, v in vars(self).items() if k not in skip}
        found["predicted"] = [vars(one) for one in self.predicted]
        found["advice"] = self.advice
        content: dict[str, Any] = plain(found)
        return content

    def __str__(self) -> str:
        lines = [self.advice, " ".join(self.reasons)]
        lines += [sentence for sentence in (self.accuracy, self.about_K) if sentence]
        lines += [f"How sure: {self.sure}"]
        lines += [f"  - {doubt}" for doubt in self.doubts]
        lines += ["", f"Measured at the {self.where}, N = {self.N}, d = {self.d}, S = {self.S}:"]
        lines += [f"  {row}" for row in self._measured()]
        if self.rates:
            lines += [
                "",
                f"Predicted by theory ({self.convexity}), relative, to f - f* = {self.eps:.3g}:",
            ]
        lines += [f"  {row}" for row in self._predicted()]
        lines += ["", "Clients, those that differ most first (gradient, Hessian apart):"]
        lines += [f"  {_client(row)}" for row in self.clients[:5]]
        if self.cut:
            lines += ["", "Cut short:", *(f"  {sentence}" for sentence in self.cut)]
        lines += ["", f"{self.seconds:.0f} seconds."]
        return "\n".join(lines)

    def _measured(self) -> list[str]:
        def said(name: str, meaning: str) -> str:
            error, value = self.errors.get(name, 0.0), getattr(self, name)
            if not isfinite(value):
                return f"{name:<7}{'not measured':<18}{meaning}"
            sign = {"at least": ">= ", "at most": "<= "}.get(self.bounds.get(name, ""), "")
            shown = f"{sign}{value:.3g}" + (f" ± {error:.1g}" if error else "")
            return f"{name:<7}{shown:<18}{meaning}"

        weak = "strong convexity" if self.mu > 0 else "least eigenvalue of Hess: not convex there"
        ratio = f"; delta/L = {self.delta / self.L:.2g}" if self.L and not self.rough else ""
        local = f" at eta_l = {self.eta_l:.3g}, K = {self.K}" if self.eta_l is not None else ""
        rows = [
            said("zeta", "how far the clients' gradients are apart"),
            said("G", "gradient dissimilarity of (A1)"),
            said("B", "its other constant, the largest over the points tried"),
            said("delta", f"Hessian dissimilarity of (A2){ratio}"),
            said("second", "second-order heterogeneity"),
            said("L", "smoothness, the steepest client"),
            said("mu", weak if not abs(self.mu) <= 1e-6 * self.L else "no strong convexity"),
            said("sigma", "noise of a mini-batch gradient"),
            said("drift", f"average drift of local steps{local}"),
        ]
        if self.bounds and self.measured_on < self.N:
            rows.append(f"(Hessians of {self.measured_on} of {self.N} clients one by one)")
        return rows

    def _predicted(self) -> list[str]:
        rows = []
        for name, rate in self.rates.items():
            most = max(rate, key=lambda term: rate[term])
            rows.append(f"{named(name):<24}{sum(rate.values()):>9.3g} rounds, most for {most}")
        if self.knee:
            knees = ", ".join(f"option {o}: {_count(k)}" for o, k in self.knee.items())
            rows.append(f"SCAFFOLD's local steps save rounds, in the long run, up to K ({knees})")
        b, v = self.bias, self.variance
        if b.get("heterogeneity") is not None:
            rows.append(
                f"FedAvg's bias at this eta_l and K: {b['heterogeneity']:.3g} by heterogeneity"
                f"{_part(b.get('stochastic'), ' and {:.2g} by noise')} (first order)"
                f"{_part(b.get('limit'), '; it would stop {:.3g} away')}"
                f"{_part(b.get('richardson_romberg'), '; Richardson-Romberg would leave {:.2g}')}"
            )
        if b.get(SCAFFOLD) is not None:
            rows.append(f"Scaffold's bias: {b['scaffold']:.2g} (noise only)")
        for name in (FEDAVG, SCAFFOLD):
            if v.get(name) is not None:
                rows.append(f"{named(name)}'s stationary variance (trace): {v[name]:.3g}")
        if self.predicted:
            rows.append("rounds on the quadratic model, step size tuned:")
            for algorithm in dict.fromkeys(one.algorithm for one in self.predicted):
                mine = [one for one in self.predicted if one.algorithm == algorithm]
                shown = ", ".join(f"{_rounds(one)} (K = {one.K})" for one in mine)
                rows.append(f"  {named(algorithm)}: {shown}")
        return rows


def _count(K: float) -> str:
    return f"{K:.0f}" if isfinite(K) else "any number"


def _part(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _rounds(one: Predicted) -> str:
    return f"{one.ran}+" if one.rounds is None else str(one.rounds)


def _client(row: dict[str, Any]) -> str:
    about = "" if row["measured"] else "about "
    hessian = f"{about}{row['hessian']:.3g}" if isfinite(row["hessian"]) else "not measured"
    mark = f"  <- {row['outlier']}" if row["outlier"] else ""
    return f"{row['client']:>5}: {row['gradient']:.3g}, {hessian}{mark}"
