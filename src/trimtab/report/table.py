"""The table of a comparison: the same cells for the terminal and for the page."""

from rich.markup import escape
from rich.table import Table

from trimtab.studies.comparison import Comparison
from trimtab.studies.entry import listed
from trimtab.studies.table import bold, columns, legend

ON_THE_PAGE = ("exchanges", "seconds")  # columns that a terminal has no room for


def terminal_table(result: Comparison) -> Table:
    """Return the table for a terminal, the best of each column in bold."""
    title = escape(f"{result.problem}: rounds to {wanted(result)}")
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.caption = "\n".join(_notes(result)) or None
    best = bold(result)
    usual = tuple(f"{name} ({result.about.tested_on})" for name in ("loss", "accuracy"))
    left_out = ON_THE_PAGE + usual
    shown = [(j, c) for j, c in enumerate(columns(result)) if c.title not in left_out]
    for _, column in shown:
        left = column.title == "algorithm"
        table.add_column(escape(column.title), justify="left" if left else "right", overflow="fold")
    for row, entry in enumerate(result.entries):
        cells = [(j, escape(column.text(entry))) for j, column in shown]
        table.add_row(*(f"[bold]{c}[/bold]" if row in best.get(j, ()) else c for j, c in cells))
    return table


def _notes(result: Comparison) -> list[str]:
    """Say what the columns do not."""
    twice = [e.shown for e in result.entries if e.rounds and e.exchanges == 2 * e.rounds]
    notes = [f"{listed(twice)}: two exchanges a round."] if twice else []
    return notes + legend(result)


def wanted(result: Comparison) -> str:
    """Return the target in words."""
    if result.target is None:
        return f"the best {result.metric}"
    return f"{result.metric} {result.target:g}" + ("" if result.goal.metric.higher else " or less")
