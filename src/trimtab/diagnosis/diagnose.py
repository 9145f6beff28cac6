"""Diagnose a problem in four parts: measure, predict, confirm, explain.

Each stage writes what it found to the folder, so that a diagnosis can be resumed after it.
"""

import pickle
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from trimtab._files import Lock, atomic_write
from trimtab.algorithms.registry import kind
from trimtab.core import Vector
from trimtab.core.task import Progress, task
from trimtab.core.threads import one_thread
from trimtab.diagnosis import measure, stages
from trimtab.diagnosis import panel as panels
from trimtab.diagnosis.advise import Choice
from trimtab.diagnosis.budget import Budget
from trimtab.diagnosis.case import Case, begin
from trimtab.diagnosis.confirm import Confirmed
from trimtab.diagnosis.diagnosis import Diagnosis, composed
from trimtab.diagnosis.differences import Difference, Differences, Early, FirstFacts
from trimtab.diagnosis.hessians import Hessians
from trimtab.diagnosis.intervals import Draws, Estimate
from trimtab.diagnosis.measure import BatchNoise, Gradients, Restricted, Sampled
from trimtab.diagnosis.predict import Predicted, QuadraticModel
from trimtab.diagnosis.rules import CROSS_DEVICE, USUAL
from trimtab.diagnosis.stages import Measured, Modelled
from trimtab.errors import BadArgument
from trimtab.problems.adapter import as_problem
from trimtab.problems.identity import hashed_tensors
from trimtab.problems.loading import load_problem
from trimtab.problems.metrics import Metric
from trimtab.problems.problem import Problem
from trimtab.simulation import check_seed, cohort_size
from trimtab.simulation.executors import choose
from trimtab.studies.entry import Candidate, Entry, SeedRun
from trimtab.studies.fragility import Again
from trimtab.studies.goal import Cost, Goal
from trimtab.studies.record import RoundLine, open_folder
from trimtab.studies.space import Expected

Events = Generator[Progress | FirstFacts, None, Diagnosis]


# -- finished stages

# Only these classes, tensors and plain values are read from a file.
CLASSES: list[Any] = [
    *(Choice, Confirmed, Difference, Differences, Early, Hessians, Draws, Estimate),
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
        kept = self.kept(name)
        if kept is not None:
            work.close()
            value: R
            value, state = kept
            case.restore(state)
            return value
        value = yield from work
        self.keep(name, (value, case.state()))
        return value

    def kept(self, name: str) -> Any:
        """Return what an earlier process kept of a stage; None if that or one before is missing."""
        path = None if self.folder is None else self.folder / f"{name}.pt"
        self.resumes = self.resumes and path is not None and path.exists()
        return _read(path) if self.resumes and path is not None else None

    def keep(self, name: str, value: Any) -> None:
        """Write what a stage found, if there is a folder."""
        if self.folder is not None:
            with atomic_write(self.folder / f"{name}.pt") as part:
                torch.save(value, part)


def _read(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals(CLASSES):
            return torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        raise ValueError(f"{path} cannot be read; delete it, and its stage runs again.") from None


# -- the stages


@task
def diagnose(
    problem: Problem | str,
    x: Vector | None = None,
    *,
    S: int | float | None = None,
    eps: float | None = None,
    cross_device: bool = False,
    seed: int = 0,
    minutes: float = 5,
    algorithms: Sequence[str] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Generator[Progress | FirstFacts, None, Diagnosis]:
    """Measure how the clients differ, predict what follows from it, try that, and advise.

    problem: one, or the name of one as for `trimtab diagnose`.
    x: where training starts; by default the problem's x0.
    S: clients in a round, a number or a share; by default all.
    eps: the f(x) - f(x*) that is wanted, by default a hundredth of the start's.
    cross_device: clients come once and keep nothing.
    seed: of all that is drawn to measure (clients, samples, mini-batches, directions), by default
        0; two seeds measure the same thing.
    minutes: the time for everything, by default 5.
    algorithms: names of those to compare; by default sgd, fedavg and scaffold, and with
        cross_device sgd, fedavg and mimelite.
    out: a folder for what each stage found; by default nothing is written.
    resume: continue after the last stage that finished in `out`.

    >>> import torch, trimtab
    >>> A = torch.tensor([[1.0, 0.1], [0.8, 0.05]])  # the diagonals of two Hessians
    >>> pair = trimtab.Quadratic(A, b=torch.tensor([[2.0, 0.3], [-1.0, 0.1]]))
    >>> found = trimtab.diagnose(pair)
    >>> print(found.advice)
    Use Scaffold with K = 8, eta_l = 0.841 and eta_g = 1.
    >>> [round(value, 2) for value in (found.zeta, found.delta, found.L, found.mu)]
    [1.44, 0.1, 1.0, 0.08]
    """
    check_seed(seed)
    name = problem if isinstance(problem, str) else "problem"
    if isinstance(problem, str):
        problem = load_problem(problem, seed=seed)
    problem = as_problem(problem)
    budget = Budget(60 * minutes if _positive(minutes) else 0.0)
    size = _checked_size(problem, S, eps, minutes)
    names = _names(algorithms, cross_device)
    x0 = _start(problem, x)
    if resume and out is None:
        raise BadArgument("resume", "{resume:True} continues what is in {out}; pass {out} too.")
    asked = {"problem": name, "S": size, "eps": eps, "cross_device": cross_device, "seed": seed}
    asked |= {"minutes": minutes, "algorithms": names}
    asked |= {} if x is None else {"x": hashed_tensors([x0])}
    with ExitStack() as at_end:
        at_end.enter_context(one_thread(when=choose(problem, S=1).threads == "one"))
        folder = None if out is None else Path(out)
        if folder is not None:
            at_end.enter_context(Lock(folder))
        store = Store(folder, asked, problem, resume)
        clients, rows = store.kept("panel") or panels.choose(problem, seed, budget)
        store.keep("panel", (clients, rows))
        panel = panels.panel_with(problem, clients, rows, seed, budget)
        case = begin(problem, panel, budget, x0, size, seed, eps, cross_device)
        diagnosis = yield from _stages(case, names, store)
    return replace(diagnosis, name=name)


def _stages(case: Case, names: Sequence[str], store: Store) -> Events:
    """Run the stages in order; each takes what was measured so far."""
    yield Progress("gradients at the start", 0.01)
    first = measure.at_point(case.panel, case.x0)
    steep = yield from store.run("curvature", case, stages.curvature(case, first))
    early = yield from store.run("facts", case, stages.first_facts(case, first, steep))
    here = yield from store.run("optimum", case, stages.best_gradients(case, first))
    noise = yield from store.run("noise", case, stages.batch_noise(case))
    seen = yield from store.run("hessians", case, stages.client_hessians(case, steep))
    points = stages.of_points(case, first, early, here, noise, seen)
    measured = Measured(steep, here, noise, *seen, points, early)
    predictions = stages.predictions(case, measured, names)
    modelled = yield from store.run("model", case, predictions)
    runs = stages.runs(case, measured, modelled, names)
    confirmed = yield from store.run("runs", case, runs)
    yield Progress("bias and variance", stages.TRIALS)
    return composed(case, measured, modelled, confirmed)


# -- what was asked


def _names(algorithms: Sequence[str] | None, cross_device: bool) -> list[str]:
    """Return the algorithms to compare by name; each needs a step size."""
    if algorithms is None:
        return list(CROSS_DEVICE if cross_device else USUAL)
    given = [algorithms] if isinstance(algorithms, str) else algorithms
    if not isinstance(given, Sequence) or not all(isinstance(one, str | type) for one in given):
        raise ValueError("algorithms must be a list of names, whose K and step sizes are searched.")
    names = [kind(name).name for name in given]
    for name in names:
        if not kind(name).step:
            raise ValueError(f"{name} has no step size to choose; leave it out of algorithms.")
    if not names:
        raise ValueError("algorithms is empty; pass one name or more.")
    return list(dict.fromkeys(names))


def _checked_size(
    problem: Problem, S: int | float | None, eps: float | None, minutes: float
) -> int:
    """Return how many clients a round has; refuse a problem or arguments without one."""
    if problem.N < 2:
        raise ValueError(
            f"the problem has N={problem.N} client, and a diagnosis compares clients with each "
            "other; pass a problem with two or more, or train this one with trimtab.Sgd."
        )
    size = cohort_size(S, problem.N)
    if not _positive(minutes):
        sentence = "{minutes:{_given}}; pass a number of minutes that is positive."
        raise BadArgument("minutes", sentence, _given=repr(minutes))
    if eps is not None and not _positive(eps):
        sentence = "{eps:{_given}}; pass the f(x) - f(x*) that is wanted, a positive number."
        raise BadArgument("eps", sentence, _given=repr(eps))
    return size


def _positive(value: float) -> bool:
    return isinstance(value, int | float) and 0 < value < inf


def _start(problem: Problem, x: Vector | None) -> Vector:
    """Return the problem's own start, so that two seeds measure at the same point; or x."""
    x0 = problem.x0(0) if x is None else x
    if not isinstance(x0, Tensor) or x0.shape != (problem.d,):
        raise ValueError(f"x is no vector of length d={problem.d}; pass one.")
    if not x0.is_floating_point() or not bool(torch.isfinite(x0).all()):
        raise ValueError("x must hold finite floating-point numbers.")
    return x0.detach().clone()
