"""The front as a process of its own: what strangers do to it leaves the operator's alone.

The operator's process has the sockets, so that the port stays ours while the front is started
again. It sends one JSON object a line, settings first, then who is let in; the front tells lines
for the log, and what it has counted.
"""

import contextlib
import json
import logging
import os
import queue
import resource
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from trimtab._processes import Child, json_lines, start_heartbeat, tail
from trimtab.federation.events import Traffic
from trimtab.federation.log import LOGGER, handled, printable
from trimtab.federation.storage.roster import RosterFile
from trimtab.federation.transport.flower.front import Front, listen_at
from trimtab.federation.transport.flower.notices import Notices

log = logging.getLogger("trimtab.federation.processes")

_STUCK = 30.0  # a front that neither beats nor computes for > 30 seconds is ended
_ANSWER = 5.0  # it tells what it has counted within <= 5 seconds


class FrontProcess:
    """The front, as the operator's process sees it."""

    def __init__(
        self, listeners: Sequence[socket.socket], output: Path, settings: Mapping[str, Any]
    ) -> None:
        self.listeners, self.settings = list(listeners), dict(settings)
        self.port = int(self.listeners[0].getsockname()[1])
        self.child = Child(
            "the front",
            "trimtab.federation.processes.front:main",
            [],
            environment={},
            output=output,
            piped=True,
            pass_fds=[listener.fileno() for listener in self.listeners],
        )
        self.seen: dict[str, float] = {}  # when each site was let in last, as time.time() tells
        self._before, self._now = Traffic(), Traffic()  # of fronts that have ended, and of this
        self._counted: queue.Queue[None] = queue.Queue()
        self._asking = threading.Lock()  # Several threads ask what was counted.

    def start(self) -> None:
        """Listen, and start it; who comes while it is not there waits a little."""
        for listener in self.listeners:
            listen_at(listener)
        self.child.start()
        self._begin()

    def _begin(self) -> None:
        self._before, self._now = self.traffic_so_far(), Traffic()
        threading.Thread(
            target=self._read, args=(self.child.stdout,), name="front", daemon=True
        ).start()
        fds = [listener.fileno() for listener in self.listeners]
        self.child.send({"listeners": fds, **self.settings})

    def tend(self) -> None:
        """Start it again if it has ended, or is stuck."""
        if self.child.is_hung(_STUCK):
            log.warning(f"the front has not moved for {_STUCK:g} seconds; it is started again.")
            self.child.kill()
        if self.child.alive:
            return
        if self.child.supervise() is not None:
            log.warning(f"the front ended ({tail(self.child.output)}); it is started again soon.")
        elif self.child.alive:
            self._begin()

    def admit(self, sites: Mapping[str, str]) -> None:
        """Let in these sites, by their public keys, and nobody else."""
        self.settings["sites"] = dict(sites)
        self.child.send({"sites": dict(sites)})

    def traffic(self) -> Traffic:
        """Return the bytes of all sites so far."""
        with self._asking:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._counted.get_nowait()
            if self.child.send({"count": True}):
                with contextlib.suppress(queue.Empty):
                    self._counted.get(timeout=_ANSWER)
            return self.traffic_so_far()

    def traffic_so_far(self) -> Traffic:
        """Return what was told last."""
        return Traffic(_sum(self._before.up, self._now.up), _sum(self._before.down, self._now.down))

    def close(self) -> None:
        """End it, and give up the port."""
        self.child.stop(timeout=3.0)
        for listener in self.listeners:
            listener.close()

    def _read(self, pipe: IO[bytes]) -> None:
        for told in json_lines(pipe):
            if "line" in told:
                log.log(logging.WARNING if told["warning"] else logging.INFO, told["line"])
            else:
                self._now, self.seen = Traffic(told["up"], told["down"]), told["seen"]
                self._counted.put(None)


class _Told(logging.Handler):
    """Tells the operator's process what happens, one JSON object a line."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self.out = out

    def emit(self, record: logging.LogRecord) -> None:
        line = printable(record.getMessage())
        self.tell(line=line, warning=record.levelno >= logging.WARNING)

    def tell(self, **facts: Any) -> None:
        with self.lock or contextlib.nullcontext():
            self.out.write(json.dumps(facts) + "\n")
            self.out.flush()


def main() -> None:
    """Be the front until standard input ends."""
    start_heartbeat()
    _raise_limit()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    told = _Told(out)
    LOGGER.propagate = False
    with handled(told):
        front = _front_of(json.loads(sys.stdin.readline()))
        front.start()
        for line in sys.stdin:
            asked = json.loads(line)
            if "sites" in asked:
                front.admit(asked["sites"])
            else:
                traffic = front.traffic()
                told.tell(up=traffic.up, down=traffic.down, seen=dict(front.seen))
        front.close()


def _front_of(settings: dict[str, Any]) -> Front:
    front = Front(
        [socket.socket(fileno=number) for number in settings["listeners"]],
        Path(settings["certificate"]),
        Path(settings["key"]),
        settings["upstream"],
        Path(settings["authority"]),
        settings["sites"],
    )
    front.notices = Notices(RosterFile(Path(settings["folder"])).read)
    return front


def _raise_limit() -> None:
    """Have as many descriptors as may be had."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
