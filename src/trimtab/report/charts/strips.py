"""How models serve the clients one by one: where each client stands, and who gains by whom."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from trimtab.report.charts.scales import Scale, extent, short
from trimtab.report.charts.svg import ink, svg, text

WIDTH, LEFT, RIGHT, ROW, TOP = 640.0, 128.0, 16.0, 34.0, 12.0
GAIN_WIDTH, GAIN_HEIGHT = 330.0, 208.0


@dataclass(frozen=True)
class Served:
    """A metric of each client under one algorithm's model; None where it is not defined."""

    label: str
    colour: str
    values: Sequence[float | None]


def strip_chart(served: Sequence[Served], metric: str) -> str:
    """Return a row for each algorithm: a stroke for each client, a diamond at their mean."""
    everything = [value for one in served for value in one.values]
    base = TOP + ROW * len(served)
    x = Scale(*extent(everything), LEFT, WIDTH - RIGHT)
    body = []
    for tick in x.ticks():
        body.append(f'<path class="grid" d="M{x(tick):.1f} {TOP:g}V{base:g}"/>')
        body.append(text(x(tick), base + 17, short(tick), "middle"))
    for j, one in enumerate(served):
        y = TOP + ROW * (j + 0.5)
        known = [value for value in one.values if value is not None]
        strokes = "".join(f"M{x(v):.1f} {y - 10:.1f}v20" for v in known)
        mean = x(sum(known) / len(known)) if known else 0.0
        marks = f'<path class="stroke" d="{strokes}"/>'
        if known:
            marks += f'<path class="mean" d="M{mean:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7Z"/>'
        name = one.label if len(one.label) <= 17 else one.label[:16] + "…"
        body.append(text(LEFT - 8, y + 4, name, "end"))
        body.append(f'<g class="series" style="{ink(one.colour)}">{marks}</g>')
    body.append(
        text((LEFT + WIDTH - RIGHT) / 2, base + 34, f"{metric} of a client", "middle", "name")
    )
    label = f"{metric} of each client, a row an algorithm; the numbers are in the table below."
    return svg(WIDTH, base + 44, body, label, "strips")


def gain_chart(
    gains: Sequence[tuple[int, float]],
    colour: str,
    what: str,
    title: str,
    y_range: tuple[float, float],
) -> str:
    """Return a bar for each client, the greatest gain first: upwards it gains, downwards it loses.

    gains: clients with how much better they are served than by the algorithm compared with.
    """
    order = sorted(gains, key=lambda gain: -gain[1])
    left, bottom, top = 52.0, GAIN_HEIGHT - 48, 22.0
    x = Scale(0, max(1, len(order)), left, GAIN_WIDTH - 10)
    y = Scale(*y_range, bottom, top)
    body = []
    for tick in y.ticks(4):
        body.append(f'<path class="grid" d="M{left:g} {y(tick):.1f}H{GAIN_WIDTH - 10:g}"/>')
        body.append(text(left - 6, y(tick) + 4, short(tick), "end"))
    wide = (x(1) - x(0)) * 0.8
    for j, (client, gain) in enumerate(order):
        height = y(gain) - y(0)
        at = f"M{x(j + 0.5) - wide / 2:.1f} {y(0):.1f}v{height:.1f}h{wide:.1f}v{-height:.1f}z"
        title_of = escape(f"client {client}: {gain:+.3g}")
        body.append(f'<path class="bar" d="{at}"><title>{title_of}</title></path>')
        if len(order) <= 12:
            body.append(text(x(j + 0.5), GAIN_HEIGHT - 28, str(client), "middle"))
    body.append(f'<path class="axis" d="M{left:g} {y(0):.1f}H{GAIN_WIDTH - 10:g}"/>')
    body.append(text(left, 12, what, "start", "name"))
    middle = (left + GAIN_WIDTH - 10) / 2
    body.append(text(middle, GAIN_HEIGHT - 10, "clients, by their gain", "middle", "name"))
    label = f"{title}: {what} of {len(order)} clients, the greatest gain first."
    group = f'<g class="series" style="{ink(colour)}">{"".join(body)}</g>'
    return svg(GAIN_WIDTH, GAIN_HEIGHT, [group], label, "gains")
