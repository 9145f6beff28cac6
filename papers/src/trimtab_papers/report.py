"""The page of a reproduction: what the paper says, what our records say, the figure, the table."""

from collections.abc import Callable
from functools import partial
from html import escape
from pathlib import Path

from trimtab._files import write_whole
from trimtab.core.human import human_time
from trimtab.report.style import document, html_table, section
from trimtab_papers.items import REPRODUCTIONS
from trimtab_papers.records import Records, read
from trimtab_papers.reproduction import Reproduction
from trimtab_papers.verdicts import Claim, weighed


def page_of_folder(folder: Path) -> Callable[[], str] | None:
    """Return what makes the page of a folder with records; None for other folders.

    `trimtab report` finds this function through the entry-point group `trimtab.pages`.
    """
    if not any(folder.glob("*.json.gz")):
        return None
    return partial(_page_of_records, folder)


def write_reproduction(folder: Path, path: Path) -> Path:
    """Write the page of the records in a folder, which is called as its reproduction is."""
    write_whole(path, _page_of_records(folder))
    return path


def _page_of_records(folder: Path) -> str:
    found = REPRODUCTIONS.get(folder.resolve().name)
    if found is None:
        known = ", ".join(REPRODUCTIONS)
        raise ValueError(f"{folder} is called as no reproduction is; rename it to one of {known}.")
    return reproduction_page(found, read(folder))


def reproduction_page(found: Reproduction, records: Records) -> str:
    """Return the page of the records that there are."""
    return document(f"{found.name}: {found.shows}", _body(found, records))


def _body(reproduction: Reproduction, records: Records) -> str:
    claims = reproduction.claims(records)
    papers = [claim for claim in claims if not claim.own]
    ours = [claim for claim in claims if claim.own]
    said = f"Of the paper's sentences {weighed(papers) or 'none'}"
    if _quick(records):
        said = f"A small version, not the paper's size. {said}"
    if ours:
        said += f"; of our own checks {weighed(ours)}"
    parts = [
        f'<div class="advice"><p class="question">{escape(reproduction.source)}: '
        f"{escape(reproduction.shows)}.</p><p><b>{escape(said)}.</b></p></div>",
        section("Sentences of the paper", _judged(papers)),
        section("Checks of our own", _judged(ours)),
        *_shown(reproduction, records),
        section("Discussion", markdown(reproduction.discussion)),
        section("Settings", _settings(reproduction, records)),
    ]
    return "\n".join(part for part in parts if part)


def _shown(reproduction: Reproduction, records: Records) -> list[str]:
    """Return the figure and the table, once there is a record."""
    from trimtab_papers.plots import svg, tables_behind  # They import matplotlib, which is slow.

    if not records:
        return []
    drawn = reproduction.figure(records)
    named = f'<svg role="img" aria-label="{escape(reproduction.shows)}" '
    shown = svg(drawn).replace("<svg ", named, 1)
    figure = f'<figure class="paper" tabindex="0">{shown}</figure>{tables_behind(drawn)}'
    table = markdown(reproduction.table(records))
    return [section("Figure", figure), section("Table", table)]


def _settings(reproduction: Reproduction, records: Records) -> str:
    """Say what the records took, who wrote them, and how to make them."""
    versions = dict.fromkeys(r.get("versions", {}).get("trimtab", "?") for r in records.values())
    took = human_time(sum(record.get("seconds", 0.0) for record in records.values()))
    made = f"{len(records)} records, {took} of one core, written by trimtab {', '.join(versions)}."
    if not records:
        made = "No record yet."
    command = f"trimtab reproduce {reproduction.name}{' --quick' if _quick(records) else ''}"
    return f"<p>{escape(made)}</p><pre>{escape(command)}</pre>"


def _quick(records: Records) -> bool:
    return any(record.get("quick") for record in records.values())


def _judged(claims: list[Claim]) -> str:
    rows = [
        [escape(claim.verdict), escape(claim.sentence), escape(claim.numbers)] for claim in claims
    ]
    heads = ["verdict", "sentence", "numbers"]
    return html_table(heads, rows, "Sentences", "facts stacked") if rows else ""


def markdown(text: str) -> str:
    """Return Markdown as HTML, its tables in boxes of their own; HTML in it is shown as it is.

    >>> markdown("| a |\\n|---|\\n| <b> |").count("&lt;b&gt;")
    1
    """
    from markdown_it import MarkdownIt

    made: str = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    box = '<div class="scroll" role="region" tabindex="0" aria-label="Table"><table>'
    return made.replace("<table>", box).replace("</table>", "</table></div>")
