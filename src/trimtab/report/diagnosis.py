"""The page of a diagnosis: the advice, four plots, and the numbers behind them."""

from html import escape
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab._files import write_whole
from trimtab._version import environment
from trimtab.diagnosis import Diagnosis
from trimtab.diagnosis.candidates import named
from trimtab.report.page import CSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 30  # clients in the bars
STRIPS = 6  # clients in the spectrum


def write_diagnosis(found: Diagnosis, path: Path) -> Path:
    """Write the page, and return where it is."""
    from trimtab.report.plots import svg  # matplotlib is slow to import

    what = "and what to do" if found.algorithm is not None else "and why there is no advice"
    title = f"{found.name}: how its clients differ, {what}"
    facts = ", ".join(f"{name} {version}" for name, version in environment().items())
    reasons = " ".join([*found.reasons, found.accuracy, found.about_K])
    doubts = "".join(f"<li>{escape(doubt)}</li>" for doubt in (*found.doubts, *found.cut))
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{CSS}</style></head><body>
<h1>{escape(title)}</h1>
<p class="advice"><b>{escape(found.advice)}</b> {escape(reasons)}</p>
<p>How sure: {escape(found.sure)}</p>
{f"<ul>{doubts}</ul>" if doubts else ""}
<div class="plot">{svg(figure(found))}</div>
<p class="small">Upper left: |grad f_i - grad f| and |Hess_i - Hess| of each client, as a share of
the largest; pale bars are estimates from random vectors. Upper right: eigenvalues of Hess_i - Hess
of the clients that differ most; dashed at plus and minus delta. Lower left: rounds to eps on the
quadratic model, the step size tuned for each K; hollow: not there by then. Lower right: how far
from the optimum FedAvg stops at the step size that is advised.</p>
{_points(found)}
<pre style="white-space: pre-wrap">{escape(str(found))}</pre>
<p class="small">{escape(facts)}</p>
</body></html>
"""
    write_whole(path, text)
    return path


def _points(found: Diagnosis) -> str:
    names = ("where", "loss", "zeta", "gradient", "B", "L", "delta")
    heads = ("point", "f", "zeta", "|grad f|", "B", "L", "delta")
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(row[name]))}</td>" for name in names) + "</tr>"
        for row in found.points
    )
    return f"<h2>Points</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:.3g}" if isfinite(value) else "-"


def figure(found: Diagnosis) -> "Figure":
    """Return the four plots."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from trimtab.report.plots import STYLE

    with rc_context(STYLE):
        made = Figure(figsize=(10, 7.4), layout="constrained")
        panels: Any = made.subplots(2, 2)
        _bars(panels[0][0], found)
        _spectrum(panels[0][1], found)
        _rounds(panels[1][0], found)
        _bias(panels[1][1], found)
    return made


def _bars(axes: "Axes", found: Diagnosis) -> None:
    rows = found.clients[:SHOWN]
    gradients, hessians = ([row[name] for row in rows] for name in ("gradient", "hessian"))
    hessians = [value if isfinite(value) else 0.0 for value in hessians]
    for values, shift, colour, label in (
        (gradients, -0.2, "#00798c", "gradient"),
        (hessians, 0.2, "#edae49", "Hessian"),
    ):
        top = max(values, default=0.0) or 1.0
        bars = axes.bar([j + shift for j in range(len(rows))], [v / top for v in values], 0.4)
        for bar, row in zip(bars, rows, strict=True):
            pale = label == "Hessian" and not row["measured"]
            bar.set_color(colour)
            bar.set_alpha(0.4 if pale else 1.0)
        axes.bar([0], [0], 0.4, color=colour, label=f"{label}, largest {top:.2g}")
    few = len(rows) <= 15
    axes.set_xticks(range(len(rows)), [str(r["client"]) if few else "" for r in rows])
    axes.set_ylim(0, 1.25)
    axes.set_xlabel("client" if len(found.clients) <= SHOWN else f"the {SHOWN} that differ most")
    axes.set_ylabel("apart from the mean, relative")
    axes.set_title("Who differs", fontsize=10, loc="left")
    axes.legend(loc="upper right", ncols=2, fontsize=9)


def _spectrum(axes: "Axes", found: Diagnosis) -> None:
    order = [row["client"] for row in found.clients if row["client"] in found.spectra][:STRIPS]
    for level, client in enumerate(order):
        values, weights = found.spectra[client]
        sizes = [20 + 80 * weight for weight in weights]
        y = [level] * len(values)
        axes.scatter(values, y, s=sizes, marker="|", color="#00798c", linewidths=1.2)
    for edge in (-found.delta, found.delta) if isfinite(found.delta) else ():
        axes.axvline(edge, color="#d1495b", linewidth=1, linestyle="--")
    axes.axvline(0, color="#bbbbbb", linewidth=0.8)
    axes.set_yticks(range(len(order)), [f"client {client}" for client in order])
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.set_xlabel("eigenvalues of Hess_i - Hess")
    known = found.L > 0 and not found.rough
    bound = f"delta >= {found.delta:.2g}" if isfinite(found.delta) else "not measured"
    ratio = f"delta/L = {found.delta / found.L:.2g}" if known else bound
    axes.set_title(f"How their Hessians differ ({ratio})", fontsize=10, loc="left")


def _rounds(axes: "Axes", found: Diagnosis) -> None:
    from trimtab.report.plots import COLOURS

    for name in dict.fromkeys(one.algorithm for one in found.predicted):
        mine = sorted((o for o in found.predicted if o.algorithm == name), key=lambda o: o.K)
        there = [one for one in mine if one.rounds is not None]
        beyond = [one for one in mine if one.rounds is None]
        style: dict[str, Any] = {"color": COLOURS[name], "markersize": 5}
        line = ([o.K for o in there], [o.rounds or 0.5 for o in there])
        axes.plot(*line, marker="o", linewidth=1.6, label=named(name), **style)
        tops = ([o.K for o in beyond], [o.ran for o in beyond])
        axes.plot(*tops, marker="^", linestyle="none", fillstyle="none", **style)
        for one in mine:
            if one.algorithm == found.algorithm and one.K == found.K and one.rounds:
                ring: dict[str, Any] = {"markersize": 13, "fillstyle": "none", "color": "#222222"}
                axes.plot([one.K], [one.rounds], "o", linestyle="none", **ring, label="advised")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _plain(axes.xaxis)
    _plain(axes.yaxis)
    axes.set_xlabel("local steps K")
    axes.set_ylabel(f"rounds to f - f* = {found.eps:.2g}")
    axes.set_title("Predicted rounds", fontsize=10, loc="left")
    if found.predicted:
        axes.legend(fontsize=9)
    else:
        axes.text(0.5, 0.5, "not known", ha="center", transform=axes.transAxes, color="#666666")
        axes.set_axis_off()


def _bias(axes: "Axes", found: Diagnosis) -> None:
    from trimtab.report.plots import COLOURS

    at = "" if found.eta_l is None else f" at eta_l = {found.eta_l:.2g}"
    axes.set_title(f"Bias{at}", fontsize=10, loc="left")
    rows = [row for row in found.bias_by_K if row["K"] != 1]
    if not any((row["heterogeneity"] or 0) > 0 for row in rows):
        why = "none" if rows or found.K == 1 else "not known"
        axes.text(0.5, 0.5, why, ha="center", transform=axes.transAxes, color="#666666")
        axes.set_axis_off()
        return
    K = [_or_nan(row["K"]) for row in rows]
    red: dict[str, Any] = {"color": COLOURS["fedavg"], "linewidth": 1.6}
    axes.plot(K, [_or_nan(row["limit"]) for row in rows], **red, marker="o", label="FedAvg stops")
    first = [_or_nan(row["heterogeneity"]) for row in rows]
    axes.plot(K, first, **red | {"linewidth": 1}, linestyle="--", label="to first order")
    noise = found.bias.get("scaffold")
    if noise:
        label = "Scaffold (noise, first order)"
        axes.axhline(noise, color=COLOURS["scaffold"], linewidth=1.6, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _plain(axes.xaxis)
    axes.set_xlabel("local steps K")
    axes.set_ylabel("|x - x*|")
    axes.legend(fontsize=9)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None or value <= 0 else value


def _plain(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
