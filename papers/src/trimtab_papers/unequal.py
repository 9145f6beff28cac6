"""Clients that make different numbers of local steps: SCAFFOLD still reaches the optimum.

Nothing here is a sentence of a paper. FedNova (Wang et al. 2020) is the baseline made for unequal
K_i, and slow clients are those of the experiments of FedProx.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from trimtab.core import Algorithm, Epochs
from trimtab.core.task import Progress
from trimtab.problems.quadratic import Quadratic
from trimtab.simulation import simulate
from trimtab_papers.engine import TITLES, Cell, Computing, Reproduction, build, cell_of, colour
from trimtab_papers.figures import drawn, label_of
from trimtab_papers.verdicts import (
    Curve,
    Held,
    MissingRecordError,
    Record,
    Records,
    Sentences,
    Verdict,
    over_seeds,
    spread,
    thinned,
)

ALGORITHMS = ("fedavg", "fednova", "scaffold")
N, D, ETA, K, ROUNDS = 10, 5, 0.05, 10, 1200
WORK = {"equal": "K = 10", "sizes": "K_i = 1 … 10, by client", "slow": "half are slow, K_i <= 10"}
SAMPLED = (10, 3)
SEEDS = 3
THERE = 1e-8  # a run is at x* if |x - x*| <= 1e-8 of the start's distance
AWAY = 1e-2  # a run stays away if that is >= 1e-2 on average over the last quarter
PAPER = Sentences("ours")


class Sized(Quadratic):
    """Quadratics whose client i has i + 1 mini-batches."""

    def steps_in_a_pass(self, i: int) -> int:
        """Return how many mini-batches make up one pass."""
        return i + 1


# -- the cells


@dataclass(frozen=True)
class Runs:
    """|x - x*| after each round, relative to the start, and on average over the last quarter."""

    work: str
    S: int
    seed: int
    curves: dict[str, Curve]
    ends: dict[str, float]

    def to_json(self) -> Record:
        settings = {"work": self.work, "S": self.S, "seed": self.seed, "N": N, "d": D}
        settings |= {"eta_l": ETA, "K": K}
        curves = {name: curve.to_json() for name, curve in self.curves.items()}
        return {"settings": settings, "curves": curves, "ends": self.ends}

    @classmethod
    def from_json(cls, record: Record) -> "Runs":
        work, S, seed = (record["settings"][word] for word in ("work", "S", "seed"))
        curves = {name: Curve(**curve) for name, curve in record["curves"].items()}
        return cls(work, S, seed, curves, record["ends"])


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return one cell for each kind of work, number of sampled clients, and seed."""
    count, rounds = (seeds, ROUNDS // 4) if quick else (max(seeds, SEEDS), ROUNDS)
    return [
        cell_of(f"{work}-S{S}", _compute, work, S, rounds, seed=seed)
        for seed in range(count)
        for work in WORK
        for S in SAMPLED
    ]


def problem(seed: int) -> Sized:
    """Return quadratics whose Hessians have eigenvalues from 0.5 to 3 in random directions."""
    draw = torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(N, D, D, generator=draw, dtype=torch.float64))
    eigenvalues = 0.5 + 2.5 * torch.rand(N, D, generator=draw, dtype=torch.float64)
    A = Q @ torch.diag_embed(eigenvalues) @ Q.mT
    b = 2 * torch.randn(N, D, generator=draw, dtype=torch.float64)
    return Sized((A + A.mT) / 2, b)


def _compute(work: str, S: int, rounds: int, seed: int) -> Computing:
    where, steps = problem(seed), Epochs(1) if work == "sizes" else K
    slow = 0.5 if work == "slow" else 0.0
    curves, ends = {}, {}
    for name in ALGORITHMS:
        yield Progress(TITLES[name])
        distances = _distances(build(name, ETA, steps), where, S, seed, slow, rounds)
        curves[name] = thinned([max(value, 1e-17) for value in distances])
        ends[name] = fmean(distances[-rounds // 4 :])
    return Runs(work, S, seed, curves, ends).to_json()


def _distances(
    algorithm: Algorithm, where: Sized, S: int, seed: int, slow: float, rounds: int
) -> list[float]:
    """Return |x - x*| / |x0 - x*| from round 0 on; x0 = 0."""
    x = torch.zeros(D, dtype=torch.float64)
    start = float((x - where.x_star).norm())
    sim = simulate(algorithm, where, S=S, seed=seed, x=x, slow=slow)
    found = (float((next(sim).x - where.x_star).norm()) for _ in range(rounds))
    return [1.0, *(distance / start for distance in found)]


# -- what we say of it


def _runs(records: Records, *works: str) -> list[Runs]:
    """Return the runs with these kinds of work, once there are some of every kind."""
    found = list(map(Runs.from_json, records.values()))
    if {(run.work, run.S) for run in found} != {(work, S) for work in WORK for S in SAMPLED}:
        raise MissingRecordError
    return [run for run in found if run.work in works]


def _ends(runs: list[Runs], name: str) -> str:
    return f"{TITLES[name]} {spread([run.ends[name] for run in runs], '.2g')}"


def _each_seed(runs: list[Runs], holds: Any) -> Held:
    return {seed: all(holds(r) for r in runs if r.seed == seed) for seed in {r.seed for r in runs}}


@PAPER.check("SCAFFOLD reaches the optimum with any K_i, by client or by chance, also with S < N.")
def scaffold_arrives(records: Records) -> Verdict:
    runs = _runs(records, "sizes", "slow")
    held = _each_seed(runs, lambda run: run.ends["scaffold"] <= THERE)
    return over_seeds(held, f"|x - x*| at the end: {_ends(runs, 'scaffold')}")


@PAPER.check("FedAvg and FedNova do not, with all clients or with some.")
def others_stay_away(records: Records) -> Verdict:
    runs = _runs(records, "sizes", "slow")
    held = _each_seed(runs, lambda run: min(run.ends["fedavg"], run.ends["fednova"]) >= AWAY)
    told = ", ".join(_ends(runs, name) for name in ("fedavg", "fednova"))
    return over_seeds(held, f"|x - x*| at the end: {told}")


@PAPER.check("With all clients and K_i by client FedNova ends nearer to the optimum than FedAvg.")
def fednova_helps(records: Records) -> Verdict:
    """Compare where they end; with K_i by chance all weigh the same on average."""
    runs = [run for run in _runs(records, "sizes") if run.S == N]
    held = _each_seed(runs, lambda run: run.ends["fednova"] < run.ends["fedavg"])
    told = ", ".join(_ends(runs, name) for name in ("fedavg", "fednova"))
    return over_seeds(held, f"|x - x*| at the end: {told}")


@PAPER.check("Where all make K steps, FedNova is FedAvg.")
def fednova_is_fedavg(records: Records) -> Verdict:
    runs = _runs(records, "equal")
    pairs = [
        (a, b)
        for run in runs
        for a, b in zip(run.curves["fednova"].values, run.curves["fedavg"].values, strict=True)
    ]
    apart = max(abs(a - b) for a, b in pairs)
    seeds = len({run.seed for run in runs})
    told = f"the largest difference between curves of {seeds} seeds: {apart:.1g}"
    return Verdict(apart <= 1e-5, told, seeds=seeds)


# -- how it is shown


def table(records: Records) -> str:
    """Return where each algorithm ends."""
    rows = [
        f"| local steps | clients | {' | '.join(TITLES[name] for name in ALGORITHMS)} |",
        "|---|---|---|---|---|",
    ]
    runs = list(map(Runs.from_json, records.values()))
    for work, words in WORK.items():
        for S in SAMPLED:
            some = [run for run in runs if (run.work, run.S) == (work, S)]
            if some:
                ends = (spread([run.ends[name] for run in some], ".2g") for name in ALGORITHMS)
                rows.append(f"| {words} | {S} of {N} | {' | '.join(ends)} |")
    return "\n".join(rows)


@drawn(9.5, 5.2)
def figure(fig: Any, records: Records) -> None:
    """Return the distance from the optimum: columns are kinds of work, rows sampled clients."""
    grid = fig.subplots(len(SAMPLED), len(WORK), sharex=True, sharey=True, squeeze=False)
    for run in map(Runs.from_json, records.values()):
        axes = grid[SAMPLED.index(run.S)][list(WORK).index(run.work)]
        for name, curve in run.curves.items():
            label = label_of(TITLES[name], run.seed == 0)
            axes.plot(curve.rounds, curve.values, color=colour(name), linewidth=1.2, label=label)
    for row, S in zip(grid, SAMPLED, strict=True):
        row[0].set_ylabel("|x - x*| / |x0 - x*|")
        for axes, words in zip(row, WORK.values(), strict=True):
            axes.set_yscale("log")
            axes.set_title(f"{words}; {S} of {N} clients", fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("rounds")
    handles, _ = grid[0][0].get_legend_handles_labels()
    if handles:
        grid[0][0].legend(loc="center right")


UNEQUAL = Reproduction(
    name="unequal",
    shows="clients that make different numbers of local steps: only SCAFFOLD reaches the optimum",
    source="ours (FedNova: Wang et al. 2020; slow clients: FedProx's experiments)",
    minutes=1,
    cells=cells,
    sentences=PAPER,
    table=table,
    figure=figure,
    discussion=(
        "Ten quadratics without noise, constant steps, three draws of the problem; the table has "
        "|x - x*| relative to the start, on average over the last quarter of the rounds. At x* the "
        "corrected gradient of every client is zero, so it stays there however many steps it "
        "makes; and c_i is the mean of the client's own gradients, whatever K_i was. So SCAFFOLD "
        "needs no change but to divide by its own K_i. FedNova removes the weight that many steps "
        "give to a client, and keeps the drift of local steps, as FedAvg does."
    ),
)
