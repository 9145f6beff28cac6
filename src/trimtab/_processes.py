"""Child processes that are kept alive, and that never outlive this one.

One that lives and does nothing is worse than one that has died: a child shows signs of life, and
one that has not been heard of for too long can be ended, and is started again.

Run as a script, it runs a function as a process that ends when its parent does, however the parent
ended: python -P _processes.py PARENT_PID module:function ARGUMENTS…
"""

import contextlib
import ctypes
import importlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

log = logging.getLogger("trimtab.federation.processes")

VARIABLE = "TRIMTAB_SIGN"  # the descriptor of the pipe, in the environment of the child
BEAT = 2.0  # seconds; a process that beats shows a sign every >= 2
_CALM = 60.0  # a child that lived >= this many seconds is started anew without a long pause
_LONGEST = 15.0  # one that did not is started anew after a pause of <= this many seconds
_ASLEEP = 15.0  # if we look > this many seconds after the last look, we were stopped ourselves

_ROUTINE = re.compile(r"INFO|WARNING *: *EXPERIMENTAL")  # lines that Flower always writes
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

_PR_SET_PDEATHSIG = 1


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


class Child:
    """One process, started again when it ends, until `stop`.

    `target` is module:function. Its output goes to a file, unless `piped`: then its standard input
    and output are pipes to us, and the file gets its errors only. `keep` are descriptors that it
    inherits. `shown` is what it has shown of itself.
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
        keep: Sequence[int] = (),
    ) -> None:
        self.name, self.piped, self.output = name, piped, output
        self.keep, self.shown = tuple(keep), dict[str, Any]()
        self.environment = dict(environment)
        self.command = [sys.executable, "-P", __file__, str(os.getpid()), target, *arguments]
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._started = self._not_before = 0.0
        self._delay = 0.5
        self._heard = self._looked = 0.0  # when it was heard of, and when we looked, last
        self._signs: Signs | None = None
        self._of_signs = threading.Lock()  # One thread looks, another one starts and ends it.
        self._used = 0.0  # seconds of a processor, when we saw last that they had grown

    def start(self) -> None:
        """Start the process in a group of its own; what is left of the one before goes first."""
        if self.process is not None:
            self._reap()
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self._close_signs()
        self._signs, self.shown = Signs(), {}
        sign = {VARIABLE: str(self._signs.write)}
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE if self.piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.piped else output,
                stderr=output,
                env={**os.environ, **self.environment, **sign},
                start_new_session=True,
                pass_fds=(*self.keep, self._signs.write),
            )
        self.starts += 1
        self._started = self._heard = self._looked = time.monotonic()

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
        if self.process is not None:
            code = self.process.returncode
            self._reap()
            self.rest()
            return code
        if time.monotonic() >= self._not_before:
            if self.starts:
                log.info(f"{self.name} is started again.")
            try:
                self.start()
            except OSError as error:
                log.warning(f"{self.name} cannot be started ({error}); trying on.")
                self.rest()
        return None

    def rest(self) -> None:
        """Let `tend` wait before it starts the process again, longer each time it fails early."""
        now = time.monotonic()
        calm = now - self._started >= _CALM
        self._delay = 0.5 if calm else min(_LONGEST, self._delay * 2)
        self._not_before = now + self._delay

    def heard(self) -> None:
        """Note that the process has shown that it is well."""
        self._heard = time.monotonic()

    @property
    def silence(self) -> float:
        """Seconds since the process was heard of, while this one was awake."""
        now = time.monotonic()
        if now - self._looked > _ASLEEP:
            self._heard += now - self._looked
        self._looked = now
        if self._take_signs():
            self._heard = now
        return now - self._heard

    def is_stuck(self, seconds: float) -> bool:
        """Tell whether the process has neither been heard of nor computed for so long."""
        if not self.alive or self.silence <= seconds:
            return False
        used = _processor_seconds(self.pid)
        if used is not None and used != self._used:
            self._used = used
            self.heard()
            return False
        return True

    def _take_signs(self) -> bool:
        with self._of_signs:
            signs = self._signs.take() if self._signs else []
        for facts in signs:
            self.shown |= facts
        return bool(signs)

    def kill(self) -> None:
        """End the process at once, however it is stuck; `tend` starts it again."""
        process = self.process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

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
        self._close_signs()

    def _close_signs(self) -> None:
        self._take_signs()
        with self._of_signs:
            if self._signs is not None:
                self._signs.close()
            self._signs = None


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


def _processor_seconds(pid: int | None) -> float | None:
    """Return how long a process has computed; None where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tail(path: Path, lines: int = 1) -> str:
    """Return the last lines of a log that say more than how it goes, as one, for a message."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    text = _COLOURS.sub("", text)
    written = [line.strip() for line in text.splitlines() if line.strip()]
    written = [line for line in written if not _ROUTINE.match(line)] or written
    return " / ".join(written[-lines:])[-300:]


def main() -> None:
    """Tie this process to its parent, then become the function."""
    parent, target, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != int(parent):
        sys.exit(1)
    module, _, function = target.partition(":")
    sys.argv = [target, *arguments]
    getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    main()
