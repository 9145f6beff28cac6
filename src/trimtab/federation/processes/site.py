"""A site's main process: it keeps the SuperNode and the worker alive and carries between them."""

import ctypes
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from flwr.supercore.constant import TaskType

from trimtab._files import Lock
from trimtab._processes import Child, tail
from trimtab.federation.log import attached
from trimtab.federation.message import decode
from trimtab.federation.processes.ports import Proxy, free_port, probe, proxy_of
from trimtab.federation.processes.standing import Standing
from trimtab.federation.processes.worker import Ready, Worker, WorkerGone
from trimtab.federation.setup.approval import policy_of
from trimtab.federation.setup.site import SiteFolder, secret
from trimtab.federation.storage.files import private_folder
from trimtab.federation.transport.flower import api
from trimtab.federation.transport.flower.clocks import Clocks
from trimtab.federation.transport.flower.parcel import Parcel
from trimtab.federation.transport.flower.site import (
    Superseded,
    answer,
    is_over,
    supernode_arguments,
    supernode_environment,
    take,
)

log = logging.getLogger("trimtab.federation.processes")

_TRIES = 4  # a request at which >= 4 workers have died is given up
_POLL = 0.1  # a task waits <= this many seconds until it is asked for
_PROBE = 5.0  # a server that is away is looked for every >= 5 seconds
_QUIET = 30.0  # if the server has not answered for > 30 seconds, the way to it is looked at
_DEAF = 90.0  # if that is open, a SuperNode that was not answered for > 90 seconds is ended
_START = 300.0  # one that is starting may take <= 300 seconds until it is answered
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
        self.proxy = None if proxy is None else proxy_of(proxy)
        self.stop = threading.Event()
        self.folder = private_folder(folder / "run")
        self._lock = Lock(self.folder)
        self.port, logs = free_port(), folder / "logs"
        self.secret = secret(folder)
        self.clocks = Clocks("this machine's", "the server's")
        arguments = supernode_arguments(self.site_folder.server, self.port, folder, self.secret)
        self.supernode = Child(
            "the SuperNode",
            "trimtab.federation.transport.flower.supernode:main",
            arguments,
            environment=supernode_environment(folder, proxy),
            output=logs / "supernode.log",
        )
        self.worker = Worker(
            Child(
                "the worker",
                "trimtab.federation.processes.worker:main",
                [str(folder), str(data)],
                environment={},
                output=logs / "worker.log",
                piped=True,
            )
        )

    def start(self) -> Ready:
        """Let the worker read the data; return how many there are."""
        try:
            return self.worker.start()
        except WorkerGone:
            output = self.worker.child.output
            raise ValueError(f"the worker ended ({tail(output)}); see {output}.") from None

    def requests(self) -> Iterator[AnsweredRequest]:
        """Answer what the server asks, and keep everything alive meanwhile."""
        tender = threading.Thread(target=self._tend, name="tender", daemon=True)
        tender.start()
        where = self.site_folder.folder, self.site_folder.server
        Standing(*where, self.stop, self.proxy).start()
        tasks = api.Tasks(TaskType.CLIENT_APP, self.port, self.secret, authority=None)
        try:
            while not self.stop.is_set():
                try:
                    token = tasks.acquire()
                except (httpx.HTTPError, OSError):  # the SuperNode is not there yet
                    token = None
                if token is None:
                    self.stop.wait(_POLL)
                while token is not None:
                    answered, token = self._run(tasks, token)
                    if answered is not None:
                        yield answered
        finally:
            self.stop.set()
            tender.join()
            tasks.close()

    def close(self) -> None:
        """End all processes."""
        self.stop.set()
        self.supernode.stop()
        self.worker.child.stop()
        self._lock.release()

    def _run(self, tasks: api.Tasks, token: str) -> tuple[AnsweredRequest | None, str | None]:
        """Carry one request to the worker and its reply back; return the next task if it is known.

        Whatever happens on the way, the site lives on: the server asks again.
        """
        started = time.monotonic()
        try:
            with tasks.work(token) as client:
                message, parcel, context = take(tasks, client, self.folder, self.stop)
                with closing(parcel):
                    reply, answered = self._reply(message, parcel)
                with closing(reply) if isinstance(reply, Parcel) else nullcontext():
                    answer(client, message, context, reply)
        except Superseded as next_:
            return None, next_.token
        except Exception as error:
            if not self.stop.is_set():
                log.warning(
                    f"a request was lost on its way ({type(error).__name__}: {error}); the "
                    "SuperNode, which waits for its reply, is started again."
                )
                self.supernode.terminate()
            return None, None
        if answered is not None:
            answered = replace(answered, seconds=time.monotonic() - started)
        return answered, None

    def _reply(self, message: Any, parcel: Parcel) -> tuple[Parcel | str, AnsweredRequest | None]:
        """Return the reply to a request, or why there is none; a SuperNode waits for either."""
        if is_over(message, self.clocks.ahead):
            log.info("a request came after its round was closed; it is skipped.")
            return "its round is closed", None
        try:
            header = decode(parcel.header).header
        except ValueError as error:
            log.warning(f"refused a request of the server: {error}")
            return str(error), None
        reply = self._answer(parcel)
        if isinstance(reply, str):
            return reply, None
        header |= decode(reply.header).header
        facts = str(header.get("kind")), header.get("r"), str(header.get("status"))
        return reply, AnsweredRequest(*facts, 0.0, str(header.get("why", "")))

    def _answer(self, request: Parcel) -> Parcel | str:
        """Ask the worker; if it dies, ask the next one. A string says why there is no reply."""
        for _ in range(_TRIES):
            if self.stop.is_set():
                break
            try:
                return self.worker.answer(request, self.folder)
            except WorkerGone:
                if self.stop.is_set():
                    break
                log.warning("the worker died; it is started again and asked once more.")
                self._revive()
        if self.stop.is_set():
            return "the site is stopping"
        log.warning(f"{_TRIES} workers died at one request; it is answered without a result.")
        return f"its worker died {_TRIES} times at this request"

    def _revive(self) -> None:
        while not self.stop.is_set():
            self.worker.child.supervise()
            if not self.worker.child.alive:
                self.stop.wait(0.2)
                continue
            try:
                self.worker.start()
                return
            except WorkerGone:
                continue
            except ValueError as error:
                log.warning(f"the worker cannot start: {error}")
                self.worker.child.back_off()

    def _tend(self) -> None:
        """Keep the SuperNode alive and in touch with the server, and the worker at work."""
        way = _Way(self.site_folder, self.proxy)
        while not self.stop.wait(0.2):
            self._tend_supernode(way)
            if self.worker.child.is_hung(_STUCK):
                log.warning(
                    f"the worker has not moved for {_STUCK:g} seconds; it is ended and started "
                    "again."
                )
                self.worker.child.kill()
        self.worker.child.terminate()  # whatever it is at: nothing is lost

    def _tend_supernode(self, way: "_Way") -> None:
        silence = self.supernode.seconds_since_heartbeat
        self.clocks.note(self.supernode.status.get("ahead"))
        if self.supernode.alive and silence <= _QUIET:
            return
        if self.supernode.process is not None and self.supernode.supervise() is not None:
            self.clocks.note(self.supernode.status.get("ahead"))
            why = tail(self.supernode.output)
            log.warning(f"the SuperNode ended ({why}); it is started again soon.")
        way.look()
        if not self.supernode.alive:
            if way.open_for >= 0:
                self.supernode.supervise()
        elif silence > (_DEAF if self.supernode.status else _START) and way.open_for > _QUIET:
            log.warning(
                f"the SuperNode has not reached the server for {silence:.0f} seconds, which can be "
                "reached; it is ended and started again."
            )
            self.supernode.kill()


class _Way:
    """The way to the server, looked at every few seconds; what is wrong with it is said once."""

    def __init__(self, site_folder: SiteFolder, proxy: Proxy | None) -> None:
        self.server, self.authority = site_folder.server, site_folder.folder / "ca.crt"
        self.proxy = proxy
        self._before, self._looked = "", -_PROBE
        self._opened: float | None = None  # since when it has been open, look by look

    @property
    def open_for(self) -> float:
        """For how many seconds the way has been open; < 0 if it is not."""
        return -1.0 if self._opened is None else time.monotonic() - self._opened

    def look(self) -> None:
        """Try the way, if that was not done just before."""
        now = time.monotonic()
        if now - self._looked < _PROBE:
            return
        trouble = probe(self.server, self.authority, proxy=self.proxy)
        if trouble and trouble != self._before:
            log.warning(trouble)
        elif self._before and not trouble:
            log.info(f"the server at {self.server} can be reached again.")
        if trouble:
            self._opened = None
        elif self._opened is None or now - self._looked > 4 * _PROBE:  # nobody has looked for long
            self._opened = time.monotonic()
        self._before, self._looked = trouble, time.monotonic()


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
    name, server = process.site_folder.name, process.site_folder.server
    log.info(f"site {name}: {ready.n} samples, {ready.tested} to test on.")
    log.info(f"connecting to {server}; stop with Ctrl-C, start again at any time.")
    for answered in process.requests():
        round_ = f" of round {answered.round}" if answered.round else ""
        why = f" ({answered.why})" if answered.why else ""
        log.info(f"{answered.kind}{round_}: {answered.status} in {answered.seconds:.1f} s{why}")
        if note is not None:
            note(answered)
