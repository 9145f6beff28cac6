"""How a site stands with its server: it asks, and is told if it was let go, refused or doubled.

Flower tells a node that is refused next to nothing. So a site asks the front itself, at a path that
goes no further, with its key and a word that its process has drawn: two words at one time are two
copies of the site. Who does not hold a key that is, or was, a site's is told nothing of it.
"""

import json
import socket
import ssl
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Protocol

from trimtab.federation.log import printable
from trimtab.federation.storage import keys
from trimtab.federation.storage.roster import Roster

PATH = "/v1/fleet/standing"
_KEY, _COPY, _SIGNATURE = "flwr-public-key", "trimtab-copy", "trimtab-signature"
_COPIES = 8  # the last <= 8 copies of a site are remembered
_FRESH = 2.0  # the roster is read again after >= 2 seconds
_ANSWER = 4096  # an answer has <= this many bytes


Connect = Callable[[tuple[str, int], float], socket.socket]
"""Opens a connection to an address, in so many seconds at most."""


class Headers(Protocol):
    """Headers of a request, by name."""

    def get(self, name: str, /) -> str | None:
        """Return one of them."""
        ...


@dataclass
class _Copy:
    """One process that was a site: when it was first and last heard of, and from where."""

    first: float
    last: float
    address: str


class Notices:
    """The server's side: answers sites that ask how they stand."""

    def __init__(self, roster: Callable[[], Roster]) -> None:
        self._read, self._read_at = roster, -_FRESH
        self._copies: dict[str, dict[str, _Copy]] = {}
        self._lock = threading.Lock()

    def answer(self, headers: Headers, address: str) -> bytes:
        """Return what a site is told, as JSON; nothing if all is well."""
        return json.dumps({"notice": self._notice(headers, address)}).encode()

    def _notice(self, headers: Headers, address: str) -> str:
        try:
            public = b64decode(headers.get(_KEY) or "", validate=True).decode("ascii")
        except ValueError:
            return ""
        roster, copy = self._roster(), (headers.get(_COPY) or "")[:64]
        shown = keys.fingerprint(public)
        names = {fingerprint: name for name, fingerprint in roster.fingerprints.items()}
        if shown not in names and shown not in roster.former:
            return f"the server does not know the key {shown}; let the operator register it."
        if not keys.is_signed(public, _said(copy), headers.get(_SIGNATURE) or ""):
            return ""
        if shown in roster.former:
            return f"the server lets this site in no more: {roster.former[shown]}."
        other = self._other_copy(names[shown], copy, address)
        if other is not None:
            return (
                f"another copy of this site is running, at {other.address}; one of them is not let "
                "in: end it."
            )
        return ""

    def _roster(self) -> Roster:
        """Return the roster of some seconds ago at most: strangers make nobody read it at will."""
        with self._lock:
            if time.monotonic() - self._read_at >= _FRESH:
                self._known, self._read_at = self._read(), time.monotonic()
            return self._known

    def _other_copy(self, name: str, copy: str, address: str) -> _Copy | None:
        """Return a copy that was heard of since this one is: one that ended before is none."""
        now = time.monotonic()
        with self._lock:
            copies = self._copies.setdefault(name, {})
            own = copies.setdefault(copy, _Copy(now, now, address))
            own.last = now
            for oldest in sorted(copies, key=lambda word: copies[word].last)[:-_COPIES]:
                del copies[oldest]
            others = (c for word, c in copies.items() if word != copy and c.last > own.first)
            return max(others, key=lambda c: c.last, default=None)


def ask_standing(
    server: str,
    authority: Path,
    private_key: bytes,
    copy: str,
    connect: Connect = socket.create_connection,
    timeout: float = 10.0,
) -> str | None:
    """Return what the server tells a site; empty if all is well, None if it does not answer."""
    host, _, port = server.rpartition(":")
    trust = ssl.create_default_context(cafile=str(authority))
    public = keys.public_half(private_key)
    headers = {
        _KEY: b64encode(public.encode()).decode(),
        _COPY: copy,
        _SIGNATURE: keys.sign(private_key, _said(copy)),
    }
    host = host.strip("[]")
    link = HTTPSConnection(host, int(port), timeout=timeout, context=trust)
    try:
        plain = connect((host, int(port)), timeout)
        link.sock = trust.wrap_socket(plain, server_hostname=host)
        link.request("POST", PATH, b"", headers)
        response = link.getresponse()
        told: Any = json.loads(response.read(_ANSWER)) if response.status == 200 else {}
    except (TimeoutError, OSError, HTTPException, ValueError):
        return None
    finally:
        link.close()
    notice = told.get("notice") if isinstance(told, dict) else None
    return printable(notice, 400) if isinstance(notice, str) else None


def _said(copy: str) -> bytes:
    return f"trimtab federation: how do I stand? {copy}".encode()
