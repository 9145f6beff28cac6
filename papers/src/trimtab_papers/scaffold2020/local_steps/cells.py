"""The rounds of the best step size of every K, from spectral radii, and runs that check them."""

from dataclasses import dataclass
from itertools import islice
from math import log, log10
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.algorithms import Scaffold
from trimtab.core.task import Progress
from trimtab.diagnosis import theory
from trimtab.diagnosis.theory import Option
from trimtab.problems.quadratic import Quadratic
from trimtab.simulation import simulate
from trimtab_papers.numbers import rounded
from trimtab_papers.records import Record, Records
from trimtab_papers.reproduction import Cell, Computing
from trimtab_papers.scaffold2020.quadratics import per_e_fold

OPTIONS: tuple[Option, ...] = ("I", "II")
# Pairs (L/mu, delta/mu).
FULL = ((100, 10), (1000, 10), (1000, 30), (1000, 100), (1000, 300), (10000, 10), (10000, 100))
QUICK = ((1000, 10), (1000, 100), (1000, 300))
DIRECTIONS = 12
WITHIN = 1.3  # a K is at the plateau if its rounds are <= 1.3 x those of the plateau
COARSE, FINE = 1.2, 1.02  # the next step size tried = the last / 1.2, and then x 1.02


# -- what a record holds


@dataclass(frozen=True)
class AtK:
    """The best step size of a K, its rounds per e-fold, and those of a run.

    run is None if there was none (ran is false), or if it did not shrink the error.
    """

    K: int
    eta_l: float
    rounds: float
    ran: bool
    run: float | None

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "AtK":
        """Read a row of a record."""
        return cls(row["K"], row["eta_l"], row["rounds"], "run" in row, row.get("run"))


@dataclass(frozen=True)
class Sweep:
    """All K on one problem with one option of SCAFFOLD: kappa = L/mu, ratio = delta/mu."""

    option: Option
    kappa: int
    ratio: int
    by_K: tuple[AtK, ...]

    @classmethod
    def from_json(cls, record: Record) -> "Sweep":
        """Read a record."""
        settings = record["settings"]
        by_K = tuple(map(AtK.from_json, record["found"]))
        return cls(settings["option"], settings["L/mu"], settings["delta/mu"], by_K)

    @property
    def order(self) -> tuple[int, int, Option]:
        """How sweeps are sorted."""
        return self.kappa, self.ratio, self.option

    @property
    def title(self) -> str:
        """The problem."""
        return f"L/mu = {self.kappa}, delta/mu = {self.ratio}"

    @property
    def plateau(self) -> float:
        """The rounds per e-fold at the three largest K, on average."""
        return sum(at.rounds for at in self.by_K[-3:]) / 3

    @property
    def best_K(self) -> int:
        """The smallest K within 1.3 x of the plateau."""
        return next(at.K for at in self.by_K if at.rounds <= WITHIN * self.plateau)

    @property
    def knee(self) -> float:
        """What theory says of the best K."""
        return theory.knee(self.kappa, self.ratio, 1.0, self.option)


def read_sweeps(records: Records) -> list[Sweep]:
    """Return all records, by problem and option."""
    return sorted(map(Sweep.from_json, records.values()), key=lambda sweep: sweep.order)


# -- how it is computed


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return one cell for each pair (L/mu, delta/mu) and option; there is no chance in it."""

    def cell(kappa: int, ratio: int, option: Option) -> Cell:
        name = f"{kappa}-{ratio}-{option}"
        return Cell(name, lambda data, scratch: _compute(kappa, ratio, option, quick))

    return [
        cell(kappa, ratio, option)
        for kappa, ratio in (QUICK if quick else FULL)
        for option in OPTIONS
    ]


def _compute(kappa: int, ratio: int, option: Option, quick: bool) -> Computing:
    problem = _problem(kappa, ratio)
    affordable = 20_000 if quick else 100_000  # a run is made if R (20 + 2 K) < affordable
    rows: list[dict[str, Any]] = []
    for K in _counts(8 * max(kappa / ratio, kappa**0.5), quick):
        yield Progress(f"K = {K}")
        row: dict[str, Any] = {"K": K} | _tuned(problem, K, option)
        R = max(20, round(16 * row["rounds"]))
        cost = R * (20 + 2 * K)
        if cost < affordable:
            row["run"] = _run(problem, K, option, row["eta_l"], R)
        rows.append(row)
    record: Record = {
        "settings": {"option": option, "L/mu": kappa, "delta/mu": ratio, "eta_g": 1, "N": 2}
        | {"d": DIRECTIONS, "batch": "all", "L": problem.L, "mu": problem.mu}
        | {"delta": problem.delta},
        "grid": f"eta_l = 2/{COARSE}^j, then 12 steps of {FINE} to both sides of the best",
        "found": rows,
    }
    return rounded(record)


def _problem(kappa: int, ratio: int) -> Quadratic:
    mu, delta = 1 / kappa, ratio / kappa
    h = torch.logspace(log10(mu), log10(1 - delta), DIRECTIONS, dtype=torch.float64)
    D = h.clamp(max=delta)
    b = torch.linspace(-1, 1, DIRECTIONS, dtype=torch.float64)
    return Quadratic(torch.stack([h + D, h - D]), torch.stack([b, -b]))


def _counts(most: float, quick: bool) -> list[int]:
    """Return values of K, about sqrt 2 apart (2 when quick), to well beyond the knee."""
    ratio = 2.0 if quick else 2**0.5
    return sorted({round(ratio**j) for j in range(int(log(most) / log(ratio)) + 2)})


def _tuned(problem: Quadratic, K: int, option: Option) -> dict[str, Any]:
    """Return the best step size, its rounds per e-fold, and those of the whole grid."""
    grid = torch.tensor([2.0 * COARSE**-j for j in range(60)], dtype=torch.float64)
    rates = _rates(problem, grid, K, option)
    about = float(grid[rates.argmin()])
    near = torch.tensor([about * FINE**j for j in range(-12, 13)], dtype=torch.float64)
    fine = _rates(problem, near, K, option)
    best = int(fine.argmin())
    return {
        "eta_l": float(near[best]),
        "rounds": per_e_fold(float(fine[best])),
        "candidates": [
            None if rounds is None else float(f"{rounds:.3g}")
            for rounds in map(per_e_fold, rates.tolist())
        ],
    }


def _rates(problem: Quadratic, eta_l: Tensor, K: int, option: Option) -> Tensor:
    """Return by what factor a round shrinks the error, for each eta_l: a spectral radius."""
    a = problem.A.diagonal(dim1=1, dim2=2)  # Its shape is (clients, directions).
    eta = eta_l[:, None, None]
    q = (1 - eta * a) ** K  # K steps multiply the error of y by q.
    P = torch.where(a > 0, (1 - q) / (eta * a), torch.tensor(float(K), dtype=a.dtype))
    mine = torch.eye(2, dtype=a.dtype) - 0.5  # mine (c_1, c_2) = c_i - c
    M = torch.zeros(len(eta_l), DIRECTIONS, 3, 3, dtype=a.dtype)
    M[..., 0, 0] = q.mean(1)  # y_i = q_i x + eta_l P_i (c_i - c)
    for i in (0, 1):
        M[..., 0, 1:] += (eta * P)[:, i, :, None] * mine[i] / 2
        if option == "I":
            M[..., i + 1, 0] = a[i]  # c_i = g_i(x)
        else:  # c_i = c_i - c + (x - y_i)/(K eta_l)
            M[..., i + 1, 0] = ((1 - q) / (K * eta))[:, i]
            M[..., i + 1, 1:] = (1 - P / K)[:, i, :, None] * mine[i]
    finite = torch.isfinite(M).all(-1).all(-1)[..., None, None]
    radius: Tensor = torch.linalg.eigvals(torch.where(finite, M, 2.0)).abs().amax((1, 2))
    return radius


def _run(problem: Quadratic, K: int, option: Option, eta_l: float, R: int) -> float | None:
    """Return the rounds per e-fold of a run, from its second half."""
    start = problem.x_star + 1
    algorithm = Scaffold(eta_l=eta_l, K=K, option=option)
    models = [done.x for done in islice(simulate(algorithm, problem, x=start), R)]
    late = [float((x - problem.x_star).norm()) for x in models[R // 2 :]]
    slope = float(np.polyfit(range(len(late)), np.log(late), 1)[0])
    return -1 / slope if slope < 0 else None
