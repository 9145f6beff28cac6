"""The page of a diagnosis: the advice, four plots, and the numbers behind them."""

from html import escape
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab._files import write_whole
from trimtab.algorithms.registry import kind
from trimtab.diagnosis import Diagnosis
from trimtab.diagnosis.candidates import FEDAVG, SCAFFOLD, named
from trimtab.diagnosis.differences import Differences
from trimtab.diagnosis.first_facts import FirstFacts
from trimtab.report.differences import picture
from trimtab.report.style import PLOTS, document, html_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 30  # <= 30 clients have bars
STRIPS = 6  # <= 6 clients have a spectrum


def write_diagnosis(diagnosis: Diagnosis, path: Path) -> Path:
    """Write the page, and return where it is."""
    from trimtab.report.plots import svg  # It imports matplotlib, which is slow.

    what = "and what to do" if diagnosis.algorithm is not None else "and why there is no advice"
    title = f"{diagnosis.name}: how its clients differ, {what}"
    saved = ""
    if diagnosis.gain is not None and diagnosis.algorithm is not None:
        saved = diagnosis.gain.sentence(diagnosis.algorithm)
    reasons = " ".join([saved, *diagnosis.reasons, diagnosis.accuracy, diagnosis.about_K])
    doubts = "".join(f"<li>{escape(doubt)}</li>" for doubt in (*diagnosis.doubts, *diagnosis.cut))
    body = f"""<p class="advice"><b>{escape(diagnosis.advice)}</b> {escape(reasons)}</p>
<p>How sure: {escape(diagnosis.sure)}</p>
{f"<ul>{doubts}</ul>" if doubts else ""}
{_how(diagnosis.differences)}
<div class="plot">{svg(figure(diagnosis))}</div>
<p class="small">Upper left: |grad f_i - grad f| and |Hess_i - Hess| of each client, as a share of
the largest; pale bars are estimates from random vectors. Upper right: eigenvalues of Hess_i - Hess
of the clients that differ most; dashed at plus and minus delta. Lower left: rounds to eps on the
quadratic model, the step size tuned for each K; hollow: not there by then. Lower right: how far
from the optimum FedAvg stops at the step size that is advised.</p>
{_points(diagnosis)}
<pre style="white-space: pre-wrap">{escape(str(diagnosis))}</pre>"""
    write_whole(path, document(title, body))
    return path


def write_first_facts(facts: FirstFacts, name: str, path: Path) -> Path:
    """Write the first page, which the whole one replaces, and return where it is."""
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in facts.sentences)
    body = f"""<p class="advice"><b>So far ({facts.seconds:.0f} seconds).</b> The diagnosis goes on,
and this page is replaced when it ends.</p>
<ul>{said}</ul>
{_how(facts.differences)}"""
    write_whole(path, document(f"{name}: first facts about its clients", body))
    return path


def _how(differences: Differences) -> str:
    """Return how the clients' data differ, with a picture."""
    drawn = picture(differences)
    shown = f'<div class="plot">{drawn}</div>' if drawn else ""
    return f"<h2>How the clients differ</h2><p>{escape(differences.sentence)}</p>{shown}"


def _points(diagnosis: Diagnosis) -> str:
    heads = ["point", "f", "zeta", "|grad f|", "B", "L", "delta"]
    rows = [
        [
            escape(row.where),
            *(
                escape(str(row.intervals.get(name, _cell(value))))
                for name, value in (
                    ("loss", row.loss),
                    ("zeta", row.zeta),
                    ("gradient", row.gradient),
                    ("B", row.B),
                    ("L", row.L),
                    ("delta", row.delta),
                )
            ),
        ]
        for row in diagnosis.points
    ]
    return f"<h2>Points</h2>{html_table(heads, rows)}"


def _cell(value: float | None) -> str:
    return "-" if value is None or not isfinite(value) else f"{value:.3g}"


def figure(diagnosis: Diagnosis) -> "Figure":
    """Return the four plots."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(PLOTS):
        made = Figure(figsize=(10, 7.4), layout="constrained")
        panels: Any = made.subplots(2, 2)
        _bars(panels[0][0], diagnosis)
        _spectrum(panels[0][1], diagnosis)
        _rounds(panels[1][0], diagnosis)
        _bias(panels[1][1], diagnosis)
    return made


def _bars(axes: "Axes", diagnosis: Diagnosis) -> None:
    rows = diagnosis.clients[:SHOWN]
    gradients = [row.gradient for row in rows]
    hessians = [row.hessian if isfinite(row.hessian) else 0.0 for row in rows]
    for values, shift, colour, label in (
        (gradients, -0.2, "#00798c", "gradient"),
        (hessians, 0.2, "#edae49", "Hessian"),
    ):
        top = max(values, default=0.0) or 1.0
        bars = axes.bar([j + shift for j in range(len(rows))], [v / top for v in values], 0.4)
        for bar, row in zip(bars, rows, strict=True):
            pale = label == "Hessian" and not row.measured
            bar.set_color(colour)
            bar.set_alpha(0.4 if pale else 1.0)
        axes.bar([0], [0], 0.4, color=colour, label=f"{label}, largest {top:.2g}")
    few = len(rows) <= 15
    axes.set_xticks(range(len(rows)), [str(row.client) if few else "" for row in rows])
    axes.set_ylim(0, 1.25)
    everybody = len(diagnosis.clients) <= SHOWN
    axes.set_xlabel("client" if everybody else f"the {SHOWN} that differ most")
    axes.set_ylabel("apart from the mean, relative")
    axes.set_title("Who differs", fontsize=10, loc="left")
    axes.legend(loc="upper right", ncols=2, fontsize=9)


def _spectrum(axes: "Axes", diagnosis: Diagnosis) -> None:
    order = [row.client for row in diagnosis.clients if row.client in diagnosis.spectra][:STRIPS]
    for level, client in enumerate(order):
        values, weights = diagnosis.spectra[client]
        sizes = [20 + 80 * weight for weight in weights]
        y = [level] * len(values)
        axes.scatter(values, y, s=sizes, marker="|", color="#00798c", linewidths=1.2)
    for edge in (-diagnosis.delta, diagnosis.delta) if isfinite(diagnosis.delta) else ():
        axes.axvline(edge, color="#d1495b", linewidth=1, linestyle="--")
    axes.axvline(0, color="#bbbbbb", linewidth=0.8)
    axes.set_yticks(range(len(order)), [f"client {client}" for client in order])
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.set_xlabel("eigenvalues of Hess_i - Hess")
    known = diagnosis.L > 0 and not diagnosis.rough
    bound = f"delta >= {diagnosis.delta:.2g}" if isfinite(diagnosis.delta) else "not measured"
    ratio = f"delta/L = {diagnosis.delta / diagnosis.L:.2g}" if known else bound
    axes.set_title(f"How their Hessians differ ({ratio})", fontsize=10, loc="left")


def _rounds(axes: "Axes", diagnosis: Diagnosis) -> None:
    for name in dict.fromkeys(one.algorithm for one in diagnosis.predicted):
        mine = sorted((o for o in diagnosis.predicted if o.algorithm == name), key=lambda o: o.K)
        there = [one for one in mine if one.rounds is not None]
        beyond = [one for one in mine if one.rounds is None]
        style: dict[str, Any] = {"color": kind(name).colour, "markersize": 5}
        line = ([o.K for o in there], [o.rounds or 0.5 for o in there])
        axes.plot(*line, marker="o", linewidth=1.6, label=named(name), **style)
        tops = ([o.K for o in beyond], [o.ran for o in beyond])
        axes.plot(*tops, marker="^", linestyle="none", fillstyle="none", **style)
        for one in mine:
            if one.algorithm == diagnosis.algorithm and one.K == diagnosis.K and one.rounds:
                ring: dict[str, Any] = {"markersize": 13, "fillstyle": "none", "color": "#222222"}
                axes.plot([one.K], [one.rounds], "o", linestyle="none", **ring, label="advised")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _plain(axes.xaxis)
    _plain(axes.yaxis)
    axes.set_xlabel("local steps K")
    axes.set_ylabel(f"rounds to f - f* = {diagnosis.eps:.2g}")
    axes.set_title("Predicted rounds", fontsize=10, loc="left")
    if diagnosis.predicted:
        axes.legend(fontsize=9)
    else:
        axes.text(0.5, 0.5, "not known", ha="center", transform=axes.transAxes, color="#666666")
        axes.set_axis_off()


def _bias(axes: "Axes", diagnosis: Diagnosis) -> None:

    at = "" if diagnosis.eta_l is None else f" at eta_l = {diagnosis.eta_l:.2g}"
    axes.set_title(f"Bias{at}", fontsize=10, loc="left")
    rows = [row for row in diagnosis.bias_by_K if row.K != 1]
    if not any(row.heterogeneity > 0 for row in rows):
        why = "none" if rows or diagnosis.K == 1 else "not known"
        axes.text(0.5, 0.5, why, ha="center", transform=axes.transAxes, color="#666666")
        axes.set_axis_off()
        return
    K = [row.K for row in rows]
    red: dict[str, Any] = {"color": kind(FEDAVG).colour, "linewidth": 1.6}
    axes.plot(K, [_or_nan(row.limit) for row in rows], **red, marker="o", label="FedAvg stops")
    first = [_or_nan(row.heterogeneity) for row in rows]
    axes.plot(K, first, **red | {"linewidth": 1}, linestyle="--", label="to first order")
    noise = diagnosis.bias.scaffold
    if noise:
        label = "Scaffold (noise, first order)"
        axes.axhline(noise, color=kind(SCAFFOLD).colour, linewidth=1.6, label=label)
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
