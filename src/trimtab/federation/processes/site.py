"""A site's main process: it has the line to the server, and keeps the worker alive."""

import ctypes
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab._files import Lock
from trimtab._processes import Child
from trimtab.federation.log import attached
from trimtab.federation.message import decode_header
from trimtab.federation.processes.ports import check_proxy
from trimtab.federation.processes.worker import Ready, Worker, WorkerGone
from trimtab.federation.setup.approval import policy_of
from trimtab.federation.setup.site import SiteFolder
from trimtab.federation.storage.files import private_folder
from trimtab.federation.transport.flower.line import Line, Request
from trimtab.federation.transport.flower.objects import HEADER_DOWN, HEADER_UP, Parcel

log = logging.getLogger("trimtab.federation.processes")

_TRIES = 4  # a request at which >= 4 workers have died is given up
_STUCK = 30.0  # a worker that neither beats nor computes for > 30 seconds is ended


@dataclass(frozen=True)
class AnsweredRequest:
    """A request that was answered."""

    kind: str
    round: int | None
    status: str
    seconds: float
    why: str


def _give_memory_back() -> None:
    """Let glibc return blocks of >= 1 MiB at once; its threads would keep some chunks each."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD
        mallopt(-8, 2)  # M_ARENA_MAX


class SiteProcess:
    """A site while it runs; `requests()` goes on until `stop` is set."""

    def __init__(self, folder: Path, data: Path, proxy: str | None = None) -> None:
        _give_memory_back()
        self.site_folder = SiteFolder.read(folder)
        policy_of(self.site_folder)  # written and shown if there is none; the worker holds to it
        if proxy is not None:
            check_proxy(proxy)
        self.stop = threading.Event()
        self.folder = private_folder(folder / "run")
        self._lock = Lock(self.folder)
        self.line = Line(
            self.site_folder.server,
            folder / "ca.crt",
            folder / "site.key",
            self.folder,
            self.stop,
            proxy,
        )
        self.worker = Worker(
            Child(
                "the worker",
                "trimtab.federation.processes.worker:main",
                [str(folder), str(data)],
                environment={},
                output=folder / "logs" / "worker.log",
                piped=True,
            )
        )

    def start(self) -> Ready | None:
        """Let the worker read the data; return how many there are, None if it was stopped.

        A worker that dies without a reason, as one does that the system ends for want of memory, is
        started again; a ValueError is the reason that it reported.
        """
        while not self.stop.is_set():
            self.worker.child.supervise()
            if not self.worker.child.alive:
                self.stop.wait(0.1)
                continue
            try:
                return self.worker.ready()
            except WorkerGone as gone:
                log.warning(f"the worker ended while it started ({gone}); it is started again.")
        return None

    def requests(self) -> Iterator[AnsweredRequest]:
        """Answer what the server asks, and keep everything alive meanwhile."""
        tender = threading.Thread(target=self._tend, name="tender", daemon=True)
        tender.start()
        try:
            for request in self.line.requests():
                started = time.monotonic()
                with closing(request.parcel):
                    reply, answered = self._reply(request)
                self.line.answer(request, reply)
                if isinstance(reply, Parcel):
                    reply.close()
                if answered is not None:
                    yield replace(answered, seconds=time.monotonic() - started)
        finally:
            self.stop.set()
            tender.join()

    def close(self) -> None:
        """End all processes."""
        self.line.close()
        self.worker.child.stop()
        self._lock.release()

    def _reply(self, request: Request) -> tuple[Parcel | str, AnsweredRequest | None]:
        """Return the reply to a request, or why there is none."""
        if self.line.is_over(request):
            log.info("a request came after its round was closed; it is skipped.")
            return "its round is closed", None
        try:
            header = decode_header(request.parcel.header, HEADER_DOWN)
        except ValueError as error:
            log.warning(f"refused a request of the server: {error}")
            return str(error), None
        reply = self._answer(request.parcel)
        if isinstance(reply, str):
            return reply, None
        header |= decode_header(reply.header, HEADER_UP)
        facts = str(header.get("kind")), header.get("r"), str(header.get("status"))
        return reply, AnsweredRequest(*facts, 0.0, str(header.get("why", "")))

    def _answer(self, request: Parcel) -> Parcel | str:
        """Ask the worker; if it dies, ask the next one. A string says why there is no reply."""
        for _ in range(_TRIES):
            if self.stop.is_set():
                break
            try:
                return self.worker.answer(request, self.folder)
            except WorkerGone as gone:
                if self.stop.is_set():
                    break
                log.warning(f"the worker died ({gone}); it is started again and asked once more.")
                self._revive()
        if self.stop.is_set():
            return "the site is stopping"
        log.warning(f"{_TRIES} workers died at one request; it is answered without a result.")
        return f"its worker died {_TRIES} times at this request"

    def _revive(self) -> None:
        while not self.stop.is_set():
            try:
                self.start()
                return
            except ValueError as error:
                log.warning(f"the worker cannot start: {error}")
                self.worker.child.back_off()

    def _tend(self) -> None:
        """See that the worker moves."""
        while not self.stop.wait(0.2):
            if self.worker.child.is_hung(_STUCK):
                log.warning(
                    f"the worker has not moved for {_STUCK:g} seconds; it is ended and started "
                    "again."
                )
                self.worker.child.kill()
        self.worker.child.terminate()  # whatever it is at: nothing is lost


def main() -> None:
    """Be a site until SIGTERM. Arguments: the site's folder, the data."""
    folder, data = Path(sys.argv[1]), Path(sys.argv[2])
    with attached(folder / "logs" / "site.log", print):
        process = SiteProcess(folder, data)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: process.stop.set())
        try:
            serve(process)
        finally:
            process.close()


def serve(process: SiteProcess, note: Callable[[AnsweredRequest], None] | None = None) -> None:
    """Read the data, then answer until the end; say so, and have each answer noted."""
    ready = process.start()
    if ready is None:
        return
    name, server = process.site_folder.name, process.site_folder.server
    log.info(f"site {name}: {ready.n} samples, {ready.tested} to test on.")
    log.info(f"connecting to {server}; stop with Ctrl-C, start again at any time.")
    for answered in process.requests():
        round_ = f" of round {answered.round}" if answered.round else ""
        why = f" ({answered.why})" if answered.why else ""
        log.info(f"{answered.kind}{round_}: {answered.status} in {answered.seconds:.1f} s{why}")
        if note is not None:
            note(answered)
