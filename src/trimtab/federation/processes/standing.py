"""A site asks its server now and then how it stands, and its log says what it is told."""

import logging
import threading
from pathlib import Path
from secrets import token_hex

from trimtab.federation.transport.flower.notices import ask_standing

log = logging.getLogger("trimtab.federation.processes")

_EVERY = 15.0  # seconds between two questions


class Standing(threading.Thread):
    """Asks until `stop` is set; the same notice is logged once."""

    def __init__(self, folder: Path, server: str, stop: threading.Event) -> None:
        super().__init__(name="standing", daemon=True)
        self.folder, self.server, self.stop = folder, server, stop
        self.copy = token_hex(8)  # this process, as told from any other that has the same key

    def run(self) -> None:
        """Ask, and log what has changed."""
        before = ""
        while True:
            try:
                private = (self.folder / "site.key").read_bytes()
                now = ask_standing(self.server, self.folder / "ca.crt", private, self.copy)
            except (OSError, ValueError):
                now = None
            if now is not None and now != before:
                if now:
                    log.warning(now)
                else:
                    log.info("the server has nothing against this site any more.")
                before = now
            if self.stop.wait(_EVERY):
                return
