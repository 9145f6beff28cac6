"""Lines for people: what happened, when, in a file and to whoever follows."""

import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

Follow = Callable[[str], None]


class Log:
    """A file of lines with their time; `follow` gets each line as well."""

    def __init__(self, path: Path | None = None, follow: Follow | None = None) -> None:
        self.path, self.follow = path, follow
        self._lock = threading.Lock()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def say(self, line: str) -> None:
        """Write a line."""
        self._write("", line)

    def warn(self, line: str) -> None:
        """Write a line that somebody should read."""
        self._write("warning: ", line)

    def _write(self, level: str, line: str) -> None:
        with self._lock:
            if self.path is not None:
                now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
                try:
                    with open(self.path, "a", encoding="utf-8") as file:
                        file.write(f"{now} {level}{line}\n")
                except OSError as error:
                    print(f"{self.path} cannot be written ({error})", file=sys.stderr)
            if self.follow is not None:
                self.follow(level + line)
