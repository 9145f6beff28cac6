"""Lanes in processes of their own: each runs a stage of a lane into the folder of the comparison.

The comparison then goes through the same stage itself and finds its rounds on disk, so that no
number depends on how many processes there are. What travels are names, settings and rounds.
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

import torch

from trimtab import _guard
from trimtab._files import Lock, plain
from trimtab.algorithms.registry import decode
from trimtab.compute.kernel.library import CORES_VARIABLE, cores
from trimtab.core.task import Note
from trimtab.studies.budget import Deadline
from trimtab.studies.course import Course
from trimtab.studies.events import RoundDone
from trimtab.studies.lanes import Lane
from trimtab.studies.record import RoundLine
from trimtab.studies.study import Study

Message = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A stage of a lane."""

    label: str
    stage: str


class Worker:
    """One process; it ends when this one does, however that is."""

    def __init__(self, setup: Message, inbox: "Inbox", share: int, lock: Lock) -> None:
        command = [sys.executable, "-P", _guard.__file__, str(os.getpid())]
        self.job: Job | None = None
        self.ended = "a process of the comparison ended"
        self.process = subprocess.Popen(
            [*command, "trimtab.studies.worker:main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, CORES_VARIABLE: str(share)},
            start_new_session=True,  # Ctrl-C is for the comparison to hear
            pass_fds=(lock.fileno(),),  # the folder stays locked until the last worker has ended
        )
        Thread(target=self._listen, args=(inbox,), daemon=True).start()
        self.send(setup)

    def send(self, message: Message) -> None:
        """Tell the process something; one that has ended is noticed when it is listened to."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(plain(message)).encode() + b"\n")
            self.process.stdin.flush()

    def _listen(self, inbox: "Inbox") -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # The last line of a process that was killed may not.
                inbox.put((self, json.loads(line)))
        inbox.put((self, None))

    def ask_to_end(self) -> None:
        """Let the process save its work after the round it is in."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.terminate()

    def wait(self) -> None:
        """Wait for the end of the process."""
        self.ended += f" with code {self.process.wait()}"
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def end(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.wait()


class Helper(Protocol):
    """Whoever runs stages of lanes: a process here, or one on another machine."""

    job: Job | None
    ended: str  # how it ended, once it has

    def send(self, message: Message) -> None:
        """Tell it what to run."""
        ...

    def ask_to_end(self) -> None:
        """Let it save its work, if it can."""
        ...

    def wait(self) -> None:
        """Wait for its end."""
        ...

    def end(self) -> None:
        """End it at once."""
        ...


Inbox = SimpleQueue[tuple[Helper, Message | None]]
Start = Callable[[Message, Inbox, int], Helper]
"""Starts a helper, to which so many cores belong, with what it is to know at first."""


def processes(lock: Lock) -> Start:
    """Return what starts helpers on this machine."""
    return lambda setup, inbox, share: Worker(setup, inbox, share, lock)


class Workers:
    """The helpers of a comparison; they start with the first stage that is to be run."""

    def __init__(
        self, count: int, start: Start, question: Message, study: Study, deadline: Deadline
    ) -> None:
        self.count, self.start = min(count, len(study.lanes)), start
        self.setup = {
            "question": question,
            "folder": str(study.folder),
            "budget": None if study.budget == inf else study.budget,
            "minutes": deadline.minutes,
            "elapsed": deadline.elapsed,
            "threads": torch.get_num_threads(),
        }
        self.lanes = {lane.label: lane for lane in study.lanes}
        self.inbox: Inbox = SimpleQueue()
        self.facts: dict[str, Any] = {}
        self.workers: list[Helper] | None = None  # None: not started yet
        self.failed = ""  # what went wrong in a process
        self.last: dict[str, Helper] = {}  # who ran a lane last, and has it in memory

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes: after their rounds, or, if this is interrupted, at once."""
        workers, self.workers = self.workers or [], []
        try:
            for worker in workers:
                worker.ask_to_end()
            for worker in workers:
                worker.wait()
        finally:
            for worker in workers:
                worker.end()

    def run(
        self, courses: Sequence[Course], stages: Sequence[str], facts: Mapping[str, Any]
    ) -> Generator[RoundDone | Note, None, list[Course]]:
        """Let the processes run some stages of all lanes, and pass on what they tell.

        Return the lanes in the order in which they are to be gone through here: one that failed
        there comes first, to fail here in the same way.
        """
        self.facts |= facts
        if self.workers is None:
            share = max(1, cores() // self.count)
            start = (self.setup, self.inbox, share)
            self.workers = [self.start(*start) for _ in range(self.count)]
        clocks = {course.lane.label: course.clock for course in courses}
        left = [Job(label, stage) for stage in stages for label in clocks]
        while self.workers and (left or any(worker.job for worker in self.workers)):
            for worker in self.workers:
                job = None if worker.job else self._next(worker, left)
                if job is not None:
                    left.remove(job)
                    worker.job = job
                    self.last[job.label] = worker
                    told = [*clocks[job.label].said, *clocks[job.label].told]
                    worker.send({**vars(job), "told": told, "facts": self.facts})
            worker, message = self.inbox.get()
            if message is None:
                self._lost(worker, left)
            elif "failed" in message:
                self.close()
                self.failed, job = message["failed"], worker.job
                return sorted(courses, key=lambda c: job is None or c.lane.label != job.label)
            elif "done" in message:
                assert worker.job is not None
                clocks[worker.job.label].told.extend(message["done"])
                worker.job = None
            else:
                yield self._event(message)
        return list(courses)

    def _next(self, worker: Helper, left: Sequence[Job]) -> Job | None:
        """Return the next job: of lanes that nobody else has in memory, if there is such a one."""
        assert self.workers is not None
        busy = {other.job.label for other in self.workers if other.job}
        free = [job for job in left if job.label not in busy]
        own = (job for job in free if self.last.get(job.label) in (None, worker))
        return next(own, free[0] if free else None)

    def _lost(self, worker: Helper, left: list[Job]) -> None:
        """Give the job of a process that has ended to another one; at last to this one."""
        assert self.workers is not None
        self.workers.remove(worker)
        worker.wait()
        if worker.job is not None:
            left.insert(0, worker.job)
        warnings.warn(
            f"{worker.ended}; what it was to run is run by those that are left.",
            stacklevel=2,
        )

    def _event(self, message: Message) -> RoundDone | Note:
        if "note" in message:
            return Note(message["note"])
        lane = self.lanes[message["lane"]]
        words = {name: decode(value) for name, value in message["algorithm"].items()}
        line = RoundLine.from_json(message["line"])
        return RoundDone(lane.label, _kind_of(lane)(**words), line, message["run"])


def _kind_of(lane: Lane) -> type[Any]:
    return lane.kind.cls if lane.fixed is None else type(lane.fixed)
