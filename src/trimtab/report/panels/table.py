"""The table: each algorithm's best run, and how to read the numbers."""

from html import escape

from trimtab.report.sources import Page
from trimtab.report.style import html_table, section
from trimtab.studies.table import bold, columns, legend


def table(page: Page) -> str:
    """Show each algorithm's best run; of several folders, all in one table."""
    several = len(page.sources) > 1
    heads = list(dict.fromkeys(c.title for s in page.sources for c in columns(s.result)))
    rows = []
    for source in page.sources:
        shown, best = columns(source.result), bold(source.result)
        for j, entry in enumerate(source.result.entries):
            cells = {
                column.title: f"<b>{escape(column.text(entry))}</b>"
                if j in best.get(place, ())
                else escape(column.text(entry))
                for place, column in enumerate(shown)
            }
            row = [cells.get(head, "") for head in heads]
            rows.append([row[0], escape(source.name), *row[1:]] if several else row)
    if not rows:
        return ""
    if several:
        heads = [heads[0], "folder", *heads[1:]]
    notes = dict.fromkeys(note for source in page.sources for note in legend(source.result))
    note = "".join(f"<br>{escape(note)}" for note in notes)
    said = f"""<p class="small">Rounds, exchanges, bytes (both directions, all clients), sample
gradients at the clients and seconds of simulation until the target was first met, the median over
the seeds; 'n+' means not met in n rounds. The best of each column{" of a folder" * several} is
bold.{note}</p>"""
    return section("Table", html_table(heads, rows, "Each algorithm's best run") + said)
