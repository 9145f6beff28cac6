"""The page of a federation's run, in the operator's folder."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.federation.setup.job import Job

PAGE = "report.html"


def write_page(folder: Path) -> Path:
    """Write the page, and return where it is."""
    from trimtab.report.federation import write_federation

    return write_federation(folder)


def page_so_far(folder: Path, job: "Job") -> str:
    """Return the page of the rounds that are committed."""
    from trimtab.federation.storage.summary import read_summary
    from trimtab.report.federation import read_federation
    from trimtab.report.page import nothing_yet, page_of

    begun = read_summary(folder / job.state)
    if begun is None or not begun.r:
        return nothing_yet(folder.name)
    return page_of([read_federation(folder, job.state, underway=True)])


def write_demo_page(folder: Path) -> Path:
    """Write the page of both runs of a demonstration side by side, and return where it is."""
    from trimtab.report.federation import read_federation
    from trimtab.report.page import write_pages

    states = {"SCAFFOLD": "state", "FedAvg": "state-fedavg"}
    runs = []
    for name, state in states.items():
        run = read_federation(folder / "operator", state)
        run.result.problem = "four sites on this machine"
        runs.append(replace(run, name=name))
    return write_pages(runs, folder / PAGE)
