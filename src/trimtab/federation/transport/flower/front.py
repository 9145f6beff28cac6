"""The TLS front: the only door to the server, and it leads to Flower's fleet path alone.

Flower's Fleet, Control and Runtime interfaces share one port, and Control has no login. So its
SuperLink listens on loopback only, and this front passes on what is addressed to `/v1/fleet/` and
signed with the key of a registered site. All else is refused before its body is read, and leaves a
line in the log. Connections of strangers are few and short: a new one takes the place of the
oldest. What each site sends and receives is counted here, at the wire. `link.py` is one connection.
No torch is needed here.
"""

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import h11

from trimtab.federation.events import Traffic
from trimtab.federation.transport.flower.link import Link
from trimtab.federation.transport.flower.notices import Notices
from trimtab.federation.transport.flower.strangers import Door, Refusals

log = logging.getLogger("trimtab.federation.transport")

_STRANGERS = 256  # there are <= this many connections of strangers, of < 1 MB each
_OF_ONE_SITE = 32  # there are <= this many connections of one site
_BACKLOG = 256  # <= this many connections wait until they are accepted


def listen_at(listener: socket.socket) -> None:
    """Listen at a port, so that who comes next need not wait until its connections are gone."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.listen(_BACKLOG)


class Front:
    """Listens, checks, forwards and counts, in an event loop in a thread of its own."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        certificate: Path,
        key: Path,
        upstream: int,
        authority: Path,
        sites: Mapping[str, str],
    ) -> None:
        self.listeners, self.upstream = list(listeners), upstream
        self.port = int(self.listeners[0].getsockname()[1])
        self.door, self.refusals = Door(sites), Refusals()
        self.notices: Notices | None = None  # who tells sites how they stand
        self.trust = ssl.create_default_context(cafile=str(authority))
        self.bytes_up: dict[str, int] = defaultdict(int)
        self.bytes_down: dict[str, int] = defaultdict(int)
        self.seen: dict[str, float] = {}  # when each site was let in last, as time.time() tells
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.load_cert_chain(certificate, key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="front", daemon=True)
        self._links: list[Link] = []  # the oldest first
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to listen; till then the port is ours, and closed."""
        for listener in self.listeners:
            listen_at(listener)
            listener.setblocking(False)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and end what is open."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        for listener in self.listeners:
            listener.close()

    def admit(self, sites: Mapping[str, str]) -> None:
        """Let in these sites, by their public keys, and nobody else."""
        self.door.admit(sites)

    def traffic(self) -> Traffic:
        """Return the bytes of all sites so far."""
        return Traffic(dict(self.bytes_up), dict(self.bytes_down))

    def count(self, site: str, up: int, down: int) -> None:
        """Add what a site has sent and is about to get, headers included."""
        self.bytes_up[site] += up
        self.bytes_down[site] += down
        self.seen[site] = time.time()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        for listener in self.listeners:
            self._start(self._accept(listener))
        self._loop.run_forever()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()

    def _start(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(listener)
            except OSError as error:  # most likely there are no descriptors left
                self.refusals.say("new connections", f"{error.strerror or error}.")
                self._shed([link for link in self._links if link.site is None], 0)
                await asyncio.sleep(0.1)
                continue
            self._start(self._serve(accepted, str(address[0])))

    async def _serve(self, accepted: socket.socket, where: str) -> None:
        link = Link(self, accepted, where)
        link.task = asyncio.current_task()
        self._shed([other for other in self._links if other.site is None], _STRANGERS - 1)
        self._links.append(link)
        try:
            await link.serve()
        except (OSError, EOFError, TimeoutError, h11.ProtocolError):
            pass  # the other side has gone, is too slow, or was shed
        except Exception as error:
            log.warning(f"the front failed on a request ({error!r}).")
        finally:
            if link in self._links:
                self._links.remove(link)
            link.abort()

    def known(self, link: Link, site: str) -> None:
        """Note whose a connection is; a site has only so many."""
        if link.site != site:
            link.site = site
            self._shed([other for other in self._links if other.site == site], _OF_ONE_SITE)

    def _shed(self, links: list[Link], most: int) -> None:
        """End the oldest of these connections, so that so many are left."""
        for link in links[: max(0, len(links) - most)]:
            self._links.remove(link)
            if link.task is not None:
                link.task.cancel()
