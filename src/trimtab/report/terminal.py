"""Sections on a terminal: tables drop columns where the terminal is too narrow for them."""

from collections.abc import Iterable, Sequence
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from trimtab.core.sections import Section, Table

FRAME = 3  # characters that a column needs besides its text: a line and two spaces


def print_sections(sections: Iterable[Section], console: Console, otherwise: str = "") -> None:
    """Print titles, sentences, tables and notes; figures and folded tables are for pages.

    otherwise: where the columns are that a narrow terminal drops, for the note about them.
    """
    for j, section in enumerate(sections):
        if section.title:
            _print(console, "\n" * (j > 0) + section.title, "italic")
        notes = list(section.notes)
        mark = "- " if section.kind == "list" else ""
        for place, sentence in enumerate(section.sentences):
            style = "bold" if section.kind == "answer" and place == 0 else ""
            _print(console, f"{mark}{sentence}", style)
        if section.table is not None and section.table.rows and not section.table.folded:
            made, dropped = fitted(section.table, console.width)
            console.print(made)
            if dropped:
                notes.append(f"Columns without room: {', '.join(dropped)}; {otherwise}")
        for note in notes:
            _print(console, note)
        print_sections(section.parts, console, otherwise)


def _print(console: Console, sentence: str, style: str = "") -> None:
    # In a pipe a sentence is one line, which can be searched.
    one_line = not console.is_terminal
    console.print(sentence, style=style, highlight=False, markup=False, soft_wrap=one_line)


def fitted(table: Table, width: int) -> tuple[RichTable, list[str]]:
    """Return a table for a terminal of this width, and the heads of the columns without room.

    No word is broken: columns that are less important are dropped.
    """
    widths = [_width(table, column) for column in range(len(table.heads))]
    shown = list(range(len(table.heads)))
    for column in _dropped_first(table):
        if _needed(widths, shown) <= width or len(shown) <= 1:
            break
        shown.remove(column)
    whole = [max(least, cell_len(head)) for least, head in zip(widths, table.heads, strict=True)]
    if _needed(whole, shown) <= width:
        widths = whole
    made = RichTable()
    for column in shown:
        # Rich would break a title inside a word; here it is broken at spaces.
        title = "\n".join(wrap(table.heads[column], widths[column], break_long_words=False))
        text = _is_text(table)
        made.add_column(
            escape(title),
            justify="left" if text or column == 0 else "right",
            min_width=widths[column],
            no_wrap=not text,
            overflow="ellipsis",
        )
    for j, row in enumerate(table.rows):
        cells = [(escape(row[column]), (j, column) in table.bold) for column in shown]
        made.add_row(*(f"[bold]{cell}[/bold]" if bold else cell for cell, bold in cells))
    return made, [head for j, head in enumerate(table.heads) if j not in shown]


def _needed(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[column] + FRAME for column in shown) + 1


def _width(table: Table, column: int) -> int:
    """Return the least width of a column: its longest cell, or the longest word of its title."""
    cells = [row[column] for row in table.rows]
    if _is_text(table):
        cells = [word for cell in cells for word in cell.split()]
    return max(map(cell_len, (*table.heads[column].split(), *cells)), default=1)


def _is_text(table: Table) -> bool:
    """Return whether the cells are sentences, which may be broken between words."""
    return "facts" in table.kind


def _dropped_first(table: Table) -> list[int]:
    """Return the columns, the least important first; the first column is never dropped."""
    rank = {head: j for j, head in enumerate(table.important)}
    columns = range(1, len(table.heads))
    return sorted(columns, key=lambda j: (rank.get(table.heads[j], len(rank)), j), reverse=True)
