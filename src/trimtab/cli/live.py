"""`--live`: the page of what goes on, served on this machine until the command ends."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trimtab.cli.standings import Standings

if TYPE_CHECKING:
    from trimtab.problems.problem import Problem
    from trimtab.report.serving import LivePage

LIVE = (
    click.option("--live", is_flag=True, help="Serve the page on this machine while it goes on."),
    click.option(
        "--live-port",
        type=click.IntRange(0, 65535),
        default=0,
        help="Port of --live; else one that is free.",
    ),
)


def live_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --live and --live-port."""
    for option in reversed(LIVE):
        command = option(command)
    return command


@contextmanager
def served(live: bool, port: int, look: Callable[[], str]) -> "Iterator[LivePage | None]":
    """Serve what `look` returns, if that is wanted, and say where."""
    if not live:
        yield None
        return
    from trimtab.report.serving import LivePage

    with LivePage(look, port) as page:
        click.echo(f"Live page: {page.url}", err=True)
        yield page


def finish(page: "LivePage | None", path: Path) -> None:
    """Show the page that was written at the end to those who watch."""
    if page is not None:
        page.finish(
            with_note(path.read_text("utf-8"), f"Finished. This page is {path}.", over=True)
        )


def with_note(page: str, sentence: str, over: bool = False) -> str:
    """Return a page with a sentence below its title."""
    ended = ' data-over="yes"' if over else ""
    note = f'<p class="live"{ended}>{escape(sentence)}</p>'
    return page.replace("</h1>", f"</h1>\n{note}", 1)


def nothing_yet(name: str) -> str:
    """Return the page of what has just begun."""
    from trimtab.report import page

    return page.nothing_yet(name)


def study_page(
    folder: Path, name: str, problem: "Problem", counted: Standings
) -> Callable[[], str]:
    """Return what shows a comparison or a run as it is now."""
    from trimtab.problems.population import population_of
    from trimtab.report.page import page_of
    from trimtab.report.sources import source_of
    from trimtab.studies.underway import Underway

    there = Underway(folder, population_of(problem))

    def look() -> str:
        result = there.look()
        if result is None:
            return with_note(nothing_yet(name), "Live: it is starting.")
        page = page_of([source_of(result, underway=True)])
        return with_note(page, f"Live: {counted.sentence}.")

    return look


class Stage:
    """What a task says that it is doing, for a page that is written while it does."""

    def __init__(self, name: str) -> None:
        self.name, self.now = name, "it is starting"

    def hear(self, event: Any) -> None:
        """Take note of what is being done."""
        from trimtab.core.task import Progress

        if isinstance(event, Progress):
            share = "" if event.share is None else f", about {event.share:.0%} done"
            self.now = f"{event.what}{share}"

    def page(self, path: Path) -> str:
        """Return the page as it was written last, and what is being done now."""
        page = path.read_text("utf-8") if path.exists() else nothing_yet(self.name)
        return with_note(page, f"Live: {self.now}.")
