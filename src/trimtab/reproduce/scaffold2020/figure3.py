"""Figure 3 of SCAFFOLD: two quadratics that differ by G; FedAvg suffers, SCAFFOLD does not notice.

Karimireddy et al., 2020, section 7.1. One common step size for all, which the paper does not state:
0.12. The controls start at the gradients: a round of option I with eta_g = 0 sets them.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from trimtab.algorithms import FedAvg, Scaffold, Sgd
from trimtab.core import Algorithm
from trimtab.problems.quadratic import Quadratic
from trimtab.report.plots import COLOURS, STYLE
from trimtab.reproduce.reproduction import Cell, Claim, Record, Records, Reproduction, Say
from trimtab.simulation import simulate

GS, KS, ETA, ROUNDS = (1, 10, 100), (2, 10), 0.12, 150


def _algorithms(K: int) -> dict[str, Algorithm]:
    return {
        "sgd": Sgd(eta=ETA),
        "fedavg": FedAvg(eta_l=ETA, K=K),
        "scaffold": Scaffold(eta_l=ETA, K=K),
    }


def _panel(G: float, K: int) -> Record:
    """Return f(x) after each round of the three algorithms."""
    pair = Quadratic(
        A=torch.tensor([2.0, 0.0], dtype=torch.float64),
        b=torch.tensor([-G, G], dtype=torch.float64),
    )
    curves: dict[str, Any] = {}
    for name, algorithm in _algorithms(K).items():
        x0 = torch.ones(1, dtype=torch.float64)
        sim = simulate(algorithm, pair, x=x0)
        if isinstance(algorithm, Scaffold):
            sim.algorithm = replace(algorithm, option="I", eta_g=0.0)
            next(sim)
            sim.algorithm = algorithm
        curves[name] = [pair.loss(x0), *(pair.loss(next(sim).x) for _ in range(ROUNDS))]
    q = (1 - 2 * ETA) ** K
    stops = (ETA * G / 2) * (K - (1 - q) / (2 * ETA)) / (1 - (1 + q) / 2)
    return {"G": G, "K": K, "eta": ETA, "curves": curves, "fedavg stops at": stops}


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return one cell for each panel; it is quick anyway, and knows no chance."""

    def compute(G: float, K: int) -> Cell:
        def run(data: Path | None, say: Say, scratch: Path) -> Record:
            return _panel(G, K)

        return Cell(f"G{G}-K{K}", run)

    return [compute(G, K) for G in GS for K in KS]


def _rounds(curve: list[float], to: float = 1e-8) -> int | None:
    return next((r for r, f in enumerate(curve) if f <= to), None)


def claims(records: Records) -> list[Claim]:
    """Judge what the paper says of the figure."""
    if len(records) < len(GS) * len(KS):
        return [Claim(sentence, None) for sentence in _SENTENCES]
    curves = {(r["G"], r["K"]): r["curves"] for r in records.values()}
    gaps = {
        K: max(
            abs(a - b)
            for G in GS
            for a, b in zip(curves[G, K]["scaffold"], curves[1, K]["scaffold"], strict=True)
        )
        for K in KS
    }
    need = {K: _rounds(curves[1, K]["scaffold"]) or ROUNDS for K in KS}
    sgd = _rounds(curves[1, 2]["sgd"]) or ROUNDS
    ends = {G: [curves[G, K]["fedavg"][-1] for K in KS] for G in GS}
    worse = all(ends[G][0] < ends[G][1] for G in GS)
    grows = all(ends[a][j] < ends[b][j] for a, b in ((1, 10), (10, 100)) for j in range(len(KS)))
    beats = all(f > curves[G, K]["sgd"][-1] for G in GS for K, f in zip(KS, ends[G], strict=True))
    ends_text = ", ".join(f"G = {G}: {a:.2g} and {b:.2g}" for G, (a, b) in ends.items())
    found = (
        (worse and grows and beats, f"f after {ROUNDS} rounds with K = 2 and 10: {ends_text}"),
        (
            max(gaps.values()) <= 1e-9,
            f"the largest difference between curves: {max(gaps.values()):.1g}",
        ),
        (
            need[10] < need[2] < sgd,
            f"rounds to 1e-8: SGD {sgd}, " + ", ".join(f"K = {K}: {need[K]}" for K in KS),
        ),
    )
    return [Claim(s, held, text) for s, (held, text) in zip(_SENTENCES, found, strict=True)]


_SENTENCES = (
    "FedAvg gets worse as local steps increase, and slower as G grows; it ends behind SGD.",
    "SCAFFOLD is unaffected by the heterogeneity G.",
    "SCAFFOLD is faster than SGD, and more so with more local steps.",
)


def table(records: Records) -> str:
    """Return the rounds to f <= 1e-8, and where FedAvg stops."""
    lines = [
        "| G | K | SGD | SCAFFOLD | FedAvg: f after 150 rounds | predicted |",
        "|---|---|---|---|---|---|",
    ]
    for record in records.values():
        c = record["curves"]
        predicted = record["fedavg stops at"] ** 2 / 2
        lines.append(
            f"| {record['G']} | {record['K']} | {_rounds(c['sgd'])} | {_rounds(c['scaffold'])} "
            f"| {c['fedavg'][-1]:.4g} | {predicted:.4g} |"
        )
    return "\n".join(lines)


def figure(records: Records) -> Figure:
    """Return the grid of panels of the paper: columns are G, rows K."""
    with rc_context(STYLE):
        made = Figure(figsize=(9.5, 5.2), layout="constrained")
        panels: Any = made.subplots(len(KS), len(GS), sharex=True, sharey="row", squeeze=False)
        for record in records.values():
            axes = panels[KS.index(record["K"])][GS.index(record["G"])]
            for name, curve in record["curves"].items():
                shown = [max(f, 1e-17) for f in curve]
                label = {"sgd": "SGD", "fedavg": "FedAvg", "scaffold": "SCAFFOLD"}[name]
                axes.plot(shown, color=COLOURS[name], linewidth=1.6, label=label)
            axes.set_yscale("log")
            axes.set_title(f"G = {record['G']}, K = {record['K']}", fontsize=10)
        for axes in panels[-1]:
            axes.set_xlabel("rounds")
        for row in panels:
            row[0].set_ylabel("f(x) - f*")
        panels[0][0].legend(loc="lower left")
    return made


FIGURE3 = Reproduction(
    name="figure3",
    shows="two quadratics: FedAvg slows down with G and K, SCAFFOLD does not notice G",
    source="Karimireddy et al. 2020, Figure 3",
    minutes=0.1,
    cells=cells,
    claims=claims,
    table=table,
    figure=figure,
    discussion="The paper does not give the step size; all three use 0.12. It shows no numbers, "
    "so the rounds beside the panels are ours alone; FedAvg's fixed point has a closed form.",
)
