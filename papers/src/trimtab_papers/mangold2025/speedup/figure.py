"""For each problem, variance and mean square error against N."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trimtab_papers.drawing import label_of, new_figure
from trimtab_papers.mangold2025.speedup.cells import (
    ALGORITHMS,
    PROBLEMS,
    Law,
    Stationary,
    by_size,
)
from trimtab_papers.names import TITLES, colour
from trimtab_papers.records import Records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DASHED: dict[str, Any] = {"color": "#777777", "linewidth": 1.3, "linestyle": "--"}
_MARKERS: dict[str, dict[str, Any]] = {
    "fedavg": {"marker": "s", "markerfacecolor": "none", "markersize": 8},
    "scaffold": {"marker": "o", "markersize": 4.5},
}


def figure(records: Records) -> "Figure":
    """Return the points of all seeds, and theory as lines."""
    with new_figure(9.5, 6.4) as made:
        panels: Any = made.subplots(len(PROBLEMS), 2, sharex=True, squeeze=False)
        for row, problem in zip(panels, PROBLEMS, strict=True):
            sizes = by_size(records, problem)
            _theory(row, sizes)
            _points(row[0], sizes, lambda law: law.trace)
            _points(row[1], sizes, lambda law: law.mean_square_error)
            row[0].set_ylabel("trace of the covariance")
            row[1].set_ylabel("E|x - x*|²")
            row[0].set_title(f"{PROBLEMS[problem]}: variance", fontsize=10)
            row[1].set_title(f"{PROBLEMS[problem]}: mean square error", fontsize=10)
        for axes in panels[-1]:
            axes.set_xlabel("clients N")
            axes.set_xticks(axes.get_xticks())
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        for axes in panels[0]:
            axes.legend(loc="lower left", fontsize=9)
    return made


def _theory(row: Any, sizes: dict[int, list[Stationary]]) -> None:
    first_seeds = [seeds[0] for seeds in sizes.values()]
    variance = [record.predicted_trace for record in first_seeds]
    with_bias = [record.predicted_trace + record.predicted_bias for record in first_seeds]
    row[0].plot(list(sizes), variance, **_DASHED, label="predicted, (γ/N) A⁻¹C")
    row[1].plot(list(sizes), variance, **_DASHED, label="predicted variance")
    row[1].plot(list(sizes), with_bias, **_DASHED | {"linestyle": ":"}, label="and bias²")


def _points(axes: Any, sizes: dict[int, list[Stationary]], value: Callable[[Law], float]) -> None:
    for name in ALGORITHMS:
        look = {"color": colour(name), "linestyle": "none", **_MARKERS[name]}
        for number, (N, seeds) in enumerate(sizes.items()):
            values = [value(seed.laws[name]) for seed in seeds]
            axes.plot([N] * len(values), values, **look, label=label_of(TITLES[name], number == 0))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log" if sizes else "linear")
