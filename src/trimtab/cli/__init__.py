"""The command line."""

import sys

import click

from trimtab import __version__
from trimtab.cli.commands import bench, compare, diagnose, report, reproduce, run
from trimtab.cli.federate import federate


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trimtab", message="%(prog)s %(version)s")
def cli() -> None:
    """Federated optimisation that does not drift."""


for _command in (compare, run, diagnose, report, bench, reproduce, federate):
    cli.add_command(_command)


def main(arguments: list[str] | None = None) -> None:
    """Run the program; bad usage is one sentence and exit code 2."""
    try:
        cli.main(arguments, prog_name="trimtab", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("trimtab: stopped.", err=True)
        sys.exit(130)
    except click.UsageError as error:
        click.echo(f"trimtab: {error.format_message()}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        click.echo(f"trimtab: {error.format_message()}", err=True)
        sys.exit(130)
    except (ValueError, ArithmeticError, OSError) as error:
        click.echo(f"trimtab: {error}", err=True)
        sys.exit(2)
