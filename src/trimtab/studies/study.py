"""The settings of a comparison, and what all of its entries share."""

from base64 import b64decode, b64encode
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from safetensors.torch import load, save

from trimtab._files import read_json, write_json
from trimtab.algorithms.registry import decode, encode, kind
from trimtab.core import Algorithm, Vector
from trimtab.errors import BadArgument
from trimtab.problems.adapter import as_problem
from trimtab.problems.identity import hashed_tensors
from trimtab.problems.loading import absolute_spec
from trimtab.problems.problem import Problem
from trimtab.simulation import Rounds, Simulation, cohort_size
from trimtab.simulation.executors import choose
from trimtab.studies.budget import Budget, budget_of
from trimtab.studies.entry import listed
from trimtab.studies.goal import Goal, cost_of, goal_of, unit_named
from trimtab.studies.holdout import HeldOutProblem, ProblemSpec, held_out, recorded_settings
from trimtab.studies.record import Record, RoundDone, open_folder
from trimtab.studies.space import (
    EntrySpec,
    LocalSteps,
    Point,
    Prior,
    baseline_specs,
    entry_specs,
)
from trimtab.studies.trial import Trial

NAMED = "its name or file.py:function"
TIMED_J = -320  # With a step size of 2^-40 no timed round diverges, and it takes as long as others.
TIMED_ROUNDS = 16  # after one that is not timed, since it loads the data
TIMED_SECONDS = 0.5  # No more rounds of a trial are timed after this time.


@dataclass(frozen=True)
class StudySettings:
    """The arguments of `compare` that determine its numbers, except for the budget."""

    problem: Problem | ProblemSpec
    algorithms: Sequence[Any]
    name: str
    target: float | None
    K: LocalSteps
    R: int
    rounds: Rounds
    base: Any
    metric: str | None
    eta_g: float | None
    prefer: str
    split: float | None
    baselines: bool
    prior: Prior | None = None

    def to_json(self, jobs: int | None) -> dict[str, Any]:
        """Return the settings for another process; raise BadArgument if it could not read them.

        The settings contain no code, only names by which the other process finds the user's code:
        an algorithm of a user's file can be pickled, but another process cannot import its module.
        jobs: the number of processes on this machine; None for other machines, which look for
        files at the same paths.
        """
        if not isinstance(self.problem, ProblemSpec):
            raise _not_portable(jobs, "a problem", NAMED)
        if callable(self.rounds.available):
            raise _not_portable(jobs, "a table of who is there", "the path of a CSV as {available}")
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        problem = asdict(self.problem) | {"spec": absolute_spec(self.problem.spec)}
        return plain | {
            "problem": problem | {"data": _path(self.problem.data)},
            "algorithms": [_algorithm_to_json(algorithm, jobs) for algorithm in self.algorithms],
            "K": encode(self.K),
            "base": encode(self.base),
            "rounds": _rounds_to_json(self.rounds),
            "prior": None if self.prior is None else self.prior.to_json(),
        }

    @classmethod
    def from_json(cls, settings: dict[str, Any]) -> "StudySettings":
        """Read what `to_json` wrote."""
        problem = settings["problem"]
        data = None if problem["data"] is None else Path(problem["data"])
        prior = settings["prior"]
        read = {
            "problem": ProblemSpec(**problem | {"data": data}),
            "algorithms": [decode(algorithm) for algorithm in settings["algorithms"]],
            "K": decode(settings["K"]),
            "base": decode(settings["base"]),
            "rounds": _rounds_from_json(settings["rounds"]),
            "prior": None if prior is None else Prior.from_json(prior),
        }
        return cls(**settings | read)


def _rounds_to_json(rounds: Rounds) -> dict[str, Any]:
    given = {f.name: getattr(rounds, f.name) for f in fields(rounds)}
    x = None if rounds.x is None else b64encode(save({"x": rounds.x.contiguous()})).decode()
    return given | {"x": x, "available": _path(rounds.available)}


def _rounds_from_json(described: dict[str, Any]) -> Rounds:
    x = described["x"]
    return Rounds(**described | {"x": None if x is None else load(b64decode(x))["x"]})


def _path(path: Any) -> str | None:
    return None if path is None else str(Path(path).resolve())


def _algorithm_to_json(algorithm: Any, jobs: int | None) -> Any:
    """Return a name, or an instance as names and hyper-parameters."""
    if isinstance(algorithm, str):
        return absolute_spec(algorithm)
    if isinstance(algorithm, type):
        known = kind(algorithm)
        if not known.source:
            return known.name
    else:
        try:
            return encode(algorithm)
        except ValueError:
            pass
    raise _not_portable(jobs, "algorithms", "their names or file.py:Class")


def _not_portable(jobs: int | None, what: str, instead: str) -> BadArgument:
    name, others = ("cluster", "machines") if jobs is None else ("jobs", "processes")
    return BadArgument(
        name,
        f"{{{name}}} needs {{_what}} that other {others} can make too; pass {instead}, or drop "
        f"{{{name}}}.",
        _what=what,
    )


@dataclass
class Study:
    """What all entries of a comparison share: the problem split, the goal, budgets and folders."""

    measured: HeldOutProblem
    name: str
    goal: Goal
    specs: list[EntrySpec]
    R: int
    rounds: Rounds
    folder: Path | None = None
    resume: bool = False
    prior: Prior | None = None  # what a diagnosis expects
    given: dict[str, Any] = field(default_factory=dict)  # K, eta_g and base, which are not searched
    budget: Budget = field(default_factory=Budget)
    asks_baselines: bool = False
    shared: bool = False  # whether another process continues from the checkpoints of this one

    @classmethod
    def of(cls, settings: StudySettings, folder: Path | None, resume: bool) -> "Study":
        """Return the study of a comparison."""
        problem: Any = settings.problem
        if isinstance(problem, ProblemSpec):
            problem, _ = problem.problem_and_target
        rounds, split = settings.rounds, settings.split
        measured = held_out(as_problem(problem), split, rounds.seed, settings.metric)
        goal = goal_of(measured.problem, settings.target)
        goal = replace(goal, unit=unit_named(settings.prefer))
        given = {"eta_g": settings.eta_g, "base": settings.base}
        specs = entry_specs(settings.algorithms, settings.K, given, settings.prior)
        for spec in specs:  # What cannot run is refused before a folder is made.
            algorithm = spec.space.build(Point(spec.space.families[0], 0))
            Simulation(algorithm, measured.problem, rounds)
        specs += baseline_specs(measured, settings.K) if settings.baselines else []
        of_all = (measured, settings.name, goal, specs, settings.R, rounds, folder, resume)
        given = {k: v for k, v in {"K": settings.K, **given}.items() if v is not None}
        return cls(*of_all, settings.prior, given, asks_baselines=settings.baselines)

    def unused_settings(self) -> list[str]:
        """Return notes about settings that have no effect."""
        kinds = [spec.kind for spec in self.specs if spec.space.fixed is None]
        names = {parameter.name for kind in kinds for parameter in kind.parameters}
        unused = [name for name in self.given if name not in names]
        notes = [f"no algorithm that was searched has {listed(unused)}."] if unused else []
        missing = self.asks_baselines and not any(spec.measured for spec in self.specs)
        return notes + ["there are no baselines, since the problem has no samples."] * missing

    def open(self) -> None:
        """Start the folder, or check that it holds this comparison."""
        if self.folder is not None:
            settings = self._settings() | {"algorithms": [spec.label for spec in self.specs]}
            settings |= {"split": self.measured.split, "prefer": self.goal.unit}
            settings |= {"metric": self.goal.name}
            settings |= {} if self.prior is None else {"prior": self.prior.to_json()}
            path = self.folder / "compare.json"
            open_folder(path, "comparison", settings, self.measured.problem, self.resume)

    @property
    def keeps_cores_busy(self) -> bool:
        """Whether one simulation uses all cores, and has bits that depend on how many there are."""
        problem = self.measured.problem
        return choose(problem, cohort_size(self.rounds.S, problem.N)).threads == "all"

    def set_budget(self, given: Budget | None, minutes: float) -> Generator[RoundDone, None, None]:
        """Set the budget of each entry: as given, as written before, or from timed rounds."""
        path = None if self.folder is None else self.folder / "compare.json"
        record = {} if path is None else read_json(path)
        known = None
        if record.get("budget") is not None:
            known = Budget(record["budget"], record["round_cost"])
        if given is not None and known is not None and known != given:
            raise BadArgument(
                "budget",
                "{_folder} was made with {budget:{_known}} and {round_cost:{_cost}}; repeat them "
                "to resume it, or pass another {out}.",
                _folder=self.folder,
                _known=f"{known.gradients:g}",
                _cost=f"{known.round_cost:g}",
            )
        found = given or known
        if found is None and minutes != inf:
            found = yield from self._timed_budget(60 * minutes / len(self.specs))
        self.budget = found or Budget()
        if path is not None and self.budget.gradients != inf:
            facts = {"budget": self.budget.gradients, "round_cost": self.budget.round_cost}
            write_json(path, record | facts)

    def _timed_budget(self, seconds: float) -> Generator[RoundDone, None, Budget]:
        """Return what fits in so many seconds, from timed rounds with the least and most K.

        The median round of each counts, since another program may hold up a single one.
        """
        searched = [spec for spec in self.specs if spec.space.fixed is None]
        spaces = [spec.space for spec in (searched or self.specs) if spec.measured is None]
        space = max(spaces, key=lambda space: len(space.Ks))
        points, goal = list[tuple[float, float]](), self.goal.without_target()
        for family in dict.fromkeys((space.families[0], space.families[-1])):
            trial = self._in_memory(space.build(Point(family, TIMED_J)))
            yield from trial.advance(1, goal)
            began, times = monotonic(), list[float]()
            while len(times) < TIMED_ROUNDS and monotonic() - began < TIMED_SECONDS:
                if trial.diverged:
                    break
                started = monotonic()
                yield from trial.advance(len(trial.rounds) + 1, goal)
                times.append(max(1e-9, monotonic() - started))
            if times:
                work = cost_of(trial.rounds).work / len(trial.rounds)
                points.append((work, median(times)))
        return budget_of(points, seconds)

    def _in_memory(self, algorithm: Algorithm) -> Trial:
        here, record = self.measured, Record(None, {})
        return Trial(algorithm, here.problem, record, self.rounds, measure=here.validate)

    def trial(
        self,
        spec: EntrySpec,
        algorithm: Algorithm,
        stem: str,
        seed: int,
        x: Vector | None = None,
    ) -> Trial:
        """Return a trial in a folder of the entry; x: the start, if it is not that of the study."""
        folder = None if self.folder is None else self.folder / spec.label / stem
        settings = self._settings() | {"algorithm": repr(algorithm), "seed": seed}
        here = spec.measured or self.measured
        # `open` has compared the problem with that of the folder.
        there = folder is not None and (folder / "run.json").exists()
        problem = None if there else self.measured.problem
        record = Record(folder, settings, problem=problem, resume=self.resume)
        # A baseline has a problem with other clients, all of which take part.
        rounds = self.rounds if spec.measured is None else Rounds(x=self.rounds.x)
        rounds = replace(rounds, seed=seed, x=rounds.x if x is None else x)
        return Trial(
            algorithm,
            here.problem,
            record,
            rounds,
            label=spec.label,
            keep_best=True,
            measure=here.validate,
            simulation=here.simulation,
        )

    def at_start(self) -> dict[str, float]:
        """Return the metrics before the first round."""
        x, seed = self.rounds.x, self.rounds.seed
        return self.measured.validate(self.measured.problem.x0(seed) if x is None else x)

    def _settings(self) -> dict[str, Any]:
        rounds, N = self.rounds, self.measured.problem.N
        settings = {"problem": self.name} | recorded_settings(rounds, N)
        return settings | ({} if rounds.x is None else {"x": hashed_tensors([rounds.x])})
