"""Places where a test may kill the process: before, within and after each durable write.

`TRIMTAB_FAULT=site:after-pending@2` kills this process by SIGKILL the second time it gets there;
with `TRIMTAB_FAULT_ONCE=FILE` only if FILE does not exist yet, and FILE is made first, so that a
process that is started again goes on.
"""

import os
import signal
from collections import Counter
from pathlib import Path

POINTS = [
    f"{who}-{what}"
    for who in ("site:before", "site:within", "site:after")
    for what in ("pending", "restored")
] + [
    f"server:{when}-{what}"
    for when in ("before", "within", "after")
    for what in ("journal", "checkpoint")
    if (when, what) != ("within", "journal")
]

_passed: Counter[str] = Counter()


def point(name: str) -> None:
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
