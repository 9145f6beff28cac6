"""`trimtab federate`: one server and several sites, each on its own machine.

Its commands are imported when they are used: help, completion and `status` load neither torch nor
Flower, and trimtab works where Flower is not installed.
"""

from importlib.util import find_spec
from typing import Any

import click

from trimtab.cli.group import LazyGroup

# Repeated from the docstrings, so that `trimtab federate --help` imports no command.
COMMANDS = {
    "approve": "Show the files from the operator and their changes, and accept them.",
    "audit": "Check c = sum p_i c_i over the sites of DIR, which must be running; the server must "
    "not.",
    "demo": "Run four hospitals on this machine, with TLS and keys: SCAFFOLD against FedAvg. With "
    "--out, a stopped demonstration continues from its last committed round.",
    "enroll": "Make the key of a site in DIR, and the request that its operator needs.",
    "fingerprint": "Show the fingerprints of keys, authority and problem file, to compare over the "
    "telephone.",
    "init": "Make the operator's folder DIR: an authority, the server's certificate, the problem.",
    "join": "Admit another site; it takes part as soon as it connects, between two rounds.",
    "leave": "Remove a site, between two rounds; its key is not accepted after that.",
    "model": "Write the model of the last committed round to OUT, for `trimtab.load`. OUT is a new "
    "folder, or a file NAME.safetensors, which gets NAME.json beside it.",
    "readmit": "Ask a site again that sits out because its updates were refused.",
    "register": "Admit the site of a REQUEST, or its new key, and write the archive for it.",
    "renew": "Write a new server certificate; sites need nothing new. Then restart the server.",
    "resume": "Continue the experiment in DIR from its last committed round.",
    "rollback": "Go back to the model of an earlier round of the experiment in DIR.",
    "server": "Run an algorithm over the sites of the federation in DIR.",
    "site": "Run the site of the folder DIR, which came in an archive, with the data at PATH.",
    "site-log": "Show what has left the site of the folder DIR, and check its record.",
    "status": "Show the progress of the experiment in DIR.",
}
_HOMES = {
    **dict.fromkeys(("init", "server", "resume", "audit"), "operator"),
    **dict.fromkeys(("status", "model", "join", "leave", "renew", "rollback", "readmit"), "folder"),
    **dict.fromkeys(("site", "site-log", "demo"), "site"),
    **dict.fromkeys(("enroll", "register", "approve", "fingerprint"), "keys"),
}


class _Federate(LazyGroup):
    """Raises ValueError with one sentence if Flower is not installed."""

    def invoke(self, ctx: click.Context) -> Any:
        # find_spec finds them without importing them.
        if not all(map(find_spec, ("cryptography", "flwr", "prometheus_client"))):
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
