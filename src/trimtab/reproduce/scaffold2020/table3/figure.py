"""Table 3 as bars, with the curves behind it."""

from math import inf
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from trimtab.report.plots import COLOURS, STYLE
from trimtab.reproduce.published import TABLE3
from trimtab.reproduce.raced_cells import NAMES
from trimtab.reproduce.reproduction import Records
from trimtab.reproduce.rounds_to_target import (
    PUBLISHED,
    chosen,
    goal,
    rounds,
    setting,
    shown,
    values,
)
from trimtab.reproduce.scaffold2020.table3.cells import ALGORITHMS
from trimtab.reproduce.scaffold2020.table3.table import published


def figure(records: Records) -> Figure:
    """Return bars of the rounds, ours beside the paper's; below, the curves at most epochs."""
    similarities = values(records, "similarity")
    with rc_context(STYLE):
        made = Figure(figsize=(11, 6.8), layout="constrained")
        panels: Any = made.subplots(2, len(similarities), sharey="row", squeeze=False)
        for axes, s in zip(panels[0], similarities, strict=True):
            _bars(axes, records, s)
        for axes, s in zip(panels[1], similarities, strict=True):
            _curves(axes, records, s)
        panels[0][0].set_ylabel(f"rounds to {goal(records, 'target')}")
        panels[1][0].set_ylabel("test accuracy")
        panels[0][-1].legend(
            handles=[
                Patch(color="#888888", label="ours"),
                Patch(edgecolor="#888888", facecolor="none", label="published"),
            ],
            loc="upper left",
            bbox_to_anchor=(1, 1),
        )
        panels[1][-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return made


def _bars(axes: Any, records: Records, s: float) -> None:
    keys = [k for k in TABLE3 if chosen(records, algorithm=k[0], epochs=k[1], similarity=s)]
    for j, (name, e) in enumerate(keys):
        here = chosen(records, algorithm=name, epochs=e, similarity=s)
        ours, there = rounds(records, algorithm=name, epochs=e, similarity=s), published(name, e, s)
        if ours is None or ours == inf:
            height, text = here[0]["limit"], shown(here, PUBLISHED)
            axes.bar(j - 0.2, height, 0.4, color=COLOURS[name], alpha=0.5)
            axes.text(j - 0.2, height, text, fontsize=6, ha="center", va="bottom", rotation=90)
        else:
            axes.bar(j - 0.2, ours, 0.4, color=COLOURS[name])
        axes.bar(j + 0.2, there or 1000, 0.4, color="none", edgecolor=COLOURS[name])
        if there is None:
            axes.text(j + 0.2, 1000, "1k+", fontsize=6, ha="center", va="bottom", rotation=90)
    axes.set_yscale("log")
    axes.set_ylim(0.5, 4000)  # a bar of one round is seen, and so is what stands on the highest
    axes.set_xticks(range(len(keys)), [f"{NAMES[n]} {e}" for n, e in keys], rotation=90)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", visible=False)
    axes.set_title(f"similarity {s:g} %", fontsize=10)


def _curves(axes: Any, records: Records, s: float) -> None:
    known = values(records, "epochs")
    most = 10 if 10 in known else known[-1]
    for name in ALGORITHMS:
        for r in chosen(records, algorithm=name, similarity=s)[: None if name != "sgd" else 1]:
            if name == "sgd" or setting(r)["epochs"] == most:
                label = NAMES[name] + ("" if name == "sgd" else f", {most} epochs")
                axes.plot(r["accuracy"], color=COLOURS[name], linewidth=1.2, label=label)
    axes.set_xlabel("rounds")
    axes.set_xlim(0, 150)
