"""The cells of contraction: two chains with common noise, and the gradients to an accuracy.

The distance of two coupled chains, the root of the mean of its square, bounds W2 of their laws from
above. One chain is in its stationary law, the other starts far away. SCAFFOLD's state holds
controls too: its norm is |x|^2 + (gamma H)^2/N sum_c |xi_c|^2, with xi_c = c - c_c.
"""

from dataclasses import dataclass
from itertools import islice
from math import ceil, log, sqrt
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.core.streams import PROBLEM, stream
from trimtab.core.task import Progress
from trimtab.problems.quadratic import Quadratic
from trimtab.simulation import Simulation, simulate
from trimtab_papers import many_runs, speedup
from trimtab_papers.engine import Cell, Computing, build
from trimtab_papers.many_runs import Chains, Logistic, Model, Noisy
from trimtab_papers.verdicts import Record, rounded, thinned

ALGORITHMS = ("fedavg", "scaffold")
PROBLEMS = {
    "quadratic": "quadratics with noise",
    "aligned": "quadratics, one flat axis for all",
    "logistic": "logistic regression, batch 1",
}
SEEDS = 3  # a sentence is judged over >= 3 seeds
H = 10
EFOLDS = 3  # rounds go on until the bound has fallen by e^-3


# -- what a record holds


@dataclass(frozen=True)
class Coupled:
    """The distances of an algorithm's chains, and the largest share of the bound they take.

    factor: the largest distance after t rounds as a share of (1 - gamma mu)^(H t) x the first one.
    """

    curve: dict[str, list[float]]
    factor: float


def coupled(record: Record) -> dict[str, Coupled]:
    return {n: Coupled(row["curve"], row["factor"]) for n, row in record["found"].items()}


# -- how it is computed


def cells(quick: bool, seeds: int) -> list[Cell]:
    def cell(kind: str, seed: int) -> Cell:
        name = f"{kind}-seed{seed}" if seed else kind
        return Cell(name, lambda data, scratch: _compute(kind, seed, quick))

    count = seeds if quick else max(seeds, SEEDS)
    return [cell(kind, seed) for seed in range(count) for kind in (*PROBLEMS, "gradients")]


def _compute(kind: str, seed: int, quick: bool) -> Computing:
    return gradients_to_target(seed, quick) if kind == "gradients" else _pair(kind, seed, quick)


@dataclass(frozen=True)
class Case:
    """A model and its constants over all x: mu = min_c mu_c, L = max_c L_c, Q bounds |D3 f_c|."""

    model: Model
    mu: float
    L: float
    Q: float

    @property
    def gamma(self) -> float:
        """The largest step with gamma H L <= 1."""
        return 1 / (H * self.L)


def quadratics(seed: int, aligned: bool = False) -> Case:
    """Return five quadratics with random axes and eigenvalues between 0.2 and 2.

    aligned: with common axes, of which the first has 0.2 for all and the others 1 to 2.
    """
    draw, (N, d) = stream(seed, PROBLEM), (5, 3)
    axes = torch.linalg.qr(torch.randn(N, d, d, generator=draw, dtype=torch.float64)).Q
    values = 0.2 + 1.8 * torch.rand(N, d, generator=draw, dtype=torch.float64)
    b = torch.randn(N, d, generator=draw, dtype=torch.float64)
    if aligned:
        axes, values = torch.eye(d, dtype=torch.float64).expand(N, d, d), 1 + values / 2
        values[:, 0] = 0.2
    A = axes @ torch.diag_embed(values) @ axes.mT
    model = Noisy(Quadratic((A + A.mT) / 2, b, sigma=1.0))
    return Case(model, float(values.min()), float(values.max()), Q=0.0)


def logistic() -> Case:
    """Return four logistic regressions: p (1 - p) <= 1/4, |p (1 - p) (1 - 2p)| <= 0.0963."""
    model = Logistic(4, batch=1)
    squares = model.X.mT @ model.X / model.n
    L = float(torch.linalg.eigvalsh(squares).max()) / 4 + model.l2
    Q = 0.0963 * float(model.X.norm(dim=2).pow(3).mean(1).max())
    return Case(model, model.l2, L, Q)


class Later:
    """A problem as it is some rounds later: for noise in common with a run that is ahead."""

    def __init__(self, problem: Chains, rounds: int) -> None:
        self.problem, self.rounds = problem, rounds
        self.N, self.d, self.weights = problem.N, problem.d, problem.weights

    def x0(self, seed: int = 0) -> Vector:
        return self.problem.x0(seed)

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        return self.problem.oracle(i, seed, r + self.rounds)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return nothing: what is looked at is a distance."""
        return {}


def _pair(kind: str, seed: int, quick: bool) -> Computing:
    case = logistic() if kind == "logistic" else quadratics(seed, kind == "aligned")
    model, gamma, M = case.model, case.gamma, 50 if quick else 200
    contraction = (1 - gamma * case.mu) ** H
    R = ceil((1 if quick else EFOLDS) / -log(contraction))
    many, x_star = Chains(model, M), many_runs.optimum(model)
    far = x_star + 3 / sqrt(model.d)
    found: dict[str, Any] = {}
    for name in ALGORITHMS:
        yield Progress(f"{2 * M} chains of {name}, {R} rounds")
        ahead = simulate(build(name, gamma, H), many, x=many.start(x_star), seed=seed)
        for _ in range(R):  # They start at x*, so that little is left to forget.
            next(ahead)
        later = Later(many, R)
        behind = simulate(build(name, gamma, H), later, x=many.start(far), seed=seed)
        distances, errors = [_distance(ahead, behind, case, M)], [3.0**2]
        for done in islice(behind, R):
            next(ahead)
            distances.append(_distance(ahead, behind, case, M))
            errors.append(float((many.rows(done.x) - x_star).square().sum(1).mean()))
        shares = [d / (contraction**t * distances[0]) for t, d in enumerate(distances) if t]
        found[name] = {"curve": thinned(distances, 60).to_json(), "factor": max(shares)}
        found[name]["last factor"] = distances[-1] / distances[-2]
        found[name]["errors"] = thinned(errors, 60).to_json()
        if name == "scaffold":
            found[name] |= {
                "rate": _rate(case, x_star, errors),
                "x alone": _x_alone(ahead, later, case, M),
            }
    settings = {"kind": kind, "seed": seed, "H": H, "gamma": gamma, "mu": case.mu, "L": case.L}
    settings |= {"N": model.N, "d": model.d, "R": R, "chains": M, "contraction": contraction}
    return rounded({"settings": settings, "found": found})


def _distance(ahead: Simulation, behind: Simulation, case: Case, M: int) -> float:
    """Return the distance of two states, controls and all, over the root of M."""
    square = float((ahead.server.x - behind.server.x).square().sum())
    N = case.model.N
    for i in ahead.states:  # FedAvg's clients have none.
        apart = _xi(ahead, i) - _xi(behind, i)
        square += (case.gamma * H) ** 2 / N * float(apart.square().sum())
    return sqrt(square / M)


def _xi(run: Simulation, i: int) -> Tensor:
    """Return c - c_i; controls are zero before the first round."""
    c: Tensor = run.server.c
    return c - run.states[i] if i in run.states else c


def _x_alone(ahead: Simulation, later: Later, case: Case, M: int) -> dict[str, float]:
    """Start a chain at the x of the one ahead with controls of zero; return how far x parts.

    largest: max |x - x'| over ten rounds. start: the distance at the start, which is all controls.
    """
    same = simulate(
        ahead.algorithm, Later(later.problem, ahead.r), x=ahead.server.x, seed=ahead.seed
    )
    start, apart = _distance(ahead, same, case, M), []
    for done in islice(same, 10):
        next(ahead)
        apart.append(float((ahead.server.x - done.x).square().sum() / M) ** 0.5)
    return {"largest": max(apart), "start": start}


def _rate(case: Case, x_star: Vector, errors: list[float]) -> float:
    """Return the largest share of the non-asymptotic bound that E|x - x*|^2 takes.

    (1 - gamma mu/4)^(H T) (|x0 - x*|^2 + 2 gamma^2 H^2 zeta^2 + sigma^2/(L mu)) and after every
    round gamma sigma^2/(N mu) + gamma^(3/2) Q sigma^3/mu^(5/2) + gamma^3 H Q^2 sigma^4/mu^3.
    """
    model, gamma, mu, Q = case.model, case.gamma, case.mu, case.Q
    each = range(model.N)
    zeta2 = sum(float(model.gradients(i, x_star[None]).square().sum()) for i in each) / model.N
    sigma = sqrt(sum(float(model.covariance(i, x_star).trace()) for i in each) / model.N)
    first = errors[0] + 2 * (gamma * H) ** 2 * zeta2 + sigma**2 / (case.L * mu)
    rest = gamma * sigma**2 / (model.N * mu) + gamma**1.5 * Q * sigma**3 / mu**2.5
    rest += gamma**3 * H * Q**2 * sigma**4 / mu**3
    shares = [e / ((1 - gamma * mu / 4) ** (H * T) * first + rest) for T, e in enumerate(errors)]
    return float(max(shares))


# -- gradients to a target


EPS2 = 3e-4  # the target: E|x - x*|^2 <= 3e-4
SIZES = (2, 4, 8, 16, 32)
FINE = 2**0.5  # the ratio of neighbouring step sizes


def gradients_to_target(seed: int, quick: bool) -> Computing:
    """Run both with steps around the one whose stationary variance is half the target."""
    M, found = 100 if quick else 300, []
    for N in SIZES[::2] if quick else SIZES:
        model = speedup.quadratics(N)
        many, x_star = Chains(model, M), many_runs.optimum(model)
        of_one = float(many_runs.stationary_covariance(model, x_star, 1.0).trace())
        top = 1 / (H * model.quadratic.L)
        steps = [EPS2 / (2 * of_one) * FINE**j for j in ((1,) if quick else (-1, 0, 1, 2))]
        row: dict[str, Any] = {"N": N, "largest step": top}
        for name in ("fedavg", "scaffold"):
            counts = {}
            for gamma in (step for step in steps if step <= top):
                yield Progress(f"{name} with N = {N}, gamma = {gamma:.2g}")
                R = ceil(1.5 * log(9 / EPS2) / (2 * gamma * H * model.quadratic.mu))
                runs = simulate(
                    build(name, gamma, H), many, x=many.start(x_star + 3**0.5), seed=seed
                )
                errors = (many.rows(done.x) - x_star for done in islice(runs, R))
                small = (float(e.square().sum(1).mean()) <= EPS2 for e in errors)
                rounds = next((r for r, there in enumerate(small, start=1) if there), None)
                counts[f"{gamma:.3g}"] = None if rounds is None else H * rounds
            there = [count for count in counts.values() if count is not None]
            row[name] = {"gradients": min(there, default=None), "by step": counts}
        found.append(row)
    settings = {"kind": "gradients", "seed": seed, "H": H, "chains": M, "eps^2": EPS2}
    return rounded({"settings": settings, "rows": found})
