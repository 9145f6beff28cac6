"""`trimtab reproduce` and `trimtab bench`: found by entry points, and loaded without torch."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.table import Table

from trimtab.cli.group import requires
from trimtab.cli.options import cluster_of, cluster_option, live_option
from trimtab.cli.output import LivePage
from trimtab.cli.progress import watch
from trimtab.errors import BadArgument

PAGE = "report.html"
NAMES = (  # of the reproductions, for completion without torch; a test compares them with items.py
    *("figure3", "theorem2", "table3", "table4", "table5", "concrete", "emnist400", "clients"),
    *("mime", "mvr", "bias", "speedup", "lsa", "contraction", "local-steps", "dane"),
    *("nonconvex", "unequal"),
)
_STOPPED = (
    "stopped; cells that are done have their records in {folder}, and what another one has done is "
    "kept there: repeat the command."
)


def _offer_names(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in NAMES if name.startswith(typed)]


@click.command(
    short_help="Reproduce tables and figures of the papers; without NAMES, list them.",
)
@click.argument("names", nargs=-1, shell_complete=_offer_names)
@click.option("--quick", is_flag=True, help="A small version, under two minutes a name.")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--cells", "cells", help="Cells with commas between, or patterns: scaffold-*-0.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of data files.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the records.")
@cluster_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@click.option("--seed", type=click.IntRange(min=0), help="Only the cells of this seed.")
@live_option
@requires("items", package="trimtab_papers")
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
    from trimtab_papers.engine import Request
    from trimtab_papers.engine import reproduce as computing
    from trimtab_papers.items import REPRODUCTIONS, listing
    from trimtab_papers.page import write_reproduction

    if seed is not None and seeds != 1:
        raise BadArgument("seed", "{seed} is one of them, and {seeds} many; pass one of both.")
    for name in names:
        if name not in REPRODUCTIONS:
            raise ValueError(
                f"{name!r} is not a reproduction; pass one of {', '.join(REPRODUCTIONS)}."
            )
    home = out or Path("runs/quick" if quick else "results")
    pick = ("*",) if cells is None else tuple(part.strip() for part in cells.split(","))
    selection: dict[str, Any] = {"quick": quick, "seeds": seeds, "pick": pick, "seed": seed}
    for name in names:  # A bad argument is refused before hours of computing.
        Request(REPRODUCTIONS[name], home / name, **selection).check()
    where: dict[str, Any] = {"data": data, "cluster": cluster_of(cluster)}
    for name in names:
        folder = home / name
        work = computing.start(REPRODUCTIONS[name], folder, **selection, **where)
        with LivePage(folder / PAGE, partial(_page_so_far, name, folder), live) as page:
            watch(work, partial(_STOPPED.format, folder=folder), page.on_event)
            write_reproduction(folder, folder / PAGE)
    listed = listing(home, names or tuple(REPRODUCTIONS))
    if as_json:
        click.echo(json.dumps(listed, indent=2, ensure_ascii=False))
    elif names:
        _show(names, home)
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(_reproduction_table(listed))


def _show(names: Sequence[str], home: Path) -> None:
    """Print the tables, what became of the sentences, and where the pages are."""
    from trimtab_papers.items import REPRODUCTIONS, read

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


def _page_so_far(name: str, folder: Path) -> str:
    from trimtab.report.page import empty_page
    from trimtab_papers.items import REPRODUCTIONS, read
    from trimtab_papers.page import reproduction_page

    records = read(folder)
    return reproduction_page(REPRODUCTIONS[name], records) if records else empty_page(name)


def _reproduction_table(reproductions: list[dict[str, Any]]) -> Table:
    head = ("name", "shows", "minutes", "record", "claims", "our checks")
    table = Table(*head, title_justify="left")
    for row in reproductions:
        counts = [_counts(list(row[kind].values())) for kind in ("claims", "checks")]
        minutes = f"{row['minutes']:g}"
        table.add_row(row["name"], row["shows"], minutes, row["record"] or "", *counts)
    return table


def _counts(verdicts: list[str]) -> str:
    return ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))


@click.command(
    short_help="Measure rounds against their bare matrix products and a plain PyTorch loop.",
)
@click.argument("workloads", nargs=-1)
@click.option("--repeats", type=click.IntRange(min=1), help="At most so many repetitions of each.")
@click.option("--quick", is_flag=True, help="Little data, to see that all runs; no times to quote.")
@click.option("--out", type=click.Path(path_type=Path), help="JSON file for the record.")
@click.option("--resume", is_flag=True, help="Continue the record in --out with what it lacks.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of data and parameters.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@requires("bench", package="trimtab_papers")
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
    from trimtab_papers.bench import WORKLOADS, BenchRecord, measure

    known = {name.lower(): work for name, work in WORKLOADS.items()}
    for name in workloads:
        if name.lower() not in known:
            raise ValueError(f"{name!r} is not a workload; pass some of {', '.join(WORKLOADS)}.")
    if resume and out is None:
        raise ValueError("--resume continues a record; pass its file as --out.")
    record = BenchRecord(out, resume=resume)

    def stopped() -> str:
        if not record:
            return "stopped; nothing was measured yet: repeat the command."
        kept = "is lost without --out" if out is None else f"is in {out}"
        again = "" if out is None else " with --resume"
        return f"stopped; what was measured {kept}: repeat the command{again}."

    try:
        for name in workloads or known:
            work = known[name.lower()]
            if work.name in record:
                continue
            work = work.small() if quick else work
            work = replace(work, repeats=min(repeats or work.repeats, work.repeats), seed=seed)
            record.add(watch(measure.start(work), stopped))
    except KeyboardInterrupt:  # between two workloads
        raise click.ClickException(stopped()) from None
    made = record.to_json()
    if as_json:
        click.echo(json.dumps(made, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(_bench_table(made["rows"]))


def _bench_table(rows: list[dict[str, Any]]) -> Table:
    """Return the table of a benchmark: milliseconds a round, and the ratios with their goals."""
    table = Table(title="milliseconds a round, the best of several", title_justify="left")
    times = ("bare", "fedavg", "scaffold", "plain")
    for column in ("workload", "executor", *times):
        table.add_column(column, justify="left" if column == "workload" else "right")
    table.add_column("ratios (goal)")
    for row in rows:
        columns = [f"{row['milliseconds'][name]:.1f}" for name in times]
        ratios = [
            f"{name} {value:.2f} ({row['goals'][name]:.3g}{'' if row['met'][name] else ', missed'})"
            for name, value in row["ratios"].items()
        ]
        table.add_row(row["workload"], row["executor"], *columns, "\n".join(ratios))
    return table
