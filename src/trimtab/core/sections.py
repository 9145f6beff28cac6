"""The parts of a report: a terminal, a notebook and a page show the same sections.

Text is plain here and escaped where it becomes HTML. `trimtab.report.terminal` prints sections.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first cell of a row is its name.

    heads: the titles of the columns.
    rows: the cells.
    bold: row and column of the cells that are emphasised.
    important: heads, the most important first. A narrow terminal drops the columns that are not
        among them, then the last of them; by default those on the right.
    folded: the words that open the table on a page; empty if it is open. A folded table is not
        shown elsewhere.
    kind: classes of the style sheet, such as "facts" for columns of text.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()
    important: Sequence[str] = ()
    folded: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Section:
    """A part of a report.

    title: its heading; empty for a part that needs none.
    sentences: its text, one paragraph each.
    table: its numbers.
    notes: what a reader of the table or the figure must know, in small print.
    figure: HTML that only a page shows, such as a chart.
    parts: the sections inside.
    kind: "answer" for a box with its first sentence in bold, "list" for sentences as a list.
    """

    title: str = ""
    sentences: Sequence[str] = ()
    table: Table | None = None
    notes: Sequence[str] = ()
    figure: str = ""
    parts: Sequence["Section"] = ()
    kind: Literal["text", "answer", "list"] = "text"


def sections_html(sections: Iterable[Section], figures: bool = True) -> str:
    """Return sections as HTML; those without content are left out.

    figures: whether the figures and the folded tables are included.

    >>> print(sections_html([Section("Why", ["1 < 2"]), Section("Empty")]))
    <section><h2>Why</h2>
    <p>1 &lt; 2</p>
    </section>
    """
    return "\n".join(filter(None, (_html(section, 2, figures) for section in sections)))


def _html(section: Section, level: int, figures: bool) -> str:
    parts = [_text(section)]
    if section.figure and figures:
        parts.append(section.figure)
    if section.table is not None and (figures or not section.table.folded):
        parts.append(_table(section.table, section.title))
    parts += [f'<p class="small">{escape(note)}</p>' for note in section.notes]
    parts += [_html(part, level + 1, figures) for part in section.parts]
    body = "\n".join(filter(None, parts))
    if not body:
        return ""
    head = f"<h{level}>{escape(section.title)}</h{level}>\n" if section.title else ""
    tag = "section" if level == 2 else "div"
    kind = ' class="answer"' if section.kind == "answer" else ""
    return f"<{tag}{kind}>{head}{body}\n</{tag}>"


def _text(section: Section) -> str:
    said = [escape(sentence) for sentence in section.sentences]
    if section.kind == "list":
        items = "".join(f"<li>{sentence}</li>" for sentence in said)
        return f"<ul>{items}</ul>" if items else ""
    if section.kind == "answer" and said:
        said[0] = f"<b>{said[0]}</b>"
    return "\n".join(f"<p>{sentence}</p>" for sentence in said)


def _table(table: Table, name: str) -> str:
    """Return a table that scrolls in its own box."""
    if not table.rows:
        return ""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in table.heads)
    rows = []
    for j, row in enumerate(table.rows):
        cells = [
            f"<b>{escape(cell)}</b>" if (j, column) in table.bold else escape(cell)
            for column, cell in enumerate(row)
        ]
        others = "".join(f"<td>{cell}</td>" for cell in cells[1:])
        rows.append(f'<tr><th scope="row">{cells[0]}</th>{others}</tr>')
    kind = f' class="{table.kind}"' if table.kind else ""
    html = (
        f'<div class="scroll" role="region" tabindex="0" '
        f'aria-label="{escape(table.folded or name or "Table")}">'
        f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
    if not table.folded:
        return html
    return f"<details><summary>{escape(table.folded)}</summary>{html}</details>"
