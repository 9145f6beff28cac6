"""A site's main process: it keeps the SuperNode and the worker alive and carries between them."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.supercore.constant import TaskType

from trimtab._files import Lock
from trimtab.federation.log import attached
from trimtab.federation.message import Message
from trimtab.federation.processes.child import Child, tail
from trimtab.federation.processes.ports import free_port, probe
from trimtab.federation.processes.standing import Standing
from trimtab.federation.processes.worker import Ready, Worker, WorkerGone
from trimtab.federation.setup.approval import policy_of
from trimtab.federation.setup.site_folder import SiteFolder, secret
from trimtab.federation.storage.files import private_folder
from trimtab.federation.transport.flower import api
from trimtab.federation.transport.flower.site import (
    Superseded,
    answer,
    supernode_arguments,
    take,
)

log = logging.getLogger("trimtab.federation.processes")

_POLL = 0.1  # a task waits <= this many seconds until it is asked for
_PROBE = 5.0  # a server that is away is looked for every >= 5 seconds


@dataclass(frozen=True)
class AnsweredRequest:
    """A request that was answered."""

    kind: str
    round: int | None
    status: str
    seconds: float
    why: str


class SiteProcess:
    """A site while it runs; `requests()` goes on until `stop` is set."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.site_folder = SiteFolder.read(folder)
        policy_of(self.site_folder)  # written and shown if there is none; the worker holds to it
        self.stop = threading.Event()
        self._lock = Lock(private_folder(folder / "run"))
        self.port, logs = free_port(), folder / "logs"
        self.secret = secret(folder)
        environment = api.environment(folder / "flower")
        arguments = supernode_arguments(self.site_folder.server, self.port, folder, self.secret)
        self.supernode = Child(
            "the SuperNode",
            "flwr.supernode.cli:flower_supernode",
            arguments,
            environment=environment,
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
        Standing(self.site_folder.folder, self.site_folder.server, self.stop).start()
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
                message, context = take(tasks, client, self.stop)
                try:
                    request = api.unpack(message.content)
                except ValueError as error:
                    log.warning(f"refused a request of the server: {error}")
                    return None, None
                reply = self._answer(request)
                if reply is None:
                    return None, None
                answer(client, message, context, reply)
        except Superseded as next_:
            return None, next_.token
        except Exception as error:
            if not self.stop.is_set():
                log.warning(f"a request was lost on its way ({type(error).__name__}: {error}).")
            return None, None
        seconds = time.monotonic() - started
        header = request.header | reply.header
        answered = AnsweredRequest(
            str(header.get("kind")),
            header.get("r"),
            str(header.get("status")),
            seconds,
            str(header.get("why", "")),
        )
        return answered, None

    def _answer(self, request: Message) -> Message | None:
        """Ask the worker; if it dies, ask the next one."""
        while not self.stop.is_set():
            try:
                return self.worker.answer(request)
            except WorkerGone:
                if self.stop.is_set():
                    break
                log.warning("the worker died; it is started again and asked once more.")
                self._revive()
        return None

    def _revive(self) -> None:
        while not self.stop.is_set():
            self.worker.child.tend()
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

    def _tend(self) -> None:
        """Keep the SuperNode alive; say what keeps it from the server."""
        before, looked = "", -_PROBE
        while not self.stop.wait(0.2):
            if self.supernode.alive:
                continue
            code = self.supernode.tend() if self.supernode.process else None
            if code is not None:
                why = tail(self.supernode.output)
                log.warning(f"the SuperNode ended ({why}); it is started again soon.")
            if time.monotonic() - looked < _PROBE:
                continue
            looked = time.monotonic()
            trouble = probe(self.site_folder.server, self.site_folder.folder / "ca.crt")
            if trouble and trouble != before:
                log.warning(trouble)
            elif before and not trouble:
                log.info(f"the server at {self.site_folder.server} can be reached again.")
            before = trouble
            if not trouble:
                self.supernode.tend()
        self.worker.child.interrupt()  # whatever it is at: nothing is lost


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
