"""Flower's SuperLink, whose database waits longer for its lock.

As it comes, it waits for five seconds, which one large message to a slow disk may take; what asks
meanwhile is answered 500. What is replaced here is a name of one of its modules, so the version is
checked first.
"""

from flwr.supercore import sql_mixin
from flwr.superlink.cli import flower_superlink

from trimtab.federation.transport.flower.patience import check_version

WAIT = 20  # seconds, fewer than the 30 after which clients ask again


def main() -> None:
    """Be a SuperLink until it ends."""
    check_version()
    settings = dict(vars(sql_mixin)["SQLITE_PRAGMAS"]) | {"busy_timeout": str(1000 * WAIT)}
    vars(sql_mixin)["SQLITE_PRAGMAS"] = tuple(settings.items())
    flower_superlink()
