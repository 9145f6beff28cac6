"""The SuperLink's database: it holds messages on their way, and can be made anew at any time."""

import logging
import os
import sqlite3
import time
from pathlib import Path

log = logging.getLogger("trimtab.federation.processes")

_BESIDE = ("", "-wal", "-shm", "-journal")  # the files of one database end like this


def damage(path: Path) -> str:
    """Return what is wrong with a database; nothing, if nothing is or there is none."""
    if not path.exists():
        return ""
    try:
        link = sqlite3.connect(path, timeout=5.0)
        try:
            (found,) = link.execute("PRAGMA quick_check(1)").fetchone()
        finally:
            link.close()
    except sqlite3.OperationalError as error:
        return "" if "locked" in str(error) else str(error)
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if found == "ok" else str(found)


def set_aside_if_damaged(path: Path) -> None:
    """Set a database aside that cannot be read."""
    if damage(path):
        set_aside(path)


def set_aside(path: Path) -> None:
    """Rename a database, so that a new one is made; sites connect to it by themselves."""
    if not path.exists():
        return
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
    for end in _BESIDE:
        if path.with_name(path.name + end).exists():
            os.replace(path.with_name(path.name + end), aside.with_name(aside.name + end))
    log.warning(
        f"{path} cannot be used; it is set aside as {aside.name} and made anew (no round is lost)."
    )
