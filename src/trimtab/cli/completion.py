"""Shell completion of names, and `trimtab completion`, without torch."""

import click
from click.shell_completion import CompletionItem, get_completion_class

from trimtab.algorithms.registry import NAMES
from trimtab.problems.names import PROBLEMS


def algorithm(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer algorithms; after a comma, one more."""
    before, comma, last = typed.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in NAMES if name.startswith(last)]


def problem(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer problems that come with trimtab, and files."""
    found = [CompletionItem(name) for name in PROBLEMS if name.startswith(typed)]
    return [*found, CompletionItem(typed, type="file")] if typed else found


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the SHELL's completion script for commands, names and options.

    Put them where the shell reads them: trimtab completion bash >> ~/.bashrc
    """
    made = get_completion_class(shell)
    assert made is not None
    root = ctx.find_root().command
    click.echo(made(root, {}, "trimtab", "_TRIMTAB_COMPLETE").source())
