"""Progress of a command on the terminal, and how Ctrl-C stops it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.live import Live
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
EVERY = 1.0  # seconds between two looks for the goal; the record of a comparison may be large


@dataclass
class EntryProgress:
    """One algorithm: its last round, the range of its metric, and the bytes of all its rounds."""

    last: "RoundDone"
    low: float = inf
    high: float = -inf
    bytes: int = 0
    rounds: int = 0

    def best(self, goal: "Goal | None") -> float | None:
        """Return the best value so far; None before the goal or a value is known."""
        if goal is None or self.low > self.high:
            return None
        return self.high if goal.metric.higher else self.low


class StudyProgress:
    """The algorithms of a comparison, or that of a run, in the order of their first rounds.

    folder: the folder of the results, whose record has goal and budget.
    clock: returns seconds; `monotonic` by default.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = monotonic) -> None:
        self.folder, self.clock = folder, clock
        self.started = clock()
        self.entries: dict[str, EntryProgress] = {}
        self.goal: Goal | None = None  # of a comparison: after its first stage, which sets it
        self._about: dict[str, Any] = {}
        self._next_read = self.started
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
        value = line.metrics.get(self.metric)
        if value is not None:
            one.low, one.high = min(one.low, value), max(one.high, value)

    @property
    def metric(self) -> str:
        """The name of the metric that decides; "metric" before it is known."""
        name = self._about.get("settings", {}).get("metric", "metric")
        return str(name) if self.goal is None else self.goal.name

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
        from trimtab._files import read_lines

        lines = (line for path in self.folder.rglob("rounds.jsonl") for line in read_lines(path))
        return float(max(0, sum(line.get("work", 0) for line in lines) - first.line.work))

    def _read(self) -> None:
        # The record exists once the first round is done; it has the goal later, which then stays.
        now = self.clock()
        if self.goal is not None or now < self._next_read:
            return
        from trimtab._files import read_json
        from trimtab.studies.goal import Goal

        self._next_read = now + EVERY
        alone = (self.folder / "run.json").exists()
        self._about = read_json(self.folder / ("run.json" if alone else "compare.json"))
        goal = self._about.get("goal") or self._about.pop("outcome", None)
        self.goal = None if goal is None else Goal.from_json(goal)


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
        """Return the table as it is now, without the columns that the terminal has no room for."""
        from trimtab.core.sections import Table as Cells
        from trimtab.report.terminal import fitted

        goal, metric = self.progress.goal, self.progress.metric
        heads = [{"now": metric, "best": f"best {metric}"}.get(head, head) for head in HEADS]
        rows = []
        # A copy, because rich draws the table in its own thread while entries are added.
        for label, one in list(self.progress.entries.items()):
            line = one.last.line
            shown = map(_number, (line.metrics.get(metric), one.best(goal), line.drift))
            rows.append([label, _step(one.last), str(line.r), *shown, format_bytes(one.bytes)])
        table, _ = fitted(Cells(heads, rows), self.console.width)
        table.box, table.pad_edge, table.caption_justify = None, False, "left"
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
