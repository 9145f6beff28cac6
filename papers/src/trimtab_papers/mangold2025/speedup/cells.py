"""The stationary law of FedAvg and SCAFFOLD by the number of clients, from thousands of chains."""

from dataclasses import dataclass
from itertools import islice
from math import ceil
from typing import Any

import torch

from trimtab.core.task import Progress
from trimtab.problems.quadratic import Quadratic
from trimtab.simulation import simulate
from trimtab_papers import many_runs
from trimtab_papers.many_runs import Chains, Logistic, Model, Noisy
from trimtab_papers.names import build
from trimtab_papers.numbers import rounded
from trimtab_papers.records import Record, Records
from trimtab_papers.reproduction import Cell, Computing

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
        """Return what the file holds of an algorithm."""
        words = {"trace": self.trace, "mean square error": self.mean_square_error}
        return words | {"distance": self.distance}

    @classmethod
    def from_json(cls, row: dict[str, float]) -> "Law":
        """Read what the file holds of an algorithm."""
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
        """Read a record."""
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
    """Return the numbers of clients."""
    if quick:
        return (2, 8, 32) if problem == "quadratic" else (4, 8)
    return (2, 4, 8, 16, 32, 64)


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return one cell for each problem, N and seed."""

    def cell(problem: str, N: int, seed: int) -> Cell:
        name = f"{problem}-N{N}" + (f"-seed{seed}" if seed else "")
        return Cell(name, lambda data, scratch: _compute(problem, N, seed, quick))

    return [
        cell(problem, N, seed)
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


def _compute(problem: str, N: int, seed: int, quick: bool) -> Computing:
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
