"""Theorem II of SCAFFOLD: FedAvg's error falls no faster than (G/R)^2/mu, whatever its local step.

Karimireddy et al., 2020, section 3.2. The pair of Figure 3, f_1 = mu x^2 + G x and f_2 = -G x, from
x0 = G/mu, with eta_g = 1; the best eta_l in (0, 1/(2 mu)] is found for every number of rounds.
A round of FedAvg is x <- a x + b here, so f(x_R) has a closed form, checked against runs.
"""

from collections.abc import Mapping
from itertools import islice
from math import log10
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms import FedAvg
from trimtab.core.task import Progress
from trimtab.problems.quadratic import Quadratic
from trimtab.simulation import simulate
from trimtab_papers.engine import Cell, Computing, Reproduction, cell_of
from trimtab_papers.figures import drawn, label_of
from trimtab_papers.verdicts import (
    MissingRecordError,
    Record,
    Records,
    Sentences,
    Verdict,
    rounded,
    slope,
)

KS, GS, MU = (2, 5, 10), (1.0, 10.0, 100.0, 1000.0), 1.0
ROUNDS = tuple(2**j for j in range(15))  # 1 <= R <= 16384
FIT_FROM = 64  # the slope against R is fitted over R >= 64
AT = 64  # the slope against G is that at R = 64
GRID = (-7.0, log10(0.5), 4001)  # -7 <= log10(mu eta_l) <= log10(0.5), 4001 values
BOUND = 0.2  # f(x_R) mu R^2/G^2 >= 0.2
PAPER = Sentences("section 3.2, Theorem II", ours="ours: what the bound looks like on this pair")


# -- the cells


def _affine(eta_l: Tensor, K: int, G: float) -> tuple[Tensor, Tensor]:
    """Return a and the fixed point b/(1 - a) of FedAvg's round x <- a x + b."""
    lost = -torch.expm1(K * torch.log1p(-2 * MU * eta_l))  # lost = 1 - (1 - 2 mu eta_l)^K
    b = eta_l * G / 2 * (K - lost / (2 * MU * eta_l))
    return 1 - lost / 2, b / (lost / 2)


def _losses(R: Tensor, eta_l: Tensor, K: int, G: float) -> Tensor:
    """Return f(x_R), one row for each R."""
    a, limit = _affine(eta_l, K, G)
    x = limit + torch.exp(R[:, None] * torch.log(a)) * (G / MU - limit)
    return MU / 2 * x.square()


def _best(R: list[int], K: int, G: float) -> tuple[list[float], list[float]]:
    """Return for each R the least f(x_R), and the eta_l it takes."""
    eta_l = torch.logspace(*GRID, dtype=torch.float64) / MU
    losses, steps = [], []
    for part in torch.split(torch.tensor(R, dtype=torch.float64), 256):
        least = _losses(part, eta_l, K, G).min(dim=1)
        losses += least.values.tolist()
        steps += eta_l[least.indices].tolist()
    return losses, steps


def _simulated(R: int, eta_l: float, K: int, G: float, eta_g: float = 1.0) -> float:
    """Return f(x_R) of a run."""
    numbers = torch.tensor([[2 * MU, 0.0], [-G, G]], dtype=torch.float64)
    pair = Quadratic(A=numbers[0], b=numbers[1])
    x0 = torch.full((1,), G / MU, dtype=torch.float64)
    algorithm = FedAvg(eta_l=eta_l, K=K, eta_g=eta_g)
    *_, last = islice(simulate(algorithm, pair, x=x0), R)
    return pair.evaluate(last.x)["gap"]


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return one cell for each K; there is no chance in it."""
    return [cell_of(f"K{K}", _compute, K, quick) for K in KS]


def _compute(K: int, quick: bool) -> Computing:
    """Return the best losses against R and against G, and the runs that check them."""
    yield Progress("closed form")
    all_R = list(ROUNDS if quick else range(1, ROUNDS[-1] + 1))
    scaled = [f * MU * R**2 for R, f in zip(all_R, _best(all_R, K, 1.0)[0], strict=True)]
    losses, steps = _best(list(ROUNDS), K, 1.0)
    runs: list[dict[str, float]] = []
    longest = 64 if quick else 1024
    for R, f, eta_l in zip(ROUNDS, losses, steps, strict=True):
        if longest >= R and R in ROUNDS[::2]:
            yield Progress(f"a run of {R} rounds")
            runs.append({"R": R, "closed form": f, "run": _simulated(R, eta_l, K, 1.0)})
    free = {"eta_l": 1e-5, "eta_g": 1e5 / K / MU, "R": AT}
    free["f"] = _simulated(AT, free["eta_l"], K, 1.0, free["eta_g"])
    record: Record = {
        "settings": {"K": K, "mu": MU, "eta_g": 1, "x0": "G/mu", "clients": 2, "batch": "all"},
        "candidates": {"log10 mu eta_l from, to, how many": GRID},
        "R": ROUNDS,
        "f": losses,
        "eta_l": steps,
        "G": GS,
        "f at G": [_best([AT], K, G)[0][0] for G in GS],
        "least f mu R^2/G^2": {"value": min(scaled), "over how many R": len(all_R)},
        "runs": runs,
        "eta_g free": free,
    }
    return rounded(record) | {"runs": runs}  # They differ in the last digits only.


# -- what the paper says


def _slopes(record: Record) -> tuple[float, float]:
    late = [(R, f) for R, f in zip(record["R"], record["f"], strict=True) if R >= FIT_FROM]
    return slope(*zip(*late, strict=True)), slope(record["G"], record["f at G"])


def _by_K(records: Records) -> dict[int, Record]:
    if any(f"K{K}" not in records for K in KS):
        raise MissingRecordError
    return {K: records[f"K{K}"] for K in KS}


def _in_words(numbers: Mapping[int, float], form: str) -> str:
    return ", ".join(f"K = {K}: {value:{form}}" for K, value in numbers.items())


@PAPER.says(
    "With eta_g = 1 and K > 1, FedAvg's error is at least of order G^2/(mu R^2), whatever its "
    f"local step size: f mu R^2/G^2 >= {BOUND} for every R."
)
def error_is_at_least_of_second_order(records: Records) -> Verdict:
    least = {K: record["least f mu R^2/G^2"] for K, record in _by_K(records).items()}
    values = {K: at["value"] for K, at in least.items()}
    tried = min(at["over how many R"] for at in least.values())
    numbers = f"the least over {tried:,} R: {_in_words(values, '.3f')}"
    return Verdict(min(values.values()) >= BOUND, numbers)


@PAPER.check("The error falls almost as R^-2, a logarithm short of it: slope -1.85 to -1.70.")
def error_falls_almost_as_second_power(records: Records) -> Verdict:
    slopes = {K: _slopes(record)[0] for K, record in _by_K(records).items()}
    return Verdict(all(-1.85 < s < -1.70 for s in slopes.values()), _in_words(slopes, ".3f"))


@PAPER.says("The error grows as G^2: slope 2.")
def error_grows_as_G_squared(records: Records) -> Verdict:
    slopes = {K: _slopes(record)[1] for K, record in _by_K(records).items()}
    return Verdict(all(abs(s - 2) < 1e-5 for s in slopes.values()), _in_words(slopes, ".4f"))


@PAPER.check("The closed form is what FedAvg does.", "ours: it is what the others stand on")
def closed_form_is_what_runs_do(records: Records) -> Verdict:
    runs = [run for record in _by_K(records).values() for run in record["runs"]]
    off = max(float(abs(run["run"] / run["closed form"] - 1)) for run in runs)
    longest = max(run["R"] for run in runs)
    return Verdict(off < 1e-6, f"runs of up to {longest} rounds differ by {off:.1g} of it at most")


@PAPER.check("With eta_g free FedAvg becomes SGD, and the bound does not hold.")
def bound_needs_eta_g_of_one(records: Records) -> Verdict:
    free = {K: record["eta_g free"]["f"] * MU * AT**2 for K, record in _by_K(records).items()}
    numbers = f"f mu R^2/G^2 at R = {AT}: {_in_words(free, '.1g')}"
    return Verdict(max(free.values()) < BOUND, numbers)


# -- table and figure


def table(records: Records) -> str:
    """Return the slopes and the least of f mu R^2/G^2 beside what the theorem says."""
    rows = [
        "| K | slope against R | slope against G | least f mu R²/G² | f mu/G² at R = 64 | at 16384 "
        "| best eta_l mu at 64 |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in _ordered(records):
        (in_R, in_G), at = _slopes(record), record["R"].index(AT)
        rows.append(
            f"| {record['settings']['K']} | {in_R:.3f} | {in_G:.3f} "
            f"| {record['least f mu R^2/G^2']['value']:.3f} | {record['f'][at]:.3g} "
            f"| {record['f'][-1]:.3g} | {record['eta_l'][at]:.3g} |"
        )
    rows.append("| Theorem II | -2 (a bound) | 2 | a positive constant | | | |")
    return "\n".join(rows)


def _ordered(records: Records) -> list[Record]:
    return sorted(records.values(), key=lambda record: int(record["settings"]["K"]))


_REDS = {2: "#e9a3ac", 5: "#d1495b", 10: "#7d1f2d"}  # FedAvg's red is darker for a larger K.


@drawn(11, 3.6)
def figure(fig: Any, records: Records) -> None:
    """Return the error against R, the same times R^2, and the error against G."""
    panels = fig.subplots(1, 3)
    falls, times, grows = panels
    for record in _ordered(records):
        K, R, f = record["settings"]["K"], record["R"], record["f"]
        look = {"color": _REDS[K], "linewidth": 1.6, "label": f"FedAvg, K = {K}"}
        falls.plot(R, f, **look)
        times.plot(R, [v * r**2 for r, v in zip(R, f, strict=True)], **look)
        grows.plot(record["G"], record["f at G"], marker="o", markersize=4, **look)
        runs = record["runs"]
        falls.plot(
            [run["R"] for run in runs],
            [run["run"] for run in runs],
            linestyle="none",
            marker="o",
            markersize=4.5,
            markerfacecolor="none",
            color=_REDS[K],
            label=label_of(f"FedAvg, K = {K}, runs"),
        )
    falls.plot(ROUNDS, [BOUND / r**2 for r in ROUNDS], **_GREY, label=f"{BOUND}/R²")
    times.axhline(BOUND, **_GREY, label=label_of(f"{BOUND}"))
    guide = [0.5 * BOUND / AT**2 * G**2 for G in GS]
    grows.plot(GS, guide, **_GREY, label="slope 2")
    for axes in panels:
        axes.set(xscale="log", yscale="log")
    falls.set(xlabel="rounds R", ylabel="f(x_R) mu/G²", title="best step for each R")
    times.set(xlabel="rounds R", ylabel="f(x_R) mu R²/G²", title="times R²", ylim=(0.1, 30))
    times.text(1, BOUND * 0.93, f"bound {BOUND}", va="top", color="#666666", fontsize=9)
    times.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
    grows.set(xlabel="G", ylabel=f"f(x_R) mu, R = {AT}", title="against G")
    falls.plot([], [], "o", markerfacecolor="none", color="#888888", label="runs")
    falls.legend(loc="lower left", fontsize=9)
    grows.legend(loc="upper left", fontsize=9)


_GREY: dict[str, Any] = {"color": "#888888", "linewidth": 1.2, "linestyle": (0, (4, 3))}

THEOREM2 = Reproduction(
    name="theorem2",
    shows="the slope of FedAvg's error against R and G: no step size beats (G/R)^2/mu",
    source="Karimireddy et al. 2020, Theorem II",
    minutes=0.3,
    cells=cells,
    sentences=PAPER,
    table=table,
    figure=figure,
    discussion="The theorem says that some pair of functions exists; this is the paper's (of its "
    "appendix). Its constant is not given; 0.2 is what the pair itself obeys. The slope is -1.70 "
    "to -1.85 and not -2 because the best step falls as log(R)/R. It is a statement about "
    "eta_g = 1: with a tiny local and a large global step FedAvg is SGD, which needs one round.",
)
