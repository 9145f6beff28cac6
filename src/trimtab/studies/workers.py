"""Lanes in processes of their own: each runs a stage of a lane into the folder of the comparison.

The comparison then goes through the same stage itself and finds its rounds on disk, so that no
number depends on how many processes there are. What travels are names, settings and rounds.
"""

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, Protocol

import torch

from trimtab._files import Lock, plain
from trimtab._processes import Child, json_lines
from trimtab.algorithms.registry import decode
from trimtab.compute.kernel.library import CORES_VARIABLE, cores
from trimtab.core.task import Note
from trimtab.studies.budget import Deadline
from trimtab.studies.course import Course
from trimtab.studies.lanes import Lane
from trimtab.studies.record import RoundDone, RoundLine
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
        self.job: Job | None = None
        self.ended = "a process of the comparison ended"
        self.child = Child(
            "a worker of the comparison",
            "trimtab.studies.worker:main",
            [],
            environment={CORES_VARIABLE: str(share)},
            piped=True,
            pass_fds=(lock.fileno(),),  # the folder stays locked until the last worker has ended
        )
        self.child.start()
        Thread(target=self._listen, args=(self.child.stdout, inbox), daemon=True).start()
        self.send(setup)

    def send(self, message: Message) -> None:
        """Tell the process something; one that has ended is noticed when it is listened to."""
        self.child.send(plain(message))

    def _listen(self, pipe: IO[bytes], inbox: "Inbox") -> None:
        for message in json_lines(pipe):
            inbox.put((self, message))
        inbox.put((self, None))

    def ask_to_end(self) -> None:
        """Let the process save its work after the round it is in."""
        self.child.request_stop()

    def wait(self) -> None:
        """Wait for the end of the process."""
        self.ended += f" with code {self.child.wait()}"

    def end(self) -> None:
        """End the process at once."""
        self.child.kill()


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
