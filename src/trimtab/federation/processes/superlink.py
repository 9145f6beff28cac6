"""The SuperLink as the operator's process sees it: its public sockets, its bytes, its database."""

import contextlib
import logging
import queue
import socket
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

from trimtab._processes import Child, json_lines
from trimtab.federation.events import Traffic
from trimtab.federation.transport.flower.superlink import Settings

log = logging.getLogger("trimtab.federation.processes")

_ANSWER = 5.0  # it tells what it has counted within <= 5 seconds


class SuperLinkProcess(Child):
    """The SuperLink with its guard. The public sockets outlive it: who comes meanwhile waits."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        settings: Settings,
        environment: Mapping[str, str],
        output: Path,
    ) -> None:
        super().__init__(
            "the SuperLink",
            "trimtab.federation.transport.flower.superlink:main",
            [],
            environment=environment,
            output=output,
            piped=True,
            pass_fds=[listener.fileno() for listener in listeners],
        )
        self.listeners, self.settings = list(listeners), settings
        self.public_port = int(self.listeners[0].getsockname()[1])
        self.seen: dict[str, float] = {}  # when each site was let in last, as time.time() tells
        self._before, self.told = Traffic(), Traffic()  # bytes when it was started, and by now
        self._counted: queue.Queue[None] = queue.Queue()
        self._asking = threading.Lock()  # Several threads ask what was counted.

    def start(self) -> None:
        """Start it; sites reach it through the sockets that this process has."""
        self._before = self.told
        super().start()
        threading.Thread(
            target=self._read, args=(self.stdout,), name="superlink", daemon=True
        ).start()
        self.send(asdict(self.settings))

    def admit(self, sites: Mapping[str, str]) -> None:
        """Let in these sites, by their public keys, and nobody else."""
        self.settings = replace(self.settings, sites=dict(sites))
        self.send({"sites": dict(sites)})

    def bound(self, limit: int) -> None:
        """Take replies of at most so many bytes."""
        self.settings = replace(self.settings, limit=limit)
        self.send({"limit": limit})

    def traffic(self) -> Traffic:
        """Return the bytes of all sites so far."""
        with self._asking:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._counted.get_nowait()
            if self.send({"count": True}):
                with contextlib.suppress(queue.Empty):
                    self._counted.get(timeout=_ANSWER)
            return self.told

    def close(self) -> None:
        """End it, and give up the port."""
        self.stop(timeout=3.0)
        for listener in self.listeners:
            listener.close()

    def _read(self, pipe: IO[bytes]) -> None:
        for told in json_lines(pipe):
            if "line" in told:
                log.log(logging.WARNING if told["warning"] else logging.INFO, told["line"])
            else:
                before = self._before
                self.told = Traffic(
                    dict(Counter(before.up) + Counter(told["up"])),
                    dict(Counter(before.down) + Counter(told["down"])),
                )
                self.seen |= told["seen"]
                self._counted.put(None)


# -- the database: it holds messages on their way, and can be made anew at any time


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


def delete_database(path: Path) -> None:
    """Delete a database: it holds updates of sites, and nothing that a round needs."""
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()
