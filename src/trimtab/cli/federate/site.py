"""Commands that run sites: one site, or four for a demonstration."""

import json
import threading
from contextlib import closing
from pathlib import Path

import click
from rich.console import Console

from trimtab.cli.federate.output import (
    Watch,
    folder_argument,
    json_option,
    path_type,
    print_line,
    until_stopped,
    watching_options,
    write_demo_page,
)
from trimtab.cli.output import users_output
from trimtab.cli.progress import on_interrupt


@click.command()
@folder_argument
@click.option("--data", required=True, type=path_type, help="Argument of `silo` in problem.py.")
@click.option(
    "--proxy",
    envvar="TRIMTAB_PROXY",
    help="HTTP proxy to the server, http://HOST:PORT; also TRIMTAB_PROXY.",
)
@watching_options
def site(
    folder: Path,
    data: Path,
    proxy: str | None,
    watch: Watch,
) -> None:
    """Run the site of the folder DIR, which came in an archive, with the data at PATH."""
    from trimtab.federation.log import LOGGER, attached
    from trimtab.federation.processes.metrics import SiteView
    from trimtab.federation.processes.site import SiteProcess, serve

    console = Console(stderr=True, emoji=False)
    # The log is opened before the process starts and closed after it has ended.
    log = folder / "logs" / "site.log"
    with attached(log, lambda line: print_line(console, line), watch.style):
        process = SiteProcess(folder, data, proxy)
        view = SiteView(process)
        with until_stopped(process.stop, process.close), watch.serving(view):
            serve(process, view.note)
        LOGGER.info(f"site {process.site_folder.name} has stopped.")


@click.command("site-log")
@folder_argument
@json_option
def site_log(folder: Path, as_json: bool) -> None:
    """Show what has left the site of the folder DIR, and check its record."""
    from trimtab.federation.setup.site import SiteFolder
    from trimtab.federation.storage.journal import SENT, read_chain
    from trimtab.federation.storage.policy import read_policy

    path, policy = SiteFolder.read(folder).state / SENT, read_policy(folder)
    lines = [entry.line for entry in read_chain(path)]
    if as_json:
        click.echo(json.dumps(lines, indent=2))
        return
    for line in lines:
        what = f"{line['kind']} of round {line['r']}" if "r" in line else line["kind"]
        metrics = f", with {', '.join(line['metrics'])}" if "metrics" in line else ""
        place = f"experiment {line['experiment']}, branch {line['branch']}"
        click.echo(f"{line['time']} {what}: {place}{metrics}")
    ours = [line for line in lines if line["problem"] == policy.problem]
    for name, limit, spent in (
        ("branches", policy.branches, sum(line["kind"] == "branch" for line in ours)),
        ("replies with metrics", policy.metrics, sum("metrics" in line for line in ours)),
    ):
        click.echo(f"{spent} of {limit} {name} for this problem file")


@click.command()
@click.option("--data", type=path_type, help="Folder of data files.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the initial model.")
@click.option(
    "--out", type=path_type, help="Folder for the results; otherwise they are deleted at the end."
)
@json_option
def demo(data: Path | None, seed: int, out: Path | None, as_json: bool) -> None:
    """Run four hospitals on this machine, with TLS and keys: SCAFFOLD against FedAvg.

    With --out, a stopped demonstration continues from its last committed round.
    """
    from trimtab.federation.log import attached
    from trimtab.federation.processes.demo import demonstrate

    # The processes run in their own sessions, which Ctrl-C does not reach; the event stops them.
    console, stop = Console(stderr=True, emoji=False), threading.Event()
    kept = f"all committed rounds are in {out}: repeat the command."
    with (
        on_interrupt("nothing is saved without --out: start again." if out is None else kept),
        users_output(),
        until_stopped(stop, lambda: None),
        attached(follow=lambda line: print_line(console, line)),
        closing(demonstrate.start(data, out, stop, seed)) as work,
    ):
        for note in work:
            print_line(console, note.sentence)
        result = work.result()
    page = None if out is None else write_demo_page(out)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
        return
    for name, run in (("SCAFFOLD", result.scaffold), ("FedAvg", result.fedavg)):
        click.echo(
            f"{name:<9} {run.rounds} rounds, accuracy {run.metric:.4g}, {run.bytes_up:,} bytes up"
        )
    audit = result.to_json()["audit"]
    click.echo(f"audit: |c - sum p_i c_i| = {audit['deviation']:.3g}")
    if page is not None:
        click.echo(f"Page: {page}")
