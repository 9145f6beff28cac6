"""The command line. No logic: each command calls one function and shows what it returns."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from trimtab import __version__
from trimtab.algorithms import ALGORITHMS, BASES
from trimtab.bench import WORKLOADS, machine, measure
from trimtab.cli_federate import federate
from trimtab.cli_options import CountOrFraction, algorithm_of, hyper_options
from trimtab.compare import comparing
from trimtab.comparison import Comparison, read_comparison
from trimtab.diagnosis import Diagnosis, diagnosing
from trimtab.problems.builtin import load_problem
from trimtab.record import write_json
from trimtab.report import (
    bench_table,
    reproduction_table,
    terminal_table,
    write_diagnosis,
    write_page,
)
from trimtab.reproduce import REPRODUCTIONS, computing, listing
from trimtab.reproduce import read as read_records
from trimtab.run import running
from trimtab.simulation import step_size
from trimtab.tune import Trial


class Numbers(click.ParamType[list[int]]):
    """Whole numbers with commas between."""

    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        """Read '1,5,20'."""
        try:
            return [int(part) for part in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers such as 1,5,20.", param, ctx)


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that all runs take."""
    for option in reversed(
        (
            click.option("--S", "S", type=CountOrFraction(), help="Clients a round: 20, or 0.2."),
            click.option("--batch", type=CountOrFraction(), help="Mini-batch: 32, or 0.2 of all."),
            click.option("-R", "R", type=int, default=200, show_default=True, help="Most rounds."),
            click.option("--target", type=float, help="Accuracy to reach (regression: loss)."),
            click.option("--seed", type=int, default=0, show_default=True),
            click.option("--data", type=click.Path(path_type=Path), help="Folder of data files."),
            click.option("--out", type=click.Path(path_type=Path), help="Folder to write to."),
            click.option("--resume", is_flag=True, help="Continue an interrupted run."),
            click.option("--json", "as_json", is_flag=True, help="Print JSON for machines."),
        )
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trimtab", message="%(prog)s %(version)s")
def cli() -> None:
    """Federated optimisation that does not drift."""


@cli.command()
@click.argument("problem", default="digits")
@click.option("--algorithms", help="Names with commas between: " + ", ".join(ALGORITHMS) + ".")
@click.option("--K", "K", type=Numbers(), help="Local steps, one number or several: 1,5,20.")
@click.option("--base", type=click.Choice(list(BASES)), help="Optimiser in mime, fedopt, ….")
@_common
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
    made, suggested = load_problem(problem, batch=batch, data=data, seed=seed)
    folder = _folder(out, f"compare-{_short(problem)}", resume)
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
    result = _follow(steps, folder)
    result.page = write_page(result, folder / "report.html")
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        _show(result)


@cli.command()
@click.argument("algorithm")
@click.argument("problem", default="digits")
@hyper_options
@_common
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
    made, _ = load_problem(problem, batch=batch, data=data, seed=seed)
    folder = _folder(out, f"{algorithm.lower()}-{_short(problem)}", resume)
    steps = running(
        chosen, made, S=S, R=R, target=target, seed=seed, name=problem, out=folder, resume=resume
    )
    result = _follow(steps, folder)
    result.page = write_page(result, folder / "report.html")
    if as_json:
        only = {"problem": result.problem, "target": target, **result.entries[0].to_json()}
        only |= {"page": str(result.page), "model": str(folder / "model.safetensors")}
        click.echo(json.dumps(only, indent=2))
    else:
        _show(result)
        click.echo(f"Model: {folder / 'model.safetensors'}")


@cli.command()
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
    made, _ = load_problem(problem, batch=batch, data=data, seed=seed)
    folder = _folder(out, f"diagnose-{_short(problem)}", resume=False)
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; pass another --out.")
    steps = diagnosing(
        made,
        S=S,
        eps=eps,
        cross_device=cross_device,
        seed=seed,
        minutes=minutes,
        name=problem,
    )
    found = _watch(steps)
    folder.mkdir(parents=True, exist_ok=True)
    page = write_diagnosis(found, folder / "report.html")
    content = {"problem": problem, "page": str(page), **found.to_json()}
    write_json(folder / "diagnosis.json", content)
    if as_json:
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        click.echo(found)
        click.echo(f"Page: {page}")


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Write the page of a finished comparison or run anew."""
    result = read_comparison(folder)
    result.page = write_page(result, folder / "report.html")
    _show(result)


@cli.command()
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
            *_, row = measure(WORKLOADS[name])
        rows.append(row)
    record = {"machine": machine(), "rows": rows}
    if out is not None:
        write_json(out, record)
    if as_json:
        click.echo(json.dumps(record, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(bench_table(rows))


@cli.command()
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
            steps = computing(REPRODUCTIONS[name], folder / name, say=status.update, **options)
            for cell, record in steps:
                console.print(f"{name} {cell}: {record['seconds']:.1f} s")
    found = listing(folder, names or tuple(REPRODUCTIONS))
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    elif names:
        for name in names:
            click.echo(f"\n{name}: {REPRODUCTIONS[name].source}\n")
            click.echo(REPRODUCTIONS[name].table(read_records(folder / name)))
            for claim in REPRODUCTIONS[name].claims(read_records(folder / name)):
                click.echo(f"\n{claim.verdict}: {claim.sentence} {claim.numbers}")
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(reproduction_table(found))


# -- what is shown


def _show(result: Comparison) -> None:
    console = Console(width=None if sys.stdout.isatty() else 100, emoji=False)
    console.print(terminal_table(result))
    console.print(result.advice, highlight=False, markup=False, soft_wrap=True)
    click.echo(f"Page: {result.page}")


def _follow(steps: Any, folder: Path) -> Comparison:
    """Consume the rounds with live progress on a terminal; stop cleanly on Ctrl-C."""
    console = Console(stderr=True, emoji=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}  {task.fields[now]}"))
    with (
        _stoppable(console) as stop,
        Progress(*columns, console=console, disable=not console.is_terminal) as lines,
    ):
        tasks: dict[str, Any] = {}
        while True:
            try:
                label, trial = next(steps)
            except StopIteration as done:
                result: Comparison = done.value
                return result
            if label not in tasks:
                for task in tasks.values():
                    lines.update(task, total=1, completed=1)
                tasks[label] = lines.add_task(f"{label:<14}", total=None, now="")
            lines.update(tasks[label], now=_now(trial))
            if stop:
                steps.close()
                raise click.ClickException(
                    f"stopped; all rounds so far are in {folder}: repeat the command with --resume."
                )


def _watch(steps: Any) -> Diagnosis:
    """Consume the stages of a diagnosis with a bar on a terminal."""
    console = Console(stderr=True, emoji=False)
    columns = (BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as lines:
        task = lines.add_task("", total=1.0)
        while True:
            try:
                stage, done = next(steps)
            except StopIteration as end:
                result: Diagnosis = end.value
                return result
            lines.update(task, description=stage, completed=done)


def _now(trial: Trial) -> str:
    last = trial.rounds[-1]
    step, value = step_size(trial.algorithm)
    shown = [f"{m} {last[m]:.4g}" for m in ("accuracy", "loss") if last.get(m) is not None]
    return f"{step} = {value:<8.3g} round {last['r']:<4} {', '.join(shown)}"


@contextmanager
def _stoppable(console: Console) -> Iterator[list[int]]:
    """Turn the first Ctrl-C or SIGTERM into a flag, read between rounds; the second one kills."""
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        console.print("stopping after this round; once more to stop at once")

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


cli.add_command(federate)


def main(arguments: list[str] | None = None) -> None:
    """Run the program; bad usage is one sentence and exit code 2."""
    try:
        cli.main(arguments, prog_name="trimtab", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("trimtab: stopped.", err=True)
        sys.exit(130)
    except click.UsageError as error:
        click.echo(f"trimtab: {error.format_message()}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        click.echo(f"trimtab: {error.format_message()}", err=True)
        sys.exit(130)
    except (ValueError, ArithmeticError, OSError) as error:
        click.echo(f"trimtab: {error}", err=True)
        sys.exit(2)
