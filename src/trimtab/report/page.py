"""One self-contained HTML page for a comparison or a run, or for several side by side."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from trimtab._files import write_file
from trimtab.report.curves import packed
from trimtab.report.panels import PANELS
from trimtab.report.panels.curves import starts_logarithmic
from trimtab.report.sources import Page, Source, source_of
from trimtab.report.style import asset, document
from trimtab.report.table import wanted
from trimtab.studies.comparison import Comparison


def write_page(result: Comparison, path: Path) -> Path:
    """Write the page of one result, and return where it is."""
    return write_pages([source_of(result)], path)


def write_pages(
    sources: Sequence[Source], path: Path, diagnoses: dict[str, dict[str, Any]] | None = None
) -> Path:
    """Write one page for several results; diagnoses: those of other folders, by name."""
    write_file(path, page_of(sources, path, diagnoses))
    return path


def page_of(
    sources: Sequence[Source],
    path: Path | None = None,
    diagnoses: dict[str, dict[str, Any]] | None = None,
) -> str:
    """Return the page; path: where it will lie, None if it is served."""
    page = Page(told_apart(sources), path, dict(diagnoses or {}))
    parts = (panel(page) for panel in PANELS)
    body = "\n".join(part for part in parts if part)
    data = packed(page.curves, _file_name(page), starts_logarithmic(page))
    return document(_title(page), body, _scripts(data))


def nothing_yet(name: str) -> str:
    """Return the page of what has just begun; newer ones can take its place."""
    body = f'<div class="advice"><p>{escape(name)} has nothing to show yet.</p></div>'
    return document(f"{name}: starting", body, _scripts(packed([], name, False)))


def _scripts(data: str) -> str:
    """Return the curves of a page, and what lets people move in them."""
    return (
        f'<script type="text/plain" id="data">{data}</script>\n<script>{asset("page.js")}</script>'
    )


def told_apart(sources: Sequence[Source]) -> list[Source]:
    """Return the sources; where two folders are called alike, by their whole paths."""
    names = [source.name for source in sources]
    return [
        replace(source, name=str(source.result.folder)) if names.count(source.name) > 1 else source
        for source in sources
    ]


def _title(page: Page) -> str:
    if not page.sources:
        return f"{', '.join(page.diagnoses)}: the diagnosis"
    if len(page.sources) > 1:
        return f"{', '.join(source.name for source in page.sources)}: side by side"
    result = page.sources[0].result
    who = f"{len(result.entries)} algorithms"
    if len(result.entries) == 1:
        who = result.entries[0].shown
    elif not result.entries:
        return f"{result.problem}: nothing has been measured yet"
    return f"{result.problem}: {who} to {wanted(result)}"


def _file_name(page: Page) -> str:
    names = [source.name for source in page.sources] or list(page.diagnoses)
    return "-".join("".join(c if c.isalnum() or c in "-_." else "-" for c in n) for n in names)[:80]
