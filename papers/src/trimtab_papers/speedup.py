"""Linear speed-up: the stationary variance of FedAvg and SCAFFOLD falls as 1/N, controls and all.

Mangold et al., 2025 (slide "Numerical Illustration: Speed-Up of Scaffold"). All clients in every
round, mini-batches drawn i.i.d.; thousands of chains side by side from x*, until their law is
stationary. Its covariance beside Sigma with Hess Sigma + Sigma Hess = (eta_g gamma/N) C.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from math import ceil
from typing import Any

import torch

from trimtab.core.task import Progress
from trimtab.problems.quadratic import Quadratic
from trimtab.simulation import simulate
from trimtab_papers import many_runs
from trimtab_papers.engine import TITLES, Cell, Computing, Reproduction, build, cell_of, colour
from trimtab_papers.figures import drawn, label_of
from trimtab_papers.many_runs import Chains, Logistic, Model, Noisy
from trimtab_papers.verdicts import (
    MissingRecordError,
    Record,
    Records,
    Sentences,
    Verdict,
    each_seed,
    grouped,
    over_seeds,
    rounded,
    slope,
    spread,
)

ALGORITHMS = ("fedavg", "scaffold")
K = 10
PROBLEMS = {"quadratic": "quadratics with noise", "logistic": "logistic regression"}
GAMMA = {"quadratic": 0.01, "logistic": 0.0025}


# -- the cells


def sizes(problem: str, quick: bool) -> tuple[int, ...]:
    if quick:
        return (2, 8, 32) if problem == "quadratic" else (4, 8)
    return (2, 4, 8, 16, 32, 64)


def cells(quick: bool, seeds: int) -> list[Cell]:
    return [
        cell_of(f"{problem}-N{N}", _compute, problem, N, quick, seed=seed)
        for seed in range(seeds)
        for problem in PROBLEMS
        for N in sizes(problem, quick)
    ]


def quadratics(N: int) -> Noisy:
    """Return clients of two kinds, N/2 each, so that nothing but N changes with N."""
    H = torch.tensor([0.8, 1.2, 1.6], dtype=torch.float64)
    D, v = 0.5 * H.flip(0), torch.tensor([0.6, -0.4, 0.5], dtype=torch.float64)
    kinds = [(H + D, v), (H - D, -v)]
    A, b = (torch.stack([kinds[i % 2][j] for i in range(N)]) for j in (0, 1))
    return Noisy(Quadratic(A, b, sigma=1.0))


def _compute(problem: str, N: int, quick: bool, seed: int) -> Computing:
    """Run the chains from x*, and look at their last round."""
    model: Model = quadratics(N) if problem == "quadratic" else Logistic(N, batch=1)
    gamma, M = GAMMA[problem], 2000 if quick else 3000
    many, x_star = Chains(model, M), many_runs.optimum(model)
    mu = float(torch.linalg.eigvalsh(many_runs.hessian(model, x_star))[0])
    R = ceil((2 if quick else 3) / (gamma * K * mu))  # exp(-2 gamma K mu R) <= exp(-4) << 1
    predicted = many_runs.stationary_covariance(model, x_star, gamma)
    laws: dict[str, Any] = {}
    for name in ALGORITHMS:
        yield Progress(f"{M} chains of {name}, {R} rounds")
        start = many.start(x_star)
        *_, last = islice(simulate(build(name, gamma, K), many, x=start, seed=seed), R)
        errors = many.rows(last.x) - x_star
        covariance = torch.cov(errors.T)
        laws[name] = {
            "trace": float(covariance.trace()),
            "mean square error": float(errors.square().sum(1).mean()),
            "distance": float((covariance - predicted).norm() / predicted.norm()),
        }
    bias = many_runs.heterogeneity_bias(model, x_star, gamma, K)
    record: Record = {
        "settings": {"problem": problem, "N": N, "K": K, "gamma": gamma, "eta_g": 1, "R": R}
        | {"d": model.d, "chains": M, "seed": seed, "batch": "1, i.i.d.", "mu": mu},
        "predicted trace": float(predicted.trace()),
        "predicted bias^2 of FedAvg": float(bias.square().sum()),
        "found": laws,
    }
    return rounded(record)


# -- what the paper says


PAPER = Sentences(
    "slides, Numerical Illustration: Speed-Up of Scaffold",
    ours="ours: the slides print (gamma/N) C, without the A^-1 of their own bias formula",
)

Series = dict[str, dict[int, Record]]
"""The records of one seed by problem, then by N."""


def _by_N(records: Iterable[Record], problem: str) -> dict[int, list[Record]]:
    mine = [r for r in records if r["settings"]["problem"] == problem]
    return grouped(mine, "N")


def _by_seed(records: Records) -> dict[int, Series]:
    """Return the records by seed, of the seeds that have the sizes of the quick version."""
    found: dict[int, Series] = {
        seed: {p: {N: one for N, (one,) in _by_N(some, p).items()} for p in PROBLEMS}
        for seed, some in grouped(records.values(), "seed").items()
    }
    quick = {problem: set(sizes(problem, quick=True)) for problem in PROBLEMS}
    complete = {s: found[s] for s in found if all(quick[p] <= set(found[s][p]) for p in quick)}
    if not complete:
        raise MissingRecordError
    return complete


def _by_problem(
    records: Records, measure: Callable[[dict[int, Record]], float]
) -> dict[int, dict[str, float]]:
    return {
        seed: {problem: measure(by_N) for problem, by_N in series.items()}
        for seed, series in _by_seed(records).items()
    }


def _spreads(values: dict[int, dict[str, float]], form: str) -> str:
    return ", ".join(
        f"{problem} {spread((one[problem] for one in values.values()), form)}"
        for problem in PROBLEMS
    )


def _falls_as_one_over_N(records: Records, name: str) -> Verdict:
    """Fit the exponent of N on each problem."""

    def exponent(by_N: dict[int, Record]) -> float:
        return slope(list(by_N), [record["found"][name]["trace"] for record in by_N.values()])

    slopes = _by_problem(records, exponent)
    numbers = _spreads(slopes, ".3f")
    return each_seed(slopes, lambda some: all(-1.1 < s < -0.9 for s in some.values()), numbers)


@PAPER.says(
    "Linear speed-up: the stationary variance of SCAFFOLD falls as 1/N (slope -1.1 to -0.9)."
)
def variance_of_scaffold_falls(records: Records) -> Verdict:
    return _falls_as_one_over_N(records, "scaffold")


@PAPER.says("FedAvg's does as well.")
def variance_of_fedavg_falls(records: Records) -> Verdict:
    return _falls_as_one_over_N(records, "fedavg")


@PAPER.check("Both are what (eta_g gamma/N) A^-1 C says, within 10 % for every N.")
def variances_are_those_of_theory(records: Records) -> Verdict:
    farthest = {
        seed: {
            (name, problem): max(
                (abs(record["found"][name]["trace"] / record["predicted trace"] - 1), N)
                for N, record in by_N.items()
            )
            for name in ALGORITHMS
            for problem, by_N in series.items()
        }
        for seed, series in _by_seed(records).items()
    }
    numbers = []
    for name, problem in farthest[min(farthest)]:
        off, N = max(of_seed[name, problem] for of_seed in farthest.values())
        numbers.append(f"{TITLES[name]}, {problem} {off:.1%} at N = {N}")
    return each_seed(
        farthest,
        lambda of_seed: all(off < 0.1 for off, _ in of_seed.values()),
        f"farthest off: {'; '.join(numbers)}",
    )


@PAPER.says("SCAFFOLD's variance is close to FedAvg's (within 10 %).")
def variances_are_close(records: Records) -> Verdict:
    def farthest(by_N: dict[int, Record]) -> float:
        laws = [record["found"] for record in by_N.values()]
        ratios = [float(law["scaffold"]["trace"] / law["fedavg"]["trace"]) for law in laws]
        return max(abs(ratio - 1) for ratio in ratios)

    apart = _by_problem(records, farthest)
    numbers = f"farthest apart: {_spreads(apart, '.1%')}"
    return each_seed(apart, lambda some: max(some.values()) < 0.1, numbers)


@PAPER.check(
    "FedAvg's mean square error stops falling at its squared bias; SCAFFOLD's goes on with 1/N.",
    "ours: what the slides' two formulas say together",
)
def fedavg_stops_at_its_bias(records: Records) -> Verdict:
    """Compare the most clients with the fewest, on the quadratics."""
    held, numbers = {}, ""
    for seed, series in _by_seed(records).items():
        by_N = series["quadratic"]
        few, most = min(by_N), max(by_N)
        floor = by_N[most]["predicted bias^2 of FedAvg"]
        fedavg, scaffold = (
            {N: by_N[N]["found"][name]["mean square error"] for N in (few, most)}
            for name in ALGORITHMS
        )
        stops = fedavg[most] > 0.5 * floor and fedavg[most] > 2 * scaffold[most]
        held[seed] = stops and scaffold[few] / scaffold[most] > 0.8 * most / few
        numbers = numbers or (
            f"quadratics, N = {few} and {most}: FedAvg {fedavg[few]:.2g} and {fedavg[most]:.2g} "
            f"(bias² {floor:.2g}), SCAFFOLD {scaffold[few]:.2g} and {scaffold[most]:.2g}"
        )
    return over_seeds(held, numbers)


# -- table and figure


def table(records: Records) -> str:
    rows = [
        "| problem | N | predicted trace | FedAvg | SCAFFOLD | E\\|x - x*\\|²: FedAvg | SCAFFOLD |",
        "|---|---|---|---|---|---|---|",
    ]
    for problem in PROBLEMS:
        for N, seeds in _by_N(records.values(), problem).items():
            numbers = [
                spread(record["found"][name][word] for record in seeds)
                for word in ("trace", "mean square error")
                for name in ALGORITHMS
            ]
            predicted = f"{seeds[0]['predicted trace']:.3g}"
            rows.append(f"| {problem} | {N} | {predicted} | {' | '.join(numbers)} |")
    return "\n".join(rows)


_DASHED: dict[str, Any] = {"color": "#777777", "linewidth": 1.3, "linestyle": "--"}
_MARKERS: dict[str, dict[str, Any]] = {
    "fedavg": {"marker": "s", "markerfacecolor": "none", "markersize": 8},
    "scaffold": {"marker": "o", "markersize": 4.5},
}


@drawn(9.5, 6.4)
def figure(fig: Any, records: Records) -> None:
    """Return the points of all seeds, and theory as lines."""
    panels = fig.subplots(len(PROBLEMS), 2, sharex=True, squeeze=False)
    for row, (problem, title) in zip(panels, PROBLEMS.items(), strict=True):
        by_N = _by_N(records.values(), problem)
        _draw_theory(row, by_N)
        _draw_points(row[0], by_N, "trace")
        _draw_points(row[1], by_N, "mean square error")
        row[0].set_ylabel("trace of the covariance")
        row[1].set_ylabel("E|x - x*|²")
        row[0].set_title(f"{title}: variance", fontsize=10)
        row[1].set_title(f"{title}: mean square error", fontsize=10)
    for axes in panels[-1]:
        axes.set_xlabel("clients N")
        axes.set_xticks(axes.get_xticks())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for axes in panels[0]:
        axes.legend(loc="lower left", fontsize=9)


def _draw_theory(row: Any, by_N: dict[int, list[Record]]) -> None:
    first_seeds = [seeds[0] for seeds in by_N.values()]
    variance = [record["predicted trace"] for record in first_seeds]
    squares = [record["predicted bias^2 of FedAvg"] for record in first_seeds]
    with_bias = [v + square for v, square in zip(variance, squares, strict=True)]
    row[0].plot(list(by_N), variance, **_DASHED, label="predicted, (γ/N) A⁻¹C")
    row[1].plot(list(by_N), variance, **_DASHED, label="predicted variance")
    row[1].plot(list(by_N), with_bias, **_DASHED | {"linestyle": ":"}, label="and bias²")


def _draw_points(axes: Any, by_N: dict[int, list[Record]], word: str) -> None:
    for name in ALGORITHMS:
        look = {"color": colour(name), "linestyle": "none", **_MARKERS[name]}
        for number, (N, seeds) in enumerate(by_N.items()):
            values = [record["found"][name][word] for record in seeds]
            axes.plot([N] * len(values), values, **look, label=label_of(TITLES[name], number == 0))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log" if by_N else "linear")


SPEEDUP = Reproduction(
    name="speedup",
    shows="the stationary variance of SCAFFOLD and FedAvg falls as 1/N, as predicted",
    source="Mangold et al. 2025, slides 'Numerical Illustration: Speed-Up of Scaffold'",
    minutes=1.5,
    cells=cells,
    sentences=PAPER,
    table=table,
    figure=figure,
    discussion="The slides print (gamma/N) C; the A^-1 (the solution of a Lyapunov equation) that "
    "their own bias formula has belongs here too. The quadratics come in two kinds, N/2 clients of "
    "each, so that only N changes; the logistic regressions are N different clients.",
)
