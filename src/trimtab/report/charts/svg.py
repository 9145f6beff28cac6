"""Elements of SVG that all charts use, and colours that are readable on light and dark pages.

Every text is escaped here. No colour carries meaning alone: lines have dashes and labels, marks
have shapes and titles.
"""

from collections.abc import Iterable, Sequence
from html import escape

from trimtab.report.charts.scales import Scale, short

# The contrast of a line with the page. WCAG 2.2 asks for 3; thin lines on a dark page need more.
LEAST, DARK = 3.2, 4.5
DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 4", "5 2 1 2 1 2")


def readable(colour: str, background: str, least: float = LEAST) -> str:
    """Return the colour, moved towards black or white until it stands out from the background.

    >>> readable("#edae49", "#ffffff"), readable("#00798c", "#ffffff")
    ('#b48437', '#00798c')
    """
    towards = 0.0 if luminance(background) > 0.5 else 255.0
    parts = _parts(colour)
    for step in range(51):
        moved = "#" + "".join(f"{round(p + (towards - p) * step / 50):02x}" for p in parts)
        if contrast(moved, background) >= least:
            return moved
    return moved


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21, as WCAG defines it.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return round((light + 0.05) / (dark + 0.05), 2)


def luminance(colour: str) -> float:
    """Return how bright a colour is, 0 to 1."""
    sRGB = [part / 255 for part in _parts(colour)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in sRGB]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _parts(colour: str) -> list[int]:
    return [int(colour[j : j + 2], 16) for j in (1, 3, 5)]


# -- elements


def svg(width: float, height: float, body: Iterable[str], label: str, kind: str) -> str:
    """Return an <svg> element; label: a text alternative for screen readers."""
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


def css_colours(colour: str) -> str:
    """Return a colour as two of CSS, one for a white page and one for a dark one."""
    light, dark = readable(colour, "#ffffff"), readable(colour, "#16191d", DARK)
    return f"--light:{light};--dark:{dark}"


def legend(lines: Sequence[tuple[str, str, str, str]]) -> str:
    """Return the names of lines, each beside a sample of its line.

    lines: the key, the name, the colour and the dashes of each.
    """
    items = "".join(
        f'<li class="series" data-key="{escape(key)}" style="{css_colours(colour)}">'
        '<svg class="sample" viewBox="0 0 28 12" aria-hidden="true">'
        f'<path class="line" d="M1 6H27" stroke-dasharray="{dash}"/></svg>'
        f"<span>{escape(name)}</span></li>"
        for key, name, colour, dash in lines
    )
    return f'<ul class="legend">{items}</ul>'
