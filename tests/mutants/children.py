"""Work in a forked process, which is ended with all that it has started."""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def in_child(
    work: Callable[[], Any], seconds: float | None = None, *, silent: bool = True
) -> Any | None:
    """Fork, and return what `work()` returns there, as JSON; None if it took too long or died."""
    with TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        child = os.fork()
        if not child:
            os.setsid()
            if silent:
                _silence()
            try:
                answer.write_text(json.dumps(work()))
            finally:
                os._exit(0)
        ended = False
        try:
            ended = _wait(child, seconds)
        finally:
            _end(child)
        return json.loads(answer.read_text()) if ended and answer.exists() else None


def _silence() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _wait(child: int, seconds: float | None) -> bool:
    """Wait until a child has ended, at most so long; tell whether it has."""
    until = None if seconds is None else time.monotonic() + seconds
    while until is None or time.monotonic() < until:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return True
        time.sleep(0.02)
    return False


def _end(child: int) -> None:
    """End a child with all that it has started; first it may end its own children."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGTERM)
        _wait(child, 2.0)
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
