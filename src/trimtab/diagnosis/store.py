"""What each finished stage found, in a folder, so that a diagnosis can be resumed after it."""

import pickle
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import torch

from trimtab._files import atomic_write
from trimtab.diagnosis.advise import Choice
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.confirm import Confirmed
from trimtab.diagnosis.differences import Difference, Differences, Early
from trimtab.diagnosis.hessians import Hessians, HessiansSeen
from trimtab.diagnosis.intervals import Draws, Estimate
from trimtab.diagnosis.measure import BatchNoise, Gradients, Restricted, Sampled
from trimtab.diagnosis.model import QuadraticModel
from trimtab.diagnosis.predict import Predicted
from trimtab.diagnosis.stages import Modelled
from trimtab.problems.metrics import Metric
from trimtab.problems.problem import Problem
from trimtab.studies.entry import Candidate, Entry, SeedRun
from trimtab.studies.fragility import Again
from trimtab.studies.goal import Cost, Goal
from trimtab.studies.record import RoundLine, open_folder
from trimtab.studies.space import Expected

# Only these classes, tensors and plain values are read from a file.
CLASSES: list[Any] = [
    *(Choice, Confirmed, Difference, Differences, Early, Hessians, HessiansSeen, Draws, Estimate),
    *(BatchNoise, Gradients, Restricted, Sampled, QuadraticModel, Predicted, Modelled, Metric),
    *(Candidate, Entry, SeedRun, Again, Cost, Goal, RoundLine, Expected),
]

E = TypeVar("E")
R = TypeVar("R")


class Store:
    """The finished stages of a diagnosis; with folder None, nothing is kept."""

    def __init__(
        self, folder: Path | None, settings: dict[str, Any], problem: Problem, resume: bool
    ) -> None:
        self.folder = folder
        self.resumes = folder is not None and open_folder(
            folder / "stages.json", "diagnosis", settings, problem, resume
        )

    def run(self, name: str, case: Case, work: Generator[E, None, R]) -> Generator[E, None, R]:
        """Run a stage that changes the case, or return what an earlier process kept of it."""
        path = None if self.folder is None else self.folder / f"{name}.pt"
        if self.resumes and path is not None and path.exists():
            work.close()
            value: R
            value, state = _read(path)
            case.restore(state)
            return value
        self.resumes = False  # The stages after this one rest on it.
        value = yield from work
        if path is not None:
            _write(path, (value, case.state()))
        return value

    def keep(self, name: str, made: Callable[[], R]) -> R:
        """Return what an earlier process kept, else make and keep it."""
        path = None if self.folder is None else self.folder / f"{name}.pt"
        if self.resumes and path is not None and path.exists():
            value: R = _read(path)
            return value
        self.resumes = False
        value = made()
        if path is not None:
            _write(path, value)
        return value


def _write(path: Path, value: Any) -> None:
    with atomic_write(path) as part:
        torch.save(value, part)


def _read(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals(CLASSES):
            return torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        raise ValueError(f"{path} cannot be read; delete it, and its stage runs again.") from None
