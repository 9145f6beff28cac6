"""Workers on the machines of a Ray cluster. Only the driver writes the comparison's folder.

A worker has a folder of its own machine. It gets the files of an entry before a stage, and sends
back those that have changed, from time to time and at the end.
"""

import os
from collections.abc import Generator, Iterator
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import monotonic
from typing import Any, cast

from trimtab._files import write_file
from trimtab.cluster import engine
from trimtab.studies.pool import Message, Pool, WorkerError, worker_setup
from trimtab.studies.study import Study

Files = dict[str, bytes]
SEND_EVERY = 5.0  # seconds of work that an interruption may cost an entry
STOP_TIMEOUT = 2.0  # seconds that the driver waits for an actor that is in the middle of a round


def ray_pool(address: str | None, study: Study, settings: Message) -> Pool:
    """Return a pool with as many actors as the cluster has room for."""
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
        from trimtab.studies.pool import JobRunner

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
