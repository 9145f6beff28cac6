"""Plots of a comparison: accuracy and loss against rounds and against bytes."""

from io import StringIO
from itertools import accumulate
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from trimtab.report.style import PLOTS
from trimtab.studies.comparison import Comparison
from trimtab.studies.entry import Entry


def curves(result: Comparison) -> Figure:
    """Return one panel for each metric against rounds, and one against bytes."""
    first = [entry.curve[0].metrics for entry in _drawn(result)]
    wanted = dict.fromkeys((result.metric, "accuracy", "loss", *(n for m in first for n in m)))
    metrics = [name for name in wanted if any(name in metrics for metrics in first)]
    with rc_context(PLOTS):
        figure = Figure(figsize=(10, 3.6 * len(metrics)), layout="constrained")
        panels: Any = figure.subplots(len(metrics), 2, squeeze=False)
        for row, metric in zip(panels, metrics, strict=True):
            for axes, against in zip(row, ("rounds", "bytes"), strict=True):
                _draw(axes, result, metric, against)
        panels[0][0].legend(loc="lower right" if result.goal.metric.higher else "upper right")
    return figure


def svg(figure: Figure) -> str:
    """Return a figure as an <svg> element to put into a page."""
    text = StringIO()
    with rc_context(PLOTS):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _drawn(result: Comparison) -> list[Entry]:
    return [entry for entry in result.entries if entry.curve]


def _draw(axes: Axes, result: Comparison, metric: str, against: str) -> None:
    several = len({e.settings.get("K") for e in result.entries if "K" in e.settings}) > 1
    styles: dict[str, int] = {}
    for entry in _drawn(result):
        if against == "bytes" and entry.baseline:
            continue  # Nothing is sent in it.
        base = entry.name.split("#")[0]
        seen = styles[base] = styles.get(base, -1) + 1
        moved = accumulate(line.bytes_down + line.bytes_up for line in entry.curve)
        x = [line.r for line in entry.curve] if against == "rounds" else [b / 1e6 for b in moved]
        y = [line.metrics.get(metric) for line in entry.curve]
        label = entry.shown + (
            f", K = {entry.settings['K']}" if several and "K" in entry.settings else ""
        )
        axes.plot(
            x,
            [float("nan") if v is None else v for v in y],
            color=entry.colour,
            linestyle=("-", "--", ":", "-.")[seen % 4],
            linewidth=1.6,
            label=label,
        )
    if metric == result.metric and result.target is not None:
        axes.axhline(result.target, color="#999999", linewidth=1, linestyle=(0, (4, 3)))
    values = [line.metrics.get(metric) for e in _drawn(result) for line in e.curve]
    known = [v for v in values if v is not None]
    if metric == "loss" and known and min(known) > 0:
        axes.set_yscale("log")
    axes.set_xscale("log")  # what matters happens early
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("rounds" if against == "rounds" else "megabytes sent, both directions")
    axes.set_ylabel(metric)
