"""Shared by the commands of `trimtab federate`: arguments, output, pages, interrupts."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from trimtab.federation.log import LogStyle
    from trimtab.federation.processes.metrics import OperatorView, SiteView
    from trimtab.federation.setup.job import Job
    from trimtab.federation.setup.operator import Federation

PAGE = "report.html"
path_type = click.Path(path_type=Path)
folder_argument = click.argument("folder", type=path_type, metavar="DIR")
experiment_option = click.option(
    "--experiment", metavar="NAME", help="One of several; by default the one started last."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


@dataclass(frozen=True)
class Watch:
    """How a server or site is watched: by its log and its metrics."""

    log_json: bool = False
    log_size: float | None = None  # megabytes
    metrics_port: int | None = None

    @property
    def style(self) -> "LogStyle":
        """The format of the log, and its size in bytes."""
        from trimtab.federation.log import LogStyle

        return LogStyle(self.log_json, None if self.log_size is None else int(self.log_size * 1e6))

    @contextmanager
    def serving(self, view: "OperatorView | SiteView") -> Iterator[None]:
        """Serve /healthz and /metrics if there is a port for them, and log their address."""
        from trimtab.federation.log import LOGGER
        from trimtab.federation.processes.metrics import MetricsPage

        if self.metrics_port is None:
            yield
            return
        with closing(MetricsPage(self.metrics_port, view)) as page:
            LOGGER.info(f"metrics at http://127.0.0.1:{page.port}/metrics")
            yield


def watching_options(command: Any) -> Any:
    """Add the options of logs and metrics, which the command gets as `watch`."""

    @wraps(command)
    def watched(*arguments: Any, **options: Any) -> Any:
        how = {name.name: options.pop(name.name) for name in fields(Watch)}
        return command(*arguments, watch=Watch(**how), **options)

    options = (
        click.option(
            "--log-json", is_flag=True, help="Write the log as JSON, one object per line."
        ),
        click.option(
            "--log-size",
            type=click.FloatRange(min=0.001),
            help="Megabytes per log file; 5 files are kept.",
        ),
        click.option(
            "--metrics-port",
            type=click.IntRange(0, 65535),
            help="Serve /healthz and /metrics on 127.0.0.1 at this port.",
        ),
    )
    # Decorators apply from the last to the first.
    for option in reversed(options):
        watched = option(watched)
    return watched


def print_line(console: "Console", line: str) -> None:
    """Print a line of a log; rich neither wraps nor colours it."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_instructions(federation: "Federation", names: list[str]) -> None:
    """Print the archive of each site, and the command to run there."""
    from trimtab.federation.storage.keys import fingerprint

    click.echo(
        "The private keys of these sites were made here: anyone who reads this folder, or an "
        "archive, can impersonate them. Real sites make their own keys: trimtab federate enroll."
    )
    for name in names:
        click.echo(
            f"Send {federation.archive(name)} to {name} over a private channel, then delete "
            f"it; key {fingerprint(federation.sites[name])}."
        )
    click.echo("There: tar xzf SITE.tar.gz && trimtab federate site SITE --data PATH")


@contextmanager
def until_stopped(stop: threading.Event, close: Callable[[], None]) -> Iterator[None]:
    """Set `stop` on Ctrl-C or SIGTERM, and always call `close` at the end."""

    def note(number: int, frame: FrameType | None) -> None:
        # The second signal does not wait for the current round.
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        print("stopping", file=sys.stderr)

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        # The handlers are restored after `close`, which the default ones would interrupt.
        try:
            close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


# -- the page, in the operator's folder


def page_of_job(folder: Path, job: "Job") -> Path:
    """Return where the page of a job is: beside its state."""
    return (folder / job.state).parent / PAGE


def page_so_far(folder: Path, job: "Job") -> str:
    """Return the live page of the committed rounds."""
    from trimtab.federation.storage.journal import read_summary
    from trimtab.report.federation import read_federation
    from trimtab.report.page import empty_page, page_of

    begun = read_summary(folder / job.state)
    if begun is None or not begun.r:
        return empty_page(folder.name)
    return page_of([read_federation(folder, job.state, finished=False)])


def write_demo_page(folder: Path) -> Path:
    """Write the page of both runs of a demonstration side by side, and return its path."""
    from trimtab.report.federation import read_federation
    from trimtab.report.page import write_pages

    states = {"SCAFFOLD": "state", "FedAvg": "state-fedavg"}
    runs = []
    for name, state in states.items():
        run = read_federation(folder / "operator", state)
        run.result.problem = "four sites on this machine"
        runs.append(replace(run, name=name))
    return write_pages(runs, folder / PAGE)
