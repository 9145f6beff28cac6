"""Which requests are let in: those signed, now, with the key of a registered site.

What is refused leaves lines in the log, and clocks that are apart are named there, since Flower
refuses what is signed more than 5 s ahead or 305 s behind.
"""

import logging
import time
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from trimtab.federation.log import printable
from trimtab.federation.storage.keys import fingerprint
from trimtab.federation.transport.flower.notices import Notices

log = logging.getLogger("trimtab.federation.transport")

FLEET = "/v1/fleet/"
_AHEAD, _BEHIND = 5.0, 305.0  # Flower takes what was signed < 5 s ahead or < 305 s ago
_REPEAT = 30.0  # equal lines in the log are >= this many seconds apart
_LINES = 60  # refusals leave <= this many lines in the log in each such time

_APART = 5.0  # clocks that differ twice in a row by > this many seconds are apart
_FAR = 60.0  # those that differ once by > this many are: a message may be late, but not so late
_REPEAT_CLOCK = 600.0  # that they are apart is said again after >= this many seconds


class Refused(Exception):
    """A request that does not pass: the answer it gets, and whom and what the log names."""

    def __init__(self, status: int, who: str, why: str, notice: str = "") -> None:
        super().__init__(status, who, why)
        self.status, self.who, self.why, self.notice = status, who, why, notice


class SiteKeys:
    """The keys of the sites, and their clocks."""

    def __init__(self, sites: Mapping[str, str], notices: Notices | None = None) -> None:
        self._clocks: dict[str, Clocks] = {}
        self.notices = notices
        self.admit(sites)

    def admit(self, sites: Mapping[str, str]) -> None:
        """Let in these sites, by their public keys, and nobody else."""
        self._sites = {"".join(public.split()): name for name, public in sites.items()}

    def check(self, where: str, method: str, path: str, headers: Mapping[str, str]) -> str:
        """Return whose a request is, before its body is read; raise Refused if it may not pass."""
        if method != "POST" or not path.startswith(FLEET) or not _is_plain(path):
            shown = printable(path, 80)
            raise Refused(403, where, f"{method} {shown}; only the fleet path is open.")
        key = _decoded(headers.get("flwr-public-key", ""))
        site = self._sites.get("".join(key.decode("ascii", "replace").split()))
        if site is None:
            shown = fingerprint(key) if key else "none"
            notice = ""
            if key and self.notices is not None:
                notice = self.notices.of_stranger(key, lambda: _signed_at(key, headers) is not None)
            why = f"an unknown key ({shown}); no site of this federation has it."
            raise Refused(403, where, why, notice)
        self._check_signature(f"site {site} at {where}", site, key, headers)
        return site

    def _check_signature(self, who: str, site: str, key: bytes, headers: Mapping[str, str]) -> None:
        at = _signed_at(key, headers)
        if at is None:
            raise Refused(401, who, "its signature is not valid.")
        ahead = (at - datetime.now(UTC)).total_seconds()
        if not -_BEHIND < ahead < _AHEAD:
            way = "ahead of" if ahead > 0 else "behind"
            why = f"its clock is {abs(ahead):.0f} seconds {way} the server's; set both by NTP."
            raise Refused(401, who, why)
        self._clocks.setdefault(site, Clocks(f"site {site}'s", "the server's")).note(ahead)


class Refusals:
    """Lines for the log: the same again only after a while, and never too many."""

    def __init__(self) -> None:
        self._logged: OrderedDict[str, float] = OrderedDict()
        self._since, self._lines = -_REPEAT, 0

    def say(self, who: str, why: str) -> None:
        """Write who was refused and why."""
        line, now = f"refused {who}: {why}", time.monotonic()
        if now - self._logged.get(line, -_REPEAT) < _REPEAT:
            return
        if now - self._since >= _REPEAT:
            self._since, self._lines = now, 0
        self._lines += 1
        if self._lines > _LINES:
            return
        self._logged[line] = now
        if len(self._logged) > 2 * _LINES:
            self._logged.popitem(last=False)
        log.warning(line)
        if self._lines == _LINES:
            log.warning(f"many are refused; the others of these {_REPEAT:g} seconds are not shown.")


class Clocks:
    """How far one clock is ahead of another; what is worth saying of it is said."""

    def __init__(self, one: str, other: str) -> None:
        self.one, self.other = one, other
        self.ahead = 0.0
        self._said = -_REPEAT_CLOCK
        self._apart = False

    def note(self, ahead: float | None) -> None:
        """Note by how many seconds the one is ahead of the other; None if nobody knows.

        >>> Clocks("a", "b").note(None)
        """
        if ahead is None:
            return
        self.ahead = ahead
        apart, now = abs(ahead) > _APART, time.monotonic()
        sure = self._apart or abs(ahead) > _FAR
        if apart and sure and now - self._said >= _REPEAT_CLOCK:
            self._said = now
            way = "ahead of" if ahead > 0 else "behind"
            log.warning(
                f"{self.one} clock is {abs(ahead):.0f} seconds {way} {self.other}; set both by "
                "NTP, since a site whose clock is > 5 s ahead or > 300 s behind is refused."
            )
        elif not apart and self._said > -_REPEAT_CLOCK:
            self._said = -_REPEAT_CLOCK
            log.info(f"{self.one} clock agrees with {self.other} again.")
        self._apart = apart


def _signed_at(key: bytes, headers: Mapping[str, str]) -> datetime | None:
    """Return the time that a request was signed at with this key; None if it was not."""
    signed, signature = headers.get("flwr-timestamp", ""), headers.get("flwr-signature", "")
    try:
        public = load_pem_public_key(key)
        assert isinstance(public, ec.EllipticCurvePublicKey)
        text = signed.encode("ascii", "replace")
        public.verify(_decoded(signature), text, ec.ECDSA(hashes.SHA256()))
        at = datetime.fromisoformat(signed)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, AssertionError):
        return None
    return at.replace(tzinfo=at.tzinfo or UTC)


def _is_plain(path: str) -> bool:
    return path.isascii() and path.isprintable() and ".." not in path and "%" not in path


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return b""
