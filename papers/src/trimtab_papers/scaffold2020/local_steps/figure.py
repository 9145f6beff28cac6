"""Rounds per e-fold against K, one panel for each pair (L/mu, delta/mu)."""

from itertools import groupby
from typing import TYPE_CHECKING, Any

from trimtab.diagnosis.theory import Option
from trimtab_papers.drawing import label_of, new_figure
from trimtab_papers.names import colour
from trimtab_papers.records import Records
from trimtab_papers.scaffold2020.local_steps.cells import Sweep, read_sweeps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FLOOR: dict[str, Any] = {"color": "#999999", "linewidth": 1, "linestyle": ":"}


def figure(records: Records) -> "Figure":
    """Return all panels; lines are exact, points are runs."""
    by_pair = groupby(read_sweeps(records), key=lambda sweep: (sweep.kappa, sweep.ratio))
    pairs = [list(some) for _, some in by_pair]
    columns = min(4, max(1, len(pairs)))
    rows = -(-len(pairs) // columns) or 1
    with new_figure(2.9 * columns + 0.6, 2.9 * rows + 0.4) as made:
        grid: Any = made.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        panels = grid.flatten()
        for axes in panels[len(pairs) :]:
            axes.axis("off")
        for axes, some in zip(panels, pairs, strict=False):
            _panel(axes, some)
        for axes in panels[max(0, len(pairs) - columns) : len(pairs)]:
            axes.set_xlabel("local steps K")
            axes.tick_params(labelbottom=True)
        for axes in panels[::columns]:
            axes.set_ylabel("rounds per e-fold")
        _legend(panels, len(pairs))
    return made


def _panel(axes: Any, pair: list[Sweep]) -> None:
    """Draw both options on one problem."""
    for sweep in pair:
        option = _colour(sweep.option)
        K, rounds = [at.K for at in sweep.by_K], [at.rounds for at in sweep.by_K]
        axes.plot(K, rounds, color=option, linewidth=1.6, label=f"option {sweep.option}")
        ran = [at for at in sweep.by_K if at.run]
        points = {"linestyle": "none", "marker": "o", "markersize": 3.5, "color": option}
        label = label_of(f"option {sweep.option}, runs")
        axes.plot([at.K for at in ran], [at.run for at in ran], **points, label=label)
        label = label_of(f"option {sweep.option}, predicted knee")
        axes.axvline(sweep.knee, **_knee(sweep.option), label=label)
    axes.axhline(pair[0].kappa ** 0.5, **_FLOOR, label=label_of("√(L/μ)"))
    axes.set_title(f"L/μ = {pair[0].kappa}, δ/μ = {pair[0].ratio}", fontsize=10)
    axes.set_xscale("log")
    axes.set_yscale("log")


def _legend(panels: Any, drawn: int) -> None:
    """Put the legend into an empty panel, if there is one."""
    axes = panels[0]
    axes.plot([], [], "o", markersize=3.5, color="#888888", label="runs")
    axes.plot([], [], **_knee("II") | {"color": "#888888"}, label="predicted knee")
    axes.plot([], [], **_FLOOR, label="√(L/μ)")
    if drawn < len(panels):
        panels[-1].legend(*axes.get_legend_handles_labels(), loc="center")
    else:
        axes.legend(loc="upper right", fontsize=8)


def _colour(option: Option) -> str:
    return "#8d6cab" if option == "I" else colour("scaffold")


def _knee(option: Option) -> dict[str, Any]:
    """Return the look of a predicted knee; those of both options are seen where they coincide."""
    if option == "I":
        return {"color": _colour(option), "linewidth": 3, "alpha": 0.35}
    return {"color": _colour(option), "linewidth": 1, "linestyle": "--"}
