"""A comparison or a run, followed to its page: on the terminal, live, and in other tools."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.cli.options import RunOptions
from trimtab.cli.output import LivePage, write_report
from trimtab.cli.progress import follow
from trimtab.cli.standings import Standings

if TYPE_CHECKING:
    from trimtab.core.task import Task
    from trimtab.problems.problem import Problem
    from trimtab.studies.comparison import Comparison
    from trimtab.studies.events import RoundDone


def follow_study(
    work: "Task[Any, Comparison]",
    folder: Path,
    name: str,
    problem: "Problem",
    options: RunOptions,
) -> "Comparison":
    """Do the work, show it as the options want it, and write its page."""
    counted = Standings(folder)
    with ExitStack() as at_end:
        log = None
        if options.log is not None:
            from trimtab.report.tools.tensorboard import RoundLog

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
    """Return a function that makes the page of a comparison or a run as it is now."""
    from trimtab.problems.population import population_of
    from trimtab.report.page import nothing_yet, page_of
    from trimtab.report.sources import source_of
    from trimtab.studies.underway import Underway

    there = Underway(folder, population_of(problem))

    def make() -> str:
        result = there.look()
        return nothing_yet(name) if result is None else page_of([source_of(result, underway=True)])

    return make
