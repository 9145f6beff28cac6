"""What a shell offers when a name is being typed. The names stand here, so that none is imported.

A test holds them equal to those of the catalogue and of the reproductions.
"""

import click
from click.shell_completion import CompletionItem

from trimtab.algorithms.registry import NAMES

PROBLEMS = (
    *("digits", "quadratic", "emnist", "cifar10", "a9a", "heart", "concrete", "shakespeare"),
)
REPRODUCTIONS = (
    *("figure3", "theorem2", "table3", "table4", "table5", "concrete", "emnist400", "clients"),
    *("mime", "bias", "speedup", "local-steps"),
)


def algorithm(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer algorithms; after a comma, one more."""
    before, comma, last = typed.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in NAMES if name.startswith(last)]


def problem(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer problems that come with trimtab, and files."""
    found = [CompletionItem(name) for name in PROBLEMS if name.startswith(typed)]
    return [*found, CompletionItem(typed, type="file")] if typed else found


def reproduction(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer reproductions."""
    return [CompletionItem(name) for name in REPRODUCTIONS if name.startswith(typed)]
