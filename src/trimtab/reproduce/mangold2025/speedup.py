"""Linear speed-up: the stationary variance of FedAvg and SCAFFOLD falls as 1/N, controls and all.

Mangold et al., 2025 (slide "Numerical Illustration: Speed-Up of Scaffold"). All clients in every
round, mini-batches drawn i.i.d.; thousands of chains side by side from x*, until their law is
stationary. Its covariance beside Sigma with Hess Sigma + Sigma Hess = (eta_g gamma/N) C.
"""

from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from trimtab.algorithms import FedAvg, Scaffold
from trimtab.core import Algorithm
from trimtab.problems.quadratic import Quadratic
from trimtab.report.plots import COLOURS, STYLE
from trimtab.reproduce import many_runs
from trimtab.reproduce.many_runs import Chains, Logistic, Model, Noisy
from trimtab.reproduce.numbers import rounded, slope, spread
from trimtab.reproduce.reproduction import Cell, Claim, Record, Records, Reproduction, Say
from trimtab.simulation import simulate

K = 10
PROBLEMS = {"quadratic": "quadratics with noise", "logistic": "logistic regression"}
GAMMA = {"quadratic": 0.01, "logistic": 0.0025}
NAMES = {"fedavg": "FedAvg", "scaffold": "SCAFFOLD"}


def _sizes(problem: str, quick: bool) -> tuple[int, ...]:
    if quick:
        return (2, 8, 32) if problem == "quadratic" else (4, 8)
    return (2, 4, 8, 16, 32, 64)


def _quadratics(N: int) -> Noisy:
    """Return clients of two kinds, N/2 each, so that nothing but N changes with N."""
    H = torch.tensor([0.8, 1.2, 1.6], dtype=torch.float64)
    D, v = 0.5 * H.flip(0), torch.tensor([0.6, -0.4, 0.5], dtype=torch.float64)
    kinds = [(H + D, v), (H - D, -v)]
    A, b = (torch.stack([kinds[i % 2][j] for i in range(N)]) for j in (0, 1))
    return Noisy(Quadratic(A, b, sigma=1.0))


def _model(problem: str, N: int) -> Model:
    return _quadratics(N) if problem == "quadratic" else Logistic(N, batch=1)


def _algorithms(gamma: float) -> dict[str, Algorithm]:
    return {"fedavg": FedAvg(eta_l=gamma, K=K), "scaffold": Scaffold(eta_l=gamma, K=K)}


def _stationary(problem: str, N: int, seed: int, quick: bool, say: Say) -> Record:
    """Return covariance and mean square error of the last round, over the many_runs."""
    model, gamma, M = _model(problem, N), GAMMA[problem], 2000 if quick else 3000
    many, x_star = Chains(model, M), many_runs.optimum(model)
    mu = float(torch.linalg.eigvalsh(many_runs.hessian(model, x_star))[0])
    R = ceil(
        (2 if quick else 3) / (gamma * K * mu)
    )  # the start is forgotten as exp(-2 gamma K mu R)
    predicted = many_runs.stationary_covariance(model, x_star, gamma)
    found: dict[str, Any] = {}
    for name, algorithm in _algorithms(gamma).items():
        say(f"{M} chains of {name}, {R} rounds")
        *_, last = islice(simulate(algorithm, many, x=many.start(x_star), seed=seed), R)
        errors = many.rows(last.x) - x_star
        covariance = torch.cov(errors.T)
        found[name] = {
            "trace": float(covariance.trace()),
            "mean square error": float(errors.square().sum(1).mean()),
            "distance": float((covariance - predicted).norm() / predicted.norm()),
        }
    bias = many_runs.heterogeneity_bias(model, x_star, gamma, K)
    return {
        "settings": {"problem": problem, "N": N, "K": K, "gamma": gamma, "eta_g": 1, "R": R}
        | {"d": model.d, "chains": M, "seed": seed, "batch": "1, i.i.d.", "mu": mu},
        "predicted trace": float(predicted.trace()),
        "predicted bias^2 of FedAvg": float(bias.square().sum()),
        "found": found,
    }


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return one cell for each problem, N and seed."""

    def cell(problem: str, N: int, seed: int) -> Cell:
        def compute(data: Path | None, say: Say, scratch: Path) -> Record:
            record: Record = rounded(_stationary(problem, N, seed, quick, say))
            return record

        return Cell(f"{problem}-N{N}" + (f"-seed{seed}" if seed else ""), compute)

    return [
        cell(problem, N, seed)
        for seed in range(seeds)
        for problem in PROBLEMS
        for N in _sizes(problem, quick)
    ]


_SENTENCES = (
    "Linear speed-up: the stationary variance of SCAFFOLD falls as 1/N (slope -1.1 to -0.9).",
    "FedAvg's does as well.",
    "Both are what (eta_g gamma/N) A^-1 C says, within 10 % for every N.",
    "SCAFFOLD's variance is close to FedAvg's (within 10 %).",
    "FedAvg's mean square error stops falling at its squared bias; SCAFFOLD's goes on with 1/N.",
)


def _by_size(records: Records, problem: str) -> dict[int, list[Record]]:
    """Return the records of all seeds by N."""
    found: dict[int, list[Record]] = {}
    for record in records.values():
        if record["settings"]["problem"] == problem:
            found.setdefault(record["settings"]["N"], []).append(record)
    return dict(sorted(found.items()))


def _values(group: list[Record], name: str, what: str) -> list[float]:
    return [record["found"][name][what] for record in group]


def _mean(group: list[Record], name: str, what: str = "trace") -> float:
    return sum(_values(group, name, what)) / len(group)


def _slope(sizes: dict[int, list[Record]], name: str) -> float:
    return slope(list(sizes), [_mean(group, name) for group in sizes.values()])


def claims(records: Records) -> list[Claim]:
    """Judge what the slides say of the variance."""
    of = {problem: _by_size(records, problem) for problem in PROBLEMS}
    if any(not set(_sizes(name, quick=True)) <= set(sizes) for name, sizes in of.items()):
        return [Claim(sentence, None) for sentence in _SENTENCES]
    slopes = {
        name: {problem: _slope(sizes, name) for problem, sizes in of.items()} for name in NAMES
    }
    off = {
        name: {
            problem: max(
                (abs(_mean(group, name) / group[0]["predicted trace"] - 1), N)
                for N, group in sizes.items()
            )
            for problem, sizes in of.items()
        }
        for name in NAMES
    }
    apart = {
        problem: max(
            abs(_mean(group, "scaffold") / _mean(group, "fedavg") - 1) for group in sizes.values()
        )
        for problem, sizes in of.items()
    }
    sizes = of["quadratic"]
    few, most = min(sizes), max(sizes)
    square = {
        name: {N: _mean(sizes[N], name, "mean square error") for N in (few, most)} for name in NAMES
    }
    floor = sizes[most][0]["predicted bias^2 of FedAvg"]
    falls = square["scaffold"][few] / square["scaffold"][most]
    found = (
        *(
            (all(-1.1 < s < -0.9 for s in slopes[name].values()), _listed(slopes[name], ".3f"))
            for name in ("scaffold", "fedavg")
        ),
        (
            all(v < 0.1 for by in off.values() for v, _ in by.values()),
            "farthest off: "
            + "; ".join(
                f"{NAMES[name]}, {problem} {v:.1%} at N = {N}"
                for name, by in off.items()
                for problem, (v, N) in by.items()
            ),
        ),
        (all(v < 0.1 for v in apart.values()), "farthest apart: " + _listed(apart, ".1%")),
        (
            square["fedavg"][most] > 0.5 * floor
            and square["fedavg"][most] > 2 * square["scaffold"][most]
            and falls > 0.8 * most / few,
            f"quadratics, N = {few} and {most}: FedAvg {square['fedavg'][few]:.2g} and "
            f"{square['fedavg'][most]:.2g} (bias² {floor:.2g}), SCAFFOLD "
            f"{square['scaffold'][few]:.2g} and {square['scaffold'][most]:.2g}",
        ),
    )
    return [Claim(s, held, text) for s, (held, text) in zip(_SENTENCES, found, strict=True)]


def _listed(numbers: dict[str, float], form: str) -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in numbers.items())


def table(records: Records) -> str:
    """Return the trace of the covariance beside the predicted one, for each N."""
    lines = [
        "| problem | N | predicted trace | FedAvg | SCAFFOLD | E\\|x - x*\\|²: FedAvg | SCAFFOLD |",
        "|---|---|---|---|---|---|---|",
    ]
    for problem in PROBLEMS:
        for N, group in _by_size(records, problem).items():
            traces, squares = (
                [spread(_values(group, name, what)) for name in NAMES]
                for what in ("trace", "mean square error")
            )
            lines.append(
                f"| {problem} | {N} | {group[0]['predicted trace']:.3g} | {traces[0]} "
                f"| {traces[1]} | {squares[0]} | {squares[1]} |"
            )
    return "\n".join(lines)


def figure(records: Records) -> Figure:
    """Return, for each problem, variance and mean square error against N."""
    with rc_context(STYLE):
        made = Figure(figsize=(9.5, 6.4), layout="constrained")
        panels: Any = made.subplots(len(PROBLEMS), 2, sharex=True, squeeze=False)
        for row, problem in zip(panels, PROBLEMS, strict=True):
            sizes = _by_size(records, problem)
            some = {N: group[0] for N, group in sizes.items()}
            variance = [record["predicted trace"] for record in some.values()]
            bias = [record["predicted bias^2 of FedAvg"] for record in some.values()]
            both = [a + b for a, b in zip(variance, bias, strict=True)]
            row[0].plot(list(some), variance, **_DASHED, label="predicted, (γ/N) A⁻¹C")
            row[1].plot(list(some), variance, **_DASHED, label="predicted variance")
            row[1].plot(list(some), both, **_DASHED | {"linestyle": ":"}, label="and bias²")
            for axes, what in zip(row, ("trace", "mean square error"), strict=True):
                for name, marker in (("fedavg", "s"), ("scaffold", "o")):
                    look = {"color": COLOURS[name], "marker": marker, "linestyle": "none"}
                    face = {"markerfacecolor": "none"} if name == "fedavg" else {}
                    size = {"markersize": 8 if name == "fedavg" else 4.5}
                    for number, (N, group) in enumerate(sizes.items()):
                        values = _values(group, name, what)
                        label = {"label": NAMES[name]} if number == 0 else {}
                        axes.plot([N] * len(values), values, **look | face | size | label)
                axes.set_xscale("log", base=2)
                axes.set_yscale("log" if sizes else "linear")
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
    return made


_DASHED: dict[str, Any] = {"color": "#777777", "linewidth": 1.3, "linestyle": "--"}

SPEEDUP = Reproduction(
    name="speedup",
    shows="the stationary variance of SCAFFOLD and FedAvg falls as 1/N, as predicted",
    source="Mangold et al. 2025, slides 'Numerical Illustration: Speed-Up of Scaffold'",
    minutes=1.5,
    cells=cells,
    claims=claims,
    table=table,
    figure=figure,
    discussion="The slides print (gamma/N) C; the A^-1 (the solution of a Lyapunov equation) that "
    "their own bias formula has belongs here too. The quadratics come in two kinds, N/2 clients of "
    "each, so that only N changes; the logistic regressions are N different clients.",
)
