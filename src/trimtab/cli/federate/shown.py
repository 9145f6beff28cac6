"""What the commands of `trimtab federate` share: arguments, lines, and how they are stopped."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from trimtab.errors import BadArgument

if TYPE_CHECKING:
    from rich.console import Console

    from trimtab.federation.log import LogStyle
    from trimtab.federation.processes.observed import OperatorView, SiteView
    from trimtab.federation.setup.operator_folder import Federation

path_type = click.Path(path_type=Path)
folder_argument = click.argument("folder", type=path_type, metavar="DIR")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def watching_options(command: Any) -> Any:
    """Add the options of logs and metrics."""
    options = (
        click.option("--log-json", is_flag=True, help="Write the log as JSON, one a line."),
        click.option(
            "--log-size", type=click.FloatRange(min=0.001), help="MB, then a new file; 5 are kept."
        ),
        click.option(
            "--metrics-port",
            type=click.IntRange(0, 65535),
            help="Serve /healthz and /metrics on 127.0.0.1 at this port.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def log_style(log_json: bool, log_size: float | None) -> "LogStyle":
    """Return how the log is to be kept."""
    from trimtab.federation.log import LogStyle

    return LogStyle(log_json, None if log_size is None else int(log_size * 1e6))


def print_line(console: "Console", line: str) -> None:
    """Print a line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def say_what_to_send(federation: "Federation", names: list[str]) -> None:
    """Say which archive goes to whom, and what is to be done with it there."""
    from trimtab.federation.storage.keys import fingerprint

    click.echo(
        "The private keys of these sites were made here: whoever reads this folder, or an archive, "
        "can be them. Sites in earnest make their own: trimtab federate enroll."
    )
    for name in names:
        click.echo(
            f"Send {federation.archive(name)} to {name}, on a way that nobody reads, then delete "
            f"it; key {fingerprint(federation.sites[name])}."
        )
    click.echo("There: tar xzf SITE.tar.gz && trimtab federate site SITE --data PATH")


@contextmanager
def serving_metrics(port: int, view: "OperatorView | SiteView") -> Iterator[None]:
    """Serve /healthz and /metrics, and log where."""
    from trimtab.federation.log import LOGGER

    try:
        from trimtab.federation.processes.metrics_page import MetricsPage
    except ModuleNotFoundError:
        raise BadArgument(
            "metrics_port",
            "{metrics_port} needs prometheus_client; run `pip install 'trimtab[federation]'`.",
        ) from None
    page = MetricsPage(port, view.samples, view.troubles)
    LOGGER.info(f"metrics at http://127.0.0.1:{page.port}/metrics")
    try:
        yield
    finally:
        page.close()


@contextmanager
def until_stopped(stop: threading.Event, close: Callable[[], None]) -> Iterator[None]:
    """Set `stop` on Ctrl-C or SIGTERM; close at the end, however it comes."""

    def note(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        print("stopping", file=sys.stderr)

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        try:
            close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
