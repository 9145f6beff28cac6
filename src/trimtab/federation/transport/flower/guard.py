"""The guard: what reaches Flower's app from outside, in the SuperLink's own process.

Flower's Fleet, Control and Runtime interfaces are one app, and Control has no login. So the whole
app listens on loopback alone. On the public port it is served behind this guard, which passes on
what is addressed to `/v1/fleet/` and signed with the key of a registered site, before it reads the
body. It compares the sender that a reply names with the node that sends it, hands out only objects
that were announced to the site, and bounds what a reply may hold. Refusals leave a line in the log.

A site that looks for requests is kept waiting until there is one (long polling). Connections are
accepted here, because uvicorn has no limit of time for a handshake or for the head of a request:
those of strangers are few and short, and a new one takes the place of the oldest.
No torch is needed here.
"""

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from email.utils import formatdate
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from trimtab.federation.events import Traffic
from trimtab.federation.transport.flower import objects
from trimtab.federation.transport.flower.notices import PATH, Notices
from trimtab.federation.transport.flower.site_keys import FLEET, Refusals, Refused, SiteKeys

log = logging.getLogger("trimtab.federation.transport")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_STRANGERS = 256  # there are <= this many connections of strangers, of < 1 MB each
_OF_ONE_SITE = 32  # there are <= this many connections of one site
_HANDSHAKE = _FIRST_REQUEST = 10.0  # a stranger has this many seconds for each of them
_IDLE = 120  # a site may be silent between two requests for <= this many seconds
_REQUEST = 600.0  # a site's request, body and answer, takes <= this many seconds
_HEAD = 16 << 10  # the head of a request has <= 16 KiB
_DRAIN = 256 << 10  # a refused body of <= 256 KiB is read, or its sender sees a reset, no answer
_ANNOUNCED = 4 << 20  # the body that announces a reply has <= 4 MiB: 100 bytes for each object
_SHORT = 64 << 10  # of any other request
_HOLD = 20.0  # a look for requests waits <= 20 s; Flower's client gives up after 30
_LOOK = 5.0  # meanwhile it looks again at least every 5 s
_REPLIES = 4  # a site replies <= this many times to a request: a reply may be sent anew
_REQUESTS = 16  # the objects of a site's last <= 16 requests may be pulled
_SILENT = logging.Logger("uvicorn of the guard", logging.CRITICAL + 1)  # strangers fill no log


class Connection(H11Protocol):
    """One connection; `site` is None until a request on it is signed with a registered key."""

    def __init__(self, guard: "Guard", config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self.guard, self.site = guard, None  # type: tuple[Guard, str | None]
        self.up = 0  # bytes that came and are not counted yet
        self.app = self._answer
        self.logger, self.access_log = _SILENT, False

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.guard.answer(self, scope, receive, send)
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
        self.guard.add(self)
        self.loop.call_later(_FIRST_REQUEST, self._end_stranger)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.guard.connections.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes."""
        self.up += len(data)
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Say what uvicorn could not read."""
        self.guard.refusals.say(self.address, "a request that is no HTTP.")
        super().send_400_response(msg)

    def _end_stranger(self) -> None:
        if self.site is None:
            self.transport.abort()


class Guard:
    """Flower's app as sites see it; `local` is the app as the server's own processes see it."""

    def __init__(
        self, app: App, sites: Mapping[str, str], limit: int = 1 << 20, hold: float = _HOLD
    ) -> None:
        self.app, self.limit, self.hold = app, limit, hold  # a reply has <= `limit` bytes
        self.keys, self.refusals = SiteKeys(sites), Refusals()
        self.notices: Notices | None = None  # who tells sites how they stand
        self.connections: dict[Connection, None] = {}  # the oldest first
        self.up: dict[str, int] = defaultdict(int)
        self.down: dict[str, int] = defaultdict(int)
        self.seen: dict[str, float] = {}  # when each site was let in last, as time.time() tells
        self._shaking: dict[socket.socket, asyncio.Task[None]] = {}
        self._announced: dict[str, deque[objects.Shape]] = defaultdict(
            lambda: deque(maxlen=_REQUESTS)
        )
        self._replied: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=64))
        self._looking: dict[str, object] = {}  # the look of each site that is held; one at a time
        self._pushed = asyncio.Event()

    def traffic(self) -> Traffic:
        """Return the bytes of all sites so far."""
        return Traffic(dict(self.up), dict(self.down))

    # -- connections

    async def serve(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        """Accept connections until this task is cancelled."""
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(
            self.app,
            interface="asgi3",
            lifespan="off",
            ws="none",
            http="h11",
            access_log=False,
            log_config=None,
            timeout_keep_alive=_IDLE,
            h11_max_incomplete_event_size=_HEAD,
        )
        config.load()
        state = ServerState()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno == errno.EINVAL:  # the operator's process does not listen yet
                    await asyncio.sleep(0.1)
                    continue
                # Most likely there are no descriptors left.
                self.refusals.say("new connections", f"{error.strerror or error}.")
                self._end_oldest([c for c in self.connections if c.site is None], 0)
                await asyncio.sleep(0.1)
                continue
            for task in list(self._shaking.values())[: max(0, len(self._shaking) - _STRANGERS + 1)]:
                task.cancel()
            work = self._shake_hands(accepted, str(address[0]), context, config, state)
            self._shaking[accepted] = loop.create_task(work)

    async def _shake_hands(
        self,
        accepted: socket.socket,
        where: str,
        context: ssl.SSLContext,
        config: uvicorn.Config,
        state: ServerState,
    ) -> None:
        """Begin TLS, in time; from then on uvicorn serves the connection."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_HANDSHAKE):
                if await self._speaks_tls(accepted, where):
                    await loop.connect_accepted_socket(
                        lambda: Connection(self, config, state), accepted, ssl=context
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
        self.connections[connection] = None
        self._end_oldest([c for c in self.connections if c.site is None], _STRANGERS)

    def _end_oldest(self, connections: list[Connection], most: int) -> None:
        for connection in connections[: max(0, len(connections) - most)]:
            self.connections.pop(connection, None)
            connection.transport.abort()

    # -- requests

    async def local(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the server's own processes; a message of the rounds ends the wait of sites."""
        await self.app(scope, receive, _patient(send))
        # The rounds push all requests of an exchange in one message, so sites look again once.
        if scope["type"] == "http" and scope["path"].endswith("/runtime/push-messages"):
            pushed, self._pushed = self._pushed, asyncio.Event()
            pushed.set()

    async def answer(
        self, connection: Connection, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request from outside."""
        where, path = connection.address, scope["raw_path"].decode("latin-1")
        send = _dated(send)
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        more = [True]

        async def take() -> MutableMapping[str, Any]:
            part = await receive()
            more[0] = part.get("more_body", False)
            return part

        async def drain() -> None:
            short = int(headers.get("content-length", "0")) <= _DRAIN
            if short and "transfer-encoding" not in headers and "expect" not in headers:
                async with asyncio.timeout(_FIRST_REQUEST):
                    while more[0]:
                        await take()

        try:
            self._check_length(where, path, headers)
            if scope["method"] == "POST" and path == PATH and self.notices is not None:
                await drain()
                await _reply(send, 200, self.notices.answer(headers, where))
                return
            site = self.keys.check(where, scope["method"], path, headers)
            self._know(connection, site)
            async with asyncio.timeout(_REQUEST):
                counted = self._counted(connection, site, path, send)
                await self._serve_site(f"site {site} at {where}", site, scope, take, counted)
        except Refused as refused:
            self.refusals.say(refused.who, refused.why)
            await drain()
            await _reply(send, refused.status, b'{"detail": "refused"}', close=True)

    async def _serve_site(
        self, who: str, site: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        path = scope["path"].removeprefix(FLEET)
        if path == "push-object":  # the only one that may be large: it is not read here
            await self.app(scope, receive, send)
            return
        body = await _read(receive)
        again = _again(body, receive)
        if path == "pull-messages":
            await self._pull_messages(site, scope, body, receive, send)
            return
        if path in ("activate-node", "deactivate-node"):
            self._looking.pop(site, None)
        elif path == "push-messages":
            self._check_reply(who, site, body)
        elif path in ("pull-object", "confirm-message-received"):
            name = objects.named(path, body)
            if not any(name in shape for shape in self._announced[site]):
                self.refusals.say(who, "it asks for an object that is not its own.")
                await _reply(send, 200, b"")  # as Flower answers when there is no such object
                return
        await self.app(scope, again, send)

    def _check_length(self, where: str, path: str, headers: Mapping[str, str]) -> None:
        most = _SHORT
        if path == FLEET + "push-object":
            most += objects.largest_object(self.limit)
        elif path == FLEET + "push-messages":
            most = _ANNOUNCED
        if "transfer-encoding" in headers or int(headers.get("content-length", "0")) > most:
            raise Refused(403, where, "a request that is too large or has no length.")

    def _check_reply(self, who: str, site: str, body: bytes) -> None:
        """Check who sends a reply, and how much it announces, before Flower reserves any of it."""
        try:
            announced = objects.announced(body)
        except ValueError as error:
            raise Refused(403, who, f"a message that cannot be read ({error}).") from None
        if announced.senders - {announced.node}:
            raise Refused(403, who, "it answers in the name of another node.")
        most = objects.most_objects(self.limit)
        if len(announced.shape) > most:
            why = f"a reply of {len(announced.shape)} objects; the model allows {most}."
            raise Refused(403, who, why)
        # Flower keeps the children of an object that it knows, and then refuses others for all.
        for shape in self._announced[site]:
            for name in announced.shape.keys() & shape.keys():
                if announced.shape[name] != shape[name]:
                    raise Refused(403, who, "a reply that alters an object of the server's.")
        replied = self._replied[site]
        if any(replied.count(request) >= _REPLIES for request in announced.requests):
            raise Refused(403, who, f"it has replied to a request {_REPLIES} times.")
        replied.extend(announced.requests)

    async def _pull_messages(
        self, site: str, scope: Scope, body: bytes, receive: Receive, send: Send
    ) -> None:
        """Answer when there is a message for the site, or when it has waited for long enough."""
        gone = asyncio.ensure_future(_gone(receive))
        look = self._looking[site] = object()
        until = time.monotonic() + self.hold
        try:
            while True:
                pushed, kept = self._pushed, list[MutableMapping[str, Any]]()

                async def keep(
                    part: MutableMapping[str, Any], kept: list[MutableMapping[str, Any]] = kept
                ) -> None:
                    kept.append(part)

                again = _again(body, lambda: asyncio.shield(gone))
                await self.app({**scope, "state": {}}, again, keep)
                found = b"".join(part.get("body", b"") for part in kept)
                empty = bool(kept) and kept[0].get("status") == 200 and not found
                if not empty or time.monotonic() > until:
                    self._announced[site].extend(objects.shapes(found) if found else ())
                    for part in kept:
                        await send(part)
                    return
                waiting = asyncio.ensure_future(pushed.wait())
                await asyncio.wait(
                    {waiting, gone}, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED
                )
                waiting.cancel()
                # Looking takes a message away from Flower, so nobody looks for one that has gone,
                # nor for one that has asked again meanwhile.
                if gone.done():
                    return
                if self._looking.get(site) is not look:
                    await _reply(send, 200, b"")
                    return
        finally:
            gone.cancel()

    def _know(self, connection: Connection, site: str) -> None:
        """Note whose a connection is; a site has only so many."""
        self.seen[site] = time.time()
        if connection.site != site:
            connection.site = site
            self._end_oldest([c for c in self.connections if c.site == site], _OF_ONE_SITE)

    def _counted(self, connection: Connection, site: str, path: str, send: Send) -> Send:
        """Return what sends an answer to a site, counts its bytes, and says what went wrong."""
        who = f"site {site} at {connection.address}"

        async def counted(part: MutableMapping[str, Any]) -> None:
            headers: Iterable[tuple[bytes, bytes]] = part.get("headers", ())
            self.up[site], connection.up = self.up[site] + connection.up, 0
            self.down[site] += len(part.get("body", b""))
            self.down[site] += sum(len(name) + len(value) + 4 for name, value in headers)
            status = part.get("status", 200)
            if status == 401:
                self.refusals.say(who, "its signature is not valid.")
            elif 400 <= status < 500 and path == FLEET + "activate-node":
                self.refusals.say(
                    f"a node under the name {site} at {connection.address}",
                    "that site is connected already (after a crash this lasts up to a minute).",
                )
            await send(part)

        return _patient(counted)


def _patient(send: Send) -> Send:
    """Return what makes 500 into 503: Flower's clients then ask again.

    A SuperLink answers 500 while its database is locked, which passes.
    """

    async def patient(part: MutableMapping[str, Any]) -> None:
        await send({**part, "status": 503} if part.get("status") == 500 else part)

    return patient


def _dated(send: Send) -> Send:
    """Return what adds the time to an answer, by which a site sees that its clock is off."""

    async def dated(part: MutableMapping[str, Any]) -> None:
        if part["type"] == "http.response.start":
            now = b"date", formatdate(usegmt=True).encode()
            part = {**part, "headers": [*part.get("headers", ()), now]}
        await send(part)

    return dated


async def _read(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        part = await receive()
        body, more = body + part.get("body", b""), part.get("more_body", False)
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read, then what follows it."""
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def again() -> MutableMapping[str, Any]:
        return next(parts, None) or await receive()

    return again


async def _gone(receive: Receive) -> MutableMapping[str, Any]:
    while (part := await receive())["type"] != "http.disconnect":
        pass
    return part


async def _reply(send: Send, status: int, content: bytes, close: bool = False) -> None:
    headers = [(b"content-type", b"application/json")]
    headers += [(b"content-length", str(len(content)).encode())]
    headers += [(b"connection", b"close")] if close else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
