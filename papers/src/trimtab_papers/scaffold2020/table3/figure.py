"""Table 3 as bars, with the curves behind it."""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from trimtab_papers import published
from trimtab_papers.drawing import add_legend, label_of, new_figure
from trimtab_papers.names import TITLES, colour, takes_local_steps
from trimtab_papers.raced_record import RacedRecord, read_raced
from trimtab_papers.records import Records
from trimtab_papers.rounds_to_target import (
    PUBLISHED,
    aimed_at,
    chosen,
    rounds,
    shown,
    values,
)
from trimtab_papers.scaffold2020.table3.cells import ALGORITHMS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(records: Records) -> "Figure":
    """Return bars of the rounds, ours beside the paper's; below, the curves at most epochs."""
    from matplotlib.patches import Patch

    raced = read_raced(records)
    similarities = values(raced, "similarity")
    with new_figure(11, 6.8) as made:
        panels: Any = made.subplots(2, len(similarities), sharey="row", squeeze=False)
        for axes, s in zip(panels[0], similarities, strict=True):
            _bars(axes, raced, s)
        for axes, s in zip(panels[1], similarities, strict=True):
            _curves(axes, raced, s)
        panels[0][0].set_ylabel(f"rounds to {aimed_at(raced, 'target')}")
        panels[1][0].set_ylabel("test accuracy")
        panels[0][-1].legend(
            handles=[
                Patch(color="#888888", label="ours"),
                Patch(edgecolor="#888888", facecolor="none", label="published"),
            ],
            loc="upper left",
            bbox_to_anchor=(1, 1),
        )
        add_legend(panels[1][-1:], loc="upper left", bbox_to_anchor=(1, 1))
    return made


def _bars(axes: Any, raced: Sequence[RacedRecord], s: float) -> None:
    cells = {
        (name, epochs): seeds
        for name, epochs in published.TABLE3
        if (seeds := chosen(raced, algorithm=name, epochs=epochs, similarity=s))
    }
    late = label_of("ours, more than")
    for j, ((name, epochs), seeds) in enumerate(cells.items()):
        ours = rounds(raced, algorithm=name, epochs=epochs, similarity=s)
        theirs = published.table3(name, epochs, s)
        above = {"fontsize": 6, "ha": "center", "va": "bottom", "rotation": 90}
        if ours is None or ours == inf:
            axes.bar(j - 0.2, seeds[0].limit, 0.4, color=colour(name), alpha=0.5, label=late)
            axes.text(j - 0.2, seeds[0].limit, shown(seeds, PUBLISHED), **above)
        else:
            axes.bar(j - 0.2, ours, 0.4, color=colour(name), label=label_of("ours"))
        said = label_of("published" if theirs else "published, more than")
        axes.bar(j + 0.2, theirs or 1000, 0.4, color="none", edgecolor=colour(name), label=said)
        if theirs is None:
            axes.text(j + 0.2, 1000, "1k+", **above)
    axes.set_yscale("log")
    axes.set_ylim(0.5, 4000)  # 0.5 < the shortest bar, 4000 > what stands on the highest
    titles = [f"{TITLES[name]} {epochs}" for name, epochs in cells]
    axes.set_xticks(range(len(cells)), titles, rotation=90)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", visible=False)
    axes.set_title(f"similarity {s:g} %", fontsize=10)


def _curves(axes: Any, raced: Sequence[RacedRecord], s: float) -> None:
    known = values(raced, "epochs")
    most = 10 if 10 in known else known[-1]
    for name in ALGORITHMS:
        seeds = chosen(raced, algorithm=name, similarity=s)
        if takes_local_steps(name):
            drawn = [record for record in seeds if record.setting.epochs == most]
            label = f"{TITLES[name]}, {most} epochs"
        else:
            drawn, label = seeds[:1], TITLES[name]
        for record in drawn:
            axes.plot(record.accuracy, color=colour(name), linewidth=1.2, label=label)
    axes.set_xlabel("rounds")
    axes.set_xlim(0, 150)
