"""From numbers to advice: which algorithm, which K, which step sizes, why, and how sure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

from trimtab.algorithms import ALGORITHMS, FedAvg, MimeLite, Momentum, Scaffold, Sgd
from trimtab.core import Algorithm
from trimtab.diagnosis.surrogate import BETA, NEAR, Predicted
from trimtab.record import plain

LIKE = 1.1  # as good: a simpler algorithm is advised if it needs at most this much more rounds
ALIKE = 1.0  # zeta against |grad f| up to which clients count as alike on the way
CHANGES = 3.0  # factor by which curvature may change on the way before the model is doubted


@dataclass
class Diagnosis:
    """What was measured, what theory predicts from it, and what to do.

    Scalars are at the optimum, or at the best point found where there is none. `print` shows it.
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
    algorithm: str
    K: int
    eta_l: float
    eta_g: float
    reasons: list[str]
    sure: str
    doubts: list[str]
    cut: list[str]
    seconds: float
    cross_device: bool = False
    spectra: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)
    name: str = "problem"

    @property
    def advice(self) -> str:
        """The first sentence."""
        return f"Use {named(self.algorithm)} with {self._settings()}."

    def advised(self) -> Algorithm:
        """Return the advised algorithm, ready for `simulate`."""
        return make(self.algorithm, self.K, self.eta_l)

    def _settings(self) -> str:
        if self.algorithm == "sgd":
            return f"eta = {self.eta_l:.3g}"
        if self.algorithm == "mimelite":
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
        where = "at the optimum" if self.optimum else "at the best point found"
        lines = [self.advice, " ".join(self.reasons), f"How sure: {self.sure}"]
        lines += [f"  - {doubt}" for doubt in self.doubts]
        lines += ["", f"Measured {where}, N = {self.N}, d = {self.d}, S = {self.S}:"]
        lines += [f"  {row}" for row in self._measured()]
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
            error = self.errors.get(name, 0.0)
            value = f"{getattr(self, name):.3g}" + (f" ± {error:.1g}" if error else "")
            return f"{name:<7}{value:<18}{meaning}"

        weak = "strong convexity" if self.mu > 0 else "least eigenvalue of Hess: not convex there"
        return [
            said("zeta", "how far the clients' gradients are apart"),
            said("G", "gradient dissimilarity of (A1)"),
            said("B", "its other constant, the largest over the points tried"),
            said("delta", f"Hessian dissimilarity of (A2); delta/L = {self.delta / self.L:.2g}"),
            said("second", "second-order heterogeneity"),
            said("L", "smoothness, the steepest client"),
            said("mu", weak if abs(self.mu) > 1e-6 * self.L else "no strong convexity"),
            said("sigma", "noise of a mini-batch gradient"),
            said(
                "drift", f"average drift of local steps at eta_l = {self.eta_l:.3g}, K = {self.K}"
            ),
        ]

    def _predicted(self) -> list[str]:
        rows = []
        for name, rate in self.rates.items():
            most = max(rate, key=lambda term: rate[term])
            rows.append(f"{named(name):<24}{sum(rate.values()):>9.3g} rounds, most for {most}")
        knees = ", ".join(f"option {o}: {_count(k)}" for o, k in self.knee.items())
        rows.append(f"more local steps pay up to K of about ({knees})")
        b, v = self.bias, self.variance
        if b.get("heterogeneity") is not None:
            rows.append(
                f"FedAvg's bias at this eta_l and K: {b['heterogeneity']:.3g} by heterogeneity"
                f"{_part(b.get('stochastic'), ' and {:.2g} by noise')} (first order)"
                f"{_part(b.get('limit'), '; it would stop {:.3g} away')}"
                f"{_part(b.get('richardson_romberg'), '; Richardson-Romberg would leave {:.2g}')}"
            )
        if b.get("scaffold") is not None:
            rows.append(f"Scaffold's bias: {b['scaffold']:.2g} (noise only)")
        for name in ("fedavg", "scaffold"):
            if v.get(name) is not None:
                rows.append(f"{named(name)}'s stationary variance (trace): {v[name]:.3g}")
        if self.predicted:
            rows.append("rounds on the quadratic model, step size tuned:")
            for algorithm in dict.fromkeys(one.algorithm for one in self.predicted):
                mine = [one for one in self.predicted if one.algorithm == algorithm]
                shown = ", ".join(f"{_rounds(one)} (K = {one.K})" for one in mine)
                rows.append(f"  {named(algorithm)}: {shown}")
        return rows


def make(name: str, K: int, eta: float) -> Algorithm:
    """Return an algorithm with K local steps of size eta, and eta_g = 1.

    >>> make("fedavg", 5, 0.1)
    FedAvg(eta_l=0.1, K=5, eta_g=1.0)
    """
    if name == "sgd":
        return Sgd(eta=eta)
    if name == "mimelite":
        return MimeLite(eta=eta, K=K, base=Momentum(BETA))
    return Scaffold(eta_l=eta, K=K) if name == "scaffold" else FedAvg(eta_l=eta, K=K)


@dataclass(frozen=True)
class Choice:
    """An algorithm with K and step size, and its rounds on the model."""

    algorithm: str
    K: int
    eta: float | None
    rounds: int | None


def choose(
    predicted: Sequence[Predicted], *, cross_device: bool, alike: bool, trusted: bool
) -> Choice:
    """Choose by the rounds predicted on the model; ties go to what is simpler, and to fewer steps.

    alike: whether the clients' gradients agree on the way. trusted: whether the model's curvature
    holds on the way. FedAvg counts as good as Scaffold only if one of them is so.

    >>> tried = [Predicted("fedavg", 4, 20, 0.3, 0), Predicted("scaffold", 4, 10, 0.3, 0)]
    >>> choose(tried, cross_device=False, alike=False, trusted=True).algorithm
    'scaffold'
    """
    if cross_device:
        return _pick([one for one in predicted if one.algorithm == "mimelite"])
    usual = [one for one in predicted if one.algorithm != "mimelite"]
    least = {name: _least(usual, name) for name in ("sgd", "fedavg", "scaffold")}
    best = min(least.values())
    if best == inf:  # nobody gets there: who comes nearest
        near = min(usual, key=lambda one: one.gap)
        return Choice(near.algorithm, near.K, near.eta, None)
    if least["sgd"] <= LIKE * best:
        return _pick([one for one in usual if one.algorithm == "sgd"])
    if least["fedavg"] <= LIKE * best and (alike or trusted):
        return _pick([one for one in usual if one.algorithm == "fedavg"])
    name = "scaffold" if least["scaffold"] < inf else "fedavg"
    return _pick([one for one in usual if one.algorithm == name])


def _pick(tried: Sequence[Predicted]) -> Choice:
    """Return the smallest K whose rounds are near the fewest."""
    there = [one for one in tried if one.rounds is not None]
    if not there:
        near = min(tried, key=lambda one: one.gap)
        return Choice(near.algorithm, near.K, near.eta, None)
    fewest = min(one.rounds for one in there if one.rounds is not None)
    good = [one for one in there if one.rounds is not None and one.rounds <= NEAR * fewest]
    one = min(good, key=lambda one: one.K)
    return Choice(one.algorithm, one.K, one.eta, one.rounds)


def _least(tried: Sequence[Predicted], name: str) -> float:
    return min((one.rounds for one in tried if one.algorithm == name and one.rounds), default=inf)


def named(name: str) -> str:
    """Return an algorithm's class name for its lower-case one, with what follows it.

    >>> named("scaffold on quadratics")
    'Scaffold on quadratics'
    """
    first, _, rest = name.partition(" ")
    shown = ALGORITHMS[first].__name__ if first in ALGORITHMS else first
    return f"{shown} {rest}".strip()


def _count(K: float) -> str:
    return f"{K:.0f}" if isfinite(K) else "any number"


def _part(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _rounds(one: Predicted) -> str:
    return f"{one.ran}+" if one.rounds is None else str(one.rounds)


def _client(row: dict[str, Any]) -> str:
    about = "" if row["measured"] else "about "
    mark = f"  <- {row['outlier']}" if row["outlier"] else ""
    return f"{row['client']:>5}: {row['gradient']:.3g}, {about}{row['hessian']:.3g}{mark}"
