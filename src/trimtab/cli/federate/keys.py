"""Commands about keys and approvals; none of them needs a running server."""

from pathlib import Path

import click

from trimtab.cli.federate.output import folder_argument, path_type


@click.command()
@folder_argument
@click.option("--name", help="The site's name; the folder's name by default.")
@click.option(
    "--federation", help="Its id, as `trimtab federate fingerprint` of the operator shows."
)
@click.option("--rotate", is_flag=True, help="Make a new key for a site that already has one.")
def enroll(folder: Path, name: str | None, federation: str | None, rotate: bool) -> None:
    """Make the key of a site in DIR, and the request that its operator needs."""
    from trimtab.federation.setup.site import REQUEST, request_key

    request = request_key(folder, name, federation, rotate)
    click.echo(
        f"The {'next ' if request.vouched else ''}key of {request.name} is "
        f"{request.fingerprint}; its private half stays in {folder}."
    )
    click.echo(
        f"Send {folder / REQUEST} to the operator: it holds no secret, but compare the fingerprint "
        "over the telephone."
    )
    click.echo(f"When the archive comes: trimtab federate approve {folder} ARCHIVE")


@click.command()
@folder_argument
@click.argument("request", type=path_type)
@click.option(
    "--replace", is_flag=True, help="The old key is lost, and the fingerprints were compared."
)
@click.option("--readmit", is_flag=True, help="A site of this name was removed, and comes back.")
def register(folder: Path, request: Path, replace: bool, readmit: bool) -> None:
    """Admit the site of a REQUEST, or its new key, and write the archive for it."""
    from trimtab.federation.setup.operator import Federation
    from trimtab.federation.setup.operator import register as admit_request
    from trimtab.federation.setup.site import read_request

    # The signature in the request proves that the site has the private key.
    key_request = read_request(request)
    federation = admit_request(Federation.read(folder), key_request, replace, readmit)
    click.echo(
        f"{key_request.name} is admitted with key {key_request.fingerprint}; check that the site "
        "shows the same."
    )
    click.echo(
        f"Send {federation.archive(key_request.name)} to {key_request.name}; it holds no secret. "
        "Its authority is the one that `trimtab federate fingerprint` shows."
    )


@click.command()
@folder_argument
@click.argument("archive", type=path_type, required=False)
@click.option("--problem", type=path_type, help="A problem file that did not come in an archive.")
@click.option("--yes", is_flag=True, help="Approve without a question.")
def approve(folder: Path, archive: Path | None, problem: Path | None, yes: bool) -> None:
    """Show the files from the operator and their changes, and accept them."""
    from trimtab.federation.log import printable
    from trimtab.federation.setup.approval import approve as accept
    from trimtab.federation.setup.approval import propose

    proposal = propose(folder, archive, problem)
    for line in (*proposal.changes, *proposal.diff):
        # The lines of a proposal are printable; those of the file before may not be.
        click.echo(printable(line))
    if not proposal.changes and not proposal.diff:
        click.echo("Nothing has changed since it was approved.")
    click.echo(f"problem.py: SHA-256 {proposal.digest}")
    if not yes:
        click.confirm("Approve this?", abort=True)
    policy = accept(proposal)
    click.echo(f"{folder / 'policy.toml'} is in force; read it, and edit it if necessary:")
    for line in policy.lines.values():
        click.echo(f"  {line}")
    click.echo("Then start the site, again if it runs: trimtab federate site DIR --data PATH")


@click.command()
@folder_argument
def fingerprint(folder: Path) -> None:
    """Show the fingerprints of keys, authority and problem file, to compare over the telephone."""
    from trimtab.federation.setup.operator import fingerprints_of

    for name, value in fingerprints_of(folder).items():
        click.echo(f'{name} = "{value}"')
