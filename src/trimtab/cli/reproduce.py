"""`trimtab reproduce`."""

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from trimtab.cli import completion
from trimtab.cli.options import cluster_of, cluster_option
from trimtab.cli.starting import needs


@click.command()
@click.argument("names", nargs=-1, shell_complete=completion.reproduction)
@click.option("--quick", is_flag=True, help="A small version, under two minutes a name.")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--cells", "cells", help="Cells with commas between, or patterns: scaffold-*-0.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of data files.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the records.")
@cluster_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
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
) -> None:
    """Reproduce tables and figures of the papers; without NAMES, list them.

    A cell that has a record is not computed again: an interrupted reproduction goes on.
    """
    from trimtab.report import reproduction_table
    from trimtab.reproduce import REPRODUCTIONS, listing, reproduction
    from trimtab.studies.events import CellDone

    for name in names:
        if name not in REPRODUCTIONS:
            raise ValueError(
                f"{name!r} is no reproduction; pass one of {', '.join(REPRODUCTIONS)}."
            )
    folder = out or Path("runs/quick" if quick else "results")
    pick = ("*",) if cells is None else tuple(part.strip() for part in cells.split(","))
    console = Console(stderr=True)
    for name in names:
        with console.status(name) as status:
            options: dict[str, Any] = {"quick": quick, "seeds": seeds, "pick": pick, "data": data}
            options |= {"cluster": cluster_of(cluster)}
            steps = reproduction.reproduce.start(REPRODUCTIONS[name], folder / name, **options)
            for event in steps:
                if isinstance(event, CellDone):
                    console.print(f"{name} {event.name}: {event.seconds:.1f} s")
                else:
                    status.update(event.what)
    listed = listing(folder, names or tuple(REPRODUCTIONS))
    if as_json:
        click.echo(json.dumps(listed, indent=2, ensure_ascii=False))
    elif names:
        for name in names:
            click.echo(f"\n{name}: {REPRODUCTIONS[name].source}\n")
            records = reproduction.read(folder / name)
            click.echo(REPRODUCTIONS[name].table(records))
            for claim in REPRODUCTIONS[name].claims(records):
                ours = "our own check, " if claim.own else ""
                click.echo(f"\n{ours}{claim.verdict}: {claim.sentence} {claim.numbers}")
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(reproduction_table(listed))
