"""The process that has a site's data: it answers requests that come through a pipe.

It lives as long as the site does, so that torch is imported and the data are read once. If it dies
it is started again, and the request it was at is put to the new one, some times at most.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import IO, TYPE_CHECKING

from trimtab._processes import Child, start_heartbeat
from trimtab.federation import events
from trimtab.federation.log import LOGGER, handled
from trimtab.federation.message import (
    Message,
    decode_arrays,
    decode_header,
    encode_arrays,
    encode_header,
)

if TYPE_CHECKING:  # it imports Flower, which the worker itself does without
    from trimtab.federation.transport.flower.objects import Parcel

_MOST = 1 << 34  # a message has <= 16 GiB
_HEADER = 256 << 10  # its header has <= 256 KiB
_PIECE = 1 << 20  # bytes that are carried at a time


class WorkerGone(Exception):
    """The worker has ended without an answer; its text says how."""


@dataclass(frozen=True)
class Ready:
    """How many samples the worker has to train and to test on."""

    n: int
    tested: int


class Worker:
    """The worker, as the site's main process sees it."""

    def __init__(self, child: Child) -> None:
        self.child = child

    def ready(self) -> Ready:
        """Wait until it has read the data; a ValueError says why it cannot."""
        first = self._receive()
        if "event" in first.header:
            failed = events.from_json(first.header)
            assert isinstance(failed, events.Failed)
            self.child.stop()
            raise failed.error()
        return Ready(**first.header)

    def answer(self, request: "Parcel", folder: Path) -> "Parcel":
        """Return the reply to a request, in that folder; raise WorkerGone if there is none."""
        try:
            send_parts(self.child.stdin, request.header, request.size, request.pieces())
        except OSError:
            raise self._gone() from None
        head = receive_head(self.child.stdout)
        if head is None:
            raise self._gone()
        reply = type(request)(folder, head[0])
        reply.fill(pieces(self.child.stdout, head[1]))
        if reply.size != head[1]:
            reply.close()
            raise self._gone()
        return reply

    def _gone(self) -> WorkerGone:
        """Return how it ended; a process whose pipe has closed ends soon."""
        process = self.child.process
        if process is None:
            return WorkerGone("it was not running")
        try:
            return WorkerGone(self.child.last_words(process.wait(10)))
        except TimeoutExpired:
            return WorkerGone("its pipe was closed")

    def _receive(self) -> Message:
        reply = receive(self.child.stdout)
        if reply is None:
            raise self._gone()
        return reply


def main() -> None:
    """Read the data, then answer until the pipe ends. Arguments: the site's folder, the data."""
    folder, data = Path(sys.argv[1]), Path(sys.argv[2])
    start_heartbeat()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's file prints goes to the log
    to_log = logging.StreamHandler()
    to_log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    LOGGER.propagate = False  # the root logger belongs to problem.py
    with handled(to_log):
        _answer_all(folder, data, replies)


def _answer_all(folder: Path, data: Path, replies: IO[bytes]) -> None:
    from trimtab.federation.protocol.policy import limit_memory
    from trimtab.federation.protocol.site import Site
    from trimtab.federation.setup.approval import policy_of
    from trimtab.federation.setup.site import SiteFolder
    from trimtab.federation.storage.policy import check_algorithms

    try:
        site_folder = SiteFolder.read(folder)
        policy = policy_of(site_folder)
        limit_memory(policy)
        problem = site_folder.problem.site_problem(data, site_folder.batch)
        check_algorithms(policy)
        site = Site(site_folder.state, site_folder.name, problem, policy, site_folder.draws())
    except ValueError as error:
        send(replies, Message(events.to_json(events.Failed.of(error))))
        sys.exit(2)
    ready = Ready(*site.sizes(0))
    send(replies, Message(asdict(ready)))
    while (request := receive(sys.stdin.buffer)) is not None:
        send(replies, site.answer(request))
    site.close()


# -- the pipe: a header, then arrays, piece by piece


def send(pipe: IO[bytes], message: Message) -> None:
    """Write a message to a pipe."""
    arrays = encode_arrays(message.arrays)
    send_parts(pipe, encode_header(message.header), len(arrays), [arrays])


def receive(pipe: IO[bytes]) -> Message | None:
    """Read a message from a pipe; None when it has ended."""
    head = receive_head(pipe)
    if head is None:
        return None
    header, size = head
    data = pipe.read(size)
    if len(data) < size:
        return None
    return Message(decode_header(header, _HEADER), decode_arrays(data))


def send_parts(pipe: IO[bytes], header: bytes, size: int, arrays: Iterable[bytes]) -> None:
    """Write a header, and arrays of this size in pieces."""
    pipe.write(len(header).to_bytes(8, "little") + size.to_bytes(8, "little"))
    pipe.write(header)
    for piece in arrays:
        pipe.write(piece)
    pipe.flush()


def receive_head(pipe: IO[bytes]) -> tuple[bytes, int] | None:
    """Read a header, and how long the arrays after it are; None when the pipe has ended."""
    sizes = pipe.read(16)
    if len(sizes) < 16:
        return None
    length, size = (int.from_bytes(part, "little") for part in (sizes[:8], sizes[8:]))
    if length + size > _MOST:
        raise ValueError(f"{length + size:,} bytes came through a pipe; that is no message.")
    header = pipe.read(length)
    return (header, size) if len(header) == length else None


def pieces(pipe: IO[bytes], size: int) -> Iterator[bytes]:
    """Read so many bytes, piece by piece; fewer if the pipe ends."""
    while size:
        piece = pipe.read(min(size, _PIECE))
        if not piece:
            return
        size -= len(piece)
        yield piece
