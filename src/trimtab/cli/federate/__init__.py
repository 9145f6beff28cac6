"""`trimtab federate`: one server, several sites, each on its own machine. No logic.

Its commands are loaded when they are used: help, completion and `status` need no torch and no
Flower, and trimtab works where Flower is not installed.
"""

from importlib.util import find_spec
from typing import Any

import click

from trimtab.cli.group import LazyGroup

COMMANDS = {
    "approve": "Look at what the operator sent, what has changed in it, and take it in.",
    "audit": "Check c = sum p_i c_i over the sites of DIR, which must be running; the server must "
    "not.",
    "demo": "Run four hospitals on this machine, with TLS and keys: SCAFFOLD against FedAvg. One "
    "that was stopped goes on from its last committed round, if it has a folder.",
    "enroll": "Make the key of a site in DIR, and the request that its operator needs.",
    "fingerprint": "Show the fingerprints of keys, authority and problem file, to compare over the "
    "telephone.",
    "init": "Make the operator's folder DIR: an authority, the server's certificate, the problem.",
    "join": "Admit one more site; it takes part as soon as it connects, between two rounds.",
    "leave": "Let a site go, between two rounds; its key is no longer let in after that.",
    "model": "Write the model of the last committed round to OUT, a state_dict as safetensors.",
    "register": "Let in the site of a REQUEST, or its new key, and write the archive that it gets.",
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
    **dict.fromkeys(("enroll", "register", "approve", "fingerprint"), "keys"),
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
