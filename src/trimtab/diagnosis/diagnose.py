"""Diagnose a problem: measure its heterogeneity, predict, advise."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from statistics import median
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis import measure, points, stochastic, surrogate, theory
from trimtab.diagnosis.advice import ALIKE, CHANGES, Choice, Diagnosis, choose, make, named
from trimtab.diagnosis.clock import Clock
from trimtab.diagnosis.measure import Gradients, Hessians
from trimtab.diagnosis.panel import Panel, seat
from trimtab.diagnosis.spectrum import conjugate_gradients
from trimtab.diagnosis.surrogate import Predicted, Surrogate
from trimtab.problems.problem import Problem
from trimtab.problems.quadratic import Quadratic
from trimtab.simulation import Diverged, cohort_size, simulate
from trimtab.streams import NOISE, stream
from trimtab.threads import one_thread

KS = (1, 2, 4, 8, 16, 32, 64)  # numbers of local steps that are looked at
ROUNDS = 1000  # on the model, at most
SHARE = 0.01  # of the start's f - f*: the eps that is aimed at unless told

Stage = tuple[str, float]
"""What is being done, and about how much of it all is over."""


def diagnose(
    problem: Problem,
    x: Vector | None = None,
    *,
    S: int | float | None = None,
    eps: float | None = None,
    cross_device: bool = False,
    seed: int = 0,
    minutes: float = 5,
) -> Diagnosis:
    """Measure how the clients differ, predict what follows from it, and advise.

    x: where training starts (the problem's x0). S: clients a round. eps: the f(x) - f(x*) that is
    wanted, by default a hundredth of the start's. cross_device: clients come once and keep nothing.

    >>> import torch, trimtab
    >>> pair = trimtab.Quadratic(A=torch.tensor([2.0, 1.0]), b=torch.tensor([5.0, -2.0]))
    >>> found = trimtab.diagnose(pair)
    >>> print(found.advice)
    Use Scaffold with K = 2, eta_l = 0.316 and eta_g = 1.
    >>> round(found.zeta, 3), found.delta, found.L, found.mu
    (4.0, 0.5, 2.0, 1.5)
    """
    steps = diagnosing(
        problem,
        x,
        S=S,
        eps=eps,
        cross_device=cross_device,
        seed=seed,
        minutes=minutes,
    )
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Diagnosis = done.value
            return result


@dataclass
class _Case:
    """What is known so far."""

    problem: Problem
    panel: Panel
    clock: Clock
    S: int
    seed: int
    x0: Vector
    f0: float
    best: Vector
    f_best: float
    reached: bool
    eps: float
    doubts: list[str]


def diagnosing(
    problem: Problem,
    x: Vector | None = None,
    *,
    S: int | float | None = None,
    eps: float | None = None,
    cross_device: bool = False,
    seed: int = 0,
    minutes: float = 5,
    name: str = "problem",
) -> Generator[Stage, None, Diagnosis]:
    """Do what `diagnose` does; yield what is being done, for progress."""
    size = cohort_size(S, problem.N)
    if not isinstance(minutes, int | float) or not 0 < minutes < inf:
        raise ValueError(f"minutes={minutes}; pass a number of minutes that is positive.")
    if eps is not None and not 0 < eps < inf:
        raise ValueError(f"eps={eps}; pass the f(x) - f(x*) that is wanted, a positive number.")
    x0 = _start(problem, seed, x)
    with one_thread(when=getattr(problem, "executor", "loop") != "wide"):
        found = yield from _steps(problem, x0, size, eps, cross_device, seed, minutes)
    return replace(found, name=name)


def _steps(
    problem: Problem,
    x0: Vector,
    S: int,
    eps: float | None,
    cross_device: bool,
    seed: int,
    minutes: float,
) -> Generator[Stage, None, Diagnosis]:
    clock = Clock(60 * minutes)
    yield "who is measured", 0.0
    panel = seat(problem, seed, clock)
    yield "the optimum", 0.02
    case = _find(problem, panel, clock, x0, S, seed, eps)
    yield "gradients", 0.3
    here = measure.at_point(panel, case.best, panel.problem.N < problem.N)
    yield "mini-batches", 0.35
    square, error = measure.noise(panel.problem, panel.p, case.best, seed, clock.until(0.4))
    yield "Hessians", 0.4
    hessians = yield from _hessians(case, case.best, 0.6)
    there = hessians
    if not isinstance(panel.problem, Quadratic):
        there = yield from _hessians(case, x0, 0.68, worst=3)
    rows, B = _points(case, here, hessians, there)
    sigma = sqrt(max(0.0, square))
    yield "the quadratic model", 0.68
    moved = here.rows - here.mean
    pull = _drift(panel, case.best, moved)
    model, error0 = _model(case, hessians, moved, pull, sigma)
    predicted: list[Predicted] = []
    if model is not None:
        for done, one in enumerate(_predictions(case, model, cross_device)):
            predicted.append(one)
            yield f"{named(one.algorithm)} with K = {one.K} on the model", 0.75 + 0.005 * done
    alike = all(row["zeta"] <= ALIKE * row["gradient"] for row in rows[:-1])
    change = max(there.L, hessians.L) / max(min(there.L, hessians.L), 1e-30)
    choice = _choice(predicted, hessians, cross_device, alike, change <= CHANGES)
    yield "steps", 0.85
    steep = max(hessians.L, there.L)
    eta = _tried(case, choice, steep, S)
    yield "bias and variance", 0.9
    at = theory.Constants(
        L=hessians.L,
        mu=hessians.mu,
        delta=hessians.delta,
        G=here.G,
        B=B,
        sigma=sigma,
        N=problem.N,
        S=S,
        eps=case.eps,
        D=float(error0.norm()),
        F=max(case.f0 - case.f_best, case.eps),
    )
    bias, variance = _laws(case, here, hessians, model, pull, choice.K, eta, at)
    drift = _measured_drift(case, eta, choice.K, pull)
    reasons = _reasons(choice, at, bias, predicted, cross_device, alike)
    sure, doubts = _sure(case, choice, change, hessians, predicted)
    return Diagnosis(
        N=problem.N,
        d=problem.d,
        S=S,
        eps=case.eps,
        G=here.G,
        B=B,
        delta=hessians.delta,
        L=hessians.L,
        mu=hessians.mu,
        sigma=sigma,
        zeta=here.zeta,
        second=hessians.second,
        weak=hessians.weak,
        drift=drift,
        errors={
            name: value
            for name, value in (
                ("zeta", here.zeta_error),
                ("G", here.zeta_error),
                ("sigma", error / (2 * sigma) if sigma else 0.0),
            )
            if value
        },
        least=case.f_best,
        optimum=case.reached,
        points=rows,
        clients=_clients(panel, here, hessians),
        rates=theory.rates(at, choice.K),
        convexity=at.convexity,
        knee={
            option: theory.knee(at.L, at.delta, at.mu, option)  # type: ignore[arg-type]
            for option in ("I", "II")
        },
        bias=bias,
        variance=variance,
        predicted=predicted,
        algorithm=choice.algorithm,
        K=choice.K,
        eta_l=eta,
        eta_g=1.0,
        reasons=reasons,
        sure=sure,
        doubts=doubts,
        cut=clock.cut,
        seconds=clock.spent,
        cross_device=cross_device,
        spectra={panel.clients[i]: (s.values, s.weights) for i, s in hessians.spectra.items()},
    )


# -- where


def _start(problem: Problem, seed: int, x: Vector | None) -> Vector:
    x0 = problem.x0(seed) if x is None else x
    if not isinstance(x0, Tensor) or x0.shape != (problem.d,):
        raise ValueError(f"x is not a vector of length d={problem.d}; pass one.")
    if not x0.is_floating_point() or not bool(torch.isfinite(x0).all()):
        raise ValueError("x must hold finite floating-point numbers.")
    return x0.detach().clone()


def _find(
    problem: Problem,
    panel: Panel,
    clock: Clock,
    x0: Vector,
    S: int,
    seed: int,
    eps: float | None,
) -> _Case:
    """Find the optimum, or the point to measure at where there is none."""
    enough = clock.until(0.25)
    f0 = panel.problem.loss(x0)
    best, reached, path = points.best_point(panel, x0, clock, enough)
    f_best = panel.problem.loss(best)
    gap = max(0.0, f0 - f_best)
    doubts: list[str] = []
    wanted = eps if eps is not None else (SHARE * gap or 1e-6)
    steep = [points.steepest(panel, at, seed, enough) for at in (x0, best)]
    if steep[1] < 0.1 * steep[0] and not hasattr(panel.problem, "x_star"):
        best = next((x for x, f in path if f - f_best <= 0.1 * wanted), best)
        reached = False
        doubts.append(
            "f has no minimum nearby (its Hessian vanishes on the way down, as it does for separable "
            "data), so all is measured where f is within eps/10 of the least value found."
        )
    elif not reached:
        doubts.append("No optimum was found; all is measured at the best point.")
    return _Case(
        problem, panel, clock, S, seed, x0, f0, best, f_best, reached, wanted, doubts
    )


def _points(
    case: _Case, here: Gradients, best: Hessians, start: Hessians
) -> tuple[list[dict[str, Any]], float]:
    """Return a row for each point, the best last; and the largest B seen."""
    panel, clock = case.panel, case.clock
    found: list[tuple[str, Vector, float | None, float | None]] = [
        ("start", case.x0, start.L, start.delta)
    ]
    if not clock.until(0.68)():
        few = points.after_rounds(panel, case.x0, max(start.L, best.L), case.seed)
        if few is not None:
            found.append(("after 5 rounds of FedAvg", few, None, None))
    rows, ratios = [], []
    for where, x, L, delta in found:
        there = measure.at_point(panel, x)
        ratios.append(measure.ratio(panel.p, there, here))
        size = float(there.mean.norm())
        rows.append(_row(where, panel.problem.loss(x), there, size, ratios[-1], L, delta))
    where = "optimum" if case.reached else "best point found"
    f = panel.problem.loss(case.best)
    rows.append(_row(where, f, here, float(here.mean.norm()), None, best.L, best.delta))
    own = measure.constant_B(panel.problem)
    return rows, max(ratios) if own is None else own


def _row(
    where: str,
    loss: float,
    at: Gradients,
    size: float,
    B: float | None,
    L: float | None,
    delta: float | None,
) -> dict[str, Any]:
    return {"where": where, "loss": loss, "zeta": at.zeta, "G": at.G, "gradient": size} | {
        "B": B,
        "L": L,
        "delta": delta,
    }


def _hessians(
    case: _Case, x: Vector, share: float, worst: int = measure.WORST
) -> Generator[Stage, None, Hessians]:
    """Measure the Hessians at x: all eigenvalues if d is small, else the extreme ones."""
    enough = case.clock.until(share)
    half = case.clock.until((case.clock.spent / case.clock.seconds + share) / 2)
    matrices = measure.full_hessians(case.panel, x, half)
    if matrices is not None:
        return measure.by_matrices(case.panel, matrices)
    found: Hessians | None = None
    for item in measure.by_products(case.panel, x, case.seed, case.clock, enough, worst):
        if isinstance(item, Hessians):
            found = item
        else:
            yield item, share - 0.1
    assert found is not None
    if x is case.best:
        yield "the mean Hessian", share - 0.05
        found.matrix = measure.full_hessian(case.panel, x, enough)
        if found.matrix is not None:
            found.mu = float(torch.linalg.eigvalsh(found.matrix)[0])
    return found


def _clients(panel: Panel, here: Gradients, hessians: Hessians) -> list[dict[str, Any]]:
    """Return a row for each client, those that differ most first; outliers are named."""
    sizes = here.apart, hessians.apart
    usual = [median([v for v in s if isfinite(v)] or [0.0]) for s in sizes]
    rows = []
    for j, i in enumerate(panel.clients):
        far = [
            word
            for word, values, middle in zip(("gradient", "Hessian"), sizes, usual, strict=True)
            if values[j] > 3 * middle > 0 and len(panel.clients) > 2
        ]
        rows.append(
            {
                "client": i,
                "weight": float(panel.p[j]),
                "gradient": sizes[0][j],
                "hessian": sizes[1][j],
                "measured": hessians.measured[j],
                "outlier": f"outlier by {' and '.join(far)}" if far else "",
            }
        )
    top = [max(s, default=0.0) or 1.0 for s in ([v for v in s if isfinite(v)] for s in sizes)]

    def far_off(row: dict[str, Any]) -> float:
        second = row["hessian"] / top[1] if isfinite(row["hessian"]) else 0.0
        return float(row["gradient"] / top[0] + second)

    return sorted(rows, key=far_off, reverse=True)


# -- the model


def _drift(panel: Panel, x: Vector, moved: Tensor) -> Vector:
    """Return sum p_i (Hess_i - Hess) grad f_i, which is sum p_i Hess_i (grad f_i - grad f)."""
    total = torch.zeros_like(x)
    for i in range(panel.problem.N):
        total.add_(panel.products(i, x, moved[i]), alpha=float(panel.p[i]))
    return total


def _model(
    case: _Case, hessians: Hessians, moved: Tensor, pull: Vector, sigma: float
) -> tuple[Surrogate | None, Vector]:
    """Return the quadratic model, and x0 - x*."""
    panel, clock, x0, best = case.panel, case.clock, case.x0, case.best
    error = x0 - best
    if not case.f0 - case.f_best > 1e-12 * (abs(case.f0) + 1e-30):
        away = torch.randn(len(x0), generator=stream(case.seed, NOISE, 3), dtype=torch.float64)
        size = float(moved.norm(dim=1).max()) / hessians.L or 1.0
        error = (away / away.norm() * size).to(x0)
        case.eps = SHARE * hessians.L * size**2 / 2
        case.doubts.append("Training starts at the optimum; rounds are counted from elsewhere.")
    quadratic = isinstance(panel.problem, Quadratic)
    Q = surrogate.basis(panel, best, error, moved, pull, clock.until(0.72))
    on_the_way = [best] if quadratic else [best, x0, (x0 + best) / 2]
    model = surrogate.build(
        panel, on_the_way, error, best, moved, Q, sigma > 0, case.seed, clock.until(0.78)
    )
    if model is None:
        clock.note("There was no time for the quadratic model; the advice rests on theory alone.")
    return model, error


def _predictions(case: _Case, model: Surrogate, cross_device: bool) -> Generator[Predicted]:
    """Yield the rounds of every algorithm and K on the model, until the time is over."""
    enough = case.clock.until(0.85)
    gap = float(model.start @ model.H @ model.start) / 2
    true = case.f0 - case.f_best
    share = case.eps / (true if true > 0 else gap)
    names = ("mimelite", "fedavg") if cross_device else ("scaffold", "fedavg")
    best = ROUNDS
    options: dict[str, Any] = {"S": case.S, "N": case.problem.N, "share": share, "seed": case.seed}
    for K in sorted(KS, reverse=True):
        for name in (*names, *(("sgd",) if K == 1 else ())):
            one = surrogate.predict(model, name, K, R=min(ROUNDS, max(100, 20 * best)), **options)
            best = min(best, one.rounds or best)
            yield one
        if enough():
            case.clock.note(f"Local steps below K = {K} were not looked at.")
            return


def _choice(
    predicted: list[Predicted],
    hessians: Hessians,
    cross_device: bool,
    alike: bool,
    trusted: bool,
) -> Choice:
    if predicted:
        return choose(predicted, cross_device=cross_device, alike=alike, trusted=trusted)
    K = min(max(KS), round(theory.knee(hessians.L, hessians.delta, hessians.mu)))
    return Choice("mimelite" if cross_device else "scaffold", K, None, None, ("theory",))


def _tried(case: _Case, choice: Choice, steep: float, S: int) -> float:
    """Return the step size, after a few rounds of the problem itself: halved while f rises."""
    momentum = 0.1 if choice.algorithm == "mimelite" else 1.0
    eta = choice.eta if choice.eta is not None else momentum * theory.stable_step(steep, choice.K)
    eta = min(eta, 1.8 * momentum / steep)
    enough, problem = case.clock.until(0.9), case.panel.problem
    size = max(1, round(S * problem.N / case.problem.N))
    for _ in range(6):
        algorithm = make(choice.algorithm, choice.K, eta)
        try:
            for done in simulate(algorithm, problem, S=size, x=case.x0, seed=case.seed):
                if done.r == 3 or enough():
                    break
            if problem.loss(done.x) <= case.f0 + case.eps:
                return eta
        except Diverged:
            pass
        if enough():
            case.clock.note("The step size was not tried out.")
            return eta
        eta /= 2
    case.doubts.append("Even small steps made f rise in the first rounds.")
    return eta


# -- bias and variance


def _laws(
    case: _Case,
    here: Gradients,
    hessians: Hessians,
    model: Surrogate | None,
    pull: Vector,
    K: int,
    eta: float,
    at: theory.Constants,
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Return what is predicted of FedAvg's and Scaffold's stationary law at (eta, K)."""
    bias: dict[str, float | None] = dict.fromkeys(
        ("heterogeneity", "stochastic", "scaffold", "limit", "richardson_romberg")
    )
    variance: dict[str, float | None] = dict.fromkeys(("fedavg", "scaffold"))
    panel, x, clock = case.panel, case.best, case.clock
    if at.convexity != "strongly convex":
        return bias, variance
    H, at_most = hessians.matrix, measure.DENSE
    if H is not None:
        solved = torch.linalg.solve(H, pull.double().cpu())
    else:
        found, left = conjugate_gradients(
            lambda v: panel.mean_products(x, v), pull, enough=clock.until(0.95)
        )
        solved = found.double().cpu()
        if left > 0.05:
            clock.note(f"FedAvg's bias is known up to a relative residual of {left:.0%}.")
    bias["heterogeneity"] = eta * (K - 1) / 2 * float(solved.norm())
    if model is not None:
        limit, twice = (surrogate.fedavg_limit(model, step, K) for step in (eta, 2 * eta))
        bias["limit"] = None if limit is None else float(limit.norm())
        if limit is not None and twice is not None and 2 * eta * at.L < 2:  # else it diverges
            bias["richardson_romberg"] = float((2 * limit - twice).norm())
    if not at.sigma:
        bias["stochastic"] = bias["scaffold"] = 0.0
        return bias, variance
    if H is None:
        why = "d is above 2,000" if at_most < case.problem.d else "there was no time"
        clock.note(f"The stochastic parts of bias and variance are left out ({why}).")
        return bias, variance
    noise = stochastic.stationary(panel, x, H, case.seed, clock.until(0.98))
    if noise is None:
        clock.note("There was no time for the stochastic parts of bias and variance.")
        return bias, variance
    by_noise = float(theory.noise_bias(H, noise.D3, eta, at.N).norm())
    bias["stochastic"] = bias["scaffold"] = by_noise
    rows = here.rows.double().cpu()
    spread = (panel.p[:, None] * rows).T @ rows
    for name in ("fedavg", "scaffold"):
        C = theory.sampled_noise(noise.C, spread, name, K, at.N, at.S)
        variance[name] = float(theory.lyapunov(H, eta * C).trace())
    if getattr(panel.problem, "sampling", "iid") == "reshuffle":
        case.doubts.append(
            "Stochastic bias and variance are those of i.i.d. mini-batches; reshuffled ones have less."
        )
    return bias, variance


def _measured_drift(case: _Case, eta: float, K: int, pull: Vector) -> float:
    """Return |x* - mean_c y_c|/(eta K) after K local steps on all data, started at x*."""
    panel, x, enough = case.panel, case.best, case.clock.until(1.0)
    mean = torch.zeros_like(x)
    for i in range(panel.problem.N):
        y = x
        for _ in range(K):
            y = y - eta * panel.problem.client_gradient(i, y).detach()
            if enough():
                case.clock.note("The average drift is that of the first-order formula.")
                return float(eta * (K - 1) / 2 * pull.norm())
        mean.add_(y, alpha=float(panel.p[i]))
    return float((x - mean).norm()) / (eta * K)


# -- words


def _reasons(
    choice: Choice,
    at: theory.Constants,
    bias: dict[str, float | None],
    predicted: list[Predicted],
    cross_device: bool,
    alike: bool,
) -> list[str]:
    """Say why, in sentences with the numbers that decided."""
    said = []
    least = {
        name: min((o.rounds for o in predicted if o.algorithm == name and o.rounds), default=None)
        for name in ("sgd", "fedavg", "scaffold", "mimelite")
    }
    limit, het = bias.get("limit"), bias.get("heterogeneity")
    stop = limit if limit is not None else het
    apart = f"The clients' gradients differ by zeta = {at.G:.3g}"
    if cross_device:
        said.append("Clients come once and keep no state, so SCAFFOLD's c_i would never be used.")
        if least["fedavg"] and least["mimelite"] and least["fedavg"] <= least["mimelite"]:
            said.append(
                f"{apart}; on the quadratic model plain FedAvg would do as well "
                f"({least['fedavg']} rounds against {least['mimelite']})."
            )
        else:
            said.append(f"{apart}, and MimeLite's server momentum steadies their steps.")
    elif choice.algorithm == "fedavg":
        said.append(f"{apart}, which is little: FedAvg suffices{_race(least, 'fedavg')}.")
    elif choice.algorithm == "scaffold":
        away = f", and FedAvg would stop {stop:.2g} away" if stop else ""
        said.append(f"{apart}{away}{_race(least, 'scaffold')}.")
    else:
        said.append(f"Local steps do not pay here{_race(least, 'sgd')}.")
    said.append(_about_K(choice, at))
    return said


def _race(least: dict[str, int | None], first: str) -> str:
    """Return the rounds on the model in brackets, those of the one advised first."""
    names = sorted((n for n in ("scaffold", "fedavg", "sgd")), key=lambda n: n != first)
    told = [
        f"{named(n)} {least[n]} rounds" if least[n] else f"{named(n)} does not get there"
        for n in names
    ]
    return f" (on the quadratic model: {', '.join(told)})" if any(least.values()) else ""


def _about_K(choice: Choice, at: theory.Constants) -> str:
    ratio = at.delta / at.L
    close = "close" if ratio < 0.2 else "not far apart" if ratio < 0.5 else "far apart"
    knee = theory.knee(at.L, at.delta, at.mu)
    by = f"theory's knee is at {knee:.0f}" if isfinite(knee) else "theory knows no limit"
    if choice.algorithm == "sgd":
        return f"Their Hessians are {close} (delta/L = {ratio:.2g}); {by}."
    end = f"more than K = {max(KS)} was not looked at" if choice.K == max(KS) else by
    return (
        f"Their Hessians are {close} (delta/L = {ratio:.2g}), and local steps pay up to K = "
        f"{choice.K}; {end}."
    )


def _sure(
    case: _Case,
    choice: Choice,
    change: float,
    hessians: Hessians,
    predicted: list[Predicted],
) -> tuple[str, list[str]]:
    """Say how sure the advice is, and what speaks against it."""
    doubts = list(case.doubts)
    if change > CHANGES:
        doubts.append(
            f"Curvature changes by a factor of {change:.2g} between start and end, so rounds "
            "counted on one quadratic model are rough."
        )
    if hessians.mu < -1e-6 * hessians.L:
        doubts.append("f is not convex here; the model is shifted until it has a minimum.")
    if not predicted:
        doubts.append("The advice rests on the knee of theory alone.")
    elif choice.rounds is None:
        doubts.append("Nobody reached eps on the model; the one that came nearest is advised.")
    if case.clock.cut:
        doubts.append("Some measurements were cut short or sampled, see below.")
    if not predicted or choice.rounds is None:
        return "not sure.", doubts
    constant = isinstance(case.panel.problem, Quadratic)
    if constant and not doubts:
        return "sure; the losses are quadratic, so rounds on the model are rounds.", doubts
    if case.reached and change <= CHANGES:
        return "fairly sure; the quadratic model holds on the way to the optimum.", doubts
    return "not very sure; compare the two best with `trimtab compare`.", doubts
