"""Clocks that are apart: Flower refuses what is signed more than 5 s ahead or 305 s behind."""

import logging
import time

log = logging.getLogger("trimtab.federation.transport")

_APART = 5.0  # clocks that differ twice in a row by > this many seconds are apart
_FAR = 60.0  # those that differ once by > this many are: a message may be late, but not so late
_REPEAT = 600.0  # that they are apart is said again after >= this many seconds


class Clocks:
    """How far one clock is ahead of another; what is worth saying of it is said."""

    def __init__(self, one: str, other: str) -> None:
        self.one, self.other = one, other
        self.ahead = 0.0
        self._said = -_REPEAT
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
        if apart and sure and now - self._said >= _REPEAT:
            self._said = now
            way = "ahead of" if ahead > 0 else "behind"
            log.warning(
                f"{self.one} clock is {abs(ahead):.0f} seconds {way} {self.other}; set both by "
                "NTP, since a site whose clock is > 5 s ahead or > 300 s behind is refused."
            )
        elif not apart and self._said > -_REPEAT:
            self._said = -_REPEAT
            log.info(f"{self.one} clock agrees with {self.other} again.")
        self._apart = apart
