"""How clients differ, as a picture: drawn here, no plotting library needed."""

from html import escape

from trimtab.diagnosis.differences import Difference, Differences

SHOWN = 40  # <= 40 clients have a column
LABELS = 30  # <= 30 labels have a row
CELL, LEFT, TOP = 17, 90, 18


def picture(differences: Differences) -> str:
    """Return an <svg> with a column for each client: shares of labels, then one row for each kind.

    The darker, the more; a frame marks who stands out.
    """
    clients = _columns(differences)
    if not clients:
        return ""
    parts: list[str] = []
    y = TOP
    shares = differences.shares or {}
    classes = max((len(shares[i]) for i in clients if i in shares), default=0)
    if 0 < classes <= LABELS:
        parts.append(_text(0, y - 5, "shares of the labels"))
        for label in range(classes):
            parts.append(_text(LEFT - 8, y + 12, str(label), end=True))
            parts += [
                _cell(column, y, shares[i][label], "#00798c", f"client {i}, label {label}")
                for column, i in enumerate(clients)
                if i in shares
            ]
            y += CELL
        y += CELL
    for kind in differences.kinds:
        parts += _row(kind, clients, y)
        y += CELL + 4
    for column, i in enumerate(clients):
        parts.append(_text(LEFT + column * CELL + CELL / 2, y + 12, str(i), middle=True))
    parts.append(_text(0, y + 12, "client"))
    width, height = LEFT + len(clients) * CELL + 10, y + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'style="max-width: {width}px" role="img">{"".join(parts)}</svg>'
    )


def _columns(differences: Differences) -> list[int]:
    """Return the clients that are shown: those that stand out first, if there are many."""
    everybody = list(differences.kinds[0].values) if differences.kinds else []
    if len(everybody) <= SHOWN:
        return everybody
    first = [i for kind in differences.kinds for i in kind.outliers]
    return sorted(list(dict.fromkeys([*first, *everybody]))[:SHOWN])


def _row(kind: Difference, clients: list[int], y: int) -> list[str]:
    top = max(kind.values.values(), default=0.0) or 1.0
    colour = "#d1495b" if kind.found else "#bbbbbb"
    parts = [_text(LEFT - 8, y + 12, kind.what, end=True)]
    for column, i in enumerate(clients):
        value = kind.values.get(i)
        if value is None:
            continue
        about = f"client {i}: {value:.2g} {kind.unit}"
        parts.append(_cell(column, y, value / top, colour, about, framed=i in kind.outliers))
    return parts


def _cell(
    column: int, y: float, share: float, colour: str, about: str, *, framed: bool = False
) -> str:
    line = ' stroke="#222"' if framed else ' stroke="#e5e5e5"'
    return (
        f'<rect x="{LEFT + column * CELL}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" '
        f'fill="{colour}" fill-opacity="{min(1.0, max(0.0, share)):.3f}"{line}>'
        f"<title>{escape(about)}</title></rect>"
    )


def _text(x: float, y: float, words: str, *, end: bool = False, middle: bool = False) -> str:
    anchor = "end" if end else "middle" if middle else "start"
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="10" fill="#555" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )
