"""Workers that run the stages of a comparison's entries, in processes here or on a cluster.

A worker runs a stage into the folder of the comparison. The comparison then repeats the stage and
finds its rounds on disk, so that no number depends on the workers. What travels are names, settings
and rounds, no code. A worker on a machine of a Ray cluster has a folder of its own: it gets the
files of an entry before a stage, and sends back those that have changed.
"""

import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from shutil import rmtree
from tempfile import mkdtemp
from threading import Thread
from time import monotonic, time
from types import FrameType
from typing import IO, Any, Protocol, cast

import torch

from trimtab._files import Lock, plain, write_file
from trimtab._processes import Child, json_lines
from trimtab.algorithms.registry import decode, encode
from trimtab.compute.kernel.library import CORES_VARIABLE, cores
from trimtab.core.task import Note
from trimtab.studies.budget import Budget
from trimtab.studies.record import RoundDone, RoundLine
from trimtab.studies.space import EntrySpec
from trimtab.studies.study import Study, StudySettings
from trimtab.studies.tuner import Stage, Tuner

Message = dict[str, Any]
Files = dict[str, bytes]
SEND_EVERY = 5.0  # seconds of work that an interruption may cost an entry
STOP_TIMEOUT = 2.0  # seconds that the driver waits for an actor that is in the middle of a round


class WorkerError(Exception):
    """A worker ended, or could not run a stage; str() says why."""


class Worker(Protocol):
    """What runs stages for a pool."""

    def run(self, job: Message) -> Iterator[Message]:
        """Run a job and yield its events; raise WorkerError if that fails."""
        ...

    def request_stop(self) -> None:
        """Let the worker save its work after the round that it is in."""
        ...

    def stop(self) -> None:
        """Wait for the end of the worker, and end it if necessary."""
        ...


@dataclass(frozen=True)
class Finished:
    """The stage of an entry is over; `error` says why if it failed."""

    label: str
    error: WorkerError | None


class Pool:
    """Workers behind the interface of `concurrent.futures`, which start with the first job.

    size: the number of workers. start: starts one of them. specs: the entries of the comparison.
    """

    def __init__(self, size: int, start: Callable[[], Worker], specs: Sequence[EntrySpec]) -> None:
        self.size, self._start = size, start
        self._specs = {spec.label: spec for spec in specs}
        self._stages: dict[str, list[Stage]] = {}  # that an entry went through, by its label
        self._jobs: SimpleQueue[tuple[Future[None], Message] | None] = SimpleQueue()
        self._events: SimpleQueue[Message | Finished] = SimpleQueue()
        self._workers: list[Worker] = []
        self._threads: list[Thread] = []
        self._closed = False
        self._starting = threading.Lock()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(self, label: str, stage: Stage) -> Future[None]:
        """Run a stage of an entry; the entry must not be running already."""
        before = self._stages.setdefault(label, [])
        # A worker that did not run them repeats them from disk, which takes no time.
        stages = [*(replace(old, seconds=0.0) for old in before), stage]
        job = {"label": label, "stages": [asdict(each) for each in stages]}
        before.append(stage)
        future = Future[None]()
        self._jobs.put((future, job))
        while len(self._threads) < min(self.size, len(self._specs)):
            self._threads.append(Thread(target=self._serve, daemon=True))
            self._threads[-1].start()
        return future

    def run_all(
        self, jobs: Sequence[tuple[str, Stage]]
    ) -> Generator[RoundDone | Note | Finished, None, None]:
        """Run stages of several entries; yield their events, and which are finished."""
        for label, stage in jobs:
            future = self.submit(label, stage)
            future.add_done_callback(partial(self._finish, label))
        left = len(jobs)
        while left:
            message = self._events.get()
            left -= isinstance(message, Finished)
            yield message if isinstance(message, Finished) else self._event(message)

    def close(self) -> None:
        """End the workers after the round that they are in; at once if this is interrupted."""
        with self._starting:
            self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for worker in self._workers:
            worker.request_stop()
        for worker in self._workers:
            worker.stop()

    def _serve(self) -> None:
        """Run jobs on one worker, which is replaced if it ends."""
        worker: Worker | None = None
        for future, job in iter(self._jobs.get, None):
            ends = time() + job["stages"][-1]["seconds"]
            with self._starting:
                if self._closed or not future.set_running_or_notify_cancel():
                    continue
                if worker is None:
                    worker = self._start()
                    self._workers.append(worker)
            try:
                # An absolute time, so that the start of a process counts as time of its stage.
                job["ends"] = ends
                for message in worker.run(job):
                    self._events.put(message)
            except Exception as error:
                # Whatever it is, the comparison runs the stage itself, and meets the error too.
                worker.request_stop()
                worker = None
                known = isinstance(error, WorkerError)
                future.set_exception(error if known else WorkerError(f"{error}"))
            else:
                future.set_result(None)

    def _finish(self, label: str, future: Future[None]) -> None:
        error = future.exception()
        assert error is None or isinstance(error, WorkerError)
        self._events.put(Finished(label, error))

    def _event(self, message: Message) -> RoundDone | Note:
        if "note" in message:
            return Note(message["note"])
        spec = self._specs[message["label"]]
        words = {name: decode(value) for name, value in message["algorithm"].items()}
        fixed: Any = spec.space.fixed
        made: Any = spec.kind.cls if fixed is None else type(fixed)
        line = RoundLine.from_json(message["line"])
        return RoundDone(spec.label, made(**words), line, message["run"])


def process_pool(size: int, study: Study, settings: Message, lock: Lock) -> Pool:
    """Return a pool of processes on this machine, which share its cores."""
    size = min(size, len(study.specs))
    share, setup = max(1, cores() // size), worker_setup(study, settings)
    return Pool(size, lambda: ProcessWorker(setup, share, lock), study.specs)


def worker_setup(study: Study, settings: Message) -> Message:
    """Return what a worker needs to know before its first job."""
    return {
        "settings": plain(settings),
        "folder": str(study.folder),
        "budget": asdict(study.budget),
        "threads": torch.get_num_threads(),
    }


class ProcessWorker:
    """One process; it ends when this process ends, in whatever way."""

    def __init__(self, setup: Message, share: int, lock: Lock) -> None:
        self.child = Child(
            "a worker of the comparison",
            "trimtab.studies.pool:main",
            [],
            environment={CORES_VARIABLE: str(share)},
            piped=True,
            pass_fds=(lock.fileno(),),  # The folder stays locked until the last worker has ended.
        )
        self.child.start()
        self.child.send(setup)
        self._code = 0
        self._waiting = threading.Lock()  # The thread of the worker and `stop` may both wait.

    def run(self, job: Message) -> Iterator[Message]:
        """Run a job and yield its events."""
        self.child.send(job)
        for message in json_lines(self.child.stdout):
            if "failed" in message:
                raise WorkerError(message["failed"])
            if "done" in message:
                return
            yield message
        raise WorkerError(f"a process of the comparison ended with code {self._wait()}")

    def request_stop(self) -> None:
        """Let the process save its work after the round that it is in."""
        self.child.request_stop()

    def stop(self) -> None:
        """Wait for the end of the process; kill it if this is interrupted."""
        try:
            self._wait()
        finally:
            self.child.kill()

    def _wait(self) -> int:
        with self._waiting:
            if self.child.process is not None:
                self._code = self.child.wait()
        return self._code


# -- in the worker


class _Ended(Exception):
    """The comparison has ended."""


def main() -> None:
    """Run the jobs of the comparison until it closes the pipe."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # What a user's file prints must not come between our lines.
    stop: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        stop.append(number)

    signal.signal(signal.SIGTERM, note)
    warnings.simplefilter("ignore")  # The comparison gives the same warnings.
    try:
        _work(sys.stdin, out, stop)
    except (_Ended, BrokenPipeError):
        os._exit(0)  # There is no reader left for buffered output.


def _work(jobs: IO[str], out: IO[str], stop: list[int]) -> None:
    runner = JobRunner(json.loads(jobs.readline()))
    for line in jobs:
        with closing(runner.run(json.loads(line))) as messages:  # Closing saves the trial.
            for message in messages:
                out.write(json.dumps(message) + "\n")
                out.flush()
                if stop:
                    raise _Ended


class JobRunner:
    """A study in another process, which runs stages of its entries."""

    def __init__(self, setup: Message) -> None:
        torch.set_num_threads(setup["threads"])  # The bits may depend on it.
        self.setup = setup
        self.study: Study | None = None
        self.tuners: dict[str, tuple[Tuner, int]] = {}  # with the number of their stages so far

    def run(self, job: Message) -> Generator[Message, None, None]:
        """Run the last stage of a job, after those before it if another process ran them."""
        try:
            yield from self._run(job)
        except Exception as error:  # The comparison runs the stage itself, and meets the error too.
            yield {"failed": f"{type(error).__name__}: {error}"}
        else:
            yield {"done": True}

    def has(self, job: Message) -> bool:
        """Return whether the entry is in memory, just before the last stage of a job."""
        return self.tuners.get(job["label"], (None, -1))[1] == len(job["stages"]) - 1

    def _run(self, job: Message) -> Generator[Message, None, None]:
        if self.study is None:
            settings = StudySettings.from_json(self.setup["settings"])
            self.study = Study.of(settings, Path(self.setup["folder"]), resume=True)
            self.study.shared = True
            self.study.budget = Budget(**self.setup["budget"])
        label, stages = job["label"], [Stage(**stage) for stage in job["stages"]]
        stages[-1] = replace(stages[-1], seconds=job["ends"] - time())
        known = self.has(job)
        tuner, done = self.tuners.pop(label, (None, 0))
        if tuner is None or not known:
            spec = next(spec for spec in self.study.specs if spec.label == label)
            tuner, done = Tuner(self.study, spec), 0
        for stage in stages[done:]:
            with closing(tuner.run(stage)) as events:
                for event in events:
                    yield {"note": str(event)} if isinstance(event, Note) else _message(event)
        self.tuners[label] = tuner, len(stages)


def _message(event: RoundDone) -> Message:
    hyper: Any = event.algorithm
    words = {f.name: encode(getattr(hyper, f.name)) for f in fields(hyper)}
    told = {"label": event.label, "algorithm": words, "line": event.line.to_json()}
    return told | {"run": event.run}


# -- on a Ray cluster


def ray_pool(address: str | None, study: Study, settings: Message) -> Pool:
    """Return a pool with as many actors as the cluster has room for."""
    from trimtab.cluster import engine

    ray = engine.connect(address)
    setup, folder = worker_setup(study, settings), study.folder
    assert folder is not None
    room = max(1, engine.capacity(ray, {"CPU": 1.0}))
    return Pool(min(room, len(study.specs)), lambda: RayWorker(ray, setup, folder), study.specs)


class RayWorker:
    """An actor of Ray that runs stages."""

    def __init__(self, ray: Any, setup: Message, folder: Path) -> None:
        self.ray, self.folder = ray, folder
        self.closing: Any = None  # the answer of an actor that was asked to stop
        actor = ray.remote(Actor).options(num_cpus=1, max_restarts=0, max_task_retries=0)
        self.actor = actor.remote(setup)

    def run(self, job: Message) -> Iterator[Message]:
        """Let the actor run a job, and yield its events."""
        entry = self.folder / job["label"]
        try:
            for reference in self.actor.run.options(num_returns="streaming").remote(
                job, _read(entry)
            ):
                message = self.ray.get(reference)
                for name, content in message.pop("files", {}).items():
                    write_file(entry / name, content)
                if "failed" in message:
                    raise WorkerError(message["failed"])
                if message and "done" not in message:
                    yield message
        except self.ray.exceptions.RayError as error:
            raise WorkerError(f"a machine of the cluster was lost ({error})") from error

    def request_stop(self) -> None:
        """Let the actor remove its folder; what it has sent by now is on disk."""
        self.closing = self.actor.close.remote()

    def stop(self) -> None:
        """Wait for a moment, since an actor hears nothing in the middle of a round; then end it."""
        if self.closing is not None:
            self.ray.wait([self.closing], timeout=STOP_TIMEOUT)
        self.ray.kill(self.actor)


class Actor:
    """Runs stages in a folder of its own."""

    def __init__(self, setup: Message) -> None:
        self.setup, self.runner = setup, cast(Any, None)
        self.folder = Path(mkdtemp(prefix="trimtab-entry-"))
        os.environ["TRIMTAB_CORES"] = "1"

    def close(self) -> None:
        """Remove the folder."""
        rmtree(self.folder, ignore_errors=True)

    def run(self, job: Message, files: Files) -> Generator[Message, None, None]:
        """Run a job; yield its events, with the files that have changed."""
        entry = self.folder / job["label"]
        self.runner = self.runner or JobRunner(self.setup | {"folder": str(self.folder)})
        if not self.runner.has(job):
            rmtree(entry, ignore_errors=True)
            for name, content in files.items():
                write_file(entry / name, content)
        known, sent = _digests(_read(entry)), monotonic()
        for message in self.runner.run(job):
            if "done" not in message and monotonic() < sent + SEND_EVERY:
                yield message
                continue
            now = _read(entry)
            digests = _digests(now)
            changed = {n: content for n, content in now.items() if digests[n] != known.get(n)}
            known, sent = digests, monotonic()
            yield message | {"files": changed}


def _read(entry: Path) -> Files:
    """Return the files of an entry by their names below its folder, but none being written."""
    found = (path for path in entry.rglob("*") if path.is_file() and path.suffix != ".part")
    return {str(path.relative_to(entry)): path.read_bytes() for path in sorted(found)}


def _digests(files: Files) -> dict[str, bytes]:
    return {name: sha256(content).digest() for name, content in files.items()}
