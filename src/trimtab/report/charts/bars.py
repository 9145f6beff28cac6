"""Numbers by client or by candidate: bars, dots with the best of each setting, spectra."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from trimtab.report.charts.lines import path
from trimtab.report.charts.scales import Scale, axis_ends, short
from trimtab.report.charts.svg import axes, css_colours, svg, text

# More bars than these leave no room for a name below each.
NAMED = {480.0: 20, 330.0: 12}

# -- bars


@dataclass(frozen=True)
class Bar:
    """A name, a number, and whether it was measured or estimated."""

    name: str
    value: float
    measured: bool = True


def bar_chart(
    bars: Sequence[Bar],
    what: str,
    x_name: str,
    colour: str,
    title: str,
    ends: tuple[float, float] | None = None,
    width: Literal[480, 330] = 480,
) -> str:
    """Return a bar for each number, from zero upwards or downwards; hollow for an estimate.

    ends: the ends of the vertical axis; by default zero and the largest number.
    """
    left, right, top, bottom, height = 54.0, width - 10.0, 26.0, 40.0, 210.0
    low, high = ends or (0.0, 1.05 * (max((bar.value for bar in bars), default=0.0) or 1.0))
    x = Scale(0, max(1, len(bars)), left, right)
    y = Scale(low, high, height - bottom, top)
    body = [text(left, top - 10, what, "start", "name")]
    for tick in y.ticks(4):
        body.append(f'<path class="grid" d="M{left:g} {y(tick):.1f}H{right:g}"/>')
        body.append(text(left - 6, y(tick) + 4, short(tick), "end"))
    wide = (x(1) - x(0)) * 0.78
    for j, bar in enumerate(bars):
        tall = y(bar.value) - y(0)
        at = f"M{x(j + 0.5) - wide / 2:.1f} {y(0):.1f}v{tall:.1f}h{wide:.1f}v{-tall:.1f}z"
        about = "" if bar.measured else ", an estimate"
        description = escape(f"client {bar.name}: {bar.value:.3g}{about}")
        kind = "bar" if bar.measured else "hollow"
        body.append(f'<path class="{kind}" d="{at}"><title>{description}</title></path>')
        if len(bars) <= NAMED[width]:
            body.append(text(x(j + 0.5), height - bottom + 16, bar.name, "middle"))
    body.append(f'<path class="axis" d="M{left:g} {y(0):.1f}H{right:g}"/>')
    body.append(text((left + right) / 2, height - 5, x_name, "middle", "name"))
    label = f"{title}: {what} of {len(bars)} clients; the numbers are in the table below."
    group = f'<g class="series" style="{css_colours(colour)}">{"".join(body)}</g>'
    return svg(width, height, [group], label, "bars")


# -- dots

DotKind = Literal["run", "leader", "winner", "fragile", "diverged"]
_MARKED: dict[DotKind, str] = {  # the word beside the marked dot
    "leader": "best so far",
    "winner": "winner",
    "fragile": "fragile winner",
}


@dataclass(frozen=True)
class Dot:
    """A candidate of a search.

    x: its setting.
    y: its best value; None if it has none.
    kind: its state.
    description: shown when the pointer is on it.
    """

    x: float
    y: float | None
    kind: DotKind
    description: str


def dot_chart(
    dots: Sequence[Dot],
    x_name: str,
    y_name: str,
    colour: str,
    *,
    higher: bool,
    y_log: bool,
    y_range: tuple[float, float],
    title: str,
) -> str:
    """Return the candidates as an <svg>: a line joins the best of each setting.

    The winner has a ring, or a diamond if it is fragile; runs that diverged are crosses.
    """
    width, height = 330.0, 220.0
    xs = sorted({dot.x for dot in dots})
    x_log = xs[0] > 0
    y = Scale(*y_range, height - 44, 30.0, y_log)
    # On a phone longer numbers would be cut off.
    left = max(48.0, 10 + 6.8 * max((len(short(tick)) for tick in y.ticks(6)), default=0))
    x = Scale(*axis_ends(xs, x_log), left, width - 14, x_log)
    body = [axes(x, y, x_name, y_name, xs if len(xs) <= 4 else None)]
    body.append(f'<path class="line" d="{path(_best_by_setting(dots, x, y, higher))}"/>')
    worse = y.start if higher else y.end
    body += [_mark(dot, x(dot.x), y, worse) for dot in dots]
    marked = next((dot for dot in dots if dot.kind in _MARKED), None)
    if marked is not None and marked.y is not None:
        right = x(marked.x) > width - 110
        at = x(marked.x) + (-11 if right else 11), max(y(marked.y) - 9, y.end + 4)
        body.append(text(*at, _MARKED[marked.kind], "end" if right else "start", "over"))
    label = f"{title}: {y_name} against {x_name} for {len(dots)} candidates; "
    label += "the numbers are in the table below."
    group = f'<g class="series" style="{css_colours(colour)}">{"".join(body)}</g>'
    return svg(width, height, [group], label, "dots")


def _best_by_setting(
    dots: Sequence[Dot], x: Scale, y: Scale, higher: bool
) -> list[tuple[float, float]]:
    best: dict[float, float] = {}
    for dot in dots:
        if dot.y is not None and dot.kind != "diverged":
            known = best.get(dot.x, dot.y)
            best[dot.x] = max(known, dot.y) if higher else min(known, dot.y)
    inside = {at: value for at, value in best.items() if y.low <= value <= y.high}
    return [(x(at), y(value)) for at, value in sorted(inside.items())]


def _mark(dot: Dot, x: float, scale: Scale, worse: float) -> str:
    title = f"<title>{escape(dot.description)}</title>"
    if dot.y is not None and not scale.low <= dot.y <= scale.high:
        return f'<circle class="ring" cx="{x:.1f}" cy="{worse:.1f}" r="3">{title}</circle>'
    y = worse if dot.y is None else scale(dot.y)
    if dot.kind == "diverged":
        return f'<path class="cross" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8">{title}</path>'
    if dot.kind == "fragile":
        return f'<path class="ring" d="M{x:.1f} {y - 8:.1f}l8 8l-8 8l-8 -8Z">{title}</path>'
    is_marked = dot.kind in _MARKED
    ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="7"/>' if is_marked else ""
    return f'{ring}<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3">{title}</circle>'


# -- spectra


def spectrum_chart(
    rows: Sequence[tuple[str, Sequence[float]]],
    edge: float | None,
    what: str,
    colour: str = "#00798c",
) -> str:
    """Return a row of strokes for each client, one for each eigenvalue.

    rows: the name of each client and its eigenvalues.
    edge: where dashed lines are drawn on both sides of zero; None for none.
    """
    width, left, right, top, row = 480.0, 74.0, 466.0, 10.0, 28.0
    ends = [] if edge is None else [-edge, edge]
    everything = [0.0, *ends, *(v for _, values in rows for v in values)]
    x = Scale(*axis_ends(everything), left, right)
    base = top + row * len(rows)
    body = [f'<path class="axis" d="M{x(0):.1f} {top:g}V{base:g}"/>']
    for tick in x.ticks(5):
        body.append(f'<path class="grid" d="M{x(tick):.1f} {top:g}V{base:g}"/>')
        body.append(text(x(tick), base + 16, short(tick), "middle"))
    body += [f'<path class="target" d="M{x(end):.1f} {top:g}V{base:g}"/>' for end in ends]
    for j, (name, values) in enumerate(rows):
        y = top + row * (j + 0.5)
        strokes = "".join(f"M{x(v):.1f} {y - 11:.1f}v22.0" for v in values)
        body.append(f'<path class="stroke" d="{strokes}"/>')
        body.append(text(left - 8, y + 4, name, "end"))
    body.append(text((left + right) / 2, base + 32, what, "middle", "name"))
    label = f"{what} of {len(rows)} clients; the numbers are in the table below."
    group = f'<g class="series" style="{css_colours(colour)}">{"".join(body)}</g>'
    return svg(width, base + 40, [group], label, "spectrum")
