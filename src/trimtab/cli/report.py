"""`trimtab report`."""

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click

from trimtab._files import write_file
from trimtab.cli.group import requires
from trimtab.cli.output import output_folder, show
from trimtab.errors import BadArgument


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR…")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@requires("report")
def report(folders: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Write the page of finished results again; for several folders, one page side by side.

    DIR is the folder of a comparison, a run, a diagnosis, a federation's operator, or a
    reproduction such as results/table3.
    The page of one folder is written into it, that of several folders into runs, unless --out is
    given. That of a single diagnosis is written into runs too, because its folder has a page.
    """
    from trimtab.report import write_pages
    from trimtab.report.sources import read_any

    html = _foreign_page(folders)
    diagnoses = {folder.name: found for folder in folders if (found := _diagnosis_alone(folder))}
    inside = len(folders) == 1 and out is None and not diagnoses
    home = folders[0] if inside else output_folder(out, "report", resume=False)
    page, results = home / "report.html", []
    if html is not None:
        write_file(page, html())
    else:
        results = [read_any(folder) for folder in folders if not _diagnosis_alone(folder)]
        write_pages(results, page, diagnoses)
    if as_json:
        click.echo(json.dumps({"page": str(page), "folders": [str(f) for f in folders]}, indent=2))
        return
    for source in results:
        show(source.result)
    click.echo(f"Page: {page}")


def _foreign_page(folders: tuple[Path, ...]) -> Callable[[], str] | None:
    """Return the function that makes the page of a folder of another distribution, if it is one."""
    foreign = {folder: found for folder in folders if (found := _read_foreign(folder))}
    for folder, (kind, html) in foreign.items():
        # Such a page is complete HTML, which cannot be put beside other results.
        if len(folders) > 1:
            raise BadArgument(
                "out",
                "{_folder} is a {_kind}, which has a separate page; pass it alone.",
                _folder=folder,
                _kind=kind,
            )
        return html
    return None


def _read_foreign(folder: Path) -> tuple[str, Callable[[], str]] | None:
    """Return the kind of a folder of another distribution, and the function that makes its page.

    An entry point of the group `trimtab.pages` has the name of the kind. It is a function that
    takes a folder, and returns None unless the folder is of its kind.
    """
    for point in entry_points(group="trimtab.pages"):
        made: Callable[[], str] | None = point.load()(folder)
        if made is not None:
            return point.name, made
    return None


def _diagnosis_alone(folder: Path) -> dict[str, Any] | None:
    """Return the diagnosis of a folder without other results; None otherwise."""
    # A folder may hold a diagnosis in addition to a run or a comparison.
    from trimtab.report.sources import read_diagnosis

    others = any((folder / name).exists() for name in ("run.json", "compare.json"))
    return None if others else read_diagnosis(folder)
