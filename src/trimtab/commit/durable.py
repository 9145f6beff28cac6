"""Durable writes, with the places where a test may kill the process.

`TRIMTAB_FAULT=site:after-pending@2` kills this process by SIGKILL the second time it gets there;
with `TRIMTAB_FAULT_ONCE=FILE` only if FILE does not exist yet, and FILE is made first, so that a
process that is started again goes on.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from trimtab._files import atomic_write

_passed: Counter[str] = Counter()


def fault_point(name: str) -> None:
    """Die here if the environment says so."""
    wanted, _, times = os.environ.get("TRIMTAB_FAULT", "").partition("@")
    if wanted != name:
        return
    _passed[name] += 1
    once = os.environ.get("TRIMTAB_FAULT_ONCE")
    if _passed[name] != int(times or 1) or (once and Path(once).exists()):
        return
    if once:
        Path(once).touch()
    os.kill(os.getpid(), signal.SIGKILL)


def write_durably(path: Path, parts: Iterable[bytes | memoryview], what: str) -> None:
    """Write a file so that it is there whole, even after a power failure, or not at all.

    path: the file, which is replaced if it exists.
    parts: its content.
    what: "site:pending" gives the fault points site:before-pending, within and after.
    """
    who, _, name = what.partition(":")
    fault_point(f"{who}:before-{name}")
    with (
        atomic_write(path, before_rename=lambda: fault_point(f"{who}:within-{name}")) as part,
        open(part, "wb") as file,
    ):
        file.writelines(parts)
    fault_point(f"{who}:after-{name}")
