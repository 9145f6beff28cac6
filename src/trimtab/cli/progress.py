"""What is seen while a command works, and how it is stopped."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

if TYPE_CHECKING:
    from trimtab.core.task import Task
    from trimtab.studies.comparison import Comparison
    from trimtab.studies.events import RoundDone

R = TypeVar("R")


def follow(work: "Task[Any, Comparison]", folder: Path) -> "Comparison":
    """Show the rounds of a study live on a terminal; stop cleanly on Ctrl-C."""
    from trimtab.core.task import Note

    console = Console(stderr=True, emoji=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}  {task.fields[now]}"))
    with (
        _stoppable(console) as stop,
        Progress(*columns, console=console, disable=not console.is_terminal) as lines,
    ):
        tasks: dict[str, Any] = {}
        for event in work:
            if isinstance(event, Note):
                if console.is_terminal:
                    lines.console.print(event.sentence, highlight=False, markup=False)
                continue
            if event.label not in tasks:
                for task in tasks.values():
                    lines.update(task, total=1, completed=1)
                tasks[event.label] = lines.add_task(f"{event.label:<14}", total=None, now="")
            lines.update(tasks[event.label], now=_now(event))
            if stop:
                work.close()
                raise click.ClickException(
                    f"stopped; all rounds so far are in {folder}: repeat the command with --resume."
                )
        return work.result()


def watch(work: "Task[Any, R]") -> R:
    """Do the work with a bar on a terminal, and what else it tells; return its result."""
    from trimtab.core.task import Progress as Stage

    console = Console(stderr=True, emoji=False)
    columns = (BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as lines:
        task = lines.add_task("", total=1.0)
        for event in work:
            if isinstance(event, Stage):
                lines.update(task, description=event.what, completed=event.share)
            elif console.is_terminal:
                lines.console.print(str(event), highlight=False, markup=False)
    return work.result()


def _now(event: "RoundDone") -> str:
    from trimtab.core.hyper import step_size

    step, value = step_size(event.algorithm)
    metrics = [f"{name} {v:.4g}" for name, v in event.line.metrics.items() if v is not None]
    return f"{step} = {value:<8.3g} round {event.line.r:<4} {', '.join(metrics)}"


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
