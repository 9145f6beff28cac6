"""Signs of life: what a process shows its parent while it is well, through a pipe of their own.

A parent that does not look is no trouble: what does not fit into the pipe is not shown.
"""

import contextlib
import json
import os
import threading
from typing import Any

VARIABLE = "TRIMTAB_SIGN"  # the descriptor of the pipe, in the environment of the child
BEAT = 2.0  # seconds; a process that beats shows a sign every >= 2


def show(**facts: Any) -> None:
    """Show the parent that this process is well, and some facts about it."""
    if VARIABLE in os.environ:
        with contextlib.suppress(OSError):
            os.write(int(os.environ[VARIABLE]), json.dumps(facts).encode() + b"\n")


def beat() -> None:
    """Show a sign every so often, in a thread of its own, as long as this process lives."""

    def go_on() -> None:
        pause = threading.Event()
        while not pause.wait(BEAT):
            show()

    threading.Thread(target=go_on, name="beat", daemon=True).start()


class Signs:
    """The parent's end of the pipe."""

    def __init__(self) -> None:
        self._read, self.write = os.pipe()
        for end in (self._read, self.write):
            os.set_blocking(end, False)

    def take(self) -> list[dict[str, Any]]:
        """Return what was shown since the last look."""
        content = b""
        with contextlib.suppress(OSError):
            while part := os.read(self._read, 1 << 16):
                content += part
        found = []
        for line in content.splitlines():
            with contextlib.suppress(ValueError):
                found.append(dict(json.loads(line)))
        return found

    def close(self) -> None:
        """Close both ends that are ours."""
        for end in (self._read, self.write):
            with contextlib.suppress(OSError):
                os.close(end)
