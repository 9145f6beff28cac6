"""The plots of docs/performance.md."""

from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from trimtab_papers.bench import WORKLOADS
from trimtab_papers.figures import PLOTS

PEERS = {
    "compiled": ("trimtab compiled", "#6fb7c1"),
    "jax": ("JAX", "#30638e"),
    "pfl": ("pfl", "#d1495b"),
    "fedjax": ("FedJAX", "#edae49"),
    "fluke": ("fluke", "#8d6cab"),
    "fedlab": ("FedLab", "#5a9367"),
    "flwr": ("Flower", "#888888"),
}
ALGORITHMS = {"fedavg": "FedAvg", "scaffold": "SCAFFOLD"}
OURS = "#00798c"


def peers_figure(results: list[dict[str, Any]]) -> Figure:
    """Return a panel for each algorithm: a row for each workload, a dot for each peer."""
    found = {r["workload"] for r in results}
    works = [name for name in WORKLOADS if name in found]
    asked = {r["peer"] for r in results}
    peers = {peer: shown for peer, shown in PEERS.items() if peer in asked}
    with rc_context(PLOTS):
        figure = Figure(figsize=(10, 1.3 + 0.34 * len(works)), layout="constrained")
        panels: Any = figure.subplots(1, len(ALGORITHMS), sharex=True, sharey=True)
        for axes, (algorithm, title) in zip(panels, ALGORITHMS.items(), strict=True):
            axes.axvline(1, color=OURS, linewidth=2, label="trimtab")
            for peer, (name, colour) in peers.items():
                measured = [
                    (r["ratio"], works.index(r["workload"]))
                    for r in results
                    if (r["algorithm"], r["peer"]) == (algorithm, peer) and "ratio" in r
                ]
                x, y = zip(*measured, strict=True) if measured else ((), ())
                axes.plot(x, y, "o", color=colour, markersize=7, label=name)
            axes.set_yticks(range(len(works)), works)
            axes.set_ylim(len(works) - 0.5, -0.5)
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} ×"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_title(title, fontsize=10)
            axes.set_xlabel("time of a round, times ours")
        shown = panels[0].get_legend_handles_labels()
        figure.legend(*shown, loc="outside upper center", ncols=1 + len(peers))
    return figure


def growth_figure(growth: dict[str, list[list[float]]]) -> Figure:
    """Return three panels: milliseconds a round against S, K and d, with a line through them."""
    with rc_context(PLOTS):
        figure = Figure(figsize=(9, 2.8), layout="constrained")
        panels: Any = figure.subplots(1, 3)
        for axes, (name, points) in zip(panels, growth.items(), strict=True):
            x, y = zip(*points, strict=True)
            n, mx, my = len(x), sum(x) / len(x), sum(y) / len(y)
            slope = sum((a - mx) * (b - my) for a, b in points) / sum((a - mx) ** 2 for a in x)
            axes.plot([0, max(x)], [my - slope * mx, my + slope * (max(x) - mx)], color="#bbbbbb")
            axes.plot(x, y, "o", color=OURS, markersize=n)
            axes.set_xlabel(name)
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
            axes.locator_params(axis="x", nbins=4)
            axes.xaxis.set_major_formatter("{x:,.0f}")
        panels[0].set_ylabel("ms a round")
    return figure
