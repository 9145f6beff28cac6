"""What is written where: folders for results, and standard output for what the program says."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from trimtab.errors import BadArgument

if TYPE_CHECKING:
    from trimtab.studies.comparison import Comparison


@contextmanager
def users_output() -> Iterator[None]:
    """Send whatever is printed meanwhile, by Python or by a library, to standard error."""
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
    """Show a comparison or a run: its table, the advice, where its page is."""
    from trimtab.report import terminal_table

    console = Console(width=None if sys.stdout.isatty() else 116, emoji=False)
    console.print(terminal_table(result))
    for note in result.about.notes:
        console.print(f"{note[:1].upper()}{note[1:]}", highlight=False, markup=False)
    console.print(result.advice, highlight=False, markup=False, soft_wrap=True)
    if result.page is not None:
        click.echo(f"Page: {result.page}")


def write_report(result: "Comparison", folder: Path) -> Path:
    """Write the page of a result into its folder, after the command that makes it again."""
    from trimtab._files import read_json, write_json
    from trimtab.report import write_page

    path = folder / ("run.json" if (folder / "run.json").exists() else "compare.json")
    record, command = read_json(path), command_again()
    if command and "command" not in record:
        write_json(path, record | {"command": command})
    return write_page(result, folder / "report.html")


def command_again() -> str:
    """Return the command that makes the same result again; empty where there was none."""
    words: list[str] | None = click.get_current_context().find_root().obj
    kept, left = ["trimtab"], list(words or ())
    while left:
        word = left.pop(0)
        if word in ("--log", "--live-port"):
            left[:1] = []
        elif word not in ("--resume", "--json", "--debug", "--live"):
            kept.append(word)
    return shlex.join(kept) if words else ""


def output_folder(out: Path | None, stem: str, resume: bool) -> Path:
    """Return where to write: `--out`, or in runs the next free folder (to resume, the newest)."""
    if out is not None:
        if resume and not out.exists():
            raise _nothing_there(out)
        return out
    number = 1
    while (Path("runs") / f"{stem}-{number}").exists():
        number += 1
    if resume and number == 1:
        raise _nothing_there(Path("runs") / f"{stem}-1")
    return Path("runs") / f"{stem}-{number - 1 if resume else number}"


def _nothing_there(folder: Path) -> BadArgument:
    sentence = "{folder}: there is nothing to resume; drop {resume:True}."
    return BadArgument("resume", sentence, folder=folder)


def short_name(problem: str) -> str:
    """Return the name of a problem for that of a folder.

    >>> short_name("some/mine.py:problem")
    'mine-problem'
    """
    return Path(problem.replace(":", "-")).name.replace(".py", "")
