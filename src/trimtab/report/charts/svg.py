"""The few pieces that all charts are made of; every text is escaped here."""

from collections.abc import Iterable, Sequence
from html import escape

from trimtab.report.charts.colours import DARK, readable
from trimtab.report.charts.scales import Scale, short


def svg(width: float, height: float, body: Iterable[str], label: str, kind: str) -> str:
    """Return an <svg> element with a text that says what it shows."""
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(label)}" xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>'
    )


def text(
    x: float, y: float, words: str, anchor: str = "start", kind: str = "", turned: bool = False
) -> str:
    """Return a text; turned: upwards, beside a vertical axis."""
    extra = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    style = f' class="{kind}"' if kind else ""
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {at}{style}{extra}>{escape(words)}</text>"


def axes(x: Scale, y: Scale, x_name: str, y_name: str, x_ticks: list[float] | None = None) -> str:
    """Return grid lines, ticks with their numbers, and the names of both axes."""
    parts = []
    for tick in y.ticks(6):
        at = y(tick)
        parts.append(f'<path class="grid" d="M{x.start:g} {at:.1f}H{x.end:g}"/>')
        parts.append(text(x.start - 6, at + 4, short(tick), "end"))
    for tick in x.ticks() if x_ticks is None else x_ticks:
        at = x(tick)
        parts.append(f'<path class="grid" d="M{at:.1f} {y.start:g}v4"/>')
        words = short(tick) if x_ticks is None or tick >= 1 else f"{tick:.2g}"
        parts.append(text(at, y.start + 17, words, "middle"))
    parts.append(f'<path class="axis" d="M{x.start:g} {y.start:g}H{x.end:g}"/>')
    parts.append(text((x.start + x.end) / 2, y.start + 34, x_name, "middle", "name"))
    if y_name:
        parts.append(text(x.start, y.end - 8, y_name, "start", "name"))
    return "".join(parts)


def ink(colour: str) -> str:
    """Return a colour as two of CSS, one for a white page and one for a dark one."""
    light, dark = readable(colour, "#ffffff"), readable(colour, "#16191d", DARK)
    return f"--light:{light};--dark:{dark}"


def legend(lines: Sequence[tuple[str, str, str, str]]) -> str:
    """Return the names of lines beside a piece of each, as a list; one alone needs none.

    lines: the key, the name, the colour and the dashes of each.
    """
    if len(lines) < 2:
        return ""
    items = "".join(
        f'<li class="series" data-key="{escape(key)}" style="{ink(colour)}">'
        '<svg class="sample" viewBox="0 0 28 12" aria-hidden="true">'
        f'<path class="line" d="M1 6H27" stroke-dasharray="{dash}"/></svg>'
        f"<span>{escape(name)}</span></li>"
        for key, name, colour, dash in lines
    )
    return f'<ul class="legend">{items}</ul>'
