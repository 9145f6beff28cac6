"""`trimtab federate`: one server, several sites, each on its own machine. No logic.

Its commands are loaded when they are used: help, completion and `status` need no torch and no
Flower, and trimtab works where Flower is not installed.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click
from click.shell_completion import CompletionItem

COMMANDS = {
    "audit": "Check c = sum p_i c_i over the sites of DIR, which must be running; the server must "
    "not.",
    "demo": "Run four hospitals on this machine, with TLS and keys: SCAFFOLD against FedAvg.",
    "init": "Make keys, certificates, the operator's folder DIR, and an archive for each site.",
    "join": "Admit one more site; it takes part as soon as it connects, between two rounds.",
    "leave": "Let a site go, between two rounds; its key is no longer let in after that.",
    "model": "Write the model of the last committed round to OUT, a state_dict as safetensors.",
    "renew": "Write a new server certificate; sites need nothing new. Then restart the server.",
    "resume": "Go on with the experiment in DIR, from its last committed round.",
    "server": "Run an algorithm over the sites of the federation in DIR.",
    "site": "Be the site of the folder DIR, which came in an archive, with the data at PATH.",
    "status": "Tell how far the experiment in DIR is.",
}
_HOMES = {
    **dict.fromkeys(("init", "server", "resume", "audit"), "operator"),
    **dict.fromkeys(("status", "model", "join", "leave", "renew"), "folder"),
    **dict.fromkeys(("site", "demo"), "site"),
}


class _Federate(click.Group):
    """Loads a command when it is used; refuses with one sentence where Flower is not installed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(
            import_module(f"trimtab.cli.federate.{_HOMES[name]}"), name
        )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        rows = [
            (name, click.Command(name, help=text).get_short_help_str(limit))
            for name, text in COMMANDS.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name]) for name in names), *options]

    def invoke(self, ctx: click.Context) -> Any:
        if find_spec("cryptography") is None or find_spec("flwr") is None:
            raise ValueError(
                "`trimtab federate` needs Flower; run `pip install 'trimtab[federation]'`."
            )
        return super().invoke(ctx)


@click.group(cls=_Federate)
def federate() -> None:
    """Train over real sites: an operator's server, and sites with data, keys and disks."""
