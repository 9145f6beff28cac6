"""A page that is served on this machine while what it shows goes on; nobody can change anything.

The page is made when somebody looks, and told anew by server-sent events, so that live.js
changes what is different without loading it again.
"""

import json
import logging
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread
from time import monotonic
from typing import Any

from trimtab.report.style import asset

LOOPBACK = "127.0.0.1"
EVERY = 1.0  # two pages are >= 1 second apart
COST = 20.0  # two pages are >= 20 times as far apart as making the last one took
BEAT = 10.0  # seconds after which a browser is told that all is well
LEAVE = 3.0  # seconds that browsers have to fetch the last page

log = logging.getLogger("trimtab.live")


class LivePage:
    """Serves what `look` returns, a whole page, until it is closed.

    look is called from another thread, and only while somebody has the page open.
    """

    def __init__(self, look: Callable[[], str], port: int = 0) -> None:
        self._look = look
        self._changed = Condition()
        self._page, self._version, self._next = "", 0, 0.0
        self._last = False  # whether the page will not change any more
        self._watching = 0
        try:
            self._server = _Server((LOOPBACK, port), _Handler)
        except OSError as error:
            raise ValueError(
                f"port {port} of {LOOPBACK} cannot be had ({error.strerror}); pass another one."
            ) from None
        self._server.live = self
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.port}/"

    def __enter__(self) -> "LivePage":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def finish(self, page: str) -> None:
        """Show the last page to all who watch; it does not change any more."""
        with self._changed:
            self._page, self._version, self._last = page, self._version + 1, True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._watching, LEAVE)

    def close(self) -> None:
        """Stop serving; whoever watches keeps the last page."""
        with self._changed:
            self._last = True
            self._changed.notify_all()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def page(self) -> tuple[int, str]:
        """Return the number of the page, and the page as it is now."""
        with self._changed:
            if not self._last and monotonic() >= self._next:
                self._make()
            return self._version, self._page

    def events(self, write: Callable[[bytes], None]) -> None:
        """Tell every page that is new, until the last one."""
        known, beat = 0, monotonic()
        with self._changed:
            self._watching += 1
        try:
            while True:
                version, page = self.page()
                if version != known:
                    write(b"event: page\ndata: " + json.dumps(page).encode() + b"\n\n")
                    known, beat = version, monotonic()
                elif monotonic() - beat > BEAT:
                    write(b": all is well\n\n")
                    beat = monotonic()
                with self._changed:
                    if self._last and known == self._version:
                        break
                    self._changed.wait(max(0.05, min(EVERY, self._next - monotonic())))
            write(b"event: end\ndata: {}\n\n")
        finally:
            with self._changed:
                self._watching -= 1
                self._changed.notify_all()

    def _make(self) -> None:
        """Make the page; what cannot be read just now is read the next time."""
        started = monotonic()
        try:
            page = self._look()
        except (OSError, ValueError, KeyError) as error:
            log.debug("the page could not be made: %s", error)
            page = self._page
        if page != self._page or not self._version:
            self._page, self._version = page, self._version + 1
        now = monotonic()
        self._next = now + max(EVERY, COST * (now - started))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    live: LivePage

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of browsers that went away; the log has the rest."""
        log.debug("a request of the live page failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of the page and of its events; nothing else is there."""

    server: _Server
    server_version, sys_version = "trimtab", ""

    def do_GET(self) -> None:
        if not self._expected():
            return
        if self.path == "/events":
            self._head("text/event-stream")
            self.server.live.events(self._write)
        else:
            self._show()

    def do_HEAD(self) -> None:
        if self._expected():
            self._show()

    def _expected(self) -> bool:
        """Refuse names that others could have pointed here, and paths that are not there."""
        port = self.server.live.port
        if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path == "/favicon.ico":  # every browser asks for one
            self.send_response(HTTPStatus.NO_CONTENT)
            self.end_headers()
        elif self.path not in ("/", "/events"):
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            return True
        return False

    def _show(self) -> None:
        _, page = self.server.live.page()
        script = f"</footer>\n<script>{asset('live.js')}</script>"
        page = page.replace("<body>", '<body data-live="/events">', 1)
        content = page.replace("</footer>", script, 1).encode()
        self._head("text/html; charset=utf-8", len(content))
        if self.command == "GET":
            self._write(content)

    def _head(self, kind: str, length: int | None = None) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _write(self, content: bytes) -> None:
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
