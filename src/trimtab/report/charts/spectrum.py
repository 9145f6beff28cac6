"""Spectra: a row of strokes for each client, longer where more of the space has that eigenvalue."""

from collections.abc import Sequence

from trimtab.report.charts.scales import Scale, extent, short
from trimtab.report.charts.svg import ink, svg, text

WIDTH, LEFT, RIGHT, TOP, ROW = 480.0, 74.0, 14.0, 10.0, 28.0


def spectrum_chart(
    rows: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    edge: float | None,
    what: str,
    colour: str = "#00798c",
) -> str:
    """Return the spectra; edge: dashed lines at plus and minus this number."""
    ends = [] if edge is None else [-edge, edge]
    x = Scale(
        *extent([0.0, *ends, *(v for _, values, _ in rows for v in values)]), LEFT, WIDTH - RIGHT
    )
    base = TOP + ROW * len(rows)
    body = [f'<path class="axis" d="M{x(0):.1f} {TOP:g}V{base:g}"/>']
    for tick in x.ticks(5):
        body.append(f'<path class="grid" d="M{x(tick):.1f} {TOP:g}V{base:g}"/>')
        body.append(text(x(tick), base + 16, short(tick), "middle"))
    for end in ends:
        body.append(f'<path class="target" d="M{x(end):.1f} {TOP:g}V{base:g}"/>')
    for j, (name, values, weights) in enumerate(rows):
        y = TOP + ROW * (j + 0.5)
        most = max(weights, default=1.0) or 1.0
        halves = [4 + 7 * weight / most for weight in weights]
        strokes = "".join(
            f"M{x(v):.1f} {y - h:.1f}v{2 * h:.1f}" for v, h in zip(values, halves, strict=True)
        )
        body.append(f'<path class="stroke" d="{strokes}"/>')
        body.append(text(LEFT - 8, y + 4, name, "end"))
    body.append(text((LEFT + WIDTH - RIGHT) / 2, base + 32, what, "middle", "name"))
    label = f"{what} of {len(rows)} clients; the numbers are in the table below."
    group = f'<g class="series" style="{ink(colour)}">{"".join(body)}</g>'
    return svg(WIDTH, base + 40, [group], label, "spectrum")
