"""The TLS front: the only door to the server, and it leads to Flower's fleet path alone.

Flower's Fleet, Control and Runtime interfaces share one port, and Control has no login. So its
SuperLink listens on loopback only, and this front passes on what is addressed to `/v1/fleet/` and
signed with the key of a registered site. All else is answered 403 and leaves a line in the log.
What each site sends and receives is counted here, at the wire.
"""

import json
import logging
import socket
import ssl
import sys
import threading
import time
from base64 import b64decode
from collections import defaultdict
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trimtab.federation.events import Traffic
from trimtab.federation.storage.keys import fingerprint
from trimtab.federation.transport.flower.notices import PATH, Notices

log = logging.getLogger("trimtab.federation.transport")

FLEET = "/v1/fleet/"
_HOP = {"host", "connection", "transfer-encoding", "content-length", "keep-alive", "expect"}
_BODY = 64 << 20  # a request has <= 64 MiB; Flower sends objects in pieces of 5 MiB
_PATIENCE = 120.0  # a connection that is silent for > this many seconds is closed
_HANDSHAKE = 10.0  # a TLS handshake takes <= this many seconds
_REPEAT = 30.0  # equal lines in the log are >= this many seconds apart


class Front:
    """Listens, checks, forwards and counts, in threads of its own."""

    def __init__(
        self,
        address: tuple[str, int],
        certificate: Path,
        key: Path,
        upstream: int,
        authority: Path,
        sites: Mapping[str, str],
    ) -> None:
        self.upstream = upstream
        self.notices: Notices | None = None  # who tells sites how they stand
        self.admit(sites)
        self.trust = ssl.create_default_context(cafile=str(authority))
        self.bytes_up: dict[str, int] = defaultdict(int)
        self.bytes_down: dict[str, int] = defaultdict(int)
        self.lock = threading.Lock()
        self._logged: dict[str, float] = {}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        self.listener = _Listener(address, _Handler, self, context)
        self.port = int(self.listener.server_address[1])
        self._thread = threading.Thread(
            target=self.listener.serve_forever, name="front", daemon=True
        )

    def start(self) -> None:
        """Begin to listen; till then the port is ours, and closed."""
        self.listener.server_activate()
        self._thread.start()

    def close(self) -> None:
        """Stop listening; connections that are open end with the process."""
        if self._thread.is_alive():
            self.listener.shutdown()
        self.listener.server_close()

    def admit(self, sites: Mapping[str, str]) -> None:
        """Let in these sites, by their public keys, and nobody else."""
        self.sites = {_pem(public): name for name, public in sites.items()}

    def refuse(self, who: str, why: str) -> None:
        """Write who was refused and why; the same again only after a while."""
        line = f"refused {who}: {why}"
        now = time.monotonic()
        with self.lock:
            if now - self._logged.get(line, -_REPEAT) < _REPEAT:
                return
            self._logged[line] = now
        log.warning(line)

    def traffic(self) -> Traffic:
        """Return the bytes of all sites so far."""
        with self.lock:
            return Traffic(dict(self.bytes_up), dict(self.bytes_down))

    def count(self, site: str, up: int, down: int) -> None:
        """Add what one request has carried, headers included."""
        with self.lock:
            self.bytes_up[site] += up
            self.bytes_down[site] += down


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: Any, front: Front, context: ssl.SSLContext
    ) -> None:
        self.front, self.context = front, context
        super().__init__(address, handler, bind_and_activate=False)
        try:
            self.server_bind()
        except BaseException:
            self.server_close()
            raise

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands in the connection's own thread, then serve it."""
        who = str(client_address[0])
        request.settimeout(_HANDSHAKE)
        try:
            first = request.recv(1, socket.MSG_PEEK)
            if not first:
                return
            if first != b"\x16":  # every TLS connection begins with this byte
                self.front.refuse(who, "a plain-text connection; only TLS is spoken here.")
                return
            secured = self.context.wrap_socket(request, server_side=True)
        except ssl.SSLError as error:
            self.front.refuse(who, f"the TLS handshake failed ({_reason(error)}).")
            return
        except OSError:
            return
        secured.settimeout(_PATIENCE)
        try:
            super().finish_request(secured, client_address)
        except (OSError, HTTPException):
            pass  # the other side has gone
        finally:
            secured.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write one line for what goes wrong inside."""
        log.warning(f"the front failed on a request ({sys.exc_info()[1]!r}).")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener  # BaseHTTPRequestHandler gives it this name
    raw_requestline: bytes
    _to_superlink: HTTPConnection | None = None

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: what matters is logged by name."""

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST = do_GET

    def finish(self) -> None:
        """Close both connections."""
        if self._to_superlink is not None:
            self._to_superlink.close()
        super().finish()

    def _answer(self) -> None:
        body = self._body()
        if body is None:
            return
        path = self.path.split("?")[0]
        if self.command != "POST" or not path.startswith(FLEET) or ".." in path or "%" in path:
            self._refuse(f"{self.command} {path[:80]}; only the fleet path is open.")
            return
        if path == PATH and self.server.front.notices is not None:
            told = self.server.front.notices.answer(self.headers, str(self.client_address[0]))
            self._send(200, told)
            return
        site = self._site()
        if site is None:
            return
        if path == FLEET + "push-messages" and not self._own(site, body):
            return
        self._forward(site, path, body)

    def _body(self) -> bytes | None:
        length = self.headers.get("content-length", "0")
        if "transfer-encoding" in self.headers or not length.isdigit() or int(length) > _BODY:
            self.close_connection = True
            self._refuse("a request that is too large or has no length.")
            return None
        return self.rfile.read(int(length))

    def _site(self) -> str | None:
        """Return whose key the request bears; Flower checks the signature behind us."""
        try:
            key = b64decode(self.headers.get("flwr-public-key", ""), validate=True)
        except ValueError:
            key = b""
        site = self.server.front.sites.get(_pem(key.decode("ascii", "replace")))
        if site is None:
            shown = fingerprint(key) if key else "none"
            self._refuse(f"an unknown key ({shown}); no site of this federation has it.")
        return site

    def _own(self, site: str, body: bytes) -> bool:
        """Tell whether a site answers in its own name; Flower takes the sender's word for it."""
        from flwr.proto.fleet_pb2 import PushMessagesRequest

        try:
            request = PushMessagesRequest.FromString(body)
            senders = {m.metadata.src_node_id for m in request.messages_list}
            if senders <= {request.node.node_id}:
                return True
        except Exception:
            self._refuse("a message that cannot be read.", site)
            return False
        self._refuse("it answers in the name of another node.", site)
        return False

    def _forward(self, site: str, path: str, body: bytes) -> None:
        front = self.server.front
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
        try:
            status, received, content = self._ask_superlink(path, body, headers)
        except (OSError, HTTPException):
            status, received, content = 503, [], b""  # it is being restarted; SuperNodes try again
        if status == 401:
            front.refuse(f"site {site} at {self.client_address[0]}", "its signature is not valid.")
        elif status >= 400 and path == FLEET + "activate-node":
            front.refuse(
                f"a node under the name {site} at {self.client_address[0]}",
                "that site is connected already (after a crash this lasts up to a minute).",
            )
        self.send_response_only(status)
        for name, value in received:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        sent = len(b"".join(self._headers_buffer))  # type: ignore[attr-defined]
        up = len(self.raw_requestline) + len(bytes(self.headers)) + len(body)
        front.count(site, up, sent + len(content))
        self.end_headers()
        self.wfile.write(content)

    def _ask_superlink(
        self, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Pass a request on, over one connection for each of ours; once more if it was closed."""
        front = self.server.front
        for attempt in (1, 2):
            if self._to_superlink is None:
                self._to_superlink = HTTPSConnection(
                    "127.0.0.1", front.upstream, timeout=_PATIENCE, context=front.trust
                )
            try:
                self._to_superlink.request("POST", path, body, headers)
                response = self._to_superlink.getresponse()
                return response.status, response.getheaders(), response.read()
            except (OSError, HTTPException):
                self._to_superlink.close()
                self._to_superlink = None
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def _refuse(self, why: str, site: str | None = None) -> None:
        who = f"site {site} at " if site else ""
        self.server.front.refuse(who + str(self.client_address[0]), why)
        self._send(403, json.dumps({"detail": "forbidden"}).encode())

    def _send(self, status: int, content: bytes) -> None:
        self.send_response_only(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _pem(key: str) -> str:
    return "".join(key.split())


def _reason(error: ssl.SSLError) -> str:
    return str(error.reason or error).lower().replace("_", " ")
