"""Lines for people: what happened, when, in a file and to whoever follows.

Rooms log to `trimtab.federation.<room>`, as any library does. What a process says is kept by
`attached`; the root logger is the user's, and stays as it is.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

Follow = Callable[[str], None]
LONGEST = 2000  # a line has <= this many letters
LOGGER = logging.getLogger("trimtab.federation")


def printable(text: str, most: int = LONGEST) -> str:
    """Return a text as one line of at most so many letters, with nothing in it that acts.

    >>> printable("a" + chr(10) + "b"), printable("long", 2)
    ('a\\\\nb', 'lo …')
    """
    cut = text if len(text) <= most else text[:most] + " …"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


class Lines(logging.Handler):
    """Passes each record on as a line; one that somebody should read begins with 'warning: '."""

    def __init__(self, follow: Follow) -> None:
        super().__init__()
        self.follow = follow

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on."""
        level = "warning: " if record.levelno >= logging.WARNING else ""
        self.follow(level + printable(record.getMessage()))


@contextmanager
def handled(handler: logging.Handler) -> Iterator[None]:
    """Let a handler have all that the federation says meanwhile."""
    before = LOGGER.level
    if not LOGGER.isEnabledFor(logging.INFO):
        LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(handler)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(before)


@contextmanager
def attached(path: Path | None = None, follow: Follow | None = None) -> Iterator[None]:
    """Append what is said meanwhile to a file, with its time; `follow` gets each line as well."""
    with ExitStack() as stack:
        if path is not None:
            stack.enter_context(handled(Lines(_Appender(path))))
        if follow is not None:
            stack.enter_context(handled(Lines(follow)))
        yield


class _Appender:
    """Writes lines to a file that is opened anew for each, so that it may be moved away."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, line: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{now} {line}\n")
        except OSError as error:
            print(f"{self.path} cannot be written ({error})", file=sys.stderr)
