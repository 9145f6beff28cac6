"""The commands. No logic: each calls one function and shows what it returns."""

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from trimtab._files import write_json
from trimtab.algorithms import ALGORITHMS, BASES
from trimtab.bench import WORKLOADS, machine, measure
from trimtab.cli.options import CountOrFraction, Numbers, algorithm_of, hyper_options, run_options
from trimtab.cli.output import users_output
from trimtab.cli.progress import follow, watch
from trimtab.diagnosis import diagnosing
from trimtab.errors import BadArgument
from trimtab.problems.catalogue import load_problem
from trimtab.report import (
    bench_table,
    reproduction_table,
    terminal_table,
    write_diagnosis,
    write_page,
)
from trimtab.reproduce import REPRODUCTIONS, listing, reproduction
from trimtab.studies.compare import comparing
from trimtab.studies.comparison import Comparison, read_comparison
from trimtab.studies.events import CellDone
from trimtab.studies.run import running


@click.command()
@click.argument("problem", default="digits")
@click.option("--algorithms", help="Names with commas between: " + ", ".join(ALGORITHMS) + ".")
@click.option("--K", "K", type=Numbers(), help="Local steps, one number or several: 1,5,20.")
@click.option("--base", type=click.Choice(list(BASES)), help="Optimiser in mime, fedopt, ….")
@run_options
def compare(
    problem: str,
    algorithms: str | None,
    K: list[int] | None,
    base: str | None,
    S: int | float | None,
    batch: int | float | None,
    R: int,
    target: float | None,
    seed: int,
    data: Path | None,
    out: Path | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Tune algorithms on PROBLEM, run them side by side, and say which to use.

    PROBLEM is file.py:function or a built-in name: digits, quadratic, emnist, cifar10, a9a, heart,
    concrete, shakespeare. Data files are looked for in --data, TRIMTAB_DATA and the cache.
    """
    folder = _folder(out, f"compare-{_short(problem)}", resume)
    with users_output():
        made, suggested = load_problem(problem, batch=batch, data=data, seed=seed)
        steps = comparing(
            made,
            None if algorithms is None else [name.strip() for name in algorithms.split(",")],
            target=suggested if target is None else target,
            K=K,
            S=S,
            R=R,
            seed=seed,
            base=BASES[base]() if base else None,
            name=problem,
            out=folder,
            resume=resume,
        )
        result = follow(steps, folder)
    result.page = write_page(result, folder / "report.html")
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        _show(result)


@click.command()
@click.argument("algorithm")
@click.argument("problem", default="digits")
@hyper_options
@run_options
def run(
    algorithm: str,
    problem: str,
    S: int | float | None,
    batch: int | float | None,
    R: int,
    target: float | None,
    seed: int,
    data: Path | None,
    out: Path | None,
    resume: bool,
    as_json: bool,
    **hyper: Any,
) -> None:
    """Run one ALGORITHM on PROBLEM and leave its model.

    ALGORITHM is a class name in lower case (scaffold, fedavg, …); --eta-l or --eta its step size.
    """
    chosen = algorithm_of(algorithm, {k: v for k, v in hyper.items() if v is not None})
    folder = _folder(out, f"{algorithm.lower()}-{_short(problem)}", resume)
    options: dict[str, Any] = {"S": S, "R": R, "target": target, "seed": seed, "resume": resume}
    with users_output():
        made, _ = load_problem(problem, batch=batch, data=data, seed=seed)
        result = follow(running(chosen, made, name=problem, out=folder, **options), folder)
    result.page = write_page(result, folder / "report.html")
    if as_json:
        only = {"problem": result.problem, "target": target, **result.entries[0].to_json()}
        only |= {"page": str(result.page), "model": str(folder / "model.safetensors")}
        only |= {"best_model": str(folder / "best.safetensors")}
        click.echo(json.dumps(only, indent=2))
    else:
        _show(result)
        click.echo(f"Model after the last round: {folder / 'model.safetensors'}")
        click.echo(f"Model after the best round: {folder / 'best.safetensors'}")


@click.command()
@click.argument("problem", default="digits")
@click.option("--S", "S", type=CountOrFraction(), help="Clients a round: 20, or 0.2.")
@click.option("--batch", type=CountOrFraction(), help="Mini-batch: 32, or 0.2 of all.")
@click.option("--eps", type=float, help="The f(x) - f(x*) that is wanted [a hundredth].")
@click.option("--cross-device", is_flag=True, help="Clients come once and keep nothing.")
@click.option("--minutes", type=float, default=5, show_default=True, help="Time for it all.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of data files.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write to.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def diagnose(
    problem: str,
    S: int | float | None,
    batch: int | float | None,
    eps: float | None,
    cross_device: bool,
    minutes: float,
    seed: int,
    data: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure how the clients of PROBLEM differ, and advise algorithm, K and step sizes.

    PROBLEM is a built-in name or file.py:function, as for compare.
    """
    folder = _folder(out, f"diagnose-{_short(problem)}", resume=False)
    if folder.is_dir() and any(folder.iterdir()):
        raise BadArgument("out", "{folder} is not empty; pass another {out}.", folder=folder)
    with users_output():
        made, _ = load_problem(problem, batch=batch, data=data, seed=seed)
        steps = diagnosing(
            made,
            S=S,
            eps=eps,
            cross_device=cross_device,
            seed=seed,
            minutes=minutes,
            name=problem,
        )
        found = watch(steps)
    folder.mkdir(parents=True, exist_ok=True)
    page = write_diagnosis(found, folder / "report.html")
    content = {"problem": problem, "page": str(page), **found.to_json()}
    write_json(folder / "diagnosis.json", content)
    if as_json:
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        click.echo(found)
        click.echo(f"Page: {page}")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Write the page of a finished comparison or run anew."""
    result = read_comparison(folder)
    result.page = write_page(result, folder / "report.html")
    _show(result)


@click.command()
@click.argument("workloads", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path), help="JSON file for the record.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def bench(workloads: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Measure rounds of WORKLOADS against their bare matrix products and a plain PyTorch loop."""
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


@click.command()
@click.argument("names", nargs=-1)
@click.option("--quick", is_flag=True, help="A small version, under two minutes a name.")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--cells", "cells", help="Cells with commas between, or patterns: scaffold-*-0.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of data files.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the records.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def reproduce(
    names: tuple[str, ...],
    quick: bool,
    seeds: int,
    cells: str | None,
    data: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Reproduce tables and figures of the papers; without NAMES, list them.

    A cell that has a record is not computed again: an interrupted reproduction goes on.
    """
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
            steps = reproduction.reproduce.start(REPRODUCTIONS[name], folder / name, **options)
            for event in steps:
                if isinstance(event, CellDone):
                    console.print(f"{name} {event.name}: {event.seconds:.1f} s")
                else:
                    status.update(event.what)
    found = listing(folder, names or tuple(REPRODUCTIONS))
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    elif names:
        for name in names:
            click.echo(f"\n{name}: {REPRODUCTIONS[name].source}\n")
            records = reproduction.read(folder / name)
            click.echo(REPRODUCTIONS[name].table(records))
            for claim in REPRODUCTIONS[name].claims(records):
                click.echo(f"\n{claim.verdict}: {claim.sentence} {claim.numbers}")
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(reproduction_table(found))


# -- what is shown


def _show(result: Comparison) -> None:
    console = Console(width=None if sys.stdout.isatty() else 100, emoji=False)
    console.print(terminal_table(result))
    console.print(result.advice, highlight=False, markup=False, soft_wrap=True)
    click.echo(f"Page: {result.page}")


def _folder(out: Path | None, stem: str, resume: bool) -> Path:
    """Return where to write: `--out`, or in runs the next free folder (to resume, the newest)."""
    if out is not None:
        if resume and not out.exists():
            raise ValueError(f"{out}: there is nothing to resume; drop --resume.")
        return out
    number = 1
    while (Path("runs") / f"{stem}-{number}").exists():
        number += 1
    if resume and number == 1:
        raise ValueError(f"runs/{stem}-1: there is nothing to resume; drop --resume.")
    return Path("runs") / f"{stem}-{number - 1 if resume else number}"


def _short(problem: str) -> str:
    return Path(problem.replace(":", "-")).name.replace(".py", "")
