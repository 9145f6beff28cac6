"""Curves: a line for each series, its band, direct labels, and a target."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite

from trimtab.report.charts.scales import Scale, extent
from trimtab.report.charts.svg import axes, ink, svg, text

MOST = 400  # a line has <= 400 points
WIDTH, HEIGHT = 720.0, 316.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 132.0, 12.0, 44.0
LABELLED = 8  # <= 8 lines have labels at their ends
APART = 15.0  # pixels between two labels

Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Line:
    """One curve: its key in the data of the page, how it looks, and its points."""

    key: str
    label: str
    colour: str
    dash: str
    x: Sequence[float]
    y: Numbers
    low: Numbers = ()  # of the band over seeds, as far as it goes
    high: Numbers = ()


def line_chart(
    lines: Sequence[Line],
    x_name: str,
    y_name: str,
    *,
    x_log: bool = False,
    y_log: bool = False,
    target: float | None = None,
) -> str:
    """Return the curves as an <svg>."""
    x_low, x_high = _ends([x for line in lines for x in line.x], x_log)
    x = Scale(x_low, x_high, LEFT, WIDTH - RIGHT, x_log)
    values = [v for line in lines for v in (*line.y, *line.low, *line.high)]
    y = Scale(*extent([*values, target], y_log), HEIGHT - BOTTOM, TOP, y_log)
    parts = [axes(x, y, x_name, "")]
    if target is not None:
        parts.append(f'<path class="target" d="M{LEFT:g} {y(target):.1f}H{WIDTH - RIGHT:g}"/>')
    for line in lines:
        look = f'class="series" data-key="{escape(line.key)}" style="{ink(line.colour)}"'
        parts.append(f"<g {look}>{_drawn(line, x, y)}</g>")
    if len(lines) <= LABELLED:
        parts.append(_labels(lines, y))
    names = ", ".join(line.label for line in lines)
    label = f"{y_name} against {x_name}: {names}; the numbers are in the table below."
    return svg(WIDTH, HEIGHT, parts, label, "lines")


def _ends(values: Sequence[float], log: bool) -> tuple[float, float]:
    """Return the ends of the horizontal axis: no room beside the curves, but around one point."""
    known = [v for v in values if isfinite(v) and (v > 0 or not log)]
    if not known:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(known), max(known)
    if high > low:
        return low, high
    return (low / 3, 3 * low) if log else (low - 1, low + 1)


def _drawn(line: Line, x: Scale, y: Scale) -> str:
    points = [
        (x(at), y(value))
        for at, value in zip(line.x, line.y, strict=True)
        if _fits(at, x) and _fits(value, y) and value is not None
    ]
    band = [
        (x(at), y(low), y(high))
        for at, low, high in zip(line.x, line.low, line.high, strict=False)
        if low is not None and high is not None and _fits(low, y) and _fits(high, y)
    ]
    parts = []
    if len(band) > 1:
        upper = thinned([(at, high) for at, _, high in band], MOST // 2)
        lower = thinned([(at, low) for at, low, _ in band], MOST // 2)
        parts.append(f'<path class="band" d="{path([*upper, *reversed(lower)])}Z"/>')
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    parts.append(f'<path class="line"{dash} d="{path(thinned(points))}"/>')
    if len(points) == 1:
        parts.append(f'<circle class="dot" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3"/>')
    return "".join(parts)


def _fits(value: float | None, scale: Scale) -> bool:
    return value is not None and isfinite(value) and (value > 0 or not scale.log)


def thinned(points: list[tuple[float, float]], most: int = MOST) -> list[tuple[float, float]]:
    """Return <= `most` of some points in the order of x: the least and the greatest of each piece.

    >>> thinned([(float(j), float(j % 7)) for j in range(1000)], most=4)
    [(0.0, 0.0), (6.0, 6.0), (503.0, 6.0), (504.0, 0.0)]
    """
    if len(points) <= most:
        return points
    low, high = points[0][0], points[-1][0]
    pieces: dict[int, list[int]] = {}
    count = most // 2
    for j, (at, _) in enumerate(points):
        piece = int(count * (at - low) / ((high - low) or 1.0))
        pieces.setdefault(min(piece, count - 1), []).append(j)
    kept = sorted(
        {
            chosen(inside, key=lambda j: points[j][1])
            for inside in pieces.values()
            for chosen in (min, max)
        }
    )
    return [points[j] for j in kept]


def path(points: Sequence[tuple[float, float]]) -> str:
    """Return a path through points.

    >>> path([(1, 2), (3, 4.55)])
    'M1 2L3 4.5'
    """
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points) if points else ""


def _short(pixel: float) -> str:
    return f"{pixel:.1f}".removesuffix(".0")


def _labels(lines: Sequence[Line], y: Scale) -> str:
    """Return the names of the lines at their ends, moved apart where they would meet."""
    ends = [(y(v), line) for line in lines if (v := _last(line, y)) is not None]
    ends.sort(key=lambda end: end[0])
    parts, left = [], WIDTH - RIGHT + 6
    for at, (_, line) in zip(apart([at for at, _ in ends]), ends, strict=True):
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        name = line.label if len(line.label) <= 17 else line.label[:16] + "…"
        parts.append(
            f'<g class="end series" data-key="{escape(line.key)}" style="{ink(line.colour)}">'
            f'<path class="line"{dash} d="M{left:g} {at:.1f}h18"/>'
            f"{text(left + 22, at + 4, name)}</g>"
        )
    return "".join(parts)


def apart(places: Sequence[float], lowest: float = HEIGHT - BOTTOM - 4) -> list[float]:
    """Return places from above to below, moved until none meets another or the axis.

    >>> apart([100.0, 101.0, 266.0, 268.0], lowest=268.0)
    [100.0, 115.0, 253.0, 268.0]
    """
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + APART) if moved else place)
    for j in reversed(range(len(moved))):
        moved[j] = min(moved[j], lowest)
        lowest = moved[j] - APART
    return moved


def _last(line: Line, y: Scale) -> float | None:
    return next((v for v in reversed(line.y) if _fits(v, y)), None)
