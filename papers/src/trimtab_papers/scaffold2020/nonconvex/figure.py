"""Rounds against N/S of the network and of the linear model, and against K of the quadratics."""

from statistics import fmean
from typing import TYPE_CHECKING, Any

from trimtab_papers.drawing import label_of, new_figure
from trimtab_papers.names import colour
from trimtab_papers.records import Records, of_kind
from trimtab_papers.scaffold2020.nonconvex.cells import Kind
from trimtab_papers.scaffold2020.nonconvex.sentences import rounds_by_ratio, sweeps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GUIDE: dict[str, Any] = {"color": "#888888", "linewidth": 1.2, "linestyle": (0, (4, 3))}
_SHADES = ("#b9d7e4", "#7fb5cd", "#2e86ab", "#12455c")


def figure(records: Records) -> "Figure":
    """Return three panels; points are seeds, lines are their means."""
    with new_figure(11, 3.6) as made:
        panels: Any = made.subplots(1, 3)
        _sampled(panels[0], records, "network", (2 / 3, "(N/S)^(2/3)"), "network: |∇f|²")
        _sampled(panels[1], records, "convex", (1, "N/S"), "linear model: f − f*")
        _weak(panels[2], records)
        for axes in panels:
            axes.set_ylabel("rounds")
            if axes.lines:
                axes.set(xscale="log", yscale="log")
                axes.tick_params(axis="y", which="minor", labelleft=False)
                axes.legend(fontsize=8)
    return made


def _sampled(axes: Any, records: Records, kind: Kind, guide: tuple[float, str], title: str) -> None:
    axes.set(xlabel="N/S", title=title)
    series = list(map(rounds_by_ratio, of_kind(records, kind).values()))
    if not series:
        return
    for rounds in series:
        look = {"color": colour("scaffold"), "markersize": 3.5, "alpha": 0.6}
        label = label_of("SCAFFOLD I, each seed")
        axes.plot(list(rounds), list(rounds.values()), "o", **look, label=label)
    ratios = sorted({ratio for rounds in series for ratio in rounds})
    means = [fmean(rounds[ratio] for rounds in series if ratio in rounds) for ratio in ratios]
    axes.plot(ratios, means, color=colour("scaffold"), linewidth=1.6, label="SCAFFOLD I")
    power, label = guide
    axes.plot(ratios, [means[0] * ratio**power for ratio in ratios], **_GUIDE, label=label)


def _weak(axes: Any, records: Records) -> None:
    """Draw the mean over the seeds for each L/delta."""
    axes.set(xlabel="K δ/L", title="weakly convex quadratics: |∇f|²")
    some = [sweep for record in of_kind(records, "weak").values() for sweep in sweeps(record)]
    for similar, shade in zip(sorted({x.similar for x in some}), _SHADES, strict=False):
        seeds = [sweep for sweep in some if sweep.similar == similar]
        counts = list(seeds[0].rounds)
        means = [fmean(sweep.rounds[K] for sweep in seeds) for K in counts]
        look = {"color": shade, "linewidth": 1.6, "marker": "o", "markersize": 3}
        axes.plot([K / similar for K in counts], means, label=f"L/δ = {similar}", **look)
    if some:
        axes.axvline(1, **_GUIDE, label="K = L/δ")
