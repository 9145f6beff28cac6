"""Lanes on other machines, as tasks of Ray. The folder of the comparison is the driver's alone.

A helper works in a folder of its own machine. It is sent the files of its lane before it begins,
and sends back those that have changed, from time to time and at the end; the driver writes them.
"""

import os
from collections.abc import Generator
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Thread
from time import monotonic
from typing import Any, cast

from trimtab._files import write_file
from trimtab.cluster import engine
from trimtab.studies.workers import Helper, Inbox, Job, Message, Start

Files = dict[str, bytes]
SEND_EVERY = 5.0  # seconds of work that an interruption may cost a lane
PATIENCE = 2.0  # an actor that is asked to end is waited for <= 2 seconds


def helpers(address: str | None, folder: Path) -> tuple[int, Start]:
    """Return for how many helpers a cluster has room, and what starts one."""
    ray = engine.connect(address)

    def start(setup: Message, inbox: Inbox, share: int) -> Helper:
        return RemoteHelper(ray, setup, inbox, folder)

    return max(1, engine.capacity(ray, {"CPU": 1.0})), start


class RemoteHelper:
    """An actor of Ray that runs stages of lanes; whatever becomes of it, the driver goes on."""

    def __init__(self, ray: Any, setup: Message, inbox: Inbox, folder: Path) -> None:
        self.job: Job | None = None
        self.closing: Any = None  # what an actor that was asked to end will answer
        self.until = 0.0  # that answer is waited for until then
        self.ended = "a machine of the cluster was lost"
        self.ray, self.inbox, self.folder = ray, inbox, folder
        kind = ray.remote(LaneActor).options(num_cpus=1, max_restarts=0, max_task_retries=0)
        self.actor = kind.remote(setup)

    def send(self, message: Message) -> None:
        """Let the actor run a stage, and listen to it."""
        files = _read(self.folder / message["label"])
        told = self.actor.run.options(num_returns="streaming").remote(message, files)
        Thread(target=self._listen, args=(told, message["label"]), daemon=True).start()

    def _listen(self, told: Any, label: str) -> None:
        try:
            for reference in told:
                message = self.ray.get(reference)
                for name, content in message.pop("files", {}).items():
                    write_file(self.folder / label / name, content)
                if message:
                    self.inbox.put((self, message))
        except Exception:  # Whatever it is, the driver runs the stage itself, and meets it too.
            self.inbox.put((self, None))

    def ask_to_end(self) -> None:
        """Let the actor remove its folder; what it has sent by now is on disk."""
        self.closing, self.until = self.actor.close.remote(), monotonic() + PATIENCE

    def wait(self) -> None:
        """Wait a little: an actor that is in the middle of a round does not hear."""
        if self.closing is not None:
            self.ray.wait([self.closing], timeout=max(0.0, self.until - monotonic()))

    def end(self) -> None:
        """End the actor."""
        self.ray.kill(self.actor)


class LaneActor:
    """Runs stages of lanes in a folder of its own."""

    def __init__(self, setup: Message) -> None:
        self.setup, self.jobs = setup, cast(Any, None)
        self.folder = Path(mkdtemp(prefix="trimtab-lane-"))
        os.environ["TRIMTAB_CORES"] = "1"

    def close(self) -> None:
        """Remove the folder."""
        rmtree(self.folder, ignore_errors=True)

    def run(self, job: Message, files: Files) -> Generator[Message, None, None]:
        """Run a stage; tell of its events, and send the files that have changed."""
        try:
            yield from self._run(job, files)
        except Exception as error:  # The driver runs the same stage, and says what is wrong.
            yield {"failed": f"{type(error).__name__}: {error}"}

    def _run(self, job: Message, files: Files) -> Generator[Message, None, None]:
        from trimtab.studies.worker import Jobs

        lane = self.folder / job["label"]
        self.jobs = self.jobs or Jobs(self.setup | {"folder": str(self.folder)})
        jobs = self.jobs
        if not jobs.has(job):
            rmtree(lane, ignore_errors=True)
            for name, content in files.items():
                write_file(lane / name, content)
        known, sent = _digests(_read(lane)), monotonic()
        for message in jobs.run(job):
            if "done" not in message and monotonic() < sent + SEND_EVERY:
                yield message
                continue
            now = _read(lane)
            digests = _digests(now)
            changed = {n: content for n, content in now.items() if digests[n] != known.get(n)}
            known, sent = digests, monotonic()
            yield message | {"files": changed}


def _read(lane: Path) -> Files:
    """Return the files of a lane by their names below its folder; none that is being written."""
    found = (path for path in lane.rglob("*") if path.is_file() and path.suffix != ".part")
    return {str(path.relative_to(lane)): path.read_bytes() for path in sorted(found)}


def _digests(files: Files) -> dict[str, bytes]:
    return {name: sha256(content).digest() for name, content in files.items()}
