"""Measured heterogeneity: gradients, mini-batch noise and Hessians, client by client.

zeta^2 = sum p_i |grad f_i - grad f|^2 and G^2 = sum p_i |grad f_i|^2 (equal at the optimum);
B^2 = the largest sum p_i |grad f_i(x) - grad f_i(x*)|^2 / |grad f(x)|^2 over the points tried;
delta = the largest |eigenvalue| of any Hess_i - Hess; L that of any Hess_i.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite, nan, sqrt

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.streams import NOISE, stream
from trimtab.diagnosis.budget import Budget, OutOfTime
from trimtab.diagnosis.lanczos import Product, Spectrum, dense, lanczos
from trimtab.diagnosis.panel import Panel, gradients
from trimtab.diagnosis.theory import weighted
from trimtab.problems.problem import Problem

DENSE = 2000  # the largest d for which a whole Hessian is formed,
SMALL = 300  # and those of all clients
PROBES, FEW = 8, 2  # random vectors that rank the clients; few where d is above
LARGE = 100_000
WORST = 12  # clients whose Hessians Lanczos looks at, at least
FLAT = 1e-6  # of L: an eigenvalue above -FLAT L counts as not negative
STEADY = 0.02  # relative standard error at which no more mini-batches are drawn


# -- gradients


@dataclass(frozen=True)
class Gradients:
    """The clients' gradients at one point, and what they say."""

    rows: Tensor  # (clients, d)
    mean: Vector
    G: float
    zeta: float
    zeta_error: float  # standard error, where data or clients were sampled
    apart: tuple[float, ...]  # |grad f_i - grad f|


def at_point(panel: Panel, x: Vector, sampled_clients: bool = False) -> Gradients:
    """Measure the gradients at x."""
    p, rows = panel.p, panel.gradients(x)
    mean = weighted(p, rows)
    apart = (rows - mean).norm(dim=1).double().cpu()
    square, variance = float(p @ apart.square()), 0.0
    if panel.halves is not None:
        square, variance = _without_noise(panel, x, square)
    if sampled_clients:
        variance += float(p.square() @ (apart.square() - square).square())
    zeta = sqrt(max(0.0, square))
    error = sqrt(variance) / (2 * zeta) if zeta else 0.0
    G = sqrt(max(0.0, square + float(mean.double().square().sum())))
    return Gradients(rows, mean, G, zeta, error, tuple(apart.tolist()))


def _without_noise(panel: Panel, x: Vector, square: float) -> tuple[float, float]:
    """Return zeta^2 free of the noise of sampled data, and its variance.

    Two halves of the data have independent noise: the product of their differences has none on
    average.
    """
    assert panel.halves is not None
    p = panel.p
    a, b = (gradients(half, x) for half in panel.halves)
    a, b = a - weighted(p, a), b - weighted(p, b)
    product = (a * b).sum(1).double().cpu()
    between, across = (a - b), ((a + b) / 2 * (a - b)).sum(1).double().cpu()
    noise = between.square().sum(1).double().cpu() / 2
    variance = across.square() + noise.square() / x.numel()
    return float(p @ product), float(p.square() @ variance)


def ratio(p: Tensor, here: Gradients, best: Gradients) -> float:
    """Return sum p_i |grad f_i(x) - grad f_i(x*)|^2 / |grad f(x) - grad f(x*)|^2, rooted."""
    moved = here.rows - best.rows
    size = float((here.mean - best.mean).double().square().sum())
    return sqrt(float(p @ moved.double().square().sum(1).cpu()) / size) if size > 0 else 1.0


# -- mini-batches


def noise(
    problem: Problem, p: Tensor, x: Vector, seed: int, out_of_time: OutOfTime
) -> tuple[float, float]:
    """Return sigma^2 = sum p_i E|g_i(x, k) - grad f_i(x)|^2 and its standard error.

    Half the squared distance of two independent mini-batch gradients is unbiased for it. NaN if
    there is no time to draw a pair for every client.
    """
    means: list[float] = []
    for pair in range(1000):
        total = 0.0
        for i in range(problem.N):
            if out_of_time():
                return (sum(means) / len(means), _error(means)) if means else (nan, 0.0)
            total += float(p[i]) * float(pair_of(problem, i, x, seed, pair).double().square().sum())
        means.append(total)
        if total == 0:
            break
        if len(means) >= 8 and _error(means) <= STEADY * sum(means) / len(means):
            break
    return sum(means) / len(means), _error(means)


def pair_of(problem: Problem, i: int, x: Vector, seed: int, pair: int) -> Vector:
    """Return the difference of two mini-batch gradients, scaled to the noise of one."""
    one, other = (problem.oracle(i, seed, 2 * pair + j)(x, 0) for j in (1, 2))
    return (one - other) / sqrt(2)


def _error(values: list[float]) -> float:
    n = len(values)
    if n < 2:
        return 0.0
    mean = sum(values) / n
    return sqrt(sum((v - mean) ** 2 for v in values) / (n * (n - 1)))


# -- Hessians


@dataclass
class Hessians:
    """What is known of the Hessians at one point; NaN stands for what was not measured.

    L is at least |Hess| and at least delta - |Hess|, and at least delta where all are positive
    semi-definite, since |Hess_i - Hess| <= |Hess_i| + |Hess|: no two numbers contradict each other.
    """

    L: float
    mu: float  # the least eigenvalue of Hess: strong convexity, or below 0 how non-convex f is
    delta: float
    weak: float  # the least eigenvalue of any Hess_i, below 0; else 0
    second: float  # sqrt of sum p_i |Hess_i - Hess|^2, spectral norms
    apart: tuple[float, ...]  # |Hess_i - Hess| of each client,
    measured: tuple[bool, ...]  # or, where False, an estimate from random vectors
    spectra: dict[int, Spectrum] = field(default_factory=dict)  # of Hess_i - Hess
    matrix: Tensor | None = None  # Hess, if d is at most 2,000
    norm: float = nan  # |Hess|
    exact: bool = True  # else L and delta are lower bounds: not every client's was found
    mu_exact: bool = True  # else mu is an upper bound
    rough: bool = False  # whether Lanczos was cut so short that L and delta say little

    def __post_init__(self) -> None:
        if isfinite(self.delta):
            least = (
                self.delta if min(self.weak, self.mu) >= -FLAT * self.L else self.delta - self.norm
            )
            self.L = max(self.L, self.norm, least, self.delta / 2)


def full_hessians(panel: Panel, x: Vector, out_of_time: OutOfTime) -> Tensor | None:
    """Return all Hess_i in float64, or None if they are large or there is no time for them."""
    d = panel.problem.d
    if d > SMALL:
        return None
    eye, found = torch.eye(d).to(x), []
    for i in range(panel.problem.N):
        H = panel.products_in_time(i, x, eye, out_of_time)
        if H is None or out_of_time():
            return None
        found.append((H + H.T).double() / 2)
    return torch.stack(found)


def full_hessian(panel: Panel, x: Vector, out_of_time: OutOfTime) -> Tensor | None:
    """Return Hess in float64, or None if d is large or there is no time for it."""
    d = panel.problem.d
    if d > DENSE:
        return None
    H, eye = torch.zeros(d, d, dtype=torch.float64), torch.eye(d).to(x)
    for i in range(panel.problem.N):
        H_i = None if out_of_time() else panel.products_in_time(i, x, eye, out_of_time)
        if H_i is None:
            return None
        H.add_(H_i.double().cpu(), alpha=float(panel.p[i]))
    return (H + H.T) / 2


def by_matrices(
    panel: Panel, H_i: Tensor, out_of_time: OutOfTime = lambda: False
) -> Hessians | None:
    """Return what follows from all the Hessians; None if there is no time to decompose them."""
    p = panel.p
    H = weighted(p, H_i)
    mean, own, apart = dense(H), [], []
    for M in H_i:
        if out_of_time():
            return None
        own.append(dense(M))
        apart.append(dense(M - H))
    norms = tuple(s.norm for s in apart)
    return Hessians(
        L=max(s.norm for s in own),
        mu=mean.least,
        delta=max(norms),
        weak=min(0.0, *(s.least for s in own)),
        second=_root_mean(p, norms),
        apart=norms,
        measured=(True,) * len(norms),
        spectra=dict(enumerate(apart)),
        matrix=H,
        norm=mean.norm,
    )


def by_mean_alone(panel: Panel, of_f: Spectrum) -> Hessians:
    """Return what the mean Hessian says of the others: that one of them is as steep."""
    N = panel.problem.N
    return Hessians(
        L=of_f.norm,
        mu=nan,
        delta=nan,
        weak=0.0,
        second=nan,
        apart=(nan,) * N,
        measured=(False,) * N,
        norm=of_f.norm,
        exact=False,
        mu_exact=False,
        rough=True,
    )


def by_products(
    panel: Panel, x: Vector, seed: int, budget: Budget, out_of_time: OutOfTime, worst: int = WORST
) -> Iterator[str | Hessians]:
    """Rank the clients by random vectors, run Lanczos on the worst; the last item is the result."""
    p, M, d = panel.p, panel.problem.N, panel.problem.d
    probes = FEW if d > LARGE else PROBES
    V = torch.randn(probes, d, generator=stream(seed, NOISE, 1), dtype=torch.float64).to(x)
    yield "random vectors through every Hessian"
    HV = torch.zeros(M, probes, d, dtype=x.dtype, device=x.device)
    seen = M
    for i in range(M):
        HV[i] = panel.products(i, x, V)
        if out_of_time():
            seen = i + 1
            break
    if seen < M:
        budget.note(f"Only {seen} of {M} Hessians were looked at.")
    q = p[:seen] / p[:seen].sum()
    HV = HV[:seen]
    mean = weighted(q, HV)
    own = HV.square().sum(2).mean(1).sqrt()  # about the Frobenius norm of Hess_i,
    frobenius = (HV - mean).square().sum(2).mean(1).sqrt().double().cpu()  # of Hess_i - Hess
    start = V[0]
    longest = float((HV.norm(dim=2) / V.norm(dim=1)).max())  # |Hess_i v| <= |Hess_i| for |v| = 1
    widest = 0.0  # the same of Hess

    def alone(i: int) -> Product:
        return lambda v: panel.products(i, x, v)

    def of_mean(v: Vector) -> Vector:
        return panel.mean_products(x, v)

    def apart(i: int) -> Product:
        def product(v: Vector) -> Vector:
            nonlocal longest, widest
            H_i, H = panel.products(i, x, v), of_mean(v)
            longest, widest = max(longest, float(H_i.norm())), max(widest, float(H.norm()))
            return H_i - H

        return product

    yield "Lanczos on the mean Hessian"
    of_f = lanczos(of_mean, start, most=60, ends=True, tolerance=1e-3, out_of_time=out_of_time)
    spectra: dict[int, Spectrum] = {}
    extremes: dict[int, Spectrum] = {}
    factor = 0.0  # the largest |eigenvalue| against the Frobenius norm, among those seen
    ranked = [sizes.argsort(descending=True).tolist() for sizes in (frobenius, own)]
    for i in dict.fromkeys(client for pair in zip(*ranked, strict=True) for client in pair):
        top = max((s.norm for s in spectra.values()), default=0.0)
        if len(spectra) >= worst and 1.2 * factor * float(frobenius[i]) < top:
            continue  # this client cannot be the worst, as far as can be told
        if out_of_time() and spectra:
            budget.note(f"Lanczos looked at the Hessians of {len(spectra)} of {seen} clients.")
            break
        yield f"Lanczos on the Hessian of client {panel.clients[i]}"
        extremes[i] = lanczos(alone(i), start, most=40, ends=True, out_of_time=out_of_time)
        spectra[i] = lanczos(apart(i), start, most=40, out_of_time=out_of_time)
        factor = max(factor, spectra[i].norm / max(float(frobenius[i]), 1e-30))
    norms = [spectra[i].norm if i in spectra else factor * float(frobenius[i]) for i in range(seen)]
    norms += [nan] * (M - seen)
    known = [n for n in norms if isfinite(n)]
    looked = [of_f, *spectra.values(), *extremes.values()]
    yield Hessians(
        L=max(longest, *(s.norm for s in extremes.values())),
        mu=of_f.least,
        delta=max(s.norm for s in spectra.values()),
        weak=min(0.0, *(s.least for s in extremes.values())),
        second=_root_mean(q, tuple(known)),
        apart=tuple(norms),
        measured=tuple(i in spectra for i in range(M)),
        spectra=spectra,
        norm=max(of_f.norm, widest),
        exact=len(spectra) == M and all(s.settled for s in looked),
        mu_exact=of_f.settled,
        rough=not all(s.settled for s in looked),
    )


def _root_mean(p: Tensor, values: tuple[float, ...]) -> float:
    return sqrt(float(p @ torch.tensor(values, dtype=torch.float64).square()))
