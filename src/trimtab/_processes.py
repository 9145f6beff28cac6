"""Child processes: started, watched by heartbeats, restarted, and never orphaned.

The worker processes of `compare` and the processes of a federation are run by this module alone.
Both sides are here. The parent holds a `Child`. The child calls `start_heartbeat`,
which writes to a pipe that it inherits. A process that hangs is worse than one that has crashed,
because nothing restarts it; `Child.is_hung` finds it by its missing heartbeats.

Run as a script, this file starts a function and ties its process to the parent:
python -P _processes.py PARENT_PID module:function ARGUMENTS…
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

# Federations write this logger to their log files; no other caller restarts processes.
log = logging.getLogger("trimtab.federation.processes")

HEARTBEAT_FD = "TRIMTAB_HEARTBEAT_FD"  # environment variable: the pipe's file descriptor
# A federation takes a process for hung after 30 s, so that some heartbeats may be lost.
HEARTBEAT_SECONDS = 2.0
# Restarts are delayed by 0.5 s, doubled after each early exit up to 15 s, so that a process that
# cannot start does not keep a core busy. One that ran for a minute is not failing at its start.
STABLE_SECONDS = 60.0
FIRST_DELAY, MAX_DELAY = 0.5, 15.0
# Callers poll several times per second. A long pause means that this process was suspended itself
# (a closed laptop, SIGSTOP), and its children are not to blame for missing heartbeats.
SUSPENDED_SECONDS = 15.0

_ROUTINE = re.compile(r"INFO|WARNING *: *EXPERIMENTAL")  # lines that Flower always writes
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


# -- in the child


def start_heartbeat() -> None:
    """Send heartbeats from a daemon thread for as long as this process lives."""
    if HEARTBEAT_FD not in os.environ:
        return

    def beat() -> None:
        never, pipe = threading.Event(), int(os.environ[HEARTBEAT_FD])
        while not never.wait(HEARTBEAT_SECONDS):
            # The pipe does not block. If the parent does not read it, heartbeats are dropped.
            with contextlib.suppress(OSError):
                os.write(pipe, b".")

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()


class Teller(logging.Handler):
    """Writes facts and log records to a pipe, one JSON object per line, for `json_lines`."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self.out = out

    @classmethod
    def of_stdout(cls) -> "Teller":
        """Take stdout for itself; what others print from now on goes to stderr."""
        out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        return cls(out)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().rstrip(".") + "."
        self.tell(event="line", line=line, warning=record.levelno >= logging.WARNING)

    def tell(self, **facts: Any) -> None:
        with self.lock or contextlib.nullcontext():
            self.out.write(json.dumps(facts) + "\n")
            self.out.flush()


# -- in the parent


class Child:
    """A process that `supervise` restarts whenever it exits, until `stop` is called.

    target: module:function, called without arguments; its command line is `arguments`.
    output: the file that stdout and stderr are appended to; None (default): those of this process.
    piped: connect stdin and stdout to this process instead; `output` then gets stderr only.
    pass_fds: file descriptors that the child inherits.

    One thread may call `supervise`, `start` and `stop` while others read heartbeats and `send`.
    """

    def __init__(
        self,
        name: str,
        target: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        output: Path | None = None,
        piped: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name, self.piped, self.output = name, piped, output
        self.pass_fds, self.environment = tuple(pass_fds), dict(environment)
        self.command = [sys.executable, "-P", __file__, str(os.getpid()), target, *arguments]
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._started = self._restart_after = 0.0
        self._written = 0  # bytes of `output` that are of processes before this one
        self._delay = FIRST_DELAY
        self._last_heartbeat = self._last_poll = 0.0
        self._last_cpu_seconds = 0.0
        self._pipe: _HeartbeatPipe | None = None
        self._pipe_lock = threading.Lock()
        self._send_lock = threading.Lock()

    def start(self) -> None:
        """Start the process in a new session, after killing what is left of the last one."""
        if self.process is not None:
            self._forget_process()
        self._close_pipe()
        self._pipe = _HeartbeatPipe()
        heartbeat = {HEARTBEAT_FD: str(self._pipe.write_end)}
        with self._open_output() as output:
            self._written = output.tell() if output else 0
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

    def _open_output(self) -> contextlib.AbstractContextManager[IO[bytes] | None]:
        if self.output is None:
            return contextlib.nullcontext()
        self.output.parent.mkdir(parents=True, exist_ok=True)
        return open(self.output, "ab")

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id; None if the process is not running."""
        return self.process.pid if self.alive and self.process else None

    @property
    def stdin(self) -> IO[bytes]:
        assert self.process is not None
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout

    def send(self, message: Mapping[str, Any]) -> bool:
        """Write a JSON line to the child's stdin; return False if the child has exited."""
        with self._send_lock:
            # Another thread may forget the process meanwhile, and close its stdin.
            process = self.process
            if process is None or process.stdin is None:
                return False
            try:
                process.stdin.write(json.dumps(message).encode() + b"\n")
                process.stdin.flush()
            except (OSError, ValueError):
                return False
        return True

    # -- supervision

    def supervise(self) -> int | None:
        """Restart the process if it has exited; return its exit code right after it did.

        Call this in a loop. A process that keeps exiting early restarts after growing delays.
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
                log.warning(f"{self.name} cannot be started ({error}); retrying.")
                self.back_off()
        return None

    def back_off(self) -> None:
        """Delay the next restart, longer after each early exit."""
        now = time.monotonic()
        stable = now - self._started >= STABLE_SECONDS
        self._delay = FIRST_DELAY if stable else min(MAX_DELAY, self._delay * 2)
        self._restart_after = now + self._delay

    def record_heartbeat(self) -> None:
        """Count evidence from elsewhere, such as an answered request, as a heartbeat."""
        self._last_heartbeat = time.monotonic()

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds without a heartbeat, not counting time in which this process was suspended."""
        now = time.monotonic()
        if now - self._last_poll > SUSPENDED_SECONDS:
            self._last_heartbeat += now - self._last_poll
        self._last_poll = now
        with self._pipe_lock:
            if self._pipe and self._pipe.read():
                self._last_heartbeat = now
        return now - self._last_heartbeat

    def is_hung(self, timeout: float) -> bool:
        """Return whether the process neither sent a heartbeat nor used any CPU for `timeout`.

        A long computation that holds the GIL sends no heartbeats but uses CPU time.
        """
        if not self.alive or self.seconds_since_heartbeat <= timeout:
            return False
        cpu_seconds = _cpu_seconds(self.pid)
        if cpu_seconds is not None and cpu_seconds != self._last_cpu_seconds:
            self._last_cpu_seconds = cpu_seconds
            self.record_heartbeat()
            return False
        return True

    def last_words(self, code: int) -> str:
        """Return how the process ended: by which signal, or with which code and last line.

        >>> Child("it", "a:b", [], environment={}).last_words(-9)
        'killed by SIGKILL'
        """
        if code < 0:
            known = {number.value: number.name for number in signal.Signals}
            return f"killed by {known.get(-code, f'signal {-code}')}"
        said = tail(self.output, since=self._written)
        return f"exit code {code}" + (f": {said}" if said else "")

    # -- ending it

    def kill(self) -> None:
        """Send SIGKILL to the process group and wait; `supervise` restarts the process."""
        process = self.process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def terminate(self) -> None:
        """Send SIGTERM; safe to call from any thread.

        The process alone gets the signal: until it exits it may need its own children.
        """
        process = self.process
        if process is not None:
            process.terminate()

    def request_stop(self) -> None:
        """Close the child's stdin and send SIGTERM, without waiting."""
        if self.process is not None and self.process.stdin:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        self.terminate()

    def wait(self) -> int:
        """Wait until the process exits, without a time limit; return its exit code."""
        assert self.process is not None
        code = self.process.wait()
        self._forget_process()
        return code

    def stop(self, timeout: float = 8.0) -> None:
        """End the process for good: `request_stop`, then SIGKILL after `timeout` seconds."""
        if self.process is None:
            return
        self.request_stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        self._forget_process()

    def _forget_process(self) -> None:
        """Forget the process, and kill the processes that it left in its group."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        self.process = None
        self._close_pipe()

    def _close_pipe(self) -> None:
        with self._pipe_lock:
            if self._pipe is not None:
                self._pipe.close()
            self._pipe = None


class _HeartbeatPipe:
    """A non-blocking pipe from a child."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        for end in (self._read_end, self.write_end):
            os.set_blocking(end, False)

    def read(self) -> bool:
        """Empty the pipe; return whether there was something in it."""
        found = False
        with contextlib.suppress(OSError):
            while os.read(self._read_end, 1 << 16):
                found = True
        return found

    def close(self) -> None:
        for end in (self._read_end, self.write_end):
            with contextlib.suppress(OSError):
                os.close(end)


def json_lines(pipe: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the messages that a child writes to its stdout, one per line, until it exits."""
    # A killed process may leave half a line, and another thread may close the pipe.
    with contextlib.suppress(OSError, ValueError):
        for line in pipe:
            yield json.loads(line)


def _cpu_seconds(pid: int | None) -> float | None:
    """Return the CPU time that a process has used; None where /proc does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tail(path: Path | None, lines: int = 1, since: int = 0) -> str:
    """Return the last lines of a log as one, for an error message, without routine lines.

    since: bytes at the beginning of the log that do not count, since another process wrote them.
    """
    if path is None:
        return ""
    try:
        text = path.read_bytes()[since:].decode("utf-8", errors="replace")
    except OSError:
        return ""
    written = [line.strip() for line in _COLOUR.sub("", text).splitlines() if line.strip()]
    written = [line for line in written if not _ROUTINE.match(line)] or written
    return " / ".join(written[-lines:])[-300:]


# -- as a script


def _run_child() -> None:
    """Ask the kernel for SIGTERM when the parent dies, then call the target."""
    parent, target, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # from <sys/prctl.h>
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGTERM))
    if os.getppid() != int(parent):  # The parent died before prctl took effect.
        sys.exit(1)
    module, _, function = target.partition(":")
    sys.argv = [target, *arguments]
    getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    _run_child()
