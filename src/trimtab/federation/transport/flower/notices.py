"""What a site is told beside each answer: that it was let go, is not known, or is running twice.

Flower tells a node that is refused next to nothing. So the guard adds a header to its answers, and
a site adds a word that its process has drawn to its requests: two words at one time are two copies.
Who does not hold a key that is, or was, a site's is told nothing of it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.federation.storage import keys
from trimtab.federation.storage.roster import Roster

NOTICE, COPY = "trimtab-notice", "trimtab-copy"  # headers: of an answer, of a request
_COPIES = 8  # the last <= 8 copies of a site are remembered
_AT_ONE_TIME = 60.0  # a copy that was heard of <= 60 seconds ago is running
_FRESH = 2.0  # the roster is read again after >= 2 seconds


@dataclass
class _Copy:
    """One process that is a site: when it was first and last heard of, and from where."""

    first: float
    last: float
    address: str


class Notices:
    """Says how sites stand, by the roster."""

    def __init__(self, roster: Callable[[], Roster]) -> None:
        self._read, self._read_at = roster, -_FRESH
        self._copies: dict[str, dict[str, _Copy]] = {}

    def of_stranger(self, public: bytes, is_signed: Callable[[], bool]) -> str:
        """Return what is said to a key that is no site's; `is_signed` checks that it is held."""
        shown = keys.fingerprint(public)
        try:
            roster = self._roster()
        except (OSError, ValueError):  # a roster that cannot be read answers nobody
            return ""
        if shown not in roster.former:
            return f"the server does not know the key {shown}; let the operator register it."
        if not is_signed():
            return ""
        return f"the server lets this site in no more: {roster.former[shown]}."

    def of_site(self, name: str, copy: str, address: str) -> str:
        """Return what is said to a site; nothing if all is well.

        A copy that was not heard of since this one began has ended before, and is none.
        """
        if not copy:
            return ""
        now, copies = time.monotonic(), self._copies.setdefault(name, {})
        own = copies.setdefault(copy[:64], _Copy(now, now, address))
        own.last = now
        for oldest in sorted(copies, key=lambda word: copies[word].last)[:-_COPIES]:
            del copies[oldest]
        since = max(own.first, now - _AT_ONE_TIME)
        others = [c for c in copies.values() if c is not own and c.last > since]
        if not others:
            return ""
        other = max(others, key=lambda c: c.last)
        return (
            f"another copy of this site is running, at {other.address}; one of them is not let in: "
            "end it."
        )

    def _roster(self) -> Roster:
        """Return the roster of some seconds ago at most: strangers make nobody read it at will."""
        if time.monotonic() - self._read_at >= _FRESH:
            self._known, self._read_at = self._read(), time.monotonic()
        return self._known
