"""How clients differ, as a picture and as a table: a column each client, a row each kind."""

from html import escape

from trimtab.diagnosis.differences import Difference, Differences
from trimtab.report.charts.svg import ink, svg, text
from trimtab.report.style import html_table

SHOWN = 40  # <= 40 clients have a column
LABELS = 30  # <= 30 labels have a row
CELL, LEFT, TOP = 17, 130, 18
SHARES, FOUND, CHANCE = "#00798c", "#d1495b", "#777777"


def picture(differences: Differences) -> str:
    """Return an <svg> with a column for each client: shares of labels, then one row for each kind.

    The darker, the more; a star marks who stands out; a row says whether it is more than chance.
    """
    clients = _columns(differences)
    if not clients:
        return ""
    parts: list[str] = []
    y = TOP
    shares = differences.shares or {}
    classes = max((len(shares[i]) for i in clients if i in shares), default=0)
    if 0 < classes <= LABELS:
        parts.append(text(0, y - 5, "shares of the labels", kind="name"))
        for label in range(classes):
            parts.append(text(LEFT - 8, y + 12, str(label), "end"))
            cells = [
                _cell(column, y, shares[i][label], f"client {i}, label {label}")
                for column, i in enumerate(clients)
                if i in shares
            ]
            parts.append(_inked(SHARES, cells))
            y += CELL
        y += CELL
    for kind in differences.kinds:
        parts += _row(kind, clients, y)
        y += CELL + 4
    for column, i in enumerate(clients):
        parts.append(text(LEFT + column * CELL + CELL / 2, y + 12, str(i), "middle"))
    parts.append(text(0, y + 12, "client", kind="name"))
    width, height = LEFT + len(clients) * CELL + 10, y + 24
    said = f"In what {len(clients)} clients differ; the numbers are in the table below."
    drawn = svg(width, height, parts, said, "cells")
    return drawn.replace("<svg ", f'<svg style="width: {width}px; min-width: 0" ', 1)


def table(differences: Differences) -> str:
    """Return the numbers behind the picture."""
    clients = _columns(differences)
    shares = differences.shares or {}
    classes = max((len(shares[i]) for i in clients if i in shares), default=0)
    labels = range(classes if classes <= LABELS else 0)
    heads = ["client", *(f"{kind.what} ({kind.unit})" for kind in differences.kinds)]
    heads += [f"label {label}" for label in labels]
    rows = [
        [
            str(i),
            *(escape(_said(kind, i)) for kind in differences.kinds),
            *(f"{shares[i][label]:.2g}" if i in shares else "-" for label in labels),
        ]
        for i in clients
    ]
    return html_table(heads, rows, "In what clients differ")


def _said(kind: Difference, client: int) -> str:
    value = kind.values.get(client)
    mark = " *" if client in kind.outliers else ""
    return "-" if value is None else f"{value:.3g}{mark}"


def _columns(differences: Differences) -> list[int]:
    """Return the clients that are shown: those that stand out first, if there are many."""
    everybody = list(differences.kinds[0].values) if differences.kinds else []
    if len(everybody) <= SHOWN:
        return everybody
    first = [i for kind in differences.kinds for i in kind.outliers]
    return sorted(list(dict.fromkeys([*first, *everybody]))[:SHOWN])


def _row(kind: Difference, clients: list[int], y: int) -> list[str]:
    top = max(kind.values.values(), default=0.0) or 1.0
    verdict = "differ" if kind.found else "by chance"
    parts = [text(LEFT - 8, y + 12, f"{kind.what}: {verdict}", "end")]
    cells, marks = [], []
    for column, i in enumerate(clients):
        value = kind.values.get(i)
        if value is None:
            continue
        stands_out = i in kind.outliers
        about = f"client {i}: {value:.2g} {kind.unit}" + (", stands out" if stands_out else "")
        cells.append(_cell(column, y, value / top, about))
        if stands_out:
            centre = LEFT + column * CELL + CELL / 2 - 1
            marks.append(text(centre, y + 15, "*", "middle", "over"))
    return [*parts, _inked(FOUND if kind.found else CHANCE, cells), *marks]


def _inked(colour: str, cells: list[str]) -> str:
    return f'<g class="series" style="{ink(colour)}">{"".join(cells)}</g>'


def _cell(column: int, y: float, share: float, about: str) -> str:
    return (
        f'<rect class="cell" x="{LEFT + column * CELL}" y="{y}" width="{CELL - 2}" '
        f'height="{CELL - 2}" fill-opacity="{min(1.0, max(0.0, share)):.3f}">'
        f"<title>{escape(about)}</title></rect>"
    )
