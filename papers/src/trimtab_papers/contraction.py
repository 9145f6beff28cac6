"""Contraction: two chains with common noise approach each other as fast as the slides say.

Mangold et al., 2025 (slides "FedAvg (with stochastic gradients) converges!", "Scaffold also
converges!", "New Convergence Rate for Scaffold", "Linear Speed-Up!").

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
from trimtab.problems.problem import Problem
from trimtab.problems.quadratic import Quadratic
from trimtab.simulation import Simulation, simulate
from trimtab_papers import many_runs, speedup
from trimtab_papers.engine import TITLES, Cell, Computing, Reproduction, build, cell_of, colour
from trimtab_papers.figures import drawn, label_of, log_log_sizes
from trimtab_papers.many_runs import Chains, Logistic, Model, Noisy
from trimtab_papers.verdicts import (
    Record,
    Records,
    Sentences,
    Verdict,
    complete,
    each_seed,
    of_kind,
    rounded,
    slope,
    spread,
    thinned,
)

ALGORITHMS = ("fedavg", "scaffold")
PROBLEMS = {
    "quadratic": "quadratics with noise",
    "aligned": "quadratics, one flat axis for all",
    "logistic": "logistic regression, batch 1",
}
KINDS = (*PROBLEMS, "gradients")
SEEDS = 3  # a sentence is judged over >= 3 seeds
H = 10
EFOLDS = 3  # rounds go on until the bound has fallen by e^-3
EPS2 = 3e-4  # the target: E|x - x*|^2 <= 3e-4
SIZES = (2, 4, 8, 16, 32)
FINE = 2**0.5  # the ratio of neighbouring step sizes


# -- the cells


def cells(quick: bool, seeds: int) -> list[Cell]:
    over = range(seeds if quick else max(seeds, SEEDS))
    return [cell_of(kind, _compute, kind, quick, seed=seed) for seed in over for kind in KINDS]


def _compute(kind: str, quick: bool, seed: int) -> Computing:
    return _gradients_to_target(seed, quick) if kind == "gradients" else _pair(kind, seed, quick)


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


class Later(Problem):
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
        found[name] = {
            "curve": thinned(distances, 60),
            "factor": max(shares),
            "last factor": distances[-1] / distances[-2],
            "errors": thinned(errors, 60),
        }
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


def _gradients_to_target(seed: int, quick: bool) -> Computing:
    """Run both with steps around the one whose stationary variance is half the target."""
    M, found = 100 if quick else 300, []
    for N in SIZES[::2] if quick else SIZES:
        model = speedup.quadratics(N)
        many, x_star = Chains(model, M), many_runs.optimum(model)
        of_one = float(many_runs.stationary_covariance(model, x_star, 1.0).trace())
        top = 1 / (H * model.quadratic.L)
        steps = [EPS2 / (2 * of_one) * FINE**j for j in ((1,) if quick else (-1, 0, 1, 2))]
        row: dict[str, Any] = {"N": N, "largest step": top}
        for name in ALGORITHMS:
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


# -- what the paper says


PAPER = Sentences()
ROUNDING = 1e-6  # a distance may exceed its bound by <= 1e-6 of it


def _largest_share(records: Records, name: str, word: str, bound: float) -> Verdict:
    """Judge the largest share of a bound that an algorithm takes in any round, on all problems.

    factor: of its distance, (1 - gamma mu)^(H t) x the first one. rate: of E|x - x*|^2.
    """
    known = complete(records, KINDS)
    shares = {
        seed: [known[problem][seed]["found"][name][word] for problem in PROBLEMS]
        for seed in known["gradients"]
    }
    by_problem = zip(PROBLEMS, zip(*shares.values(), strict=True), strict=True)
    numbers = ", ".join(f"{problem} {spread(some)}" for problem, some in by_problem)
    return each_seed(
        shares, lambda some: max(some) <= bound, f"largest share of the bound: {numbers}"
    )


@PAPER.says(
    "FedAvg's law contracts in W2: after t rounds the coupled chains are at most "
    "(1 - gamma mu)^(H t) x as far apart (mu = min_c mu_c, gamma H L = 1).",
    "slides, FedAvg (with stochastic gradients) converges",
)
def fedavg_contracts(records: Records) -> Verdict:
    return _largest_share(records, "fedavg", "factor", 1 + ROUNDING)


@PAPER.says(
    "Scaffold's law contracts in W2 at the same rate if gamma H L <= 1, in the norm of its whole "
    "state, |x|^2 + (gamma H)^2/N sum_c |xi_c|^2.",
    "slides, Scaffold also converges; they print x, and leave the norm open",
)
def scaffold_contracts(records: Records) -> Verdict:
    return _largest_share(records, "scaffold", "factor", 1 + ROUNDING)


@PAPER.says(
    "Scaffold's rate: after every round E|x_T - x*|^2 is below (1 - gamma mu/4)^(H T) {…} + "
    "gamma sigma^2/(N mu) + …, with all constants 1.",
    "slides, New Convergence Rate for Scaffold",
)
def rate_of_scaffold(records: Records) -> Verdict:
    return _largest_share(records, "scaffold", "rate", 1)


@PAPER.says(
    "Linear speed-up: the gradients per client until E|x - x*|^2 <= eps^2 fall as 1/N with "
    "Scaffold (slope -1.15 to -0.85, step tuned for each N).",
    "slides, Linear Speed-Up!",
)
def gradients_fall(records: Records) -> Verdict:
    found = complete(records, KINDS)["gradients"]
    by_N = {seed: _gradients(record, "scaffold") for seed, record in found.items()}
    slopes = {s: slope(list(g), list(g.values())) if len(g) > 1 else 0 for s, g in by_N.items()}
    numbers = f"slopes {spread(slopes.values(), '.3f')}"
    return each_seed(slopes, lambda s: -1.15 < s < -0.85, numbers)


def _gradients(record: Record, name: str) -> dict[int, int]:
    """Return the gradients per client by N; a size at which no step gets there is left out."""
    counts = {row["N"]: row[name]["gradients"] for row in record["rows"]}
    return {N: count for N, count in counts.items() if count is not None}


@PAPER.check(
    "The rate is attained: where one axis is the flattest of all clients, the last round contracts "
    "both by (1 - gamma mu)^H (within 1 %)."
)
def rate_is_attained(records: Records) -> Verdict:
    off = {}
    for seed, record in complete(records, KINDS)["aligned"].items():
        factors = [row["last factor"] for row in record["found"].values()]
        off[seed] = max(abs(f / record["settings"]["contraction"] - 1) for f in factors)
    return each_seed(off, lambda v: v < 0.01, f"at most {max(off.values()):.1g} off")


@PAPER.check(
    "In |x| alone Scaffold does not contract: chains with equal x and other controls part, by more "
    "than a thousandth of their distance, which rounding does not explain."
)
def x_alone_does_not(records: Records) -> Verdict:
    known = complete(records, KINDS)
    shares = {}
    for seed in known["gradients"]:
        found = [known[problem][seed]["found"]["scaffold"]["x alone"] for problem in PROBLEMS]
        shares[seed] = min(row["largest"] / row["start"] for row in found)
    numbers = f"|x - x'| grows from 0 to {spread(shares.values())} of it"
    return each_seed(shares, lambda share: share > 1e-3, numbers)


# -- table and figure


def table(records: Records) -> str:
    """Return a row for each problem, and below one for each N."""
    rows = [
        "| | (1 - γμ)^H | largest share of the bound on W2: FedAvg | SCAFFOLD | of the bound on "
        "E\\|x - x\\*\\|² |",
        "|---|---|---|---|---|",
    ]
    for problem, title in PROBLEMS.items():
        records_of = list(of_kind(records, problem).values())
        if records_of:
            found = [record["found"] for record in records_of]
            numbers = [spread((r["settings"]["contraction"] for r in records_of), ".4f")]
            numbers += [spread(laws[name]["factor"] for laws in found) for name in ALGORITHMS]
            numbers += [spread(laws["scaffold"]["rate"] for laws in found)]
            rows.append(f"| {title} | {' | '.join(numbers)} |")
    rows += ["", "| N | gradients per client: FedAvg | SCAFFOLD |", "|---|---|---|"]
    every_row = [r for record in of_kind(records, "gradients").values() for r in record["rows"]]
    for N in SIZES:
        seeds = [row for row in every_row if row["N"] == N]
        if seeds:
            counts = [[row[name]["gradients"] for row in seeds] for name in ALGORITHMS]
            # A dash says that no step that was tried gets there.
            numbers = ["-" if None in some else spread(some, ".0f") for some in counts]
            rows.append(f"| {N} | {' | '.join(numbers)} |")
    return "\n".join(rows)


_DASHED: dict[str, Any] = {"color": "#777777", "linewidth": 1.3, "linestyle": "--"}


@drawn(10, 7)
def figure(fig: Any, records: Records) -> None:
    """Draw a panel for each problem and one for the gradients; every seed is a line."""
    *panels, last = fig.subplots(2, 2).flatten()
    for axes, problem in zip(panels, PROBLEMS, strict=True):
        _draw_distances(axes, records, problem)
    _draw_gradients(last, records)


def _draw_distances(axes: Any, records: Records, problem: str) -> None:
    for number, record in enumerate(of_kind(records, problem).values()):
        for name, row in record["found"].items():
            rounds, distances = row["curve"]["rounds"], row["curve"]["values"]
            look = {"color": colour(name), "linewidth": 1.4}
            label = label_of(TITLES[name], number == 0)
            axes.plot(rounds, [d / distances[0] for d in distances], **look, label=label)
        bound = [record["settings"]["contraction"] ** t for t in rounds]
        axes.plot(rounds, bound, **_DASHED, label=label_of("(1 - γμ)^(Ht)", number == 0))
        axes.set_yscale("log")
        axes.legend(fontsize=9)
    axes.set(xlabel="rounds t", ylabel="distance, as a share of the first")
    axes.set_title(PROBLEMS[problem], fontsize=10)


def _draw_gradients(axes: Any, records: Records) -> None:
    for number, record in enumerate(of_kind(records, "gradients").values()):
        for name in ALGORITHMS:
            by_N, label = _gradients(record, name), label_of(TITLES[name], number == 0)
            look = {"marker": "o", "markersize": 4, "linewidth": 1, "color": colour(name)}
            axes.plot(list(by_N), list(by_N.values()), **look, label=label)
        log_log_sizes(axes)
    axes.set(xlabel="clients N", ylabel="gradients per client")
    axes.set_title("until E|x - x*|² ≤ 0.0003", fontsize=10)


CONTRACTION = Reproduction(
    name="contraction",
    shows="FedAvg and SCAFFOLD contract by (1 - gamma mu)^H a round; gradients fall as 1/N",
    source="Mangold et al. 2025, slides '… converges!' and 'Linear Speed-Up!'",
    minutes=5,
    cells=cells,
    sentences=PAPER,
    table=table,
    figure=figure,
    discussion="The distance of chains with common noise bounds W2 from above, so a share below 1 "
    "proves the bound for these problems, starts and rounds. mu and L are those of the clients "
    "over all x (for the logistic regressions mu is their l2), gamma = 1/(H L). The slides print "
    "the contraction of SCAFFOLD for x; its controls are part of the state, and the norm in which "
    "it contracts counts them. Where clients are flat in different directions their mean contracts "
    "faster than the bound; with one flat axis for all, at its rate. The gradients are counted "
    "with H = 10 and the best of a few steps around the one whose variance is half the target, "
    "all of them below 1/(H L).",
)
