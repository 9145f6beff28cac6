"""`trimtab federate`: one server, several sites, each on its own machine. No logic.

Its commands are loaded when they are used: help, completion and `status` need no torch and no
Flower, and trimtab works where Flower is not installed.
"""

from importlib.util import find_spec
from typing import Any

import click

from trimtab.cli.group import LazyGroup

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


class _Federate(LazyGroup):
    """Refuses with one sentence where Flower is not installed."""

    def invoke(self, ctx: click.Context) -> Any:
        if find_spec("cryptography") is None or find_spec("flwr") is None:
            raise ValueError(
                "`trimtab federate` needs Flower; run `pip install 'trimtab[federation]'`."
            )
        return super().invoke(ctx)


@click.group(
    cls=_Federate,
    helps=COMMANDS,
    homes={name: f"trimtab.cli.federate.{home}" for name, home in _HOMES.items()},
)
def federate() -> None:
    """Train over real sites: an operator's server, and sites with data, keys and disks."""
