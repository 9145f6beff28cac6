"""The page of a reproduction, in HTML."""

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path

from trimtab._files import write_file
from trimtab.core.display import format_seconds
from trimtab.core.sections import Section, Table
from trimtab.report.page import document
from trimtab_papers.engine import Reproduction
from trimtab_papers.items import REPRODUCTIONS
from trimtab_papers.verdicts import Claim, Records, read, weighed


def page_of_folder(folder: Path) -> Callable[[], str] | None:
    """Return what makes the page of a folder with records; None for other folders.

    `trimtab report` finds this function through the entry-point group `trimtab.pages`.
    """
    if not any(folder.glob("*.json.gz")):
        return None
    return partial(_page_of_records, folder)


def write_reproduction(folder: Path, path: Path) -> Path:
    """Write the page of the records in a folder, which is called as its reproduction is."""
    write_file(path, _page_of_records(folder))
    return path


def _page_of_records(folder: Path) -> str:
    found = REPRODUCTIONS.get(folder.resolve().name)
    if found is None:
        known = ", ".join(REPRODUCTIONS)
        raise ValueError(f"{folder} is called as no reproduction is; rename it to one of {known}.")
    return reproduction_page(found, read(folder))


def reproduction_page(found: Reproduction, records: Records) -> str:
    return document(f"{found.name}: {found.shows}", _sections(found, records))


def _sections(reproduction: Reproduction, records: Records) -> list[Section]:
    claims = reproduction.claims(records)
    papers, ours = apart(claims)
    summary = f"Of the paper's sentences {weighed(papers) or 'none'}"
    if _quick(records):
        summary = f"A small version, not the paper's size. {summary}"
    if ours:
        summary += f"; of our own checks {weighed(ours)}"
    question = f"{reproduction.source}: {reproduction.shows}."
    return [
        Section(question, [f"{summary}."], kind="answer"),
        Section("Sentences of the paper", table=_judged(papers)),
        Section("Checks of our own", table=_judged(ours)),
        *_figure_and_table(reproduction, records),
        Section("Discussion", figure=markdown(reproduction.discussion)),
        _settings(reproduction, records),
    ]


def _figure_and_table(reproduction: Reproduction, records: Records) -> list[Section]:
    """Return the figure and the table, once there is a record."""
    from trimtab_papers.figures import svg, tables_behind  # They import matplotlib, which is slow.

    if not records:
        return []
    drawn = reproduction.figure(records)
    named = f'<svg role="img" aria-label="{escape(reproduction.shows)}" '
    drawing = svg(drawn).replace("<svg ", named, 1)
    figure = f'<figure class="paper" tabindex="0">{drawing}</figure>'
    table = markdown(reproduction.table(records))
    return [
        Section("Figure", figure=figure, parts=tables_behind(drawn)),
        Section("Table", figure=table),
    ]


def _settings(reproduction: Reproduction, records: Records) -> Section:
    """Return the time of the records, the versions that wrote them, and the command."""
    versions = dict.fromkeys(r.get("versions", {}).get("trimtab", "?") for r in records.values())
    took = format_seconds(sum(record.get("seconds", 0.0) for record in records.values()))
    made = f"{len(records)} records, {took} of one core, written by trimtab {', '.join(versions)}."
    if not records:
        made = "No record yet."
    command = f"trimtab reproduce {reproduction.name}{' --quick' if _quick(records) else ''}"
    return Section("Settings", [made], figure=f"<pre>{escape(command)}</pre>")


def _quick(records: Records) -> bool:
    return any(record.get("quick") for record in records.values())


def _judged(claims: list[Claim]) -> Table:
    rows = [[claim.verdict, claim.sentence, claim.numbers] for claim in claims]
    return Table(["verdict", "sentence", "numbers"], rows, kind="facts stacked")


def markdown(text: str) -> str:
    """Return Markdown as HTML, its tables in boxes of their own; HTML in it is shown as it is.

    >>> markdown("| a |\\n|---|\\n| <b> |").count("&lt;b&gt;")
    1
    """
    from markdown_it import MarkdownIt

    made: str = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    box = '<div class="scroll" role="region" tabindex="0" aria-label="Table"><table>'
    return made.replace("<table>", box).replace("</table>", "</table></div>")


def apart(claims: Sequence[Claim]) -> tuple[list[Claim], list[Claim]]:
    """Return the sentences of the papers, and the checks of our own."""
    return [c for c in claims if not c.own], [c for c in claims if c.own]
