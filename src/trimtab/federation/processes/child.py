"""Child processes that are kept alive, and that never outlive this one."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from trimtab import _guard

log = logging.getLogger("trimtab.federation.processes")

_CALM = 60.0  # a child that lived >= this many seconds is started anew without a long pause


class Child:
    """One process, started again when it ends, until `stop`.

    `target` is module:function. Its output goes to a file, unless `piped`: then its standard input
    and output are pipes to us, and the file gets its errors only.
    """

    def __init__(
        self,
        name: str,
        target: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        output: Path,
        piped: bool = False,
    ) -> None:
        self.name, self.piped, self.output = name, piped, output
        self.environment = dict(environment)
        self.command = [sys.executable, "-P", _guard.__file__, str(os.getpid()), target, *arguments]
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._started = self._not_before = 0.0
        self._delay = 0.5

    def start(self) -> None:
        """Start the process in a group of its own; what is left of the one before goes first."""
        if self.process is not None:
            self._reap()
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE if self.piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.piped else output,
                stderr=output,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        self.starts += 1
        self._started = time.monotonic()

    @property
    def pid(self) -> int | None:
        """The process id, while it lives."""
        return self.process.pid if self.alive and self.process else None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def stdin(self) -> IO[bytes]:
        """The pipe to the process."""
        assert self.process is not None
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """The pipe from the process."""
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout

    def tend(self) -> int | None:
        """Start the process again if it has ended; return the code with which it just ended.

        One that fails again and again is started after growing pauses, up to 15 seconds.
        """
        if self.alive:
            return None
        now = time.monotonic()
        if self.process is not None:
            code = self.process.returncode
            self._reap()
            self._delay = min(15.0, self._delay * 2) if now - self._started < _CALM else 0.5
            self._not_before = now + self._delay
            return code
        if now >= self._not_before:
            if self.starts:
                log.info(f"{self.name} is started again.")
            self.start()
        return None

    def interrupt(self) -> None:
        """Ask the process to end, and do not wait; for other threads than the one that reads."""
        process = self.process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    def stop(self, patience: float = 8.0) -> None:
        """End the process and its group: first asked, then told."""
        if self.process is None:
            return
        if self.piped and self.process.stdin:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        for number, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            try:
                self.process.wait(wait)
                break
            except subprocess.TimeoutExpired:
                continue
        self._reap()

    def _reap(self) -> None:
        """Forget the process; what it left in its group ends as well."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.process = None


def tail(path: Path, lines: int = 1) -> str:
    """Return the last lines of a log, as one, for an error message."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    written = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(written[-lines:])[-300:]
