"""`trimtab reproduce`."""

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from trimtab.cli import completion
from trimtab.cli.options import cluster_of, cluster_option, live_option
from trimtab.cli.output import LivePage
from trimtab.cli.progress import watch
from trimtab.cli.starting import needs
from trimtab.errors import BadArgument

PAGE = "report.html"
_STOPPED = (
    "stopped; cells that are done have their records in {folder}, and what another one has done is "
    "kept there: repeat the command."
)


@click.command()
@click.argument("names", nargs=-1, shell_complete=completion.reproduction)
@click.option("--quick", is_flag=True, help="A small version, under two minutes a name.")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--cells", "cells", help="Cells with commas between, or patterns: scaffold-*-0.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of data files.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the records.")
@cluster_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@click.option("--seed", type=click.IntRange(min=0), help="Only the cells of this seed.")
@live_option
@needs("report", "reproduce")
def reproduce(
    names: tuple[str, ...],
    quick: bool,
    seeds: int,
    cells: str | None,
    data: Path | None,
    out: Path | None,
    cluster: str | None,
    as_json: bool,
    seed: int | None,
    live: bool,
) -> None:
    """Reproduce tables and figures of the papers; without NAMES, list them.

    A cell that has a record is not computed again: an interrupted reproduction goes on.
    """
    from trimtab.reproduce import REPRODUCTIONS, listing
    from trimtab.reproduce.report import write_reproduction
    from trimtab.reproduce.reproduction import Request
    from trimtab.reproduce.reproduction import reproduce as computing

    if seed is not None and seeds != 1:
        raise BadArgument("seed", "{seed} is one of them, and {seeds} many; pass one of both.")
    for name in names:
        if name not in REPRODUCTIONS:
            raise ValueError(
                f"{name!r} is no reproduction; pass one of {', '.join(REPRODUCTIONS)}."
            )
    home = out or Path("runs/quick" if quick else "results")
    pick = ("*",) if cells is None else tuple(part.strip() for part in cells.split(","))
    asked: dict[str, Any] = {"quick": quick, "seeds": seeds, "pick": pick, "seed": seed}
    for name in names:  # What is refused is refused before hours of others.
        Request(REPRODUCTIONS[name], home / name, **asked).check()
    where: dict[str, Any] = {"data": data, "cluster": cluster_of(cluster)}
    for name in names:
        folder = home / name
        work = computing.start(REPRODUCTIONS[name], folder, **asked, **where)
        with LivePage(folder / PAGE, partial(_so_far, name, folder), live) as page:
            watch(work, partial(_STOPPED.format, folder=folder), page.on_event)
            write_reproduction(folder, folder / PAGE)
    listed = listing(home, names or tuple(REPRODUCTIONS))
    if as_json:
        click.echo(json.dumps(listed, indent=2, ensure_ascii=False))
    elif names:
        _show(names, home)
    else:
        from trimtab.report import reproduction_table

        Console(width=None if sys.stdout.isatty() else 100).print(reproduction_table(listed))


def _show(names: Sequence[str], home: Path) -> None:
    """Print the tables, what became of the sentences, and where the pages are."""
    from trimtab.reproduce import REPRODUCTIONS, read

    for name in names:
        found, records = REPRODUCTIONS[name], read(home / name)
        click.echo(f"\n{name}: {found.source}\n")
        click.echo(found.table(records) if records else "No record yet: others compute its cells.")
        for claim in found.claims(records):
            ours = "our own check, " if claim.own else ""
            numbers = f" ({claim.numbers})" if claim.numbers else ""
            click.echo(f"\n{ours}{claim.verdict}: {claim.sentence}{numbers}")
    for name in names:
        click.echo(f"Page: {home / name / PAGE}")


def _so_far(name: str, folder: Path) -> str:
    """Return the page of the records that there are."""
    from trimtab.report.page import nothing_yet
    from trimtab.reproduce import REPRODUCTIONS, read
    from trimtab.reproduce.report import reproduction_page

    records = read(folder)
    return reproduction_page(REPRODUCTIONS[name], records) if records else nothing_yet(name)
