"""The output of commands: folders, pages, results on the terminal, one-sentence errors."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from difflib import get_close_matches
from html import escape
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from trimtab.cli.options import RunOptions
from trimtab.cli.progress import StudyProgress, follow
from trimtab.errors import BadArgument

if TYPE_CHECKING:
    from trimtab.core.task import Task
    from trimtab.problems.problem import Problem
    from trimtab.studies.comparison import Comparison
    from trimtab.studies.record import RoundDone


PIPE_WIDTH = 116  # of a log: the widest table that fits the usual code review


@contextmanager
def users_output() -> Iterator[None]:
    """Send everything that Python or a library prints meanwhile to standard error.

    Standard output is for results, and with --json for JSON alone.
    """
    # C libraries write to descriptor 1 and not to sys.stdout, so that both are redirected.
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(out, 1)
        os.close(out)


def show(result: "Comparison") -> None:
    """Print a comparison or a run: its table, how it was made, the advice, the path of its page."""
    from trimtab.report import print_sections
    from trimtab.studies.sections import sections

    # Rich assumes 80 columns where there is no terminal, and would drop columns from logs.
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(width=None if known else PIPE_WIDTH, emoji=False)
    print_sections(sections(result), console, "a wider terminal or --json shows them.")
    if result.page is not None:
        click.echo(f"Page: {result.page}")


def write_report(result: "Comparison", folder: Path) -> Path:
    """Write the page of a result into its folder, and its command into the record."""
    from trimtab._files import read_json, write_json
    from trimtab.report import write_page

    path = folder / ("run.json" if (folder / "run.json").exists() else "compare.json")
    record = read_json(path)
    command = command_again(result.about.budget, result.about.round_cost)
    # A resumed run keeps the command that started it.
    if command and "command" not in record:
        write_json(path, record | {"command": command})
    return write_page(result, folder / "report.html")


class LivePage:
    """`--live`: a page that is written while a command works, and that browsers reload.

    The page that the command writes at the end replaces it, and does not reload itself.

    path: the file, which the last page replaces.
    make: returns the page of the results so far.
    live: whether `--live` was given; if not, nothing is written.
    clock: returns seconds; `monotonic` by default.
    """

    # At most one page per second, and at most a twentieth of the command's time for pages, so
    # that they do not slow its work down.
    EVERY = 1.0
    COST = 20.0

    def __init__(
        self,
        path: Path,
        make: Callable[[], str],
        live: bool,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.path, self.make, self.live, self.clock = path, make, live, clock
        self._next: float | None = None  # the time of the next page; None before the first one

    def on_event(self, event: Any) -> None:
        """Write the page, with the progress of a task as its note."""
        from trimtab.core.task import Progress

        if isinstance(event, Progress):
            share = "" if event.share is None else f", about {event.share:.0%} done"
            self.update(f"{event.what}{share}")

    def update(self, note: str, now: bool = False) -> None:
        """Write the page, if it is time for a new one.

        note: the current work of the command, for the line below the title.
        now: write the page even if the last one is new; default False.
        """
        started = self.clock()
        early = self._next is not None and started < self._next and not now
        if not self.live or early:
            return
        if self._next is None:
            click.echo(f"Live page: {self.path}", err=True)
        self._write(f"Live: {note}.", reloads=True)
        ended = self.clock()
        self._next = ended + max(self.EVERY, self.COST * (ended - started))

    def __enter__(self) -> "LivePage":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write a page that does not reload itself, if the command fails or is stopped."""
        if kind is not None and self._next is not None:
            self._write("Stopped. This page shows the results until then.", reloads=False)

    def _write(self, note: str, reloads: bool) -> None:
        from trimtab._files import write_file
        from trimtab.report.page import asset

        script = f"<script>{asset('live.js')}</script>" if reloads else ""
        # Other processes write the folder meanwhile, so that a file may be incomplete. The command
        # must not fail because of a page; the next page tries again.
        with suppress(OSError, ValueError, KeyError):
            line = f'</h1>\n<p class="live">{escape(note)}</p>{script}'
            write_file(self.path, self.make().replace("</h1>", line, 1))


def command_again(budget: float | None = None, round_cost: float = 0.0) -> str:
    """Return the command that repeats the result; empty if Python called it without one.

    budget, round_cost: what `--minutes` was converted to on this machine, which replaces it.
    """
    words: list[str] | None = click.get_current_context().find_root().obj
    kept, left = ["trimtab"], list(words or ())
    while left:
        word = left.pop(0)
        name, _, value = word.partition("=")
        # These options change the output only, not the result.
        if name in ("--resume", "--json", "--debug", "--live"):
            continue
        if name == "--log" or (name in ("--minutes", "--budget", "--round-cost") and budget):
            if not value:
                left[:1] = []
            continue
        kept.append(word)
    if budget and len(kept) > 1:
        kept += ["--budget", f"{budget:.15g}"]
        kept += ["--round-cost", f"{round_cost:.15g}"] if round_cost else []
    return shlex.join(kept) if words else ""


def output_folder(out: Path | None, stem: str, resume: bool) -> Path:
    """Return the folder to write to.

    out: `--out`, which is returned if it is not None.
    stem: the name of a folder in runs, to which the next free number is added.
    resume: take the newest existing folder instead; raise BadArgument if there is none.
    """
    if out is not None:
        if resume and not out.exists():
            raise _nothing_to_resume(out)
        return out
    number = 1
    while (Path("runs") / f"{stem}-{number}").exists():
        number += 1
    if resume and number == 1:
        raise _nothing_to_resume(Path("runs") / f"{stem}-1")
    return Path("runs") / f"{stem}-{number - 1 if resume else number}"


def _nothing_to_resume(folder: Path) -> BadArgument:
    sentence = "{folder}: there is nothing to resume; drop {resume:True}."
    return BadArgument("resume", sentence, folder=folder)


def short_name(problem: str) -> str:
    """Return the name of a problem as a part of a folder's name.

    >>> short_name("some/mine.py:problem")
    'mine-problem'
    """
    return Path(problem.replace(":", "-")).name.replace(".py", "")


# -- a comparison or a run, followed to its page


def follow_study(
    work: "Task[Any, Comparison]",
    folder: Path,
    name: str,
    problem: "Problem",
    options: RunOptions,
) -> "Comparison":
    """Run a study, show its progress, and write its page.

    work: the study as a task.
    folder: the folder of its results.
    name, problem: the problem, for the title and the summary of its clients.
    options: those of the command; `--log` and `--live` count here.
    """
    counted = StudyProgress(folder)
    with ExitStack() as at_end:
        log = None
        if options.log is not None:
            from trimtab.report.export import RoundLog

            log = at_end.enter_context(RoundLog(folder / "tensorboard")).add
        make = page_so_far(folder, name, problem) if options.live else str
        page = at_end.enter_context(LivePage(folder / "report.html", make, options.live))

        def on_round(event: "RoundDone") -> None:
            if log is not None:
                log(event)
            page.update(counted.sentence)

        result = follow(work, folder, counted, on_round)
        result.page = write_report(result, folder)
    return result


def page_so_far(folder: Path, name: str, problem: "Problem") -> Callable[[], str]:
    """Return a function that returns the current page of a comparison or a run."""
    from trimtab.problems.clients import summarise_clients
    from trimtab.report.page import empty_page, page_of
    from trimtab.report.sources import result_so_far, source_of

    population = summarise_clients(problem)

    def make() -> str:
        result = result_so_far(folder, population)
        return empty_page(name) if result is None else page_of([source_of(result)])

    return make


# -- errors as one sentence


def usage_sentence(error: click.UsageError) -> str:
    """Return click's message about a wrong option, and the command that shows the usage.

    >>> usage_sentence(click.NoSuchOption("--seed1", possibilities=["--seed", "--seeds"]))
    "No such option '--seed1'; similar are --seed, --seeds; `trimtab --help` shows the usage."
    """
    # Errors are one sentence, so that click's second sentence becomes a part of the first.
    said, close = error.format_message().replace(". Choose from:", ", one of"), ""
    if isinstance(error, click.NoSuchOption):
        said = error.message
        known = error.possibilities or ()
        if error.ctx is not None:  # Click proposes long options alone, and distant ones too.
            known = [name for each in error.ctx.command.get_params(error.ctx) for name in each.opts]
        near = ", ".join(get_close_matches(error.option_name, known, cutoff=0.7))
        close = f"similar are {near}; " if near else ""
    command = "trimtab" if error.ctx is None else error.ctx.command_path
    said = " ".join(said.split()).removesuffix(".")
    return f"{said}; {close}`{command} --help` shows the usage."


def error_sentence(error: Exception) -> str:
    """Return the message of an error of trimtab; for other errors, add their location."""
    from trimtab._importing import source_location

    if isinstance(error, BadArgument):
        return error.spelled(option_of)
    place = source_location(error)
    if place is None and isinstance(error, OSError) and error.filename and error.strerror:
        why = f"{error.strerror[:1].lower()}{error.strerror[1:]}"
        return f"{error.filename}: {why}; pass another path, or fix this one."
    if place is None and isinstance(error, ValueError | ArithmeticError | OSError):
        text = str(error)
        # Such an error is in the user's code, whose traceback helps.
        fixable = text.endswith("; fix it.") and error.__cause__ is not None
        return f"{text[:-1]}, or pass --debug for the whole traceback." if fixable else text
    what = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"
    if place is None:
        return f"{what}; this should not happen: please report it with what --debug shows."
    return f"{place}: {what}; fix it, or pass --debug for the whole traceback."


def option_of(name: str, value: str = "") -> str:
    """Return the command-line option of an argument.

    >>> option_of("round_timeout"), option_of("R"), option_of("resume", "True")
    ('--round-timeout', '-R', '--resume')
    """
    # The only argument with a short option alone.
    option = "-R" if name == "R" else f"--{name.replace('_', '-')}"
    return option if value in ("", "True") else f"{option} {value}"
