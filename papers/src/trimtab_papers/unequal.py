"""Clients that make different numbers of local steps: SCAFFOLD still reaches the optimum.

Nothing here is a sentence of a paper. FedNova (Wang et al. 2020) is the baseline made for unequal
K_i, and slow clients are those of the experiments of FedProx.
"""

from collections.abc import Callable
from itertools import islice, product
from statistics import fmean
from typing import Any

import torch

from trimtab.core import Epochs
from trimtab.core.task import Progress
from trimtab.problems.quadratic import Quadratic
from trimtab.simulation import simulate
from trimtab_papers.engine import TITLES, Cell, Computing, Reproduction, build, cell_of, colour
from trimtab_papers.figures import add_legend, drawn, label_of
from trimtab_papers.verdicts import (
    MissingRecordError,
    Record,
    Records,
    Sentences,
    Verdict,
    each_seed,
    grouped,
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
        return i + 1


# -- the cells


def cells(quick: bool, seeds: int) -> list[Cell]:
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
    """Return |x - x*| / |x0 - x*| after each round, and on average over the last quarter."""
    quadratics, steps = problem(seed), Epochs(1) if work == "sizes" else K
    x = torch.zeros(D, dtype=torch.float64)
    start = float((x - quadratics.x_star).norm())
    curves, ends = {}, {}
    for name in ALGORITHMS:
        yield Progress(TITLES[name])
        slow = 0.5 if work == "slow" else 0.0
        runs = simulate(build(name, ETA, steps), quadratics, S=S, seed=seed, x=x, slow=slow)
        errors = (float((done.x - quadratics.x_star).norm()) for done in islice(runs, rounds))
        distances = [1.0, *(error / start for error in errors)]
        curves[name] = thinned([max(value, 1e-17) for value in distances])
        ends[name] = fmean(distances[-rounds // 4 :])
    settings = {"work": work, "S": S, "seed": seed, "N": N, "d": D, "eta_l": ETA, "K": K}
    return {"settings": settings, "curves": curves, "ends": ends}


# -- what we say of it


def _of_work(records: Records, *works: str) -> list[Record]:
    """Return the records of these kinds of work, once there are some of every kind."""
    found = {(r["settings"]["work"], r["settings"]["S"]) for r in records.values()}
    if found != {(work, S) for work in WORK for S in SAMPLED}:
        raise MissingRecordError
    return [record for record in records.values() if record["settings"]["work"] in works]


def _judged(
    records: list[Record], names: tuple[str, ...], holds: Callable[[dict[str, float]], bool]
) -> Verdict:
    """Judge each seed by where its runs end."""
    ends = {name: spread((record["ends"][name] for record in records), ".2g") for name in names}
    numbers = ", ".join(f"{TITLES[name]} {ends[name]}" for name in names)
    return each_seed(
        grouped(records, "seed"),
        lambda some: all(holds(record["ends"]) for record in some),
        f"|x - x*| at the end: {numbers}",
    )


@PAPER.check("SCAFFOLD reaches the optimum with any K_i, by client or by chance, also with S < N.")
def scaffold_arrives(records: Records) -> Verdict:
    found = _of_work(records, "sizes", "slow")
    return _judged(found, ("scaffold",), lambda ends: ends["scaffold"] <= THERE)


@PAPER.check("FedAvg and FedNova do not, with all clients or with some.")
def others_stay_away(records: Records) -> Verdict:
    found = _of_work(records, "sizes", "slow")
    return _judged(
        found, ("fedavg", "fednova"), lambda ends: min(ends["fedavg"], ends["fednova"]) >= AWAY
    )


@PAPER.check("With all clients and K_i by client FedNova ends nearer to the optimum than FedAvg.")
def fednova_helps(records: Records) -> Verdict:
    """Compare where they end; with K_i by chance all weigh the same on average."""
    found = [r for r in _of_work(records, "sizes") if r["settings"]["S"] == N]
    return _judged(found, ("fedavg", "fednova"), lambda ends: ends["fednova"] < ends["fedavg"])


@PAPER.check("Where all make K steps, FedNova is FedAvg.")
def fednova_is_fedavg(records: Records) -> Verdict:
    found = _of_work(records, "equal")
    curves = [[r["curves"][name]["values"] for name in ("fednova", "fedavg")] for r in found]
    apart = max(abs(a - b) for pair in curves for a, b in zip(*pair, strict=True))
    seeds = len({record["settings"]["seed"] for record in found})
    numbers = f"the largest difference between curves of {seeds} seeds: {apart:.1g}"
    return Verdict(apart <= 1e-5, numbers, seeds=seeds)


# -- table and figure


def table(records: Records) -> str:
    rows = [
        f"| local steps | clients | {' | '.join(TITLES[name] for name in ALGORITHMS)} |",
        "|---|---|---|---|---|",
    ]
    for (work, title), S in product(WORK.items(), SAMPLED):
        settings = {"work": work, "S": S}
        some = [r["ends"] for r in records.values() if settings.items() <= r["settings"].items()]
        if some:
            ends = (spread((one[name] for one in some), ".2g") for name in ALGORITHMS)
            rows.append(f"| {title} | {S} of {N} | {' | '.join(ends)} |")
    return "\n".join(rows)


@drawn(9.5, 5.2)
def figure(fig: Any, records: Records) -> None:
    """Return the distance from the optimum: columns are kinds of work, rows sampled clients."""
    grid = fig.subplots(len(SAMPLED), len(WORK), sharex=True, sharey=True, squeeze=False)
    for record in records.values():
        work, S, seed = (record["settings"][word] for word in ("work", "S", "seed"))
        axes = grid[SAMPLED.index(S)][list(WORK).index(work)]
        for name, curve in record["curves"].items():
            look = {"color": colour(name), "linewidth": 1.2}
            label = label_of(TITLES[name], seed == 0)
            axes.plot(curve["rounds"], curve["values"], **look, label=label)
    for row, S in zip(grid, SAMPLED, strict=True):
        row[0].set_ylabel("|x - x*| / |x0 - x*|")
        for axes, words in zip(row, WORK.values(), strict=True):
            axes.set_yscale("log")
            axes.set_title(f"{words}; {S} of {N} clients", fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("rounds")
    add_legend([grid[0][0]], loc="center right")


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
