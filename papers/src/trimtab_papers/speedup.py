"""Linear speed-up: the stationary variance of FedAvg and SCAFFOLD falls as 1/N, controls and all.

Mangold et al., 2025 (slide "Numerical Illustration: Speed-Up of Scaffold"). All clients in every
round, mini-batches drawn i.i.d.; thousands of chains side by side from x*, until their law is
stationary. Its covariance beside Sigma with Hess Sigma + Sigma Hess = (eta_g gamma/N) C.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
    Held,
    MissingRecordError,
    Record,
    Records,
    Sentences,
    Verdict,
    over_seeds,
    rounded,
    slope,
    spread,
)

ALGORITHMS = ("fedavg", "scaffold")
K = 10
PROBLEMS = {"quadratic": "quadratics with noise", "logistic": "logistic regression"}
GAMMA = {"quadratic": 0.01, "logistic": 0.0025}


# -- what a record holds


@dataclass(frozen=True)
class Law:
    """Where an algorithm ends: the trace of its covariance, E|x - x*|^2, and how far from theory.

    distance: |covariance - predicted|/|predicted|.
    """

    trace: float
    mean_square_error: float
    distance: float

    def to_json(self) -> dict[str, float]:
        words = {"trace": self.trace, "mean square error": self.mean_square_error}
        return words | {"distance": self.distance}

    @classmethod
    def from_json(cls, row: dict[str, float]) -> "Law":
        return cls(row["trace"], row["mean square error"], row["distance"])


@dataclass(frozen=True)
class Stationary:
    """Both algorithms with N clients, and what theory says of them.

    predicted_bias is |bias|^2 of FedAvg.
    """

    problem: str
    N: int
    seed: int
    predicted_trace: float
    predicted_bias: float
    laws: dict[str, Law]

    @classmethod
    def from_json(cls, record: Record) -> "Stationary":
        return cls(
            problem=record["settings"]["problem"],
            N=record["settings"]["N"],
            seed=record["settings"]["seed"],
            predicted_trace=record["predicted trace"],
            predicted_bias=record["predicted bias^2 of FedAvg"],
            laws={name: Law.from_json(row) for name, row in record["found"].items()},
        )


def by_size(records: Records, problem: str) -> dict[int, list[Stationary]]:
    """Return the records of all seeds by N."""
    sizes: dict[int, list[Stationary]] = {}
    for record in map(Stationary.from_json, records.values()):
        if record.problem == problem:
            sizes.setdefault(record.N, []).append(record)
    return dict(sorted(sizes.items()))


# -- how it is computed


def sizes(problem: str, quick: bool) -> tuple[int, ...]:
    if quick:
        return (2, 8, 32) if problem == "quadratic" else (4, 8)
    return (2, 4, 8, 16, 32, 64)


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return one cell for each problem, N and seed."""
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
        laws[name] = Law(
            trace=float(covariance.trace()),
            mean_square_error=float(errors.square().sum(1).mean()),
            distance=float((covariance - predicted).norm() / predicted.norm()),
        ).to_json()
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

Seed = dict[str, dict[int, Stationary]]
"""The records of one seed by problem, then by N."""


def _complete(records: Records) -> dict[int, Seed]:
    """Return the records by seed, of the seeds that have the sizes of the quick version."""
    seeds: dict[int, Seed] = {}
    for problem in PROBLEMS:
        for N, some in by_size(records, problem).items():
            for one in some:
                seeds.setdefault(one.seed, {p: {} for p in PROBLEMS})[problem][N] = one
    wanted = {problem: set(sizes(problem, quick=True)) for problem in PROBLEMS}
    complete = {
        s: known for s, known in seeds.items() if all(wanted[p] <= set(known[p]) for p in known)
    }
    if not complete:
        raise MissingRecordError
    return dict(sorted(complete.items()))


def _told(by_seed: dict[int, dict[str, float]], form: str) -> str:
    return ", ".join(
        f"{problem} {spread([one[problem] for one in by_seed.values()], form)}"
        for problem in PROBLEMS
    )


def _falls_as_one_over_N(records: Records, name: str) -> Verdict:
    """Fit the exponent of N on each problem."""
    slopes = {
        seed: {
            problem: slope(list(of_N), [one.laws[name].trace for one in of_N.values()])
            for problem, of_N in known.items()
        }
        for seed, known in _complete(records).items()
    }
    held: Held = {seed: all(-1.1 < s < -0.9 for s in slopes[seed].values()) for seed in slopes}
    return over_seeds(held, _told(slopes, ".3f"))


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
    seeds = _complete(records)
    farthest = {
        seed: {
            (name, problem): max(
                (abs(one.laws[name].trace / one.predicted_trace - 1), N) for N, one in of_N.items()
            )
            for name in ALGORITHMS
            for problem, of_N in known.items()
        }
        for seed, known in seeds.items()
    }
    held: Held = {s: all(off < 0.1 for off, _ in far.values()) for s, far in farthest.items()}
    worst = {key: max(far[key] for far in farthest.values()) for key in farthest[min(farthest)]}
    told = "; ".join(
        f"{TITLES[name]}, {problem} {off:.1%} at N = {N}"
        for (name, problem), (off, N) in worst.items()
    )
    return over_seeds(held, f"farthest off: {told}")


@PAPER.says("SCAFFOLD's variance is close to FedAvg's (within 10 %).")
def variances_are_close(records: Records) -> Verdict:
    apart = {
        seed: {
            problem: max(
                abs(one.laws["scaffold"].trace / one.laws["fedavg"].trace - 1)
                for one in of_N.values()
            )
            for problem, of_N in known.items()
        }
        for seed, known in _complete(records).items()
    }
    held: Held = {seed: all(v < 0.1 for v in apart[seed].values()) for seed in apart}
    return over_seeds(held, f"farthest apart: {_told(apart, '.1%')}")


@PAPER.check(
    "FedAvg's mean square error stops falling at its squared bias; SCAFFOLD's goes on with 1/N.",
    "ours: what the slides' two formulas say together",
)
def fedavg_stops_at_its_bias(records: Records) -> Verdict:
    """Compare the most clients with the fewest, on the quadratics."""
    held: Held = {}
    told = ""
    for seed, known in _complete(records).items():
        of_N = known["quadratic"]
        few, most = min(of_N), max(of_N)
        floor = of_N[most].predicted_bias
        fedavg, scaffold = (
            {N: of_N[N].laws[name].mean_square_error for N in (few, most)} for name in ALGORITHMS
        )
        stops = fedavg[most] > 0.5 * floor and fedavg[most] > 2 * scaffold[most]
        held[seed] = stops and scaffold[few] / scaffold[most] > 0.8 * most / few
        told = told or (
            f"quadratics, N = {few} and {most}: FedAvg {fedavg[few]:.2g} and {fedavg[most]:.2g} "
            f"(bias² {floor:.2g}), SCAFFOLD {scaffold[few]:.2g} and {scaffold[most]:.2g}"
        )
    return over_seeds(held, told)


# -- how it is shown


def table(records: Records) -> str:
    """Return a row for each problem and N."""
    rows = [
        "| problem | N | predicted trace | FedAvg | SCAFFOLD | E\\|x - x*\\|²: FedAvg | SCAFFOLD |",
        "|---|---|---|---|---|---|---|",
    ]
    for problem in PROBLEMS:
        for N, seeds in by_size(records, problem).items():
            laws = {name: [seed.laws[name] for seed in seeds] for name in ALGORITHMS}
            traces = [spread([law.trace for law in laws[name]]) for name in ALGORITHMS]
            errors = [spread([law.mean_square_error for law in laws[name]]) for name in ALGORITHMS]
            numbers = " | ".join([f"{seeds[0].predicted_trace:.3g}", *traces, *errors])
            rows.append(f"| {problem} | {N} | {numbers} |")
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
    for row, problem in zip(panels, PROBLEMS, strict=True):
        sizes = by_size(records, problem)
        _theory(row, sizes)
        _points(row[0], sizes, lambda law: law.trace)
        _points(row[1], sizes, lambda law: law.mean_square_error)
        row[0].set_ylabel("trace of the covariance")
        row[1].set_ylabel("E|x - x*|²")
        row[0].set_title(f"{PROBLEMS[problem]}: variance", fontsize=10)
        row[1].set_title(f"{PROBLEMS[problem]}: mean square error", fontsize=10)
    for axes in panels[-1]:
        axes.set_xlabel("clients N")
        axes.set_xticks(axes.get_xticks())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for axes in panels[0]:
        axes.legend(loc="lower left", fontsize=9)


def _theory(row: Any, sizes: dict[int, list[Stationary]]) -> None:
    first_seeds = [seeds[0] for seeds in sizes.values()]
    variance = [record.predicted_trace for record in first_seeds]
    with_bias = [record.predicted_trace + record.predicted_bias for record in first_seeds]
    row[0].plot(list(sizes), variance, **_DASHED, label="predicted, (γ/N) A⁻¹C")
    row[1].plot(list(sizes), variance, **_DASHED, label="predicted variance")
    row[1].plot(list(sizes), with_bias, **_DASHED | {"linestyle": ":"}, label="and bias²")


def _points(axes: Any, sizes: dict[int, list[Stationary]], value: Callable[[Law], float]) -> None:
    for name in ALGORITHMS:
        look = {"color": colour(name), "linestyle": "none", **_MARKERS[name]}
        for number, (N, seeds) in enumerate(sizes.items()):
            values = [value(seed.laws[name]) for seed in seeds]
            axes.plot([N] * len(values), values, **look, label=label_of(TITLES[name], number == 0))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log" if sizes else "linear")


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
