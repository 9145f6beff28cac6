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

HEARTBEAT_FD = "TRIMTAB_HEARTBEAT_FD"  # environment variable: the pipe's file descriptor
HEARTBEAT_SECONDS = 2.0
STABLE_SECONDS = 60.0  # a child that ran this long restarts without a growing delay
FIRST_DELAY, MAX_DELAY = 0.5, 15.0  # seconds before a restart; doubled after each early exit
SUSPENDED_SECONDS = 15.0  # between two polls: this process itself was stopped (laptop, SIGSTOP)

_ROUTINE = re.compile(r"INFO|WARNING *: *EXPERIMENTAL")  # lines that Flower always writes
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

PR_SET_PDEATHSIG = 1


def report_status(**facts: Any) -> None:
    """Show the parent that this process is well, and some facts about it."""
    if HEARTBEAT_FD in os.environ:
        with contextlib.suppress(OSError):
            os.write(int(os.environ[HEARTBEAT_FD]), json.dumps(facts).encode() + b"\n")


def start_heartbeat() -> None:
    """Show a sign every so often, in a thread of its own, as long as this process lives."""

    def beat() -> None:
        pause = threading.Event()
        while not pause.wait(HEARTBEAT_SECONDS):
            report_status()

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()


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
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name, self.piped, self.output = name, piped, output
        self.pass_fds, self.status = tuple(pass_fds), dict[str, Any]()
        self.environment = dict(environment)
        self.command = [sys.executable, "-P", __file__, str(os.getpid()), target, *arguments]
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._started = self._restart_after = 0.0
        self._delay = FIRST_DELAY
        self._last_heartbeat = self._last_poll = 0.0
        self._pipe: _HeartbeatPipe | None = None
        self._pipe_lock = threading.Lock()  # One thread looks, another one starts and ends it.
        self._last_cpu_seconds = 0.0  # seconds of a processor, when we saw last that they had grown

    def start(self) -> None:
        """Start the process in a group of its own; what is left of the one before goes first."""
        if self.process is not None:
            self._forget_process()
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self._close_pipe()
        self._pipe, self.status = _HeartbeatPipe(), {}
        heartbeat = {HEARTBEAT_FD: str(self._pipe.write_end)}
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE if self.piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.piped else output,
                stderr=output,
                env={**os.environ, **self.environment, **heartbeat},
                start_new_session=True,
                pass_fds=(*self.pass_fds, self._pipe.write_end),
            )
        self.starts += 1
        self._started = self._last_heartbeat = self._last_poll = time.monotonic()

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

    def supervise(self) -> int | None:
        """Start the process again if it has ended; return the code with which it just ended.

        One that fails again and again is started after growing pauses, up to 15 seconds.
        """
        if self.alive:
            return None
        if self.process is not None:
            code = self.process.returncode
            self._forget_process()
            self.back_off()
            return code
        if time.monotonic() >= self._restart_after:
            if self.starts:
                log.info(f"{self.name} is started again.")
            try:
                self.start()
            except OSError as error:
                log.warning(f"{self.name} cannot be started ({error}); trying on.")
                self.back_off()
        return None

    def back_off(self) -> None:
        """Let `tend` wait before it starts the process again, longer each time it fails early."""
        now = time.monotonic()
        stable = now - self._started >= STABLE_SECONDS
        self._delay = FIRST_DELAY if stable else min(MAX_DELAY, self._delay * 2)
        self._restart_after = now + self._delay

    def record_heartbeat(self) -> None:
        """Note that the process has shown that it is well."""
        self._last_heartbeat = time.monotonic()

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds since the process was heard of, while this one was awake."""
        now = time.monotonic()
        if now - self._last_poll > SUSPENDED_SECONDS:
            self._last_heartbeat += now - self._last_poll
        self._last_poll = now
        if self._read_heartbeats():
            self._last_heartbeat = now
        return now - self._last_heartbeat

    def is_hung(self, seconds: float) -> bool:
        """Tell whether the process has neither been heard of nor computed for so long."""
        if not self.alive or self.seconds_since_heartbeat <= seconds:
            return False
        cpu_seconds = _cpu_seconds(self.pid)
        if cpu_seconds is not None and cpu_seconds != self._last_cpu_seconds:
            self._last_cpu_seconds = cpu_seconds
            self.record_heartbeat()
            return False
        return True

    def _read_heartbeats(self) -> bool:
        with self._pipe_lock:
            reports = self._pipe.read() if self._pipe else []
        for facts in reports:
            self.status |= facts
        return bool(reports)

    def kill(self) -> None:
        """End the process at once, however it is stuck; `tend` starts it again."""
        process = self.process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def terminate(self) -> None:
        """Ask the process to end, and do not wait; for other threads than the one that reads."""
        process = self.process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    def stop(self, timeout: float = 8.0) -> None:
        """End the process and its group: first asked, then told."""
        if self.process is None:
            return
        if self.piped and self.process.stdin:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        for number, wait in ((signal.SIGTERM, timeout), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            try:
                self.process.wait(wait)
                break
            except subprocess.TimeoutExpired:
                continue
        self._forget_process()

    def _forget_process(self) -> None:
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
        self._close_pipe()

    def _close_pipe(self) -> None:
        self._read_heartbeats()
        with self._pipe_lock:
            if self._pipe is not None:
                self._pipe.close()
            self._pipe = None


class _HeartbeatPipe:
    """The parent's end of the pipe."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        for end in (self._read_end, self.write_end):
            os.set_blocking(end, False)

    def read(self) -> list[dict[str, Any]]:
        """Return what was shown since the last look."""
        content = b""
        with contextlib.suppress(OSError):
            while part := os.read(self._read_end, 1 << 16):
                content += part
        reports = []
        for line in content.splitlines():
            with contextlib.suppress(ValueError):
                reports.append(dict(json.loads(line)))
        return reports

    def close(self) -> None:
        """Close both ends that are ours."""
        for end in (self._read_end, self.write_end):
            with contextlib.suppress(OSError):
                os.close(end)


def _cpu_seconds(pid: int | None) -> float | None:
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
    text = _COLOUR.sub("", text)
    written = [line.strip() for line in text.splitlines() if line.strip()]
    written = [line for line in written if not _ROUTINE.match(line)] or written
    return " / ".join(written[-lines:])[-300:]


def _run_child() -> None:
    """Tie this process to its parent, then become the function."""
    parent, target, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != int(parent):
        sys.exit(1)
    module, _, function = target.partition(":")
    sys.argv = [target, *arguments]
    getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    _run_child()
