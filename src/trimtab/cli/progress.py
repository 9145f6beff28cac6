"""Progress of a command on the terminal, and how Ctrl-C stops it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from trimtab.core.display import format_bytes, format_seconds

if TYPE_CHECKING:
    from trimtab.core.task import Task
    from trimtab.studies.comparison import Comparison
    from trimtab.studies.goal import Goal
    from trimtab.studies.record import RoundDone

R = TypeVar("R")
HEADS = ("algorithm", "step size", "round", "now", "best", "drift", "bytes")
# The time left is extrapolated from the rounds so far, which jumps while they are few; it is shown
# after 5 seconds.
SURE = 5.0


@dataclass
class EntryProgress:
    """One algorithm: its last round, the best value so far, and the bytes of all its rounds."""

    last: "RoundDone"
    best: float | None = None
    bytes: int = 0
    rounds: int = 0


class StudyProgress:
    """The algorithms of a comparison, or that of a run, in the order of their first rounds.

    folder: the folder of the results, whose record has goal and budget.
    clock: returns seconds; `monotonic` by default.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = monotonic) -> None:
        self.folder, self.clock = folder, clock
        self.started = clock()
        self.entries: dict[str, EntryProgress] = {}
        self.goal: Goal | None = None
        self._about: dict[str, Any] = {}
        self._work = 0.0  # sample gradients of this process
        # Sample gradients, or rounds, of the process that this one resumes; they took none of the
        # time of this process.
        self._before: float | None = None

    def add(self, event: "RoundDone") -> None:
        """Count a round, unless it has no label: such rounds only measure the speed."""
        if not event.label:
            return
        self._read()
        one = self.entries.setdefault(event.label, EntryProgress(event))
        if self._before is None:
            self._before = self._earlier(event)
        line, one.last = event.line, event
        one.bytes += line.bytes_down + line.bytes_up
        one.rounds += 1
        self._work += line.work
        assert self.goal is not None
        value = line.metrics.get(self.goal.name)
        if value is not None and (
            one.best is None or (value > one.best if self.goal.metric.higher else value < one.best)
        ):
            one.best = value

    @property
    def elapsed(self) -> float:
        """The seconds since the start."""
        return self.clock() - self.started

    @property
    def left(self) -> float | None:
        """An upper bound of the seconds left; None if it is unknown."""
        before = self._before or 0.0
        done, total = self._done_and_total()
        if not total or self.elapsed < SURE or done <= before:
            return None
        return self.elapsed * max(0.0, total - done) / (done - before)

    @property
    def sentence(self) -> str:
        """The number of rounds, the time they took, and the time left."""
        rounds = sum(one.rounds for one in self.entries.values())
        said = f"{rounds:,} rounds in {format_seconds(self.elapsed)}"
        return said if self.left is None else f"{said}, at most {format_seconds(self.left)} left"

    def _done_and_total(self) -> tuple[float, float]:
        """Return the work done and the total work: rounds of a run, else sample gradients."""
        if self._about.get("R"):
            return float(max(one.last.line.r for one in self.entries.values())), self._about["R"]
        budget = self._about.get("budget") or 0.0
        count = len(self._about.get("settings", {}).get("algorithms", ()))
        return (self._before or 0.0) + self._work, budget * count

    def _earlier(self, first: "RoundDone") -> float:
        """Return the work of an earlier process, given the first round of this one."""
        if self._about.get("R"):
            return first.line.r - 1.0
        from trimtab.studies.underway import Underway

        there = Underway(self.folder)
        there.look()
        return max(0.0, there.work - first.line.work)

    def _read(self) -> None:
        # The record exists once the first round is done, and its goal does not change.
        if self.goal is not None:
            return
        from trimtab._files import read_json
        from trimtab.studies.goal import Goal

        alone = (self.folder / "run.json").exists()
        self._about = read_json(self.folder / ("run.json" if alone else "compare.json"))
        self.goal = Goal.from_json(self._about["goal"])


class Board:
    """A live table of the algorithms on a terminal; without a terminal it prints nothing."""

    def __init__(self, console: Console, progress: StudyProgress) -> None:
        self.console, self.progress = console, progress
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self.table)

    def __enter__(self) -> "Board":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def say(self, sentence: str) -> None:
        """Show a sentence above the table."""
        if self.console.is_terminal:
            self.console.print(sentence, highlight=False, markup=False)

    def table(self) -> Table:
        """Return the table as it is now."""
        goal = self.progress.goal
        metric = "metric" if goal is None else goal.name
        table = Table(box=None, pad_edge=False, caption_justify="left")
        for head in HEADS:
            title = {"now": metric, "best": f"best {metric}"}.get(head, head)
            table.add_column(escape(title), justify="left" if head == "algorithm" else "right")
        # A copy, because rich draws the table in its own thread while entries are added.
        for label, one in list(self.progress.entries.items()):
            line = one.last.line
            now = None if goal is None else line.metrics.get(goal.name)
            shown = (_step(one.last), str(line.r), _number(now), _number(one.best))
            table.add_row(escape(label), *shown, _number(line.drift), format_bytes(one.bytes))
        table.caption = self.progress.sentence if self.progress.entries else "starting"
        return table


def follow(
    work: "Task[Any, Comparison]",
    folder: Path,
    progress: StudyProgress | None = None,
    log: "Callable[[RoundDone], None] | None" = None,
) -> "Comparison":
    """Show the rounds of a study live on a terminal; stop cleanly on Ctrl-C.

    work: the study as a task.
    folder: the folder of its results, which the message after Ctrl-C names.
    progress: counts the rounds; a new one by default.
    log: called with every round; None by default.
    """
    from trimtab.core.task import Note

    console = Console(stderr=True, emoji=False)
    counted = progress or StudyProgress(folder)
    with stoppable(console, "round") as stop, Board(console, counted) as board:
        for event in work:
            if isinstance(event, Note):
                board.say(event.sentence)
                continue
            counted.add(event)
            if log is not None:
                log(event)
            if stop:
                work.close()
                raise click.ClickException(
                    f"stopped; all rounds so far are in {folder}: repeat the command with --resume."
                )
        return work.result()


def watch(
    work: "Task[Any, R]",
    stopped: Callable[[], str],
    on_event: "Callable[[Any], None] | None" = None,
) -> R:
    """Run a task with a progress bar on a terminal, and return its result.

    work: the task.
    stopped: returns the sentence that is printed after Ctrl-C.
    on_event: called with every event; None by default.
    """
    from trimtab.core import task

    console = Console(stderr=True, emoji=False)
    columns = (
        *(BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()),
        *(TimeRemainingColumn(elapsed_when_finished=True), TextColumn("left")),
    )
    with (
        stoppable(console, "step") as stop,
        Progress(*columns, console=console, disable=not console.is_terminal) as lines,
    ):
        bar = lines.add_task("", total=1.0)
        for event in work:
            if isinstance(event, task.Progress):
                lines.update(bar, description=event.what, completed=event.share)
            elif console.is_terminal:
                lines.console.print(str(event), highlight=False, markup=False)
            if on_event is not None:
                on_event(event)
            if stop:
                work.close()
                raise click.ClickException(stopped())
    return work.result()


@contextmanager
def on_interrupt(sentence: str) -> Iterator[None]:
    """Replace the traceback of Ctrl-C by a sentence about saved results and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.ClickException(f"stopped; {sentence}") from None


@contextmanager
def stoppable(console: Console, step: str) -> Iterator[list[int]]:
    """Turn the first Ctrl-C or SIGTERM into a flag, read between steps; the second one raises."""
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        console.print(f"stopping after this {step}; press again to stop at once")

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _step(event: "RoundDone") -> str:
    from trimtab.core.hyper import step_size

    name, value = step_size(event.algorithm)
    return f"{name} = {value:.3g}" if name else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
