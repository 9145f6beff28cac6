"""Clients side by side: their metrics, their samples and labels, how they differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from trimtab.report.charts.scales import Scale, axis_ends, short
from trimtab.report.charts.svg import css_colours, svg, text

# -- a metric of each client


@dataclass(frozen=True)
class ClientMetric:
    """A metric of each client under one algorithm's model; None where it is undefined."""

    label: str
    colour: str
    values: Sequence[float | None]


def strip_chart(models: Sequence[ClientMetric], metric: str) -> str:
    """Return a row for each model: a stroke for each client, a diamond at their mean."""
    width, left, right, top, row = 640.0, 128.0, 624.0, 12.0, 34.0
    base = top + row * len(models)
    x = Scale(*axis_ends(value for one in models for value in one.values), left, right)
    body = []
    for tick in x.ticks():
        body.append(f'<path class="grid" d="M{x(tick):.1f} {top:g}V{base:g}"/>')
        body.append(text(x(tick), base + 17, short(tick), "middle"))
    for j, one in enumerate(models):
        y = top + row * (j + 0.5)
        known = [value for value in one.values if value is not None]
        strokes = "".join(f"M{x(v):.1f} {y - 10:.1f}v20" for v in known)
        marks = f'<path class="stroke" d="{strokes}"/>'
        if known:
            mean = x(sum(known) / len(known))
            marks += f'<path class="mean" d="M{mean:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7Z"/>'
        name = one.label if len(one.label) <= 17 else one.label[:16] + "…"
        body.append(text(left - 8, y + 4, name, "end"))
        body.append(f'<g class="series" style="{css_colours(one.colour)}">{marks}</g>')
    body.append(text((left + right) / 2, base + 34, f"{metric} of a client", "middle", "name"))
    label = f"{metric} of each client, a row per algorithm; the numbers are in the table below."
    return svg(width, base + 44, body, label, "strips")


# -- the samples and labels of each client

LABELS = 30  # More labels leave no room for their names.
NUMBERED = 40  # More clients leave no room for their numbers.


def label_chart(sizes: Sequence[int], labels: Sequence[Sequence[int]] | None) -> str:
    """Return a bar for each client's samples, and below a row for each label.

    The height of a bar in these rows is the client's count of the label, as a share of the largest
    count of all.
    """
    width, left, right, top, tall = 640.0, 62.0, 628.0, 24.0, 64.0
    rows = list(zip(*(labels or ()), strict=True))  # the clients' counts, by label
    row = 17.0 if len(rows) <= LABELS else max(5.0, 17.0 * LABELS / len(rows))
    bottom = top + tall + (10 + row * len(rows) if rows else 0)
    x = Scale(0, len(sizes), left, right)
    most = max(sizes, default=0) or 1
    body = [
        text(left, top - 8, "samples of each client", "start", "name"),
        text(left - 6, top + 8, short(most), "end"),
        text(left - 6, top + tall, "0", "end"),
        _bars(sizes, most, x, top + tall, tall),
    ]
    largest = max((count for counts in rows for count in counts), default=0) or 1
    for j, counts in enumerate(rows):
        base = top + tall + 10 + row * (j + 1)
        body.append(f'<path class="grid" d="M{left:g} {base:.1f}H{right:g}"/>')
        body.append(_bars(counts, largest, x, base, row - 3))
        if row >= 12 or j % 5 == 0:
            name = f"label {j}" if j == 0 or row >= 12 else str(j)
            body.append(text(left - 6, base - 2, name, "end"))
    every = 1 if len(sizes) <= NUMBERED else 10 ** (len(str(len(sizes))) - 1) // 2
    for i in range(0, len(sizes), max(1, every)):
        body.append(text(x(i + 0.5), bottom + 15, str(i), "middle"))
    body.append(text((left + right) / 2, bottom + 32, "client", "middle", "name"))
    what = f" and how many of {len(rows)} labels" if rows else ""
    label = f"Samples of each of {len(sizes)} clients{what}; the numbers are in the table below."
    group = f'<g class="series" style="{css_colours("#00798c")}">{"".join(body)}</g>'
    return svg(width, bottom + 42, [group], label, "labels")


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


# -- shares in cells

CELL, MARGIN = 17, 130  # pixels: a cell, and the names on the left


@dataclass(frozen=True)
class Cell:
    """The cell of one client: a share from 0 to 1, and whether it is marked with a star."""

    column: int
    share: float
    description: str
    marked: bool = False


@dataclass(frozen=True)
class CellRow:
    """A row of cells, darker for larger shares."""

    name: str
    colour: str
    cells: Sequence[Cell]
    heading: str = ""  # above the row, for the rows that follow


def cell_chart(rows: Sequence[CellRow], clients: Sequence[int]) -> str:
    """Return rows of cells with a column for each client."""
    parts: list[str] = []
    y = 0
    for row in rows:
        if row.heading:
            y += 18
            parts.append(text(0, y - 5, row.heading, kind="name"))
        parts.append(text(MARGIN - 8, y + 12, row.name, "end"))
        cells = "".join(_cell(cell, y) for cell in row.cells)
        parts.append(f'<g class="series" style="{css_colours(row.colour)}">{cells}</g>')
        for cell in row.cells:
            if cell.marked:
                centre = MARGIN + cell.column * CELL + CELL / 2 - 1
                parts.append(text(centre, y + 15, "*", "middle", "over"))
        y += CELL + 2
    for column, i in enumerate(clients):
        parts.append(text(MARGIN + column * CELL + CELL / 2, y + 14, str(i), "middle"))
    parts.append(text(0, y + 14, "client", kind="name"))
    width = MARGIN + len(clients) * CELL + 10
    label = f"How {len(clients)} clients differ; the numbers are in the table below."
    drawn = svg(width, y + 24, parts, label, "cells")
    return drawn.replace("<svg ", f'<svg style="width: {width}px; min-width: 0" ', 1)


def _cell(cell: Cell, y: int) -> str:
    return (
        f'<rect class="cell" x="{MARGIN + cell.column * CELL}" y="{y}" width="{CELL - 2}" '
        f'height="{CELL - 2}" fill-opacity="{min(1.0, max(0.0, cell.share)):.3f}">'
        f"<title>{escape(cell.description)}</title></rect>"
    )
