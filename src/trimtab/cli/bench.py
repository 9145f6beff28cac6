"""`trimtab bench`."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from trimtab.cli.group import requires
from trimtab.cli.progress import watch


@click.command()
@click.argument("workloads", nargs=-1)
@click.option("--repeats", type=click.IntRange(min=1), help="At most so many repetitions of each.")
@click.option("--quick", is_flag=True, help="Little data, to see that all runs; no times to quote.")
@click.option("--out", type=click.Path(path_type=Path), help="JSON file for the record.")
@click.option("--resume", is_flag=True, help="Go on with --out; measure what it does not hold.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of data and parameters.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@requires("bench", "report")
def bench(
    workloads: tuple[str, ...],
    repeats: int | None,
    quick: bool,
    out: Path | None,
    resume: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Measure rounds of WORKLOADS against their bare matrix products and a plain PyTorch loop.

    All of them by default; `trimtab bench w8 w9` picks some. The record is written after each.
    """
    from trimtab.bench import WORKLOADS, BenchRecord, measure
    from trimtab.report import bench_table

    known = {name.lower(): work for name, work in WORKLOADS.items()}
    for name in workloads:
        if name.lower() not in known:
            raise ValueError(f"{name!r} is no workload; pass some of {', '.join(WORKLOADS)}.")
    if resume and out is None:
        raise ValueError("--resume goes on with a record; pass its file as --out.")
    record = BenchRecord(out, resume=resume)

    def stopped() -> str:
        if not record:
            return "stopped; nothing was measured yet: repeat the command."
        kept = "is lost without --out" if out is None else f"is in {out}"
        again = "" if out is None else " with --resume"
        return f"stopped; what was measured {kept}: repeat the command{again}."

    for name in workloads or known:
        work = known[name.lower()]
        if work.name in record:
            continue
        work = work.small() if quick else work
        work = replace(work, repeats=min(repeats or work.repeats, work.repeats), seed=seed)
        record.add(watch(measure.start(work), stopped))
    made = record.to_json()
    if as_json:
        click.echo(json.dumps(made, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(bench_table(made["rows"]))
