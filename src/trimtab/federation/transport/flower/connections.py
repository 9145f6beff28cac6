"""Connections from outside: accepted here, since uvicorn would wait for slow ones for ever.

uvicorn has no limit of time for a handshake or for the head of a request. Connections of strangers
are few and short, and a new one takes the place of the oldest; then uvicorn serves them.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from trimtab.federation.transport.flower.site_keys import Refusals

log = logging.getLogger("trimtab.federation.transport")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Answer = Callable[["Connection", Scope, Receive, Send], Awaitable[None]]

FIRST_REQUEST = 10.0  # a stranger has so many seconds for it
_HANDSHAKE = 10.0  # and for a TLS handshake
_STRANGERS = 256  # there are <= this many connections of strangers, of < 1 MB each
_OF_ONE_SITE = 32  # there are <= this many connections of one site
_IDLE = 120  # a site may be silent between two requests for <= this many seconds
_HEAD = 16 << 10  # the head of a request has <= 16 KiB
_SILENT = logging.Logger("uvicorn for strangers", logging.CRITICAL + 1)  # they fill no log


class Connection(H11Protocol):
    """One connection; `site` is None until a request on it is signed with a registered key."""

    def __init__(self, among: "Connections") -> None:
        super().__init__(among.config, ServerState(), {})
        self.among = among
        self.site: str | None = None
        self.up = 0  # bytes that came and are not counted yet
        self.app = self._answer
        self.logger, self.access_log = _SILENT, False

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.among.answer(self, scope, receive, send)
        except TimeoutError:
            self.transport.abort()
        except Exception as error:
            log.warning(f"the guard failed on a request ({error!r}).")
            raise

    @property
    def address(self) -> str:
        """Where it comes from."""
        return str(self.client[0]) if self.client else "an unknown address"

    def connection_made(self, transport: Any) -> None:
        """Begin, as a stranger's."""
        super().connection_made(transport)
        self.among.add(self)
        self.loop.call_later(FIRST_REQUEST, self._end_stranger)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.among.open.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes."""
        self.up += len(data)
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Say what uvicorn could not read."""
        self.among.refusals.say(self.address, "a request that is no HTTP.")
        super().send_400_response(msg)

    def known(self, site: str) -> None:
        """Note whose it is; a site has only so many."""
        if self.site != site:
            self.site = site
            self.among.end_oldest(lambda other: other.site == site, _OF_ONE_SITE)

    def _end_stranger(self) -> None:
        if self.site is None:
            self.transport.abort()


class Connections:
    """Those that are open, and those that shake hands; `answer` serves their requests."""

    def __init__(self, answer: Answer, refusals: Refusals) -> None:
        self.answer, self.refusals = answer, refusals
        self.open: dict[Connection, None] = {}  # the oldest first
        self._shaking: dict[socket.socket, asyncio.Task[None]] = {}
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.config = uvicorn.Config(
            _no_app,
            interface="asgi3",
            lifespan="off",
            ws="none",
            http="h11",
            log_config=None,
            timeout_keep_alive=_IDLE,
            h11_max_incomplete_event_size=_HEAD,
        )
        self.config.load()

    async def serve(self, listeners: Sequence[socket.socket], certificate: Path, key: Path) -> None:
        """Accept connections at these sockets until this task is cancelled."""
        self.context.load_cert_chain(certificate, key)
        for listener in listeners:
            listener.setblocking(False)
        await asyncio.gather(*map(self._accept, listeners))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:
                # Most likely there are no descriptors left.
                self.refusals.say("new connections", f"{error.strerror or error}.")
                self.end_oldest(_is_stranger, 0)
                await asyncio.sleep(0.1)
                continue
            for task in list(self._shaking.values())[: max(0, len(self._shaking) - _STRANGERS + 1)]:
                task.cancel()
            work = self._shake_hands(accepted, str(address[0]))
            self._shaking[accepted] = loop.create_task(work)

    async def _shake_hands(self, accepted: socket.socket, where: str) -> None:
        """Begin TLS, in time; from then on uvicorn serves the connection."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_HANDSHAKE):
                if await self._speaks_tls(accepted, where):
                    await loop.connect_accepted_socket(
                        lambda: Connection(self), accepted, ssl=self.context
                    )
                    return
        except ssl.SSLError as error:
            reason = str(error.reason or error).lower().replace("_", " ")
            self.refusals.say(where, f"the TLS handshake failed ({reason}).")
        except (OSError, TimeoutError):
            pass  # the other side has gone, or is too slow
        finally:
            self._shaking.pop(accepted, None)
        accepted.close()

    async def _speaks_tls(self, accepted: socket.socket, where: str) -> bool:
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        accepted.setblocking(False)
        loop.add_reader(accepted, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(accepted)
        first = accepted.recv(1, socket.MSG_PEEK)
        if first and first != b"\x16":  # every TLS connection begins with this byte
            self.refusals.say(where, "a plain-text connection; only TLS is spoken here.")
        return first == b"\x16"

    def add(self, connection: Connection) -> None:
        """Take a new connection of a stranger in place of the oldest."""
        self.open[connection] = None
        self.end_oldest(_is_stranger, _STRANGERS)

    def end_oldest(self, which: Callable[[Connection], bool], most: int) -> None:
        """End the oldest of these connections, so that so many are left."""
        found = [connection for connection in self.open if which(connection)]
        for connection in found[: max(0, len(found) - most)]:
            self.open.pop(connection, None)
            connection.transport.abort()


def _is_stranger(connection: Connection) -> bool:
    return connection.site is None


async def _no_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand for the app, which each connection has for itself."""
