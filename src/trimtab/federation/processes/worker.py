"""The process that has a site's data: it answers requests that come through a pipe.

It lives as long as the site does, so that torch is imported and the data are read once. If it dies
it is started again, and the request it was at is put to the new one.
"""

import logging
import os
import sys
from pathlib import Path
from typing import IO

from trimtab.federation.log import LOGGER, handled
from trimtab.federation.message import Message, decode, encode
from trimtab.federation.processes.child import Child

_MOST = 1 << 34  # bytes of a message


class WorkerGone(Exception):
    """The worker died while it was at a request."""


class Worker:
    """The worker, as the site's main process sees it."""

    def __init__(self, child: Child) -> None:
        self.child = child

    def start(self) -> Message:
        """Start it and wait until it has read the data; a ValueError says why it cannot."""
        if not self.child.alive:
            self.child.start()
        ready = self._receive()
        if "error" in ready.header:
            self.child.stop()
            raise ValueError(ready["error"])
        return ready

    def answer(self, request: Message) -> Message:
        """Return the reply to a request; raise WorkerGone if there is none."""
        try:
            send(self.child.stdin, request)
        except OSError:
            raise WorkerGone from None
        return self._receive()

    def _receive(self) -> Message:
        reply = receive(self.child.stdout)
        if reply is None:
            raise WorkerGone
        return reply


def send(pipe: IO[bytes], message: Message) -> None:
    """Write a message to a pipe."""
    data = encode(message)
    pipe.write(len(data).to_bytes(8, "little"))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Message | None:
    """Read a message from a pipe; None when it has ended."""
    size = pipe.read(8)
    if len(size) < 8:
        return None
    length = int.from_bytes(size, "little")
    if length > _MOST:
        raise ValueError(f"a message of {length:,} bytes came through a pipe; that is no message.")
    data = pipe.read(length)
    return decode(data) if len(data) == length else None


def main() -> None:
    """Read the data, then answer until the pipe ends. Arguments: the site's folder, the data."""
    folder, data = Path(sys.argv[1]), Path(sys.argv[2])
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's file prints goes to the log
    to_log = logging.StreamHandler()
    to_log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    LOGGER.propagate = False  # the root logger belongs to problem.py
    with handled(to_log):
        _answer_all(folder, data, replies)


def _answer_all(folder: Path, data: Path, replies: IO[bytes]) -> None:
    from trimtab.federation.protocol.site import Site
    from trimtab.federation.setup.operator_folder import SiteFolder

    try:
        site_folder = SiteFolder.read(folder)
        problem = site_folder.problem.site_problem(data, site_folder.batch)
        site = Site(site_folder.state, site_folder.name, problem)
    except ValueError as error:
        send(replies, Message({"error": str(error)}))
        sys.exit(2)
    n, tested = problem.clients.size(0), len(problem.test)
    send(replies, Message({"ready": True, "n": n, "tested": tested}))
    while (request := receive(sys.stdin.buffer)) is not None:
        send(replies, site.answer(request))
    site.close()
