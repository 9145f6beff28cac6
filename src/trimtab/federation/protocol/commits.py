"""Commits: what counts from now on, and what it means for them that a disk cannot be written."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

from trimtab.algorithms.registry import encode
from trimtab.federation.protocol.inquiry import RequestClock
from trimtab.federation.storage.files import CannotWrite
from trimtab.federation.storage.ledger import Ledger, Standing

log = logging.getLogger("trimtab.federation.protocol")


class Commits:
    """The ledger of a folder, and the clock of its requests, which each commit keeps."""

    def __init__(self, folder: Path, pause: float) -> None:
        self._ledger, self._pause = Ledger(folder), pause
        self.clock = RequestClock(self.standing.clock if self.standing else 0)

    @property
    def standing(self) -> Standing | None:
        """What was committed last; None if nothing was yet."""
        return self._ledger.standing

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The journal: one line for each commit."""
        return self._ledger.lines

    def commit(self, standing: Standing, kind: str, **facts: Any) -> None:
        """Commit; after a failure, what is on disk says whether it happened."""
        standing = replace(standing, clock=self.clock.last)
        try:
            self._ledger.commit(standing, kind, **facts)
        except CannotWrite:
            self._ledger.reload()
            now = self._ledger.standing
            if now is None or now.commit != standing.commit + 1:
                raise

    def decide(self, standing: Standing, kind: str, **facts: Any) -> None:
        """Commit what the operator wants, or tell him that it did not happen."""
        try:
            self.commit(standing, kind, **facts)
        except CannotWrite as error:
            raise ValueError(f"{error}, then repeat this.") from None

    def settle(self, action: Callable[[], None]) -> None:
        """Do what ends with a commit; a disk that cannot be written is waited for."""
        try:
            action()
        except CannotWrite as error:
            log.error("%s; this is repeated", error)
            sleep(self._pause)

    def check_same(self, **settings: Any) -> None:
        """Refuse to continue another experiment than the one in the folder."""
        there = self.standing
        if there is None:
            return
        known = {
            "algorithm": encode(there.algorithm),
            "sites": [member.name for member in there.members],
            "weights": there.weights,
            "seed": there.seed,
        }
        for name, value in settings.items():
            if known[name] != value:
                raise ValueError(
                    f"{self._ledger.folder} holds an experiment with {name}={known[name]}, not "
                    f"{value}; resume it with its own settings, or begin another in another folder."
                )
