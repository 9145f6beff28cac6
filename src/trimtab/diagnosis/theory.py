"""What theory says of measured numbers: rounds, the best K, bias, variance and drift.

Karimireddy et al., "SCAFFOLD", 2020: Table 2, with L kept and numerical constants dropped.
Mangold et al., 2025: FedAvg's bias and the stationary law; all derivatives at x*, p the weights,
C the mean over clients of the covariance of ONE mini-batch gradient, drawn i.i.d. (with unequal
weights N sum p_i^2 C_i, so that C/N is still what the mean of all clients has). What mini-batch
noise does is to first order, for i.i.d. mini-batches and small d only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isfinite, nan, sqrt
from typing import Literal

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.hessians import Hessians
from trimtab.diagnosis.intervals import Estimate, Sample, constant
from trimtab.diagnosis.measure import Gradients, noise_samples
from trimtab.diagnosis.optimum import conjugate_gradients
from trimtab.diagnosis.panel import Panel, weighted
from trimtab.diagnosis.predict import QuadraticModel, fedavg_limit
from trimtab.diagnosis.rules import FEDAVG, RULES, SCAFFOLD, SGD
from trimtab.problems.supervised.batches import batch_size
from trimtab.problems.supervised.problem import Supervised

STRONGLY_CONVEX, GENERAL_CONVEX, NON_CONVEX = "strongly convex", "general convex", "non-convex"
SAMPLES = 4000  # C is made of about 4000 gradients of single samples, over all clients
NO_GRADIENTS = "no gradients"  # what oracles give belongs to no f, so Table 2 says nothing of it

Option = Literal["I", "II"]
Rate = dict[str, float]
"""The terms of a rate by name; they add up to rounds."""

_HUGE = 1e75  # rates are computed of numbers < 1e75, whose fourth powers are finite


@dataclass(frozen=True)
class Constants:
    """What the rates depend on; `F` = f(x0) - f(x*) and `D` = |x0 - x*| where mu is not positive.

    >>> Constants(L=1, mu=0.01, delta=0.1, G=1, B=1, sigma=0, N=10, S=10, eps=0.01).convexity
    'strongly convex'
    """

    L: float
    mu: float
    delta: float
    G: float
    B: float
    sigma: float
    N: int
    S: int
    eps: float
    D: float = 1.0
    F: float = 1.0

    @property
    def usable(self) -> bool:
        """Whether rates can be computed: where f falls without end, F and B grow without bound.

        >>> Constants(L=1, mu=-1, delta=1, G=1, B=1e200, sigma=0, N=2, S=2, eps=1).usable
        False
        """
        sizes = (self.L, self.mu, self.delta, self.G, self.B, self.sigma, self.D, self.F)
        return all(abs(size) < _HUGE for size in sizes) and self.eps > 1 / _HUGE

    @property
    def convexity(self) -> str:
        """Which column of Table 2 holds: mu is 0 up to a millionth of L, or it has a sign."""
        tiny = RULES.flat * self.L
        if self.mu > tiny:
            return STRONGLY_CONVEX
        return NON_CONVEX if self.mu < -tiny else GENERAL_CONVEX


def rates(at: Constants, K: int) -> dict[str, Rate]:
    """Return the rounds to eps of Table 2, term by term; both theorems for SCAFFOLD.

    >>> easy = Constants(L=1, mu=0.01, delta=0.1, G=0, B=1, sigma=0, N=10, S=10, eps=0.01)
    >>> {name: round(sum(rate.values())) for name, rate in rates(easy, K=10).items()}
    {'sgd': 100, 'fedavg': 100, 'scaffold': 101, 'scaffold on quadratics': 20}
    """
    c = at
    if c.convexity == NON_CONVEX:
        scale = c.F / c.eps
        noise = c.L * c.sigma**2 * c.F / (K * c.eps**2)
        sampling = (1 - c.S / c.N) * c.G**2 * c.F / (c.S * c.eps**2)
        drift = sqrt(c.L) * c.G / c.eps**1.5
        late = (c.N / c.S) ** (2 / 3) * c.L * scale
        third = {"smoothness and late clients": late}
    else:
        strong = c.convexity == STRONGLY_CONVEX
        mu = c.mu if strong else c.eps / c.D**2  # In Table 2, eps stands for mu.
        scale = 1 / mu
        noise = c.sigma**2 / (mu * K * c.eps)
        sampling = (1 - c.S / c.N) * c.G**2 / (mu * c.S * c.eps)
        drift = sqrt(c.L) * c.G / (mu * sqrt(c.eps))
        third = {"smoothness": c.L * scale, "late clients": c.N / c.S}
    return {
        SGD: {"noise": noise / c.N, "smoothness": c.L * scale},
        FEDAVG: {
            "noise": noise / c.S,
            "sampled clients that differ": sampling,
            "drift": drift,
            "smoothness": c.B**2 * c.L * scale,
        },
        SCAFFOLD: {"noise": noise / c.S} | third,
        f"{SCAFFOLD} on quadratics": {
            "noise": noise / c.N,
            "smoothness": c.L * scale / K,
            "different Hessians": c.delta * scale,
        },
    }


def totals(at: Constants, K: int) -> dict[str, float]:
    """Return the rounds to eps by algorithm."""
    return {name: sum(rate.values()) for name, rate in rates(at, K).items()}


def dominating(rate: Mapping[str, float]) -> str:
    """Return the name of the largest term."""
    return max(rate, key=lambda name: rate[name])


def knee(L: float, delta: float, mu: float, option: Option = "II") -> float:
    """Return the K from which on more local steps save no rounds; infinite if clients are equal.

    Option I: L/delta (Theorem IV). Option II's controls are means over the last local path and lag
    behind: min(L/delta, sqrt(L/mu)), by our measurements (`trimtab reproduce local-steps`).

    >>> knee(L=1, delta=0.08, mu=0.0001), knee(L=1, delta=0.08, mu=0.04)
    (12.5, 5.0)
    """
    by_hessians = L / delta if delta > 0 else inf
    by_lag = sqrt(L / mu) if mu > 0 and option == "II" else inf
    return max(1.0, min(by_hessians, by_lag))


@dataclass(frozen=True)
class Knees:
    """The knee of both options."""

    option_I: float
    option_II: float

    def to_json(self) -> dict[str, float]:
        """Return the knees by the options' names."""
        return {"I": self.option_I, "II": self.option_II}


def knees(at: Constants) -> Knees:
    """Return the knee of both options."""
    return Knees(knee(at.L, at.delta, at.mu, "I"), knee(at.L, at.delta, at.mu, "II"))


def of_theory(sample: Sample, at: Constants | None, K: int) -> dict[str, Estimate]:
    """Return delta/L, the knees, and the rounds of Table 2, with what they inherit."""
    found: dict[str, Estimate] = {}
    L, delta = sample.values.get("L"), sample.values.get("delta")
    if L and delta is not None and isfinite(delta):
        each = sample.replicates["delta"] / sample.replicates["L"]
        ratio = sample.derive(delta / L, each, ("delta", "L"))
        found["delta/L"] = replace(ratio, high=max(ratio.value, min(2.0, ratio.high)))
    if at is None:
        return found
    names = ("L", "mu", "delta", "G", "B", "sigma")
    drawn = sample.replicates | ({} if at.mu else {"mu": constant(0.0)})
    rows = torch.stack([drawn[name] for name in names], 1).tolist()
    constants = [
        replace(at, L=L, mu=mu, delta=delta, G=G, B=B, sigma=sigma)
        for L, mu, delta, G, B, sigma in rows
    ]
    curvature = ("L", "delta", "mu") if at.convexity == STRONGLY_CONVEX else ("L", "delta")
    for option in ("I", "II"):
        value = knee(at.L, at.delta, at.mu, option)
        each = torch.tensor([knee(c.L, c.delta, c.mu, option) for c in constants])
        found[f"knee {option}"] = sample.derive(value, each.double(), curvature)
    rates = [totals(c, K) for c in constants if c.usable]
    for name, value in totals(at, K).items():
        each = torch.tensor([rate[name] for rate in rates], dtype=torch.float64)
        rounds = sample.derive(value, each, curvature)
        found[f"rounds {name}"] = replace(rounds, at=f"{sample.at}, K = {K}")
    return found


# -- bias, variance and drift


@dataclass(frozen=True)
class Bias:
    """|x - x*| where runs stop; None where theory does not hold, or there was no time."""

    heterogeneity: float | None = None  # FedAvg's part by heterogeneity, to first order
    stochastic: float | None = None  # FedAvg's part by noise: 0, or None if Hessians vary with x
    scaffold: float | None = None  # Scaffold's, which is by noise only
    limit: float | None = None  # where FedAvg stops on the quadratic model
    richardson_romberg: float | None = None  # what Richardson-Romberg leaves there


@dataclass(frozen=True)
class BiasAtK:
    """FedAvg's bias for one K, at the step size that is advised."""

    K: int
    heterogeneity: float
    limit: float | None


@dataclass(frozen=True)
class Variance:
    """The traces of stationary covariances; None where theory does not hold, or no time."""

    fedavg: float | None = None
    scaffold: float | None = None


@dataclass(frozen=True)
class Law:
    """FedAvg's and Scaffold's bias as advised, and the traces of their stationary covariances."""

    bias: Bias = field(default_factory=Bias)
    variance: Variance = field(default_factory=Variance)


def pull_of(panel: Panel, x: Vector, moved: Tensor) -> Vector:
    """Return sum p_i (Hess_i - Hess) grad f_i, which is sum p_i Hess_i (grad f_i - grad f)."""
    total = torch.zeros_like(x)
    for p, products in zip(panel.p.tolist(), panel.all_products(x, moved[:, None]), strict=True):
        total.add_(products[0], alpha=p)
    return total


def stationary(
    case: Case,
    here: Gradients,
    hessians: Hessians,
    model: QuadraticModel | None,
    pull: Vector | None,
    eta: float | None,
    K: int,
    at: Constants | None,
    until: float,
) -> Law:
    """Return the stationary law with step size eta; an empty one where theory does not hold.

    The bias by noise is half eta_l/N Hess^-1 D3f[V] and more work than all else: it is given where
    third derivatives vanish, and left out elsewhere.
    """
    budget, panel = case.budget, case.panel
    if at is None or at.convexity == NON_CONVEX or not case.optimum:
        return Law()
    if pull is None or eta is None or budget.out_of_time(until):
        return Law()
    if hessians.matrix is not None and not budget.decomposes(case.problem.d, 1.0):
        return Law()
    bias = Bias(heterogeneity=eta * (K - 1) / 2 * _solved(case, hessians, pull))
    limits = [None if model is None else fedavg_limit(model, step, K) for step in (eta, 2 * eta)]
    if limits[0] is not None:
        bias = replace(bias, limit=float(limits[0].norm()))
        if limits[1] is not None and eta * at.L < 1:  # Else twice the step diverges.
            bias = replace(bias, richardson_romberg=float((2 * limits[0] - limits[1]).norm()))
    if at.sigma == 0:
        return Law(replace(bias, stochastic=0.0, scaffold=0.0), Variance(0.0, 0.0))
    if at.convexity != STRONGLY_CONVEX:
        return Law(bias)
    if hessians.matrix is None:
        why = f"d is above {RULES.dense:,}" if case.problem.d > RULES.dense else "there was no time"
        budget.note(f"The stationary variance is left out ({why}).")
        return Law(bias)
    C = covariance(panel, case.best, case.seed, budget.until(1.0))
    if C is None:
        budget.note("There was no time for the stationary variance.")
        return Law(bias)
    noise, spread = hessians.lyapunov_trace(C), 0.0
    if at.S < at.N:
        rows = here.rows.cpu().double()
        spread = hessians.lyapunov_trace((counted(panel.p)[:, None] * rows).T @ rows)
    fedavg, scaffold = (
        eta * sampled_noise(noise, spread, name, K, at.N, at.S) for name in (FEDAVG, SCAFFOLD)
    )
    by_noise = 0.0 if panel.problem.constant_hessians else None
    bias = replace(bias, stochastic=by_noise, scaffold=by_noise)
    return Law(bias, Variance(fedavg=fedavg, scaffold=scaffold))


def _solved(case: Case, hessians: Hessians, pull: Vector) -> float:
    """Return |Hess^-1 pull|, leaving out directions in which f is flat."""
    if hessians.matrix is not None and not case.panel.problem.symmetric:
        return float(torch.linalg.solve(hessians.matrix, pull.cpu().double()).norm())
    if hessians.matrix is not None:
        values, U = hessians.eigen
        steep = values > RULES.flat * hessians.L
        return float(((U.T @ pull.cpu().double())[steep] / values[steep]).norm())
    product, out_of_time = partial(case.panel.mean_products, case.best), case.budget.until(1.0)
    solution, left = conjugate_gradients(product, pull, out_of_time=out_of_time)
    if left > RULES.noise_error:
        case.budget.note(f"FedAvg's bias is known up to a relative residual of {left:.0%}.")
    return float(solution.cpu().double().norm())


def by_K(
    bias: Bias, model: QuadraticModel | None, eta: float | None, K: int
) -> tuple[BiasAtK, ...]:
    """Return FedAvg's bias for other K at the same step size: first order, and on the model."""
    first = bias.heterogeneity
    if first is None or eta is None or K == 1:
        return ()
    limits = {k: None if model is None else fedavg_limit(model, eta, k) for k in RULES.local_steps}
    return tuple(
        BiasAtK(k, first * (k - 1) / (K - 1), None if limit is None else float(limit.norm()))
        for k, limit in limits.items()
    )


def counted(p: Tensor) -> Tensor:
    """Return N p_i^2, by which noises count in N times the covariance of their weighted mean."""
    return len(p) * p.square()


def covariance(panel: Panel, x: Vector, seed: int, out_of_time: OutOfTime) -> Tensor | None:
    """Return C = N sum p_i^2 C_i, C_i the covariance of one i.i.d. mini-batch gradient.

    With equal weights that is the mean of the C_i.
    """
    problem, d, share = panel.problem, panel.problem.d, counted(panel.p)
    quadratic, samples = panel.closed_forms, panel.samples
    if quadratic is not None:
        return torch.eye(d, dtype=torch.float64) * float(share.sum()) * quadratic.sigma**2 / d
    C = torch.zeros(d, d, dtype=torch.float64)
    most = SAMPLES // problem.N + 2
    if samples is None:
        for pair in range(most):
            noise = noise_samples(panel, x, seed, pair, out_of_time)
            if noise is None:
                return None
            rows = noise.cpu().double()
            C += (share[:, None] * rows).T @ rows / most
        return C
    if samples.batch is None:
        return C
    for i in range(problem.N):
        each = _gradients_of_samples(samples, i, x, seed, most, out_of_time)
        if each is None or out_of_time():
            return None
        size = batch_size(samples.batch, len(samples.clients[i]))
        C += float(share[i]) / size * (each.T @ each) / len(each)
    return C


def _gradients_of_samples(
    problem: Supervised, i: int, x: Vector, seed: int, most: int, out_of_time: OutOfTime
) -> Tensor | None:
    """Return the gradients of single samples, less their mean."""
    data, rows = problem.clients[i], list[Tensor]()
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:most]
    for some in torch.split(order, 4 * RULES.step):
        found = problem.sample_gradients(x, data.take(some.to(data.device)))
        rows.append(found.detach().cpu().double())
        if out_of_time():
            return None
    each = torch.cat(rows)
    return each - each.mean(0)


def sampled_noise(noise: float, spread: float, algorithm: str, K: int, N: int, S: int) -> float:
    """Return what takes the place of noise/N when S of N clients are sampled.

    `noise` is a number that is linear in C, and `spread` the same of the mean of grad f_c grad
    f_c', weighed as in C. SCAFFOLD: (2/S - 1/N) C. FedAvg: C/S and, since clients that differ come
    and go, K (N-S)/(S (N-1)) of the spread. (Ours, measured; with unequal weights the mean of a
    cohort is a ratio, and this its first order.)
    """
    if algorithm == SCAFFOLD:
        return (2 / S - 1 / N) * noise
    return noise / S + (K * (N - S) / (S * (N - 1)) * spread if S < N else 0.0)


def drift(case: Case, eta: float | None, K: int, pull: Vector | None) -> float:
    """Return |x* - mean_c y_c|/(eta K) after K local steps on all data, started at x*.

    NaN without advice, or without time.
    """
    panel, x, out_of_time = case.panel, case.best, case.budget.until(1.0)
    if eta is None or pull is None or out_of_time():
        return nan
    mean = torch.zeros_like(x)
    at_once = 1 if panel.gradients_at_once is None else RULES.step
    for some in torch.split(torch.arange(panel.problem.N), at_once):
        ends = x.expand(len(some), -1)
        for _ in range(K):
            if out_of_time():
                case.budget.note("The average drift is that of the first-order formula.")
                return float(eta * (K - 1) / 2 * pull.norm())
            ends = ends - eta * panel.gradients_of(some.tolist(), ends)
        mean += weighted(panel.p[some], ends)
    return float((x - mean).norm()) / (eta * K)


def of_bias(sample: Sample, bias: Bias, drift: float, eta: float, K: int) -> dict[str, Estimate]:
    """Return FedAvg's bias and drift with the intervals of zeta and delta, whose product they are.

    Both are sums of (Hess_i - Hess) grad f_i over the clients.
    """
    relative = constant(1.0)
    for name in ("zeta", "delta"):
        relative = relative * sample.replicates[name] / (sample.values[name] or 1.0)
    values = {"bias": bias.heterogeneity, "limit": bias.limit, "drift": drift}
    at = f"{sample.at}, eta_l = {eta:.3g}, K = {K}"
    return {
        name: replace(sample.derive(value, value * relative, ("zeta", "delta")), at=at)
        for name, value in values.items()
        if value is not None and isfinite(value)
    }
