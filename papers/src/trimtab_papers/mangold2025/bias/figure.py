"""The slides' panels, H = 10 and H = 100: full batches above, mini-batches below."""

from typing import TYPE_CHECKING, Any

from trimtab_papers.drawing import label_of, new_figure
from trimtab_papers.mangold2025.bias.cells import (
    ALGORITHMS,
    BATCH,
    HS,
    Chain,
    FullBatches,
    full_batches,
    mini_batches,
)
from trimtab_papers.names import TITLES, colour
from trimtab_papers.records import Records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FAINT: dict[str, Any] = {"linewidth": 0.7, "alpha": 0.4}


def figure(records: Records) -> "Figure":
    """Return |x - x*| against rounds, and the predicted biases as dashed lines."""
    with new_figure(9.5, 6.4) as made:
        panels: Any = made.subplots(2, len(HS), sharey="row", squeeze=False)
        for column, H in enumerate(HS):
            above, below = panels[0][column], panels[1][column]
            full, seeds = full_batches(records, H), list(mini_batches(records, H).values())
            if full is not None:
                _draw_full(above, full)
            if seeds:
                _draw_chains(below, seeds[0])
            above.set_title(f"H = {H}, full batches", fontsize=10)
            below.set_title(f"H = {H}, i.i.d. mini-batches of {BATCH}", fontsize=10)
            below.set_xlabel("rounds")
        for row in panels:
            row[0].set_ylabel("|x - x*|")
            for axes in row:
                axes.set_yscale("log")
        _legends(panels[0][0], panels[1][1])
    return made


def _draw_full(axes: Any, full: FullBatches) -> None:
    for name, curve in full.curves.items():
        axes.plot(curve.rounds, curve.values, **_line(name), label=label_of(TITLES[name]))
    axes.axhline(full.predicted, **_dashes("fedavg"), label=label_of("predicted bias"))


def _draw_chains(axes: Any, chains: dict[str, Chain]) -> None:
    for name, chain in chains.items():
        one, mean, predicted = (
            {"label": label_of(f"{TITLES[name]}, {what}")}
            for what in ("one chain", "mean of the chains", "predicted bias")
        )
        axes.plot(chain.single.rounds, chain.single.values, **_line(name) | _FAINT, **one)
        axes.plot(chain.mean.rounds, chain.mean.values, **_line(name), **mean)
        if chain.predicted is not None:
            axes.axhline(chain.predicted, **_dashes(name), **predicted)


def _legends(above: Any, below: Any) -> None:
    for name in ALGORITHMS:
        above.plot([], [], **_line(name), label=TITLES[name])
    above.plot([], [], **_dashes("fedavg"), label="predicted bias")
    above.legend(loc="lower left", fontsize=9)
    above.set_ylim(bottom=1e-6)
    below.plot([], [], color="#777777", linewidth=1.6, label="mean of the chains")
    below.plot([], [], color="#777777", **_FAINT, label="one chain")
    below.plot([], [], color="#777777", linewidth=1.1, linestyle="--", label="predicted bias")
    below.legend(loc="upper right", fontsize=9)


def _line(name: str) -> dict[str, Any]:
    return {"color": colour(name), "linewidth": 1.6}


def _dashes(name: str) -> dict[str, Any]:
    return {"color": colour(name), "linewidth": 1.1, "linestyle": "--"}
