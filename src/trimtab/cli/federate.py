"""`trimtab federate`: one server, several sites, each on its own machine. No logic.

What needs Flower is imported when it is needed, so that trimtab works without it.
"""

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console

from trimtab.algorithms import ALGORITHMS
from trimtab.cli.options import CountOrFraction, algorithm_of, hyper_options
from trimtab.cli.output import users_output
from trimtab.report.live import Watch, metrics_text

_Folder = click.Path(path_type=Path)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


class _Federate(click.Group):
    """Refuses with one sentence where Flower is not installed."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            import cryptography  # noqa: F401
            import flwr  # noqa: F401
        except ImportError:
            raise ValueError(
                "`trimtab federate` needs Flower; run `pip install 'trimtab[federation]'`."
            ) from None
        return super().invoke(ctx)


@click.group(cls=_Federate)
def federate() -> None:
    """Train over real sites: an operator's server, and sites with data, keys and disks."""


@federate.command()
@click.argument("folder", type=_Folder, metavar="DIR")
@click.option("--sites", required=True, help="Their names, with commas between.")
@click.option("--problem", required=True, type=_Folder, help="file.py with model and silo.")
@click.option("--weights", type=click.Choice(["uniform", "samples"]), default="uniform")
@click.option("--batch", type=CountOrFraction(), help="Mini-batch: 32, or 0.2 of all; else all.")
@click.option("--host", default="127.0.0.1", help="Where sites reach the server; more by commas.")
@click.option("--port", type=click.IntRange(1, 65535), default=9443, show_default=True)
def init(
    folder: Path,
    sites: str,
    problem: Path,
    weights: str,
    batch: int | float | None,
    host: str,
    port: int,
) -> None:
    """Make keys, certificates, the operator's folder DIR, and an archive for each site."""
    from trimtab.federation.setup import operator_folder
    from trimtab.problems.supervised.samples import check_batch

    check_batch(batch)
    federation = operator_folder.create(
        folder,
        [name.strip() for name in sites.split(",")],
        problem,
        weights=weights,
        batch=batch,
        hosts=[name.strip() for name in host.split(",")],
        port=port,
    )
    click.echo(f"{folder} is the operator's: keep it to yourself; it holds the federation's keys.")
    _to_send(federation, list(federation.sites))
    click.echo(
        f"Then start the server: trimtab federate server {folder} --algorithm scaffold --eta-l … "
        "--K … -R 50"
    )


@federate.command()
@click.argument("folder", type=_Folder, metavar="DIR")
@click.option("--algorithm", required=True, help="One of " + ", ".join(ALGORITHMS) + ".")
@hyper_options
@click.option("-R", "R", type=int, required=True, help="Most rounds.")
@click.option("--target", type=float, help="Accuracy to reach (regression: loss).")
@click.option("--min-sites", type=int, help="Fewest replies that make a round; else all sites'.")
@click.option("--round-timeout", type=float, default=3600.0, show_default=True, help="Seconds.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--on-lost-state",
    type=click.Choice(["restore", "restart", "refuse"]),
    default="restore",
    show_default=True,
    help="What to do when a site has lost its control.",
)
@click.option("--bind", help="Address to listen on; else all, or loopback if that is the host.")
@_json
def server(
    folder: Path,
    algorithm: str,
    R: int,
    target: float | None,
    min_sites: int | None,
    round_timeout: float,
    seed: int,
    on_lost_state: str,
    bind: str | None,
    as_json: bool,
    **hyper: Any,
) -> None:
    """Run an algorithm over the sites of the federation in DIR."""
    from trimtab.federation.setup.job import start_job
    from trimtab.federation.setup.operator_folder import Federation

    chosen = algorithm_of(algorithm, {k: v for k, v in hyper.items() if v is not None})
    job = start_job(
        Federation.read(folder),
        chosen,
        R=R,
        target=target,
        min_sites=min_sites,
        round_timeout=round_timeout,
        seed=seed,
        on_lost_state=on_lost_state,
    )
    _serve(folder, job, bind, as_json)


@federate.command()
@click.argument("folder", type=_Folder, metavar="DIR")
@click.option("-R", "R", type=int, help="Most rounds, those before included.")
@click.option("--target", type=float)
@click.option("--min-sites", type=int)
@click.option("--round-timeout", type=float)
@click.option("--on-lost-state", type=click.Choice(["restore", "restart", "refuse"]))
@click.option("--bind")
@_json
def resume(folder: Path, bind: str | None, as_json: bool, **changes: Any) -> None:
    """Go on with the experiment in DIR, from its last committed round."""
    from trimtab.federation.setup.job import resume_job
    from trimtab.federation.setup.operator_folder import Federation

    _serve(folder, resume_job(Federation.read(folder), **changes), bind, as_json)


@federate.command()
@click.argument("folder", type=_Folder, metavar="DIR")
@click.option("--data", required=True, type=_Folder, help="What `silo` in problem.py is given.")
def site(folder: Path, data: Path) -> None:
    """Be the site of the folder DIR, which came in an archive, with the data at PATH."""
    from trimtab.federation.log import LOGGER, attached
    from trimtab.federation.processes.site import SiteProcess, serve

    console = Console(stderr=True, emoji=False)
    with attached(folder / "logs" / "site.log", lambda line: _print(console, line)):
        process = SiteProcess(folder, data)
        with _until_stopped(process.stop, process.close):
            serve(process)
        LOGGER.info(f"site {process.site_folder.name} has stopped.")


@federate.command()
@click.argument("folder", type=_Folder, metavar="DIR")
@_json
def status(folder: Path, as_json: bool) -> None:
    """Tell how far the experiment in DIR is."""
    from trimtab.federation.setup.status import status_of

    found = status_of(folder)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"{folder}: {found['algorithm'] or 'no experiment yet'}, server {found['server']}")
    click.echo(f"round {found['round']} of {found['R'] or '-'}, epoch {found['epoch']}")
    click.echo(f"{metrics_text(found['metrics'])}; {found['bytes_up']:,} bytes up so far")
    click.echo(f"certificate {found['certificate']}")
    for name, known in found["sites"].items():
        last = f"last in round {known['last']}" if known["last"] else "in no round yet"
        click.echo(f"  {name}: weight {known['weight']:.4g}, {last}, key {known['key']}")


@federate.command()
@click.argument("folder", type=_Folder, metavar="DIR")
@click.option("--bind")
@_json
def audit(folder: Path, bind: str | None, as_json: bool) -> None:
    """Check c = sum p_i c_i over the sites of DIR, which must be running; the server must not."""
    from trimtab.federation.setup.job import resume_job
    from trimtab.federation.setup.operator_folder import Federation

    job = resume_job(Federation.read(folder)) | {"kind": "audit"}
    found = _serve(folder, job, bind, as_json=True, quiet=True)["audit"]
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif found["missing"]:
        missing = ", ".join(f"{name} ({why})" for name, why in found["missing"].items())
        raise ValueError(f"no audit without {missing}; start those sites and repeat it.")
    else:
        click.echo(
            f"|c - sum p_i c_i| = {found['deviation']:.3g}, max |c_i| = {found['largest']:.3g}"
        )


@federate.command()
@click.argument("folder", type=_Folder, metavar="DIR")
@click.argument("out", type=_Folder)
def model(folder: Path, out: Path) -> None:
    """Write the model of the last committed round to OUT, a state_dict as safetensors."""
    from trimtab.federation.setup.job import save_model
    from trimtab.federation.setup.operator_folder import Federation

    r = save_model(Federation.read(folder), out)
    click.echo(f"Model of round {r}: {out}")


@federate.command()
@click.argument("folder", type=_Folder, metavar="DIR")
@click.argument("name")
def join(folder: Path, name: str) -> None:
    """Admit one more site; it takes part as soon as it connects, between two rounds."""
    from trimtab.federation.setup import operator_folder

    federation = operator_folder.Federation.read(folder)
    operator_folder.admit(federation, name)
    federation.write()
    _to_send(federation, [name])


@federate.command()
@click.argument("folder", type=_Folder, metavar="DIR")
@click.argument("name")
def leave(folder: Path, name: str) -> None:
    """Let a site go, between two rounds; its key is no longer let in after that."""
    from trimtab.federation.setup import operator_folder

    operator_folder.dismiss(operator_folder.Federation.read(folder), name)
    click.echo(f"{name} leaves before the next round; if no server runs, at `federate resume`.")


@federate.command()
@click.argument("folder", type=_Folder, metavar="DIR")
@click.option("--host", help="Names and addresses of the server, if they have changed.")
def renew(folder: Path, host: str | None) -> None:
    """Write a new server certificate; sites need nothing new. Then restart the server."""
    from trimtab.federation.setup.operator_folder import Federation
    from trimtab.federation.storage import keys

    federation = Federation.read(folder)
    hosts = [name.strip() for name in host.split(",")] if host else federation.hosts
    keys.make_server_certificate(federation.keys, hosts)
    until = keys.check_certificate(federation.keys / "server.crt")
    click.echo(f"{federation.keys / 'server.crt'} is valid until {until:%Y-%m-%d}.")


@federate.command()
@click.option("--data", type=_Folder, help="Folder of data files.")
@click.option("--out", type=_Folder, help="Folder to keep; else it is removed at the end.")
@_json
def demo(data: Path | None, out: Path | None, as_json: bool) -> None:
    """Run four hospitals on this machine, with TLS and keys: SCAFFOLD against FedAvg."""
    from trimtab.federation.processes.demo import demonstrate

    console, stop = Console(stderr=True, emoji=False), threading.Event()
    with users_output(), _until_stopped(stop, lambda: None):
        found = demonstrate(data, out, say=lambda line: _print(console, line), stop=stop)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for name, row in (("SCAFFOLD", found), ("FedAvg", found["fedavg"])):
        click.echo(
            f"{name:<9} {row['rounds']} rounds, accuracy {row['metric']:.4g}, "
            f"{row['bytes_up']:,} bytes up"
        )
    click.echo(f"audit: |c - sum p_i c_i| = {found['audit']['deviation']:.3g}")


# -- what is shown


def _serve(
    folder: Path, job: dict[str, Any], bind: str | None, as_json: bool, quiet: bool = False
) -> dict[str, Any]:
    """Run a server until its job is done, and show what happens."""
    from trimtab.federation.log import LOGGER, attached
    from trimtab.federation.processes.operator import OperatorProcess

    console = Console(stderr=True, emoji=False)
    kind = job["algorithm"]["kind"]
    running = OperatorProcess(folder, bind)
    found: dict[str, Any] = {}
    with (
        users_output(),
        attached(folder / "logs" / "server.log"),
        _until_stopped(running.stop, running.close),
        Watch(console, f"{kind} over {folder}", job["R"], list(running.federation.sites)) as watch,
        attached(follow=watch.line),
    ):
        running.start()
        LOGGER.info(f"listening on port {running.front.port}; stop with Ctrl-C, then `resume`.")
        for event in running.events(job):
            if event["event"] == "round":
                watch.round(event)
            else:
                found[event["event"]] = event
    if running.interrupted:
        raise click.ClickException(
            f"stopped; all committed rounds are in {folder}: go on with `trimtab federate resume`."
        )
    if quiet:
        return found
    from trimtab.federation.setup.status import summary_of

    summary = summary_of(folder, found)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    else:
        click.echo(summary["sentence"])
    return found


def _to_send(federation: Any, names: list[str]) -> None:
    from trimtab.federation.storage.keys import fingerprint

    for name in names:
        click.echo(
            f"Send {federation.archive(name)} to {name}, on a way that nobody reads, then delete "
            f"it; key {fingerprint(federation.sites[name])}."
        )
    click.echo("There: tar xzf SITE.tar.gz && trimtab federate site SITE --data PATH")


def _print(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _until_stopped(stop: threading.Event, close: Callable[[], None]) -> Iterator[None]:
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
