"""A group of commands that holds their one-line helps itself, and loads one when it is used."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from trimtab.cli.starting import uninterrupted


class LazyGroup(click.Group):
    """Commands by name: their helps, and the module that each is in."""

    def __init__(
        self, *args: Any, helps: Mapping[str, str], homes: Mapping[str, str], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.helps, self.homes = helps, homes

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the helps."""
        return list(self.helps)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Load a command."""
        if name not in self.helps:
            return None
        with uninterrupted():
            command: click.Command = getattr(import_module(self.homes[name]), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the helps, and load nothing."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.helps.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer names and options, and load nothing."""
        names = [name for name in self.helps if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=self.helps[name]) for name in names), *options]
