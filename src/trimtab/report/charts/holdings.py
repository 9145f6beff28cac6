"""Who holds what: the clients side by side, how much data each has, and of which labels."""

from collections.abc import Sequence

from trimtab.report.charts.scales import Scale, short
from trimtab.report.charts.svg import ink, svg, text

WIDTH = 640.0
LEFT, RIGHT, TOP = 62.0, 12.0, 24.0
SIZES, ROW = 64.0, 17.0  # pixels of the sizes, and of each label
NUMBERED = 40  # <= 40 clients have their numbers below
LABELS = 30  # <= 30 labels have their names beside


def holdings_chart(
    sizes: Sequence[int], labels: Sequence[Sequence[int]] | None, colour: str = "#00798c"
) -> str:
    """Return a bar for each client's samples, and below a row for each label.

    The bars of a row are as high as the client has of the label, as a share of the most that
    anybody has of any label.
    """
    rows = list(zip(*(labels or ()), strict=True))  # the clients' counts, by label
    row = ROW if len(rows) <= LABELS else max(5.0, ROW * LABELS / len(rows))
    bottom = TOP + SIZES + (10 + row * len(rows) if rows else 0)
    x = Scale(0, len(sizes), LEFT, WIDTH - RIGHT)
    most = max(sizes, default=0) or 1
    body = [
        text(LEFT, TOP - 8, "samples of each client", "start", "name"),
        text(LEFT - 6, TOP + 8, short(most), "end"),
        text(LEFT - 6, TOP + SIZES, "0", "end"),
        _bars(sizes, most, x, TOP + SIZES, SIZES),
    ]
    fullest = max((count for counts in rows for count in counts), default=0) or 1
    for j, counts in enumerate(rows):
        base = TOP + SIZES + 10 + row * (j + 1)
        body.append(f'<path class="grid" d="M{LEFT:g} {base:.1f}H{WIDTH - RIGHT:g}"/>')
        body.append(_bars(counts, fullest, x, base, row - 3))
        if row >= 12 or j % 5 == 0:
            name = f"label {j}" if j == 0 or row >= 12 else str(j)
            body.append(text(LEFT - 6, base - 2, name, "end"))
    every = 1 if len(sizes) <= NUMBERED else 10 ** (len(str(len(sizes))) - 1) // 2
    for i in range(0, len(sizes), max(1, every)):
        body.append(text(x(i + 0.5), bottom + 15, str(i), "middle"))
    body.append(text((LEFT + WIDTH - RIGHT) / 2, bottom + 32, "client", "middle", "name"))
    what = f" and how many of {len(rows)} labels" if rows else ""
    label = f"Samples of each of {len(sizes)} clients{what}; the numbers are in the table below."
    group = f'<g class="series" style="{ink(colour)}">{"".join(body)}</g>'
    return svg(WIDTH, bottom + 42, [group], label, "holdings")


def _bars(counts: Sequence[int], most: int, x: Scale, base: float, height: float) -> str:
    """Return one path with a bar for each count that is not zero."""
    wide = (x(1) - x(0)) * (0.82 if len(counts) <= 100 else 1.0)
    bars = []
    for i, count in enumerate(counts):
        if count:
            high = max(0.8, height * count / most)
            left = x(i + 0.5) - wide / 2
            bars.append(f"M{left:.1f} {base:.1f}v{-high:.1f}h{wide:.1f}v{high:.1f}z")
    return f'<path class="bar" d="{"".join(bars)}"/>'
