"""What was sent to clients, round by round: all that a lost shard needs to be rebuilt.

Mini-batches depend on (seed, client, round, k) alone, so that running a round once more on the same
broadcasts leaves the same states. The log lies in a temporary file of the driver.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryFile, gettempdir
from typing import Any
from weakref import finalize


@dataclass(frozen=True)
class Sent:
    """One exchange: what was sent, and to whom of those that answered."""

    message: bytes
    clients: Sequence[int]


@dataclass(frozen=True)
class Logged:
    """A round that was committed, or states that were given after it."""

    r: int
    exchanges: tuple[Sent, ...]
    answered: Sequence[int]
    given: bool = False


@dataclass(frozen=True)
class _Place:
    r: int
    places: tuple[tuple[int, int, Sequence[int]], ...]  # offset, length, clients
    answered: Sequence[int]
    given: bool

    def of(self, own: Callable[[int], bool]) -> "_Place":
        """Return the same for some of the clients alone."""
        places = tuple((at, n, [*filter(own, clients)]) for at, n, clients in self.places)
        return replace(self, places=places, answered=[*filter(own, self.answered)])


class Log:
    """The rounds since the oldest snapshot."""

    def __init__(self) -> None:
        self._file: Any = TemporaryFile(prefix="trimtab-log-", buffering=0)  # noqa: SIM115
        self._rounds: list[_Place] = []
        self._end = 0
        finalize(self, self._file.close)

    def __len__(self) -> int:
        return len(self._rounds)

    def append(self, logged: Logged) -> None:
        """Add a round; if the disk is full, nothing is added."""
        places, at = [], self._end
        for sent in logged.exchanges:
            self._write(at, sent.message)
            places.append((at, len(sent.message), sent.clients))
            at += len(sent.message)
        self._rounds.append(_Place(logged.r, tuple(places), logged.answered, logged.given))
        self._end = at

    def _write(self, at: int, message: bytes) -> None:
        rest = memoryview(message)
        try:
            self._file.seek(at)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise OSError(
                f"{gettempdir()} cannot take more of what was sent ({error.strerror}); free space "
                "there, set TMPDIR to a folder on another disk, or pass a folder for snapshots."
            ) from error

    def since(self, r: int, own: Callable[[int], bool]) -> Iterator[Logged]:
        """Go through the rounds after round r in which some clients took part, for those alone."""
        for place in (place.of(own) for place in list(self._rounds) if place.r > r):
            if any(clients for *_, clients in place.places):
                sent = [Sent(self._read(at, n), clients) for at, n, clients in place.places]
                yield Logged(place.r, tuple(sent), place.answered, place.given)

    def forget(self, r: int) -> None:
        """Drop the rounds up to round r."""
        self._rounds = [place for place in self._rounds if place.r > r]
        if not self._rounds:
            self._file.truncate(0)
            self._end = 0

    def _read(self, at: int, length: int) -> bytes:
        self._file.seek(at)
        parts, left = [], length
        while left:
            parts.append(self._file.read(left))
            if not parts[-1]:
                raise OSError("the temporary file of what was sent has been cut off.")
            left -= len(parts[-1])
        return b"".join(parts)
