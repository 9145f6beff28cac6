"""The guard: what reaches Flower's app from outside, in the SuperLink's own process.

Flower's Fleet, Control and Runtime interfaces are one app, and Control has no login. So the whole
app listens on loopback alone. On the public port it is served behind this guard, which passes on
what is addressed to `/v1/fleet/` and signed with the key of a registered site, before it reads the
body. It compares the sender that a reply names with the node that sends it, hands out only objects
that were announced to the site, and bounds what a reply may hold. Refusals leave a line in the log.

A site that looks for requests is kept waiting until there is one (long polling).
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from email.utils import formatdate
from typing import Any
from urllib.parse import quote

from trimtab.federation.transport.flower import objects
from trimtab.federation.transport.flower.connections import (
    FIRST_REQUEST,
    Connection,
    Receive,
    Scope,
    Send,
)
from trimtab.federation.transport.flower.notices import COPY, NOTICE, Notices
from trimtab.federation.transport.flower.site_keys import FLEET, Refusals, Refused, SiteKeys

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_REQUEST = 600.0  # a site's request, body and answer, takes <= this many seconds
_DRAIN = 256 << 10  # a refused body of <= 256 KiB is read, or its sender sees a reset, no answer
_ANNOUNCED = 4 << 20  # the body that announces a reply has <= 4 MiB: 100 bytes for each object
_SHORT = 64 << 10  # of any other request
_HOLD = 20.0  # a look for requests waits <= 20 s; Flower's client gives up after 30
_HOLD_ROUNDS = 0.5  # the rounds wait <= 0.5 s, since a round may end meanwhile
_REPLIES_PATH = "/v1/runtime/pull-messages"
_LOOK = 5.0  # meanwhile it looks again at least every 5 s
_REPLIES = 4  # a site replies <= this many times to a request: a reply may be sent anew
_REQUESTS = 16  # the objects of a site's last <= 16 requests may be pulled


class Guard:
    """Flower's app as sites see it; `local` is the app as the server's own processes see it."""

    def __init__(
        self,
        app: App,
        sites: Mapping[str, str],
        notices: Notices,
        limit: int = 1 << 20,
        hold: float = _HOLD,
    ) -> None:
        self.app, self.limit, self.hold = app, limit, hold  # a reply has <= `limit` bytes
        self.keys, self.refusals, self.notices = SiteKeys(sites, notices), Refusals(), notices
        self.up: dict[str, int] = defaultdict(int)
        self.down: dict[str, int] = defaultdict(int)
        self.seen: dict[str, float] = {}  # when each site was let in last, as time.time() tells
        self._announced: dict[str, deque[objects.Shape]] = defaultdict(
            lambda: deque(maxlen=_REQUESTS)
        )
        self._replied: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=64))
        self._looking: dict[str, object] = {}  # the look of each site that is held; one at a time
        self._pushed = asyncio.Event()  # by the rounds: a new one after each message
        self._came = asyncio.Event()  # from a site: a reply, or a part of one

    # -- requests

    async def local(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the server's own processes; a message of the rounds ends the wait of sites.

        The rounds, too, wait for replies here: a look of theirs costs both processes time.
        """
        if scope["type"] == "http" and scope["path"] == _REPLIES_PATH:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), _HOLD_ROUNDS)
            self._came.clear()
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
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        more = [True]

        async def take() -> MutableMapping[str, Any]:
            part = await receive()
            more[0] = part.get("more_body", False)
            return part

        try:
            self._check_length(where, path, headers)
            site = self.keys.check(where, scope["method"], path, headers)
            self.seen[site] = time.time()
            connection.known(site)
            send = _with(send, self.notices.of_site(site, headers.get(COPY, ""), where))
            async with asyncio.timeout(_REQUEST):
                counted = self._counted(connection, site, path, send)
                await self._serve_site(f"site {site} at {where}", site, scope, take, counted)
        except Refused as refused:
            self.refusals.say(refused.who, refused.why)
            short = int(headers.get("content-length", "0")) <= _DRAIN
            if short and "transfer-encoding" not in headers and "expect" not in headers:
                async with asyncio.timeout(FIRST_REQUEST):
                    while more[0]:
                        await take()
            told = _with(send, refused.notice)
            await _reply(told, refused.status, b'{"detail": "refused"}', close=True)

    async def _serve_site(
        self, who: str, site: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        path = scope["path"].removeprefix(FLEET)
        if path == "push-object":  # the only one that may be large: it is not read here
            await self.app(scope, receive, send)
            self._came.set()
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
        if path == "push-messages":
            self._came.set()

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
        if announced.sender != announced.node:
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
        if replied.count(announced.request) >= _REPLIES:
            raise Refused(403, who, f"it has replied to a request {_REPLIES} times.")
        replied.append(announced.request)

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


def _with(send: Send, notice: str) -> Send:
    """Return what adds to an answer how the site stands, and the time, if its clock is off."""
    more = [(b"date", formatdate(usegmt=True).encode())]
    more += [(NOTICE.encode(), quote(notice).encode())] if notice else []

    async def told(part: MutableMapping[str, Any]) -> None:
        if part["type"] == "http.response.start":
            part = {**part, "headers": [*part.get("headers", ()), *more]}
        await send(part)

    return told


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
