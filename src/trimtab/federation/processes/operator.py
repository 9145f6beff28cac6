"""The operator's main process: it keeps the SuperLink and the rounds alive."""

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import httpx

from trimtab._files import Lock, write_json
from trimtab._processes import Child, json_lines
from trimtab.errors import BadArgument
from trimtab.federation.events import (
    Ended,
    Event,
    Failed,
    Line,
    ReplySize,
    RoundCommitted,
    from_json,
    round_text,
    to_json,
)
from trimtab.federation.log import log_facts
from trimtab.federation.processes.ports import addresses_of, free_port, listener
from trimtab.federation.processes.superlink import (
    SuperLinkProcess,
    damage,
    delete_database,
)
from trimtab.federation.setup.job import Job
from trimtab.federation.setup.operator import Federation
from trimtab.federation.setup.site import secret
from trimtab.federation.storage.files import private_folder
from trimtab.federation.transport.flower.server import (
    SuperLink,
    environment,
    superlink_arguments,
    wait_until,
)
from trimtab.federation.transport.flower.superlink import Settings

log = logging.getLogger("trimtab.federation.processes")

DATABASE = "superlink.db"
_READY = 60.0  # the SuperLink answers within <= this many seconds
_ASK = 10.0  # it is asked whether it still does every >= this many seconds
_DEAF = 60.0  # if it has not answered for > 60 seconds, and has not computed either, it is ended
_STUCK = 30.0  # the rounds are ended if they neither beat nor compute for > 30 seconds
_SUSPECT = 4  # its database is created again if it dies >= 4 times without an answer between
_HOPELESS = 5  # the rounds are given up if they die >= 5 times without a round between


class OperatorProcess:
    """The operator's side while it runs; `events(job)` ends with the job, or when `stop` is set."""

    def __init__(
        self,
        folder: Path,
        bind: str | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.federation = Federation.read(folder)
        self.stop, self.interrupted = stop or threading.Event(), False
        logs = folder / "logs"
        self.federation.check_keys()
        self.port = free_port()  # on loopback, where Flower's whole app is
        self.rounds = Child(
            "the process of the rounds",
            "trimtab.federation.processes.rounds:main",
            [],
            environment=environment(folder / "flower"),
            output=logs / "rounds.log",
            piped=True,
        )
        self._read_at = (folder / "federation.json").stat().st_mtime_ns
        self._deaths = 0  # of the SuperLink, since it answered last
        self._tender = threading.Thread(target=self._tend, name="tender", daemon=True)
        self._events: queue.Queue[Event | Line | Failed | ReplySize | None] = queue.Queue()
        self._lock = Lock(private_folder(folder / "run"))
        try:
            self.superlink = self._superlink(bind)
        except BaseException:
            self._lock.release()
            raise

    def _superlink(self, bind: str | None) -> SuperLinkProcess:
        keys, folder = self.federation.keys, self.federation.folder
        listeners = self._listeners(bind)
        settings = Settings(
            listeners=[opened.fileno() for opened in listeners],
            arguments=superlink_arguments(folder, self.port, keys, secret(folder)),
            certificate=str(keys / "server.crt"),
            key=str(keys / "server.key"),
            folder=str(folder),
            sites=dict(self.federation.sites),
        )
        output = folder / "logs" / "superlink.log"
        return SuperLinkProcess(listeners, settings, environment(folder / "flower"), output)

    def _listeners(self, bind: str | None) -> list[socket.socket]:
        addresses = [bind] if bind else addresses_of(self.federation.hosts)
        opened: list[socket.socket] = []
        try:
            for address in addresses:
                opened.append(listener(address, self.federation.port))
        except OSError as error:
            for one in opened:
                one.close()
            raise BadArgument(
                "bind",
                "port {port} of {address} cannot be opened ({why}); end what uses it, or pass "
                "{bind:ADDRESS}.",
                port=self.federation.port,
                address=" and ".join(addresses),
                why=str(error.strerror or error).partition(" (while")[0],
            ) from None
        return opened

    def start(self) -> None:
        """Start the SuperLink, and let the sites' keys in.

        If it ends or does not answer, it is started once more.
        """
        # No round is lost with the messages of a server that was killed.
        delete_database(self.federation.folder / DATABASE)
        try:
            self._start_superlink()
        except ValueError as error:
            log.warning(f"{error} It is started once more.")
            self.superlink.stop()
            with self._end_logged():
                self._start_superlink()
        self._tender.start()
        threading.Thread(target=self._ask_superlink, name="asks", daemon=True).start()
        write_json(self.federation.folder / "run" / "live.json", {"pid": os.getpid()})

    def _start_superlink(self) -> None:
        self.superlink.start()
        wait_until(self._answers, _READY, "the SuperLink did not answer")

    def events(self, job: Job) -> Iterator[Event]:
        """Do a job, and go through what the rounds tell; start again what dies.

        However it ends, the log says so.
        """
        with self._end_logged():
            yield from self._events_of(job)
        log.info("the run was stopped." if self.interrupted else "the run has ended.")

    @contextlib.contextmanager
    def _end_logged(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            log.error(f"the run has ended: {str(error).rstrip('.') or type(error).__name__}.")
            raise
        except BaseException:  # A second Ctrl-C, or an error of who reads the events.
            log.error("the run has ended: it was interrupted.")
            raise

    def _events_of(self, job: Job) -> Iterator[Event]:
        died = 0
        self._begin(job)
        while True:
            if self.stop.is_set():
                self.interrupted = True
                return
            self._admit()
            try:
                event = self._events.get(timeout=0.2)
            except queue.Empty:
                continue
            if event is None:
                died += 1
                code = None if self.rounds.process is None else self.rounds.process.wait()
                if not code:
                    self.rounds.stop()
                    return
                how = self.rounds.last_words(code)
                if died >= _HOPELESS:
                    raise RuntimeError(
                        f"the rounds died {died} times in a row ({how}); see {self.rounds.output}."
                    )
                log.warning(
                    f"the process of the rounds died ({how}); it goes on from the last commit."
                )
                self._restart(job)
            elif isinstance(event, Line):
                log.log(logging.WARNING if event.warning else logging.INFO, event.line)
            elif isinstance(event, Failed):
                raise event.error()
            elif isinstance(event, ReplySize):
                self.superlink.bound(event.most)
            else:
                died = 0
                if isinstance(event, RoundCommitted):
                    log_facts(round_text(event), **to_json(event))
                if not isinstance(event, Ended):
                    event = replace(event, wire=self.superlink.traffic())
                yield event

    def close(self) -> None:
        """End all processes."""
        self.stop.set()
        if self._tender.is_alive():
            self._tender.join()
        self.rounds.stop()
        self.superlink.close()
        delete_database(self.federation.folder / DATABASE)
        (self.federation.folder / "run" / "live.json").unlink(missing_ok=True)
        self._lock.release()

    def _tend(self) -> None:
        """Keep the SuperLink alive, and the rounds moving, until the end."""
        while not self.stop.wait(0.2):
            code = self.superlink.supervise()
            if code is not None:
                self._deaths += 1
                how = self.superlink.last_words(code)
                log.warning(f"the SuperLink died ({how}); it is started again soon.")
                database = self.federation.folder / DATABASE
                if self._deaths >= _SUSPECT or damage(database):
                    log.warning(
                        f"{database} cannot be used; it is created again (no round is lost)."
                    )
                    delete_database(database)
                    self._deaths = 0
            for child, patience in ((self.superlink, _DEAF), (self.rounds, _STUCK)):
                if child.is_hung(patience):
                    log.warning(
                        f"{child.name} has not moved for {patience:g} seconds; it is ended and "
                        "started again."
                    )
                    child.kill()

    def _ask_superlink(self) -> None:
        """Ask the SuperLink every so often, and so note that it answers."""
        while not self.stop.wait(_ASK):
            with contextlib.suppress(httpx.HTTPError, OSError, ValueError):
                if self._answers():
                    self.superlink.record_heartbeat()
                    self._deaths = 0

    def _answers(self) -> bool:
        process = self.superlink.process
        if process is not None and (code := process.poll()) is not None:
            raise ValueError(f"the SuperLink ended ({self.superlink.last_words(code)}).")
        return len(self._superlink_of(self.federation).nodes_of(self.federation.sites)) > 0

    def _superlink_of(self, federation: Federation) -> SuperLink:
        return SuperLink(self.port, federation.keys / "ca.crt", secret(federation.folder))

    def _admit(self) -> None:
        """Let keys in and out at once when the operator's file has changed."""
        changed = (self.federation.folder / "federation.json").stat().st_mtime_ns
        if changed == self._read_at or not self.superlink.alive:
            return
        now = Federation.read(self.federation.folder)
        try:
            self._superlink_of(now).nodes_of(now.sites)
        except httpx.HTTPError:
            return  # the SuperLink is on its way; next time
        self.superlink.admit(now.sites)
        self._read_at = changed

    def _begin(self, job: Job) -> None:
        self.rounds.start()
        folder = str(self.federation.folder)
        # A process that ends before it reads this is started again, like one that ends later.
        self.rounds.send({"job": job.to_json(), "folder": folder, "port": self.port})
        reader = threading.Thread(
            target=self._read, args=(self.rounds.stdout,), name="rounds", daemon=True
        )
        reader.start()

    def _restart(self, job: Job) -> None:
        while self.rounds.process is not None and self.rounds.supervise() is None:
            time.sleep(0.1)
        self.stop.wait(1.0)
        if not self.stop.is_set():
            self._begin(job)

    def _read(self, pipe: IO[bytes]) -> None:
        for told in json_lines(pipe):
            self._events.put(from_json(told))
        self._events.put(None)
