"""The front's own connection to the SuperLink: one for each of a site's, kept while it lasts."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable

import h11

_PATIENCE = 120.0  # the SuperLink answers within <= this many seconds


class Upstream:
    """One connection, opened when it is needed; a request is sent and answered piece by piece."""

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        self.port, self.trust = port, trust
        self._writer: asyncio.StreamWriter | None = None

    async def begin(self, path: str, headers: Iterable[tuple[bytes, bytes]], length: int) -> None:
        """Send the head of a request whose body has this length."""
        if self._writer is None or self._reader.at_eof() or self._writer.is_closing():
            await self._open()
        else:
            self._http.start_next_cycle()
        host, size = f"127.0.0.1:{self.port}".encode(), str(length).encode()
        own = [(b"host", host), (b"content-length", size)]
        await self._send(h11.Request(method="POST", target=path, headers=[*own, *headers]))

    async def send(self, data: bytes) -> None:
        """Send a piece of the body."""
        await self._send(h11.Data(data=data))

    async def finish(self) -> h11.Response:
        """End the request; return the head of the answer."""
        await self._send(h11.EndOfMessage())
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                return event

    async def body(self) -> AsyncIterator[bytes]:
        """Go through the pieces of the answer's body."""
        while isinstance(event := await self._event(), h11.Data):
            yield bytes(event.data)
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            self.close()

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    async def _open(self) -> None:
        self.close()
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.trust, limit=1 << 16
        )
        self._http = h11.Connection(h11.CLIENT)

    async def _send(self, event: h11.Event) -> None:
        if self._writer is None:
            raise EOFError
        data = self._http.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()

    async def _event(self) -> h11.Event:
        async with asyncio.timeout(_PATIENCE):
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(1 << 16))
                elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    raise EOFError
                else:
                    assert not isinstance(event, type)
                    return event
