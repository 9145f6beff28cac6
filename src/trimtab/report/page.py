"""One self-contained HTML page for a comparison or a run, or for several side by side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from trimtab._files import write_file
from trimtab._version import environment
from trimtab.core.sections import Section, Table, sections_html
from trimtab.report.clients import client_metric_sections, client_sections, site_section
from trimtab.report.curves import Curve, curve_sections, curves_of, packed, telemetry_sections
from trimtab.report.search import search_sections
from trimtab.report.settings import diagnosis_sections, files_section, settings_section
from trimtab.report.sources import Source, distinct_sources, source_of
from trimtab.studies.comparison import Comparison
from trimtab.studies.sections import answer, origin, table, target_text

Diagnoses = Mapping[str, dict[str, Any]]


def write_page(result: Comparison, path: Path) -> Path:
    """Write the page of one result, and return its path."""
    return write_pages([source_of(result)], path)


def write_pages(sources: Sequence[Source], path: Path, diagnoses: Diagnoses | None = None) -> Path:
    """Write one page for several results, and return its path.

    diagnoses: those of other folders, by name; none by default.
    """
    write_file(path, page_of(sources, path, diagnoses))
    return path


def page_of(
    sources: Sequence[Source], path: Path | None = None, diagnoses: Diagnoses | None = None
) -> str:
    """Return the page; path: its file, from which links start."""
    sources, diagnoses = distinct_sources(sources), diagnoses or {}
    curves = curves_of_sources(sources)
    names = [source.name for source in sources] or list(diagnoses)
    sections = page_sections(sources, curves, path, diagnoses)
    return document(_title(sources, diagnoses), sections, _scripts(curves, _file_name(names)))


def empty_page(name: str) -> str:
    """Return the page of a command that has no result yet."""
    section = Section(sentences=[f"{name} has nothing to show yet."], kind="answer")
    return document(f"{name}: starting", [section], _scripts([], name))


def page_sections(
    sources: Sequence[Source],
    curves: Sequence[Curve],
    path: Path | None = None,
    diagnoses: Diagnoses | None = None,
) -> list[Section]:
    """Return the sections of a page, in order; empty ones are not shown."""
    several = len(sources) > 1
    named = [(source.name, source.result) for source in sources]
    results = [source.result for source in sources]
    known = {s.name: s.diagnosis for s in sources if s.diagnosis is not None} | dict(
        diagnoses or {}
    )
    return [
        *(_named(answer(result), name if several else "") for name, result in named),
        *curve_sections(results, curves),
        *([_tables(named)] if several else map(table, results)),
        *search_sections(named),
        *telemetry_sections(results, curves),
        *(
            site_section(f"Sites of {s.name}" if several else "Sites", s.sites)
            for s in sources
            if s.sites
        ),
        *client_sections(named),
        *client_metric_sections(named),
        *diagnosis_sections(known),
        *(_named(origin(result), name if several else "") for name, result in named),
        settings_section(sources),
        files_section(sources, path, bool(curves)),
    ]


def curves_of_sources(sources: Sequence[Source]) -> list[Curve]:
    """Return the curves of all sources, in their order."""
    several = len(sources) > 1
    return [
        curve
        for number, source in enumerate(sources)
        for curve in curves_of(source.result, number, source.name if several else "")
    ]


def _named(section: Section, name: str) -> Section:
    return replace(section, title=f"{name}: {section.title}") if name else section


def _tables(named: Sequence[tuple[str, Comparison]]) -> Section:
    """Return the tables of several results as one, with a column for their names."""
    made = {name: table(result) for name, result in named}
    own = {name: section.table for name, section in made.items() if section.table is not None}
    heads = list(dict.fromkeys(head for each in own.values() for head in each.heads))
    rows, bold = list[list[str]](), set[tuple[int, int]]()
    for name, each in own.items():
        for j, row in enumerate(each.rows):
            cells = dict(zip(each.heads, row, strict=True))
            for column, head in enumerate(each.heads):
                if (j, column) in each.bold:
                    bold.add((len(rows), heads.index(head) + (head != heads[0])))
            first, *others = (cells.get(head, "") for head in heads)
            rows.append([first, name, *others])
    notes = dict.fromkeys(note for section in made.values() for note in section.notes)
    joined = Table([*heads[:1], "folder", *heads[1:]], rows, frozenset(bold))
    return Section("Table", table=joined, notes=list(notes))


def _title(sources: Sequence[Source], diagnoses: Diagnoses) -> str:
    if not sources:
        return f"{', '.join(diagnoses)}: the diagnosis"
    if len(sources) > 1:
        return f"{', '.join(source.name for source in sources)}: side by side"
    result = sources[0].result
    who = f"{len(result.entries)} algorithms"
    if len(result.entries) == 1:
        who = result.entries[0].shown
    elif not result.entries:
        return f"{result.problem}: nothing has been measured yet"
    return f"{result.problem}: {who} to {target_text(result)}"


def _file_name(names: Iterable[str]) -> str:
    return "-".join("".join(c if c.isalnum() or c in "-_." else "-" for c in n) for n in names)[:80]


# -- the frame of every page


def document(title: str, sections: Iterable[Section], end: str = "") -> str:
    """Return a self-contained page: a title, its sections, and the versions that made it.

    end: HTML after the body, such as data and the script that reads them.
    """
    facts = ", ".join(f"{name} {version}" for name, version in environment().items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{asset("page.css")}</style></head><body><main>
<h1>{escape(title)}</h1>
{sections_html(sections)}
</main><footer><p class="small">Page written by {escape(facts)}.</p></footer>
{end}</body></html>
"""


@cache
def asset(name: str) -> str:
    """Return the style sheet or a script of pages."""
    return files("trimtab.report").joinpath(name).read_text("utf-8")


def _scripts(curves: Sequence[Curve], name: str) -> str:
    """Return the data of a page and the script that draws them."""
    data = f'<script type="text/plain" id="data">{packed(curves, name)}</script>'
    return f"{data}\n<script>{asset('page.js')}</script>"
