"""The roster while rounds run: upon which terms sites take part, and with which keys."""

import logging
from collections.abc import Callable, Mapping

from trimtab.federation.protocol.requests import Terms
from trimtab.federation.setup.operator import Federation
from trimtab.federation.storage.policy import digest_of
from trimtab.federation.storage.roster import RosterFile
from trimtab.federation.transport import Transport

log = logging.getLogger("trimtab.federation.processes")


def terms_of(federation: Federation) -> Callable[[], Terms]:
    """Return what tells the terms of now: the problem file is that of the start."""
    problem = digest_of((federation.folder / "problem.py").read_bytes())
    roster = RosterFile(federation.folder)
    return lambda: Terms(problem, roster.read().fingerprints)


class KeyChanges:
    """Lets a transport know when a site has another key, also between two attempts at a round."""

    def __init__(self, roster: RosterFile, transport: Transport) -> None:
        self.roster, self.transport = roster, transport
        self.seen: Mapping[str, str] = roster.read().sites

    def follow(self) -> None:
        """Look at the roster again."""
        now = self.roster.read().sites
        changed = {name: key for name, key in now.items() if self.seen.get(name, key) != key}
        if changed:
            self.transport.admit(changed)
            log.info(f"{', '.join(changed)} has another key from now on.")
        self.seen = now
