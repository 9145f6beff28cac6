"""Line charts: each line with its band, its name at its end, and a target.

page.js draws the same charts again by the same rules.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite, log10
from typing import Literal

from trimtab.report.charts.scales import Scale, axis_ends
from trimtab.report.charts.svg import axes, css_colours, svg, text

MOST = 400  # points of a line; more are not seen on 600 pixels and make pages large
WIDTH, HEIGHT = 720.0, 316.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 132.0, 12.0, 44.0
LABELLED = 8  # More lines leave no room for names at their ends.
APART = 15.0  # pixels between two names, which are 12 high
# How much worse than the usual line a value may be and still set the axis: this many times the span
# of the usual line. Slow runs stay inside; in runs that fail, values grow by many powers of ten.
FAR, FAR_LOG = 10.0, 2.0
OUTSIDE = 1000.0  # pixels; browsers draw paths with larger coordinates wrongly

Numbers = Sequence[float | None]
Better = Literal["low", "high", ""]


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    key: its name in the data of the page.
    x, y: its points.
    low, high: its band, as far as it is known.
    diverged: whether its run diverged; the axis does not follow it then.
    """

    key: str
    label: str
    colour: str
    dash: str
    x: Sequence[float]
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    diverged: bool = False


def line_chart(
    lines: Sequence[Line],
    x_name: str,
    y_name: str,
    *,
    x_log: bool = False,
    y_log: bool = False,
    target: float | None = None,
    better: Better = "",
) -> str:
    """Return the lines as an <svg>.

    target: where a dashed line is drawn; None for none.
    better: which end of the vertical axis is the better one; "" if neither is.
    """
    x = Scale(*_x_ends([x for line in lines for x in line.x], x_log), LEFT, WIDTH - RIGHT, x_log)
    followed = [*followed_values(lines, y_log, better), target]
    y = Scale(*axis_ends(followed, y_log), HEIGHT - BOTTOM, TOP, y_log)
    clip = "clip-" + "".join(c if c.isalnum() else "-" for c in y_name)
    parts = [
        f'<clipPath id="{clip}"><rect x="{LEFT - 4:g}" y="{TOP - 8:g}" '
        f'width="{x.end - LEFT + 8:g}" height="{y.start - TOP + 8:g}"/></clipPath>',
        axes(x, y, x_name, ""),
    ]
    if target is not None:
        parts.append(f'<path class="target" d="M{LEFT:g} {y(target):.1f}H{x.end:g}"/>')
    for line in lines:
        look = f'class="series" data-key="{escape(line.key)}" style="{css_colours(line.colour)}"'
        points = [(x(a), _pixel(b, y)) for a, b in _drawable(line.x, line.y, x, y)]
        drawn = _drawn(line, points, x, y)
        parts.append(
            f'<g {look}><g clip-path="url(#{clip})">{drawn}</g>{_end(line, points, y)}</g>'
        )
    if len(lines) <= LABELLED:
        parts.append(_labels(lines, y))
    names = ", ".join(line.label for line in lines)
    label = f"{y_name} against {x_name}: {names}; the numbers are in the table below."
    return svg(WIDTH, HEIGHT, parts, label, "lines")


def followed_values(lines: Sequence[Line], log: bool, better: Better) -> list[float]:
    """Return the values that the vertical axis follows.

    Lines that diverged do not count, unless all did. Neither do values that are far worse than the
    worst one of the usual line: one bad run would flatten the others.

    >>> def line(*y): return Line("", "", "", "", range(len(y)), y)
    >>> followed_values([line(-2.0, 900.0), line(0.5, -1.0), line(0.9, -1.5)], False, "low")
    [-2.0, 0.5, -1.0, 0.9, -1.5]
    """
    lines = [line for line in lines if not line.diverged] or list(lines)
    known = [
        [v for v in (*line.y, *line.low, *line.high) if v is not None and _is_drawable(v, log)]
        for line in lines
    ]
    values = [value for own in known for value in own]
    if not better or not values:
        return values
    sign = 1.0 if better == "low" else -1.0

    def badness(value: float) -> float:
        return sign * (log10(value) if log else value)

    best = min(map(badness, values))
    worst = sorted(max(map(badness, own)) for own in known if own)
    usual = worst[(len(worst) - 1) // 2]
    # A usual line that is nearly flat has no span to go by: a power of ten, or half of its value.
    room = FAR_LOG * max(usual - best, 1.0) if log else FAR * max(usual - best, abs(usual) / 2)
    return [v for v in values if badness(v) <= usual + room]


def _x_ends(values: Sequence[float], log: bool) -> tuple[float, float]:
    """Return the ends of the horizontal axis, without room beside the lines."""
    known = [v for v in values if isfinite(v) and (v > 0 or not log)]
    if not known:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(known), max(known)
    if high > low:
        return low, high
    return (low / 3, 3 * low) if log else (low - 1, low + 1)


def _is_drawable(value: float | None, log: bool) -> bool:
    return value is not None and isfinite(value) and (value > 0 or not log)


def _drawable(
    xs: Sequence[float], ys: Numbers, x: Scale, y: Scale
) -> Iterable[tuple[float, float]]:
    for at, value in zip(xs, ys, strict=False):
        if value is not None and _is_drawable(at, x.log) and _is_drawable(value, y.log):
            yield at, value


def _pixel(value: float, y: Scale) -> float:
    return min(y.start + OUTSIDE, max(y.end - OUTSIDE, y(value)))


def _drawn(line: Line, points: list[tuple[float, float]], x: Scale, y: Scale) -> str:
    parts = []
    upper = [(x(a), _pixel(b, y)) for a, b in _drawable(line.x, line.high, x, y)]
    lower = [(x(a), _pixel(b, y)) for a, b in _drawable(line.x, line.low, x, y)]
    if len(upper) > 1 and len(lower) > 1:
        edge = [*thinned(upper, MOST // 2), *reversed(thinned(lower, MOST // 2))]
        parts.append(f'<path class="band" d="{path(edge)}Z"/>')
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    parts.append(f'<path class="line"{dash} d="{path(thinned(points))}"/>')
    if len(points) == 1:
        parts.append(f'<circle class="dot" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3"/>')
    return "".join(parts)


def _end(line: Line, points: list[tuple[float, float]], y: Scale) -> str:
    """Return an arrow where a line first leaves the axis, or a cross where one diverged inside."""
    before: tuple[float, float] | None = None
    for at, height in points:
        edge = min(y.start, max(y.end, height))
        if edge != height:
            if before is not None:
                at = before[0] + (at - before[0]) * (edge - before[1]) / (height - before[1])
            tip = -7 if edge == y.end else 7
            return f'<path class="dot leaves" d="M{at - 5:.1f} {edge:.1f}h10l-5 {tip}z"/>'
        before = at, height
    if line.diverged and before is not None:
        return f'<path class="gone" d="M{before[0] - 4:.1f} {before[1] - 4:.1f}l8 8m0 -8l-8 8"/>'
    return ""


def thinned(points: list[tuple[float, float]], most: int = MOST) -> list[tuple[float, float]]:
    """Return at most `most` points: the lowest and the highest of each piece of the line.

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
    last = ((_last(line, y), line) for line in lines)
    ends = [(min(y.start, max(y.end, y(v))), line) for v, line in last if v is not None]
    ends.sort(key=lambda end: end[0])
    parts, left = [], WIDTH - RIGHT + 6
    for at, (_, line) in zip(spread_labels([at for at, _ in ends]), ends, strict=True):
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        name = line.label if len(line.label) <= 17 else line.label[:16] + "…"
        parts.append(
            f'<g class="end series" data-key="{escape(line.key)}" '
            f'style="{css_colours(line.colour)}">'
            f'<path class="line"{dash} d="M{left:g} {at:.1f}h18"/>'
            f"{text(left + 22, at + 4, name)}</g>"
        )
    return "".join(parts)


def spread_labels(places: Sequence[float], lowest: float = HEIGHT - BOTTOM - 4) -> list[float]:
    """Return places from top to bottom, moved until none is too near to another or the axis.

    >>> spread_labels([100.0, 101.0, 266.0, 268.0], lowest=268.0)
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
    return next((v for v in reversed(line.y) if _is_drawable(v, y.log)), None)
