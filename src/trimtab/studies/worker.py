"""A process that runs stages of a comparison's lanes for `workers`, told and telling by pipes."""

import json
import os
import signal
import sys
import warnings
from collections import deque
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
from trimtab.studies.events import RoundDone
from trimtab.studies.question import Question


class Stopped(Exception):
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
    except (Stopped, BrokenPipeError):
        os._exit(0)  # Nothing is left to flush to.
    except Exception as error:  # The comparison runs the same stage, and says what is wrong.
        _tell(out, {"failed": f"{type(error).__name__}: {error}"})


def _work(asked: IO[str], out: IO[str], stop: list[int]) -> None:
    setup = json.loads(asked.readline())
    torch.set_num_threads(setup["threads"])  # as in the comparison, so that bits are the same
    study = Question.from_json(setup["question"]).study(Path(setup["folder"]), resume=True)
    study.shared = True
    study.budget = inf if setup["budget"] is None else setup["budget"]
    deadline = Deadline(setup["minutes"], monotonic() - setup["elapsed"])
    lanes = {lane.label: lane for lane in study.lanes}
    courses: dict[str, tuple[Course, int]] = {}  # with the number of stages it went through
    for line in asked:
        job = json.loads(line)
        label, stage = job["label"], STAGES.index(job["stage"])
        course, done = courses.pop(label, (None, 0))
        if course is None or done != stage:  # another process went on with it
            clock = Clock(deadline, deque(job["told"]))
            course, done = Course(study, lanes[label], clock), 0
        said = len(job["told"])
        for name in STAGES[done : stage + 1]:
            _run(course, name, job["facts"], out, stop)
        courses[label] = course, stage + 1
        _tell(out, {"done": course.clock.said[said:]})


def _run(course: Course, stage: str, facts: dict[str, Any], out: IO[str], stop: list[int]) -> None:
    """Run a stage, and tell of its events; stop between two rounds if asked to."""
    events = course.run(stage, facts)
    try:
        for event in events:
            if isinstance(event, Note):
                _tell(out, {"note": event.sentence})
            else:
                _tell(out, _round(event))
            if stop:
                raise Stopped
    finally:
        events.close()  # The trial under way is saved.


def _round(event: RoundDone) -> dict[str, Any]:
    hyper: Any = event.algorithm
    words = {f.name: encode(getattr(hyper, f.name)) for f in fields(hyper)}
    told = {"lane": event.label, "algorithm": words, "line": event.line.to_json()}
    return told | {"run": event.run}


def _tell(out: IO[str], message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()
