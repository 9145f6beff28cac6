"""`trimtab bench`."""

import json
import sys
from pathlib import Path

import click
from rich.console import Console

from trimtab._files import write_json
from trimtab.cli.starting import needs


@click.command()
@click.argument("workloads", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path), help="JSON file for the record.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@needs("bench", "report")
def bench(workloads: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Measure rounds of WORKLOADS against their bare matrix products and a plain PyTorch loop."""
    from trimtab.bench import WORKLOADS, machine, measure
    from trimtab.report import bench_table

    for name in workloads:
        if name not in WORKLOADS:
            raise ValueError(f"{name!r} is no workload; pass some of {', '.join(WORKLOADS)}.")
    console, rows = Console(stderr=True), []
    for name in workloads or WORKLOADS:
        with console.status(f"{name}: {WORKLOADS[name].shows}"):
            rows.append(measure(WORKLOADS[name]).to_json())
    record = {"machine": machine(), "rows": rows}
    if out is not None:
        write_json(out, record)
    if as_json:
        click.echo(json.dumps(record, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(bench_table(rows))
