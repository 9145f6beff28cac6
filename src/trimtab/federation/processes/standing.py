"""A site asks its server now and then how it stands, and its log says what it is told."""

import logging
import socket
import threading
from pathlib import Path
from secrets import token_hex

from trimtab.federation.processes.ports import Proxy
from trimtab.federation.transport.flower.notices import Connect, ask_standing

log = logging.getLogger("trimtab.federation.processes")

_EVERY = 15.0  # seconds between two questions


class Standing(threading.Thread):
    """Asks until `stop` is set; the same notice is logged once."""

    def __init__(
        self, folder: Path, server: str, stop: threading.Event, proxy: Proxy | None = None
    ) -> None:
        super().__init__(name="standing", daemon=True)
        self.folder, self.server, self.stop = folder, server, stop
        self.connect: Connect = socket.create_connection if proxy is None else _through(proxy)
        self.copy = token_hex(8)  # this process, as told from any other that has the same key

    def run(self) -> None:
        """Ask, and log what has changed."""
        before = ""
        while True:
            try:
                private = (self.folder / "site.key").read_bytes()
                authority = self.folder / "ca.crt"
                now = ask_standing(self.server, authority, private, self.copy, self.connect)
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


def _through(proxy: Proxy) -> Connect:
    """Return what connects by way of a proxy."""
    return lambda address, timeout: proxy.connect(*address, timeout)
