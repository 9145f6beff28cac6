"""Every step size of a grid on concrete, cut among ten clients in three ways."""

from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Algorithm
from trimtab.core.task import Progress
from trimtab.problems.data.tables import concrete
from trimtab.problems.partition import by_similarity
from trimtab.problems.quadratic import Quadratic
from trimtab.simulation import Diverged, simulate
from trimtab_papers.names import build
from trimtab_papers.numbers import Curve, first_below, rounded, thinned
from trimtab_papers.records import Record, Records
from trimtab_papers.reproduction import Cell, Computing

ALGORITHMS = ("sgd", "fedavg", "scaffold")
N, K = 10, 10
TARGET = 1e-3  # f - f* <= 1e-3 is the target; f = 1 at the start, and f* = 0.384
CUTS = {
    "sorted": "sorted by strength",
    "file": "in the order of the file",
    "iid": "at random",
}
Grid = tuple[float, ...]
# Two readings of 'tuned'; SGD diverges at the largest of the fine ones.
DECADES: Grid = tuple(10.0**-j for j in range(4))
FINE: Grid = tuple(0.75 / 1.8**j for j in range(10))


# -- what a record holds


@dataclass(frozen=True)
class Tried:
    """A step size: its rounds to the target, f - f* at its end, and its curve if it has one."""

    eta: float
    rounds: int | None
    end: float | None
    diverged: bool
    curve: Curve | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what the file holds; what diverged has no curve."""
        row = {"eta": self.eta, "rounds": self.rounds, "end": self.end, "diverged": self.diverged}
        return row if self.curve is None else row | {"curve": self.curve.to_json()}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "Tried":
        """Read a row of a record."""
        curve = Curve(**row["curve"]) if "curve" in row else None
        return cls(row["eta"], row["rounds"], row["end"], row["diverged"], curve)

    def told(self, R: int) -> str:
        """Return how it fared in R rounds."""
        if self.diverged:
            return "diverges"
        return str(self.rounds) if self.rounds is not None else f"{R}+ (f - f* = {self.end:.2g})"

    def sooner(self, other: "Tried") -> bool:
        """Tell whether it reaches the target in fewer rounds than another."""
        return self.rounds is not None and (other.rounds is None or self.rounds < other.rounds)

    @property
    def rank(self) -> tuple[bool, int, float]:
        """The fewest rounds to the target come first, then the lowest end."""
        end = inf if self.diverged or self.end is None else self.end
        return self.rounds is None, self.rounds or 0, end


@dataclass(frozen=True)
class Tuned:
    """An algorithm on a cut with every step size."""

    R: int
    L_of_a_client: float
    tried: tuple[Tried, ...]

    @classmethod
    def from_json(cls, record: Record) -> "Tuned":
        """Read a record."""
        settings = record["settings"]
        tried = tuple(map(Tried.from_json, record["tried"]))
        return cls(settings["R"], settings["L of a client"], tried)

    def best(self, grid: Grid | None = None) -> Tried:
        """Return the best step size, of all or of those on a grid."""
        on_grid = [
            t
            for t in self.tried
            if grid is None or any(abs(t.eta / eta - 1) < 1e-4 for eta in grid)
        ]
        return min(on_grid, key=lambda t: t.rank)

    def at(self, eta: float) -> Tried:
        """Return the nearest step size."""
        return min(self.tried, key=lambda t: abs(t.eta / eta - 1))


def of_cut(records: Records, cut: str) -> dict[str, Tuned]:
    """Return the algorithms that have a record on a cut, by name."""
    names = [name for name in ALGORITHMS if f"{cut}-{name}" in records]
    return {name: Tuned.from_json(records[f"{cut}-{name}"]) for name in names}


# -- how it is computed


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return one cell for each cut and algorithm; there is no chance in it."""

    def cell(cut: str, name: str) -> Cell:
        R = 60 if quick else 400
        return Cell(f"{cut}-{name}", lambda data, scratch: _compute(cut, name, R, data))

    return [cell(cut, name) for cut in (("sorted",) if quick else CUTS) for name in ALGORITHMS]


def regression(cut: str, data: Path | None = None) -> Quadratic:
    """Return the clients' mean square errors as quadratics; x is eight weights and the bias."""
    X, y = (part.double() for part in concrete(data))
    X, y = torch.cat([X, torch.ones(len(X), 1, dtype=X.dtype)], dim=1), y.flatten()
    clients = [(X[rows], y[rows]) for rows in _rows(cut, y)]
    A = torch.stack([2 / len(y) * X.T @ X for X, y in clients])
    return Quadratic((A + A.mT) / 2, torch.stack([2 / len(y) * X.T @ y for X, y in clients]))


def _rows(cut: str, strength: Tensor) -> list[Tensor]:
    """Return the rows of each client."""
    if cut == "file":
        return list(torch.tensor_split(torch.arange(len(strength)), N))
    return by_similarity(strength, N, {"sorted": 0, "iid": 100}[cut])


def _compute(cut: str, name: str, R: int, data: Path | None) -> Computing:
    problem = regression(cut, data)
    steepest = torch.linalg.eigvalsh(problem.H)[-1]
    tried: list[Tried] = []
    for eta in sorted({*DECADES, *FINE}, reverse=True):
        yield Progress(f"step size {eta:.3g}")
        gaps = _run(problem, build(name, eta, K), R)
        diverged = gaps[-1] > gaps[0]
        curve = None if diverged else thinned(gaps[:101], 60)
        tried.append(Tried(eta, first_below(gaps, TARGET), gaps[-1], diverged, curve))
    record: Record = {
        "settings": {"cut": cut, "algorithm": name, "N": N, "K": K, "R": R, "eta_g": 1}
        | {"batch": "all", "target": TARGET, "option": "II"}
        | {"L of f": float(steepest), "L of a client": problem.L, "mu": problem.mu}
        | {"delta": problem.delta, "G": problem.G},
        "tried": [t.to_json() for t in tried],
    }
    return rounded(record)


def _run(problem: Quadratic, algorithm: Algorithm, R: int) -> list[float]:
    """Return f - f* after each round; the curve ends where it arrives or diverges."""
    gaps = [problem.evaluate(problem.x0())["gap"]]
    try:
        for done in islice(simulate(algorithm, problem), R):
            gaps.append(problem.evaluate(done.x)["gap"])
            if not 1e-8 < gaps[-1] < 1e3 * gaps[0]:
                break
    except Diverged:
        pass
    return gaps
