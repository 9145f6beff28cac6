"""Lines for people: what happened, when, in a file and to whoever follows.

Rooms log to `trimtab.federation.<room>`, as any library does. What a process says is kept by
`attached`; the root logger is the user's, and stays as it is.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from trimtab._files import plain

Follow = Callable[[str], None]
LONGEST = 2000  # a line has <= this many letters
_FACTS = "facts"  # the attribute of a record that is for files alone
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
        """Pass a record on, unless it is for files alone."""
        if not hasattr(record, _FACTS):
            self.follow(_line(record))


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


@dataclass(frozen=True)
class LogStyle:
    """How a log is kept: as lines or as JSON, and in how many files of which size."""

    as_json: bool = False
    most: int | None = None  # bytes of a file, above which a new one is begun; None: one file
    kept: int = 5  # older files that are kept: server.log.1 is the last of them


def log_facts(line: str, **facts: Any) -> None:
    """Say what happened in the files of the log alone: whoever follows shows it in its own way."""
    LOGGER.info("%s", line, extra={_FACTS: facts})


@contextmanager
def attached(
    path: Path | None = None, follow: Follow | None = None, style: LogStyle | None = None
) -> Iterator[None]:
    """Append what is said meanwhile to a file, with its time; `follow` gets each line as well."""
    with ExitStack() as stack:
        if path is not None:
            stack.enter_context(handled(LogFile(path, style or LogStyle())))
        if follow is not None:
            stack.enter_context(handled(Lines(follow)))
        yield


class LogFile(RotatingFileHandler):
    """Writes records to a file that is opened for each of them, so that it may be moved away."""

    def __init__(self, path: Path, style: LogStyle) -> None:
        most, kept = style.most or 0, style.kept
        super().__init__(path, maxBytes=most, backupCount=kept, encoding="utf-8", delay=True)
        self.style = style

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, in a new file if this one is full."""
        try:
            Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            self.handleError(record)
        else:
            super().emit(record)
            self.close()

    def handleError(self, record: logging.LogRecord) -> None:
        """Say that the file cannot be written; nothing else depends on it."""
        print(f"{self.baseFilename} cannot be written ({sys.exc_info()[1]})", file=sys.stderr)

    def format(self, record: logging.LogRecord) -> str:
        """Return a line with its time."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        if not self.style.as_json:
            return f"{now} {_line(record)}"
        level = "warning" if record.levelno >= logging.WARNING else "info"
        said = {"time": now, "level": level, "line": printable(record.getMessage())}
        return json.dumps(said | plain(getattr(record, _FACTS, {})))


def _line(record: logging.LogRecord) -> str:
    level = "warning: " if record.levelno >= logging.WARNING else ""
    return level + printable(record.getMessage())
