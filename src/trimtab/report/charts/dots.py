"""A search: what each candidate reached against one of its settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from trimtab.report.charts.lines import path
from trimtab.report.charts.scales import Scale, extent
from trimtab.report.charts.svg import axes, ink, svg, text

WIDTH, HEIGHT = 330.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 14.0, 30.0, 44.0

Kind = Literal["run", "leader", "winner", "fragile", "diverged"]
_WORDS: dict[Kind, str] = {  # what is written beside the one that is marked
    "leader": "ahead so far",
    "winner": "winner",
    "fragile": "fragile winner",
}


@dataclass(frozen=True)
class Dot:
    """A candidate: its setting, what it reached (None if nothing), and what became of it."""

    x: float
    y: float | None
    kind: Kind
    says: str


def dot_chart(
    dots: Sequence[Dot],
    x_name: str,
    y_name: str,
    colour: str,
    *,
    higher: bool,
    x_log: bool,
    y_log: bool,
    y_range: tuple[float, float],
    title: str,
) -> str:
    """Return the candidates as an <svg>: a line joins the best at each setting.

    The winner, or who is ahead while a search goes on, has a ring, a winner that is fragile a
    diamond; those that diverged are crosses.
    """
    xs = [dot.x for dot in dots]
    x = Scale(*extent(xs, x_log), LEFT, WIDTH - RIGHT, x_log)
    y = Scale(*y_range, HEIGHT - BOTTOM, TOP, y_log)
    shown = sorted(set(xs)) if len(set(xs)) <= 4 else None
    body = [axes(x, y, x_name, y_name, shown)]
    body.append(f'<path class="line" d="{path(_profile(dots, x, y, higher))}"/>')
    worse = y.start if higher else y.end
    body += [_mark(dot, x(dot.x), y, worse) for dot in dots]
    marked = next((dot for dot in dots if dot.kind in _WORDS), None)
    if marked is not None and marked.y is not None:
        right = x(marked.x) > WIDTH - 110
        at = x(marked.x) + (-11 if right else 11), max(y(marked.y) - 9, TOP + 4)
        body.append(text(*at, _WORDS[marked.kind], "end" if right else "start", "over"))
    label = f"{title}: {y_name} against {x_name} for {len(dots)} candidates; "
    label += "the numbers are in the table below."
    group = f'<g class="series" style="{ink(colour)}">{"".join(body)}</g>'
    return svg(WIDTH, HEIGHT, [group], label, "dots")


def _profile(dots: Sequence[Dot], x: Scale, y: Scale, higher: bool) -> list[tuple[float, float]]:
    """Return the best at each setting, of those that are inside."""
    best: dict[float, float] = {}
    for dot in dots:
        if dot.y is not None and dot.kind != "diverged":
            known = best.get(dot.x, dot.y)
            best[dot.x] = max(known, dot.y) if higher else min(known, dot.y)
    inside = {at: value for at, value in best.items() if y.low <= value <= y.high}
    return [(x(at), y(value)) for at, value in sorted(inside.items())]


def _mark(dot: Dot, x: float, scale: Scale, worse: float) -> str:
    title = f"<title>{escape(dot.says)}</title>"
    if dot.y is not None and not scale.low <= dot.y <= scale.high:
        return f'<circle class="ring" cx="{x:.1f}" cy="{worse:.1f}" r="3">{title}</circle>'
    y = worse if dot.y is None else scale(dot.y)
    if dot.kind == "diverged":
        return f'<path class="cross" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8">{title}</path>'
    if dot.kind == "fragile":
        return f'<path class="ring" d="M{x:.1f} {y - 8:.1f}l8 8l-8 8l-8 -8Z">{title}</path>'
    is_marked = dot.kind in ("leader", "winner")
    ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="7"/>' if is_marked else ""
    return f'{ring}<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3">{title}</circle>'
