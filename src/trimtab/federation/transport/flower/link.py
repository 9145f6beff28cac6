"""One connection to the front, from its first byte to its last.

A request is looked at before its body is read; a body that may pass is passed on as it comes, so
that memory does not grow with it. No torch is needed here.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from email.utils import formatdate
from typing import TYPE_CHECKING

import h11

from trimtab.federation.transport.flower.notices import PATH
from trimtab.federation.transport.flower.strangers import FLEET, Refused
from trimtab.federation.transport.flower.upstream import Upstream

if TYPE_CHECKING:
    from trimtab.federation.transport.flower.front import Front

_HOP = {b"host", b"connection", b"transfer-encoding", b"content-length", b"keep-alive", b"expect"}
_HEAD = 16 << 10  # the head of a request has <= 16 KiB
_BODY = 64 << 20  # a request has <= 64 MiB; Flower sends objects in pieces of 5 MiB
_READ = 4 << 20  # one that is read here, since it names its sender, has <= 4 MiB
_DRAIN = 64 << 10  # one that is refused is read to its end if it has <= 64 KiB
_HANDSHAKE = 10.0  # a TLS handshake takes <= this many seconds
_STRANGER = 10.0  # the head of a stranger's request takes <= this many seconds
_IDLE = 120.0  # a site may be silent between two requests for <= this many seconds
_REQUEST = 600.0  # a site's request, body and answer, takes <= this many seconds


class Link:
    """One connection, from its first byte to its last."""

    def __init__(self, front: "Front", accepted: socket.socket, where: str) -> None:
        self.front, self.where = front, where
        self.site: str | None = None  # None: a stranger, until a request is signed
        self.task: asyncio.Task[None] | None = None  # the one that serves it
        self._socket = accepted
        self._writer: asyncio.StreamWriter | None = None
        self._upstream = Upstream(front.upstream, front.trust)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD)
        self._up = 0  # bytes that came and are not counted yet

    def abort(self) -> None:
        """Close it at once."""
        self._upstream.close()
        if self._writer is not None:
            self._writer.transport.abort()
        else:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    async def serve(self) -> None:
        """Shake hands, then answer one request after the other."""
        if not await self._shake_hands():
            return
        while True:
            patience = _STRANGER if self.site is None else _IDLE
            try:
                async with asyncio.timeout(patience):
                    request = await self._event()
                if not isinstance(request, h11.Request):
                    return
                async with asyncio.timeout(_REQUEST):
                    await self._answer(request)
            except h11.RemoteProtocolError as error:
                why = f"a request that is no HTTP ({str(error).rstrip('.')})."
                self.front.refusals.say(self.where, why)
                await self._send_short(error.error_status_hint)
                return
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    async def _shake_hands(self) -> bool:
        """Begin TLS, in time; tell whether that worked."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 16)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            async with asyncio.timeout(_HANDSHAKE):
                if not await self._speaks_tls(loop):
                    return False
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol, self._socket, ssl=self.front.context
                )
        except ssl.SSLError as error:
            reason = str(error.reason or error).lower().replace("_", " ")
            self.front.refusals.say(self.where, f"the TLS handshake failed ({reason}).")
            return False
        self._reader = reader
        self._writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return True

    async def _speaks_tls(self, loop: asyncio.AbstractEventLoop) -> bool:
        self._socket.setblocking(False)
        readable = asyncio.Event()
        loop.add_reader(self._socket, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._socket)
        first = self._socket.recv(1, socket.MSG_PEEK)
        if first and first != b"\x16":  # every TLS connection begins with this byte
            why = "a plain-text connection; only TLS is spoken here."
            self.front.refusals.say(self.where, why)
        return first == b"\x16"

    # -- one request

    async def _answer(self, request: h11.Request) -> None:
        """Look at path and key, then pass the body on."""
        method, path = request.method.decode("ascii"), request.target.decode("latin-1")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        try:
            length = self._length(headers)
            if method == "POST" and path == PATH and self.front.notices is not None:
                await self._drain(headers)
                told = self.front.notices.answer(headers, self.where)
                await self._send_short(200, told, close=self._http.their_state is not h11.DONE)
                return
            site = self.front.door.check(self.where, method, path.partition("?")[0], headers)
            self.front.known(self, site)
            body = None
            if path.partition("?")[0] == FLEET + "push-messages":
                body = await self._read_named(site, length)
            await self._forward(site, path.partition("?")[0], request, length, body)
        except Refused as refused:
            self.front.refusals.say(refused.who, refused.why)
            await self._refuse(refused, headers)

    def _length(self, headers: Mapping[str, str]) -> int:
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or int(length) > _BODY:
            raise Refused(403, self.where, "a request that is too large or has no length.")
        return int(length)

    async def _read_named(self, site: str, length: int) -> bytes:
        """Return the body of a message that names its sender; Flower takes its word for it."""
        from flwr.proto.fleet_pb2 import PushMessagesRequest

        who = f"site {site} at {self.where}"
        if length > _READ:
            raise Refused(403, who, "a message that is too large.")
        body = b""
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
        try:
            message = PushMessagesRequest.FromString(body)
        except Exception:
            raise Refused(403, who, "a message that cannot be read.") from None
        if {m.metadata.src_node_id for m in message.messages_list} - {message.node.node_id}:
            raise Refused(403, who, "it answers in the name of another node.")
        return body

    async def _forward(
        self, site: str, path: str, request: h11.Request, length: int, body: bytes | None
    ) -> None:
        """Pass a request on as it comes, and its answer back."""
        kept = [(name, value) for name, value in request.headers if name not in _HOP]
        try:
            await self._upstream.begin(path, kept, length)
            if body is not None:
                await self._upstream.send(body)
            else:
                while isinstance(event := await self._event(), h11.Data):
                    await self._upstream.send(bytes(event.data))
            response = await self._upstream.finish()
        except (OSError, EOFError, h11.RemoteProtocolError):
            if self._http.their_state is h11.ERROR:
                raise
            self._upstream.close()
            raise Refused(503, f"site {site}'s request", "the SuperLink is away.") from None
        self._notice(site, path, response.status_code)
        answer = [(name, value) for name, value in response.headers if name not in _HOP]
        announced = [pair for pair in response.headers if pair[0] == b"content-length"]
        await self._send(h11.Response(status_code=response.status_code, headers=answer + announced))
        async for part in self._upstream.body():
            await self._send(h11.Data(data=part))
        await self._send(h11.EndOfMessage())

    def _notice(self, site: str, path: str, status: int) -> None:
        if status == 401:
            self.front.refusals.say(f"site {site} at {self.where}", "its signature is not valid.")
        elif status >= 400 and path == FLEET + "activate-node" and status < 500:
            self.front.refusals.say(
                f"a node under the name {site} at {self.where}",
                "that site is connected already (after a crash this lasts up to a minute).",
            )

    async def _refuse(self, refused: Refused, headers: Mapping[str, str]) -> None:
        """Answer; read what is left of a short body, so that the answer is read, and no more."""
        await self._drain(headers)
        await self._send_short(refused.status, close=self._http.their_state is not h11.DONE)

    async def _drain(self, headers: Mapping[str, str]) -> None:
        """Read what is left of a body, if it is short."""
        length = headers.get("content-length", "0")
        short = "transfer-encoding" not in headers and int(length) <= _DRAIN
        if short and "expect" not in headers:
            async with asyncio.timeout(_STRANGER):
                while self._http.their_state is h11.SEND_BODY:
                    if not isinstance(await self._event(), h11.Data):
                        break

    async def _send_short(
        self, status: int, content: bytes = b'{"detail": "refused"}', close: bool = True
    ) -> None:
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(content))),
            ("date", formatdate(usegmt=True)),
            *([("connection", "close")] if close else []),
        ]
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send(h11.Response(status_code=status, headers=headers))
            await self._send(h11.Data(data=content))
            await self._send(h11.EndOfMessage())
            if close:
                await self._linger()

    async def _linger(self) -> None:
        """Wait a little for the other side to close, that it may read its answer."""
        assert self._writer is not None
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                for _ in range(16):
                    if not await self._reader.read(1 << 16):
                        break

    # -- bytes

    async def _event(self) -> h11.Event:
        """Return what comes next of a request."""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    await self._send(h11.InformationalResponse(status_code=100, headers=[]))
                data = await self._reader.read(1 << 16)
                self._up += len(data)
                self._http.receive_data(data)
            elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                raise EOFError
            else:
                assert not isinstance(event, type)
                return event

    async def _send(self, event: h11.Event) -> None:
        assert self._writer is not None
        data = self._http.send(event)
        if data:
            if self.site is not None:
                self.front.count(self.site, self._up, len(data))
                self._up = 0
            self._writer.write(data)
            await self._writer.drain()
