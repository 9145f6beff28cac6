"""Bars: a number for each client, hollow where it is only an estimate."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from trimtab.report.charts.scales import Scale, short
from trimtab.report.charts.svg import ink, svg, text

WIDTH, HEIGHT = 480.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 10.0, 26.0, 36.0
NAMED = 20  # <= 20 bars have their names below


@dataclass(frozen=True)
class Bar:
    """A name, a number, and whether it was measured."""

    name: str
    value: float
    measured: bool = True


def bar_chart(bars: Sequence[Bar], what: str, x_name: str, colour: str, title: str) -> str:
    """Return a bar for each number, in the order given."""
    most = max((bar.value for bar in bars), default=0.0) or 1.0
    x = Scale(0, max(1, len(bars)), LEFT, WIDTH - RIGHT)
    y = Scale(0.0, 1.05 * most, HEIGHT - BOTTOM, TOP)
    body = [text(LEFT, TOP - 10, what, "start", "name")]
    for tick in y.ticks(4):
        body.append(f'<path class="grid" d="M{LEFT:g} {y(tick):.1f}H{WIDTH - RIGHT:g}"/>')
        body.append(text(LEFT - 6, y(tick) + 4, short(tick), "end"))
    wide = (x(1) - x(0)) * 0.76
    for j, bar in enumerate(bars):
        left, height = x(j + 0.5) - wide / 2, y(0) - y(bar.value)
        at = f"M{left:.1f} {y(0):.1f}v{-height:.1f}h{wide:.1f}v{height:.1f}z"
        about = "" if bar.measured else ", an estimate"
        says = escape(f"{x_name} {bar.name}: {bar.value:.3g}{about}")
        kind = "bar" if bar.measured else "hollow"
        body.append(f'<path class="{kind}" d="{at}"><title>{says}</title></path>')
        if len(bars) <= NAMED:
            body.append(text(x(j + 0.5), HEIGHT - BOTTOM + 16, bar.name, "middle"))
    body.append(f'<path class="axis" d="M{LEFT:g} {y(0):.1f}H{WIDTH - RIGHT:g}"/>')
    body.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_name, "middle", "name"))
    label = f"{title}: {what} of {len(bars)} clients; the numbers are in the table below."
    group = f'<g class="series" style="{ink(colour)}">{"".join(body)}</g>'
    return svg(WIDTH, HEIGHT, [group], label, "bars")
