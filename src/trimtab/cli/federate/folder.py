"""Commands that read or change the operator's folder; none of them starts a process."""

import json
from pathlib import Path

import click

from trimtab.cli.federate.output import (
    experiment_option,
    folder_argument,
    json_option,
    path_type,
    print_instructions,
)


@click.command()
@folder_argument
@experiment_option
@json_option
def status(folder: Path, experiment: str | None, as_json: bool) -> None:
    """Show the progress of the experiment in DIR."""
    from trimtab.federation.events import metrics_text
    from trimtab.federation.setup.status import status_of

    now = status_of(folder, experiment)
    if as_json:
        click.echo(json.dumps(now.to_json(), indent=2))
        return
    click.echo(f"{folder}: {now.algorithm or 'no experiment yet'}, server {now.server}")
    click.echo(f"round {now.round} of {now.R or '-'}, epoch {now.epoch}")
    click.echo(f"{metrics_text(now.metrics)}; {now.bytes_up:,} bytes up so far")
    for name, r in now.experiments.items():
        click.echo(f"experiment {name}: round {r}")
    click.echo(f"certificate {now.certificate}")
    for sentence in now.expiring:
        click.echo(f"warning: {sentence}")
    for name, site in now.sites.items():
        last = f"last in round {site.last}" if site.last else "in no round yet"
        heard = f"last contact {site.contact}" if site.contact else "no contact yet"
        click.echo(f"  {name}: weight {site.weight:.4g}, {last}, {heard}, key {site.key}")


@click.command()
@folder_argument
@click.argument("out", type=path_type)
@experiment_option
def model(folder: Path, out: Path, experiment: str | None) -> None:
    """Write the model of the last committed round to OUT, for `trimtab.load`.

    OUT is a new folder, or a file NAME.safetensors, which gets NAME.json beside it.
    """
    from trimtab.federation.setup.operator import Federation
    from trimtab.federation.setup.problem_file import save_model

    weights, r = save_model(Federation.read(folder), out, experiment)
    click.echo(f"Model of round {r}: {weights}")


@click.command()
@folder_argument
@click.argument("name")
def join(folder: Path, name: str) -> None:
    """Admit another site; it takes part as soon as it connects, between two rounds."""
    from trimtab.federation.setup.operator import Federation, admit

    print_instructions(admit(Federation.read(folder), name), [name])


@click.command()
@folder_argument
@click.argument("name")
def leave(folder: Path, name: str) -> None:
    """Remove a site, between two rounds; its key is not accepted after that."""
    from trimtab.federation.setup.operator import Federation
    from trimtab.federation.storage.roster import RosterFile

    # A running server reads the roster between two rounds.
    RosterFile(Federation.read(folder).folder).remove_site(name)
    click.echo(f"{name} leaves before the next round; if no server runs, at `federate resume`.")


@click.command()
@folder_argument
@click.argument("name")
def readmit(folder: Path, name: str) -> None:
    """Ask a site again that sits out because its updates were refused."""
    from trimtab.federation.setup.operator import Federation
    from trimtab.federation.storage.roster import RosterFile

    RosterFile(Federation.read(folder).folder).readmit(name)
    click.echo(f"{name} is asked again after the next round; if no server runs, at `resume`.")


@click.command()
@folder_argument
@click.option("--to", "R", type=int, required=True, help="The round to go back to.")
@experiment_option
def rollback(folder: Path, R: int, experiment: str | None) -> None:
    """Go back to the model of an earlier round of the experiment in DIR."""
    from trimtab._files import Lock
    from trimtab.federation.protocol.controls import roll_back
    from trimtab.federation.setup.job import resume_job, state_of
    from trimtab.federation.setup.operator import Federation

    federation = Federation.read(folder)
    _ = federation.problem  # It may register the algorithm.
    job = resume_job(federation, state=state_of(folder, experiment))
    with Lock(folder / job.state):
        new = roll_back(folder / job.state, R, job.keep)
    click.echo(
        f"{job.experiment} is at round {new.r} again, in branch {new.branch}: continue with "
        "`trimtab federate resume`."
    )


@click.command()
@folder_argument
@click.option("--host", help="New names and addresses of the server, separated by commas.")
def renew(folder: Path, host: str | None) -> None:
    """Write a new server certificate; sites need nothing new. Then restart the server."""
    from trimtab.federation.setup import operator
    from trimtab.federation.storage import keys

    hosts = [name.strip() for name in host.split(",")] if host else None
    federation = operator.renew(operator.Federation.read(folder), hosts)
    # Read back from the file, as the server will.
    until = keys.check_certificate(federation.keys / "server.crt")
    click.echo(f"{federation.keys / 'server.crt'} is valid until {until:%Y-%m-%d}.")
