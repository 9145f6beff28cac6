"""Shell completion of names, and `trimtab completion`; neither loads torch."""

import click
from click.shell_completion import CompletionItem, get_completion_class

from trimtab.algorithms.registry import NAMES
from trimtab.problems.names import PROBLEMS


def algorithm(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer algorithms; after a comma, another one."""
    # `--algorithms fedavg,sc` is one word for the shell, so that each proposal repeats its start.
    before, comma, last = typed.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in NAMES if name.startswith(last)]


def problem(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer built-in problems and files."""
    found = [CompletionItem(name) for name in PROBLEMS if name.startswith(typed)]
    return [*found, CompletionItem(typed, type="file")] if typed else found


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the SHELL's completion script for commands, names and options.

    Append it to a file that the shell reads: trimtab completion bash >> ~/.bashrc
    """
    made = get_completion_class(shell)
    assert made is not None
    root = ctx.find_root().command
    click.echo(made(root, {}, "trimtab", "_TRIMTAB_COMPLETE").source())
