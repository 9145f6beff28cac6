"""A process that runs stages of a comparison's lanes for `workers`, told and telling by pipes."""

import json
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Generator
from contextlib import closing
from dataclasses import fields
from math import inf
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import IO, Any

import torch

from trimtab.algorithms.registry import encode
from trimtab.core.task import Note
from trimtab.studies.budget import Clock, Deadline
from trimtab.studies.course import STAGES, Course
from trimtab.studies.question import Question
from trimtab.studies.record import RoundDone

Message = dict[str, Any]


class Ended(Exception):
    """The comparison has ended, or is gone."""


def main() -> None:
    """Run what the comparison asks for, until it closes the pipe."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # What users print must not come between our lines.
    stop: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        stop.append(number)

    signal.signal(signal.SIGTERM, note)
    warnings.simplefilter("ignore")  # The comparison itself says the same.
    try:
        _work(sys.stdin, out, stop)
    except (Ended, BrokenPipeError):
        os._exit(0)  # Nothing is left to flush to.
    except Exception as error:  # The comparison runs the same stage, and says what is wrong.
        _tell(out, {"failed": f"{type(error).__name__}: {error}"})


def _work(asked: IO[str], out: IO[str], stop: list[int]) -> None:
    jobs = Jobs(json.loads(asked.readline()))
    for line in asked:
        messages = jobs.run(json.loads(line))
        try:
            for message in messages:
                _tell(out, message)
                if stop:
                    raise Ended
        finally:
            messages.close()  # The trial under way is saved.


class Jobs:
    """A study in another process: it runs stages of lanes, and tells what happens in messages."""

    def __init__(self, setup: Message) -> None:
        torch.set_num_threads(setup["threads"])  # as in the comparison, so that bits are the same
        study = Question.from_json(setup["question"]).study(Path(setup["folder"]), resume=True)
        study.shared = True
        study.budget = inf if setup["budget"] is None else setup["budget"]
        self.study = study
        self.deadline = Deadline(setup["minutes"], monotonic() - setup["elapsed"])
        self.lanes = {lane.label: lane for lane in study.lanes}
        self.courses: dict[str, tuple[Course, int]] = {}  # with how many stages it went through

    def has(self, job: Message) -> bool:
        """Tell whether the lane of a job is in memory, just before the job's stage."""
        return self.courses.get(job["label"], (None, -1))[1] == STAGES.index(job["stage"])

    def run(self, job: Message) -> Generator[Message, None, None]:
        """Run a stage of a lane, with those before it if another process went on with it."""
        label, stage = job["label"], STAGES.index(job["stage"])
        known = self.has(job)
        course, done = self.courses.pop(label, (None, 0))
        if course is None or not known:
            clock = Clock(self.deadline, deque(job["told"]))
            course, done = Course(self.study, self.lanes[label], clock), 0
        said = len(job["told"])
        for name in STAGES[done : stage + 1]:
            with closing(course.run(name, job["facts"])) as events:
                for event in events:
                    yield {"note": event.sentence} if isinstance(event, Note) else _round(event)
        self.courses[label] = course, stage + 1
        yield {"done": course.clock.said[said:]}


def _round(event: RoundDone) -> Message:
    hyper: Any = event.algorithm
    words = {f.name: encode(getattr(hyper, f.name)) for f in fields(hyper)}
    told = {"lane": event.label, "algorithm": words, "line": event.line.to_json()}
    return told | {"run": event.run}


def _tell(out: IO[str], message: Message) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()
