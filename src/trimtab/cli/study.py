"""A comparison or a run, followed to its page: on the terminal, live, and in other tools."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.cli.live import finish, served, study_page
from trimtab.cli.options import RunOptions
from trimtab.cli.output import write_report
from trimtab.cli.progress import follow
from trimtab.cli.standings import Standings

if TYPE_CHECKING:
    from trimtab.core.task import Task
    from trimtab.problems.problem import Problem
    from trimtab.studies.comparison import Comparison


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
        look = study_page(folder, name, problem, counted) if options.live else str
        page = at_end.enter_context(served(options.live, options.live_port, look))
        result = follow(work, folder, counted, log)
        result.page = write_report(result, folder)
        finish(page, result.page)
    return result
