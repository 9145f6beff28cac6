"""Curves that can be hovered, zoomed and switched: metrics against cost, and how clients move."""

from html import escape
from math import isfinite

from trimtab.report.charts.lines import Line, line_chart
from trimtab.report.charts.scales import short
from trimtab.report.charts.svg import legend
from trimtab.report.curves import AXES, TELEMETRY, Curve
from trimtab.report.sources import Page
from trimtab.report.style import behind, html_table, section

LONG = 30  # more rounds begin with a logarithmic axis, for what matters happens early
ROWS = 12  # <= 12 rounds are in the table behind a chart
_MEANS = {
    "drift": "How far clients move in a round, the mean of |dx_i|.",
    "spread": "How far the clients' states (their controls) lie apart.",
    "cosine": "How far the clients' moves agree, 1 for all alike.",
}


def curves(page: Page) -> str:
    """Show the metrics against rounds, exchanges, bytes, client work and seconds."""
    if not page.curves:
        return ""
    body = _controls(page) + _legend(page) + "".join(_figure(page, m) for m in _metrics(page))
    return section("Curves", f'{body}<p class="small">{_note(page)}</p>')


def _note(page: Page) -> str:
    """Say what one can do with the charts, which is no use on paper, and what they show."""
    note = (
        '<span class="hint">Hover for numbers, drag to zoom, double-click for everything; with the '
        "keyboard: arrows, +, - and 0.</span>"
    )
    if any(source.result.target is not None for source in page.sources):
        note += " A dashed grey line is the target."
    if any(curve.low for curve in page.curves):
        note += (
            " The band is the least and the greatest over the seeds, as far as all of them ran; "
            "the line is the first of them."
        )
    return note


def telemetry(page: Page) -> str:
    """Show how far clients move, and how far their controls lie apart."""
    names = [name for name in TELEMETRY if any(name in curve.y for curve in page.curves)]
    if not names:
        return ""
    figures = "".join(_figure(page, name, _MEANS[name]) for name in names)
    return section("Drift and controls", _legend(page) + figures)


def starts_logarithmic(page: Page) -> bool:
    """Tell whether the axis of rounds begins as a logarithmic one."""
    return max((len(curve.x["rounds"]) for curve in page.curves), default=0) > LONG


def _metrics(page: Page) -> list[str]:
    """Return what was measured, the goals first."""
    goals = [source.result.metric for source in page.sources]
    measured = [name for curve in page.curves for name in curve.y if name not in TELEMETRY]
    return [name for name in dict.fromkeys((*goals, *measured)) if name in measured]


def _figure(page: Page, y: str, caption: str = "") -> str:
    lines = [line for curve in page.curves if (line := curve.line("rounds", y)) is not None]
    if not any(v is not None and isfinite(v) for line in lines for v in line.y):
        return f"<h3>{escape(y)}</h3><p>It was never a finite number.</p>"
    y_log = _logarithmic(lines)
    targets = {
        s.result.target
        for s in page.sources
        if s.result.metric == y and s.result.target is not None
    }
    target = targets.pop() if len(targets) == 1 else None
    if target is not None and target <= 0:
        y_log = False
    log = starts_logarithmic(page)
    chart = line_chart(lines, AXES["rounds"], y, x_log=log, y_log=y_log, target=target)
    said = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    facts = f'data-y="{escape(y)}" data-log="{"yes" if y_log else "no"}"'
    facts += "" if target is None else f' data-target="{target!r}"'
    key = "".join(c if c.isalnum() else "-" for c in y)
    return (
        f'<h3>{escape(y)}</h3><figure id="chart-{key}" {facts}>{said}{chart}</figure>'
        f"{behind(_table(page.curves, y))}"
    )


def _logarithmic(lines: list[Line]) -> bool:
    """Tell whether values are positive and span more than a factor of ten."""
    known = [v for line in lines for v in line.y if v is not None]
    return bool(known) and min(known) > 0 and max(known) > 10 * min(known)


def _controls(page: Page) -> str:
    there = [x for x in AXES if any(x in curve.x for curve in page.curves)]
    options = "".join(f'<option value="{x}">{escape(AXES[x])}</option>' for x in there)
    return (
        f'<div class="controls" hidden><label>Against <select>{options}</select></label>'
        '<label><input type="checkbox"> logarithmic</label></div>'
    )


def _legend(page: Page) -> str:
    """Return the names of the curves, which page.js lets people switch on and off."""
    return legend([(c.key, c.label, c.colour, c.dash) for c in page.curves])


def _table(curves: list[Curve], y: str) -> str:
    """Return some rounds of the curves, early ones closer together."""
    shown = [curve for curve in curves if y in curve.y]
    last = max((len(curve.y[y]) for curve in shown), default=1)
    rounds = sorted({round(last ** (j / (ROWS - 1))) for j in range(ROWS)})
    rows = [[str(r), *(_at(curve.y[y], r) for curve in shown)] for r in rounds]
    return html_table(["round", *(curve.label for curve in shown)], rows, f"{y} by rounds")


def _at(values: list[float | None], r: int) -> str:
    value = values[r - 1] if r <= len(values) else None
    return "-" if value is None else short(value)
