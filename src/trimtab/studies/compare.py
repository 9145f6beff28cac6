"""Compare algorithms on one problem: each with its own best step size, side by side."""

from collections.abc import Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any

from trimtab._files import Lock, read_json, write_json
from trimtab.algorithms.registry import Kind, build, kind
from trimtab.core import Algorithm, Vector
from trimtab.core.hyper import settings_of, step_size
from trimtab.core.task import task
from trimtab.problems.capabilities import capabilities
from trimtab.problems.loading import load_problem
from trimtab.problems.metric import ACCURACY
from trimtab.problems.problem import Problem
from trimtab.simulation import cohort_size
from trimtab.studies.comparison import Comparison, Entry, advise, entry_of
from trimtab.studies.events import RoundDone
from trimtab.studies.fragility import judge, moved, repeat
from trimtab.studies.goal import Goal, goal_of, round_count
from trimtab.studies.race import Start, Trials, calm_down, race, ranked
from trimtab.studies.record import Record, RoundLine, how_computed, open_folder
from trimtab.studies.trial import Trial

DEFAULT = ("sgd", "fedavg", "scaffold", "mimelite", "mime")
LEAST = 20  # the curves of all algorithms have >= 20 rounds, if R allows it


@task
def compare(
    problem: Problem | str,
    algorithms: Sequence[Any] | None = None,
    *,
    target: float | None = None,
    K: int | Sequence[int] | None = None,
    S: int | float | None = None,
    R: int = 200,
    seed: int = 0,
    base: Any = None,
    name: str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Generator[RoundDone, None, Comparison]:
    """Tune each algorithm's step size on the problem, and tell which needs the fewest rounds.

    problem: one, or the name of one as for `trimtab compare`, with the target it suggests.
    algorithms: names, classes, or instances (which keep the step size they have); by default
    sgd, fedavg, scaffold, mimelite and mime. K: local steps, one number or several; by default
    those of one epoch (10 where an epoch is a single step).
    target: an accuracy (for regression, a loss); None takes one that the best nearly reaches.
    With `out`, everything is written there and an interrupted comparison can be resumed.
    `compare.start` takes the same arguments and returns a task that tells of every round.

    >>> import torch, trimtab
    >>> pair = trimtab.Quadratic(A=torch.tensor([2.0, 0.0]), b=torch.tensor([42.0, -40.0]))
    >>> found = trimtab.compare(pair, ["fedavg", "scaffold"], K=10, target=-0.4999, R=30)
    >>> [(entry.name, entry.rounds is not None) for entry in found.entries]  # f_star is -0.5
    [('fedavg', False), ('scaffold', True)]
    """
    R = round_count(R)
    if isinstance(problem, str):
        name = name or problem
        problem, suggested = load_problem(problem, seed=seed)
        target = suggested if target is None else target
    study = _Study(
        problem=problem,
        name=name or type(problem).__name__.lower(),
        goal=goal_of(problem, target),
        lanes=_lanes(algorithms or DEFAULT, _local_steps(problem, K)),
        R=R,
        S=S,
        seed=seed,
        base=base,
        folder=None if out is None else Path(out),
        resume=resume,
    )
    with nullcontext() if study.folder is None else Lock(study.folder):
        study.open()
        trials: dict[str, Trials] = {}
        for lane in study.lanes:
            trials[lane.label] = yield from study.race(lane)
        goal = study.goal = _settle(study.goal, [_curve(t, study.goal) for t in trials.values()])
        for lane in study.lanes:  # once more, now that there surely is a target
            if lane.fixed is None:
                yield from calm_down(study.starter(lane), trials[lane.label], goal, R)
        order = {lane.label: ranked(trials[lane.label], goal) for lane in study.lanes}
        winners = {label: tried[0] for label, tried in order.items()}
        horizon = _horizon(goal, winners, R)
        entries: list[Entry] = []
        for lane in study.lanes:
            entries.append((yield from study.finish(lane, order[lane.label], horizon)))
        advice = advise(entries, goal)
        result = Comparison(study.name, goal, entries, advice, study.folder)
        if study.folder is not None:
            _write(study.folder, result, winners, goal)
        return result


# -- the lanes of the race


@dataclass(frozen=True)
class _Lane:
    """One algorithm at one K, still without a step size; or one that has it."""

    kind: Kind
    name: str
    K: int | None = None
    fixed: Any = None

    @property
    def label(self) -> str:
        return self.name if self.K is None else f"{self.name}-K{self.K}"

    def algorithm(self, eta: float, base: Any = None) -> Algorithm:
        words: dict[str, Any] = {self.kind.step: eta}
        words |= {} if self.K is None else {"K": self.K}
        words |= {"base": base} if any(p.name == "base" for p in self.kind.parameters) else {}
        made: Algorithm = build(self.kind, **words)
        return made


def _lanes(algorithms: Sequence[Any], Ks: Sequence[int]) -> list[_Lane]:
    lanes: list[_Lane] = []
    for algorithm in algorithms:
        chosen = kind(algorithm)
        if not isinstance(algorithm, str | type):
            same = sum(lane.kind.name == chosen.name for lane in lanes)
            name = f"{chosen.name}#{same + 1}" if same else chosen.name
            lanes.append(_Lane(chosen, name, settings_of(algorithm).get("K"), algorithm))
        elif not chosen.step:
            lanes.append(_Lane(chosen, chosen.name, fixed=build(chosen)))
        else:
            lanes += [_Lane(chosen, chosen.name, K) for K in (Ks if chosen.has_K else [None])]
    labels = [lane.label for lane in lanes]
    return [lane for i, lane in enumerate(lanes) if lane.label not in labels[:i]]


def _local_steps(problem: Problem, K: int | Sequence[int] | None) -> list[int]:
    if K is None:
        steps = capabilities(problem).steps
        once = 1 if steps is None else steps(1)
        return [once if once > 1 else 10]  # with K = 1 there would be nothing to compare
    return list(K) if isinstance(K, Sequence) else [K]


@dataclass
class _Study:
    """What all lanes have in common."""

    problem: Problem
    name: str
    goal: Goal
    lanes: list[_Lane]
    R: int
    S: int | float | None
    seed: int
    base: Any
    folder: Path | None
    resume: bool

    def open(self) -> None:
        """Start the folder, or check that it holds this comparison."""
        if self.folder is not None:
            settings = self._settings() | {"algorithms": [lane.label for lane in self.lanes]}
            path = self.folder / "compare.json"
            open_folder(path, "comparison", settings, self.problem, self.resume)

    def trial(self, lane: _Lane, algorithm: Algorithm, x: Vector | None = None) -> Trial:
        """Return the trial of one step size, from a moved start if x is given."""
        step, value = step_size(algorithm)
        stem = f"{step or 'run'}={value:.4g}{'' if x is None else '-again'}"
        folder = None if self.folder is None else self.folder / lane.label / stem
        settings = self._settings() | {"algorithm": repr(algorithm)}
        record = Record(folder, settings, problem=self.problem, resume=self.resume)
        options: dict[str, Any] = {"S": self.S, "seed": self.seed, "x": x}
        return Trial(algorithm, self.problem, record, label=lane.label, keep_best=True, **options)

    def starter(self, lane: _Lane) -> Start:
        """Return what makes the trial of a step size in this lane."""
        return lambda eta: self.trial(lane, lane.algorithm(eta, self.base))

    def race(self, lane: _Lane) -> Generator[RoundDone, None, Trials]:
        """Race the step sizes of one lane, or run its one algorithm; return the trials."""
        if lane.fixed is None:
            return (yield from race(self.starter(lane), self.goal, self.R))
        trial = self.trial(lane, lane.fixed)
        yield from trial.advance(self.R, self.goal)
        return {step_size(lane.fixed)[1]: trial}

    def finish(
        self, lane: _Lane, tried: list[Trial], horizon: int
    ) -> Generator[RoundDone, None, Entry]:
        """Let the winner run on to a common length, and once more from a moved start."""
        winner, again = tried[0], None
        yield from winner.advance(horizon, self.goal.without_target())
        if winner.rounds and not winner.diverged:
            start = moved(self.problem.x0(self.seed), self.seed)
            second = self.trial(lane, winner.algorithm, start)
            yield from repeat(second, winner, self.goal)
            diverged = second.diverged is not None
            again = judge(winner.rounds, second.rounds, self.goal, diverged)
        return entry_of(lane.name, lane.label, tried, self.goal, again)

    def _settings(self) -> dict[str, Any]:
        S = cohort_size(self.S, self.problem.N)
        return {"problem": self.name, "seed": self.seed, "S": S}


# -- the outcome


def _curve(trials: Trials, goal: Goal) -> list[RoundLine]:
    return ranked(trials, goal)[0].rounds


def _settle(goal: Goal, curves: list[list[RoundLine]]) -> Goal:
    """Return the goal with a target: if none was given, one that the best run nearly reaches."""
    if goal.target is not None:
        return goal
    finite = [(goal.best(curve), curve) for curve in curves]
    bests = [best for best, _ in finite if best is not None]
    starts = [curve[0].metrics[goal.name] for best, curve in finite if best is not None]
    if not bests:
        return Goal(goal.metric, 0.5)
    if goal.metric == ACCURACY:
        return Goal(goal.metric, floor(98 * max(bests)) / 100)
    if goal.metric.higher:
        most, worst = max(bests), min(start for start in starts if start is not None)
        return Goal(goal.metric, float(f"{most - 0.02 * (most - worst):.4g}"))
    least, worst = min(bests), max(start for start in starts if start is not None)
    return Goal(goal.metric, float(f"{least + 0.01 * (worst - least):.4g}"))


def _horizon(goal: Goal, winners: dict[str, Trial], R: int) -> int:
    met = [goal.first(trial.rounds) for trial in winners.values()]
    return min(R, max(LEAST, *(line.r if line else R for line in met)))


# -- the folder


def _write(folder: Path, result: Comparison, winners: dict[str, Trial], goal: Goal) -> None:
    executors = {}
    for label, trial in winners.items():
        if trial.rounds:
            trial.write_last(folder / label / "model.safetensors")
            trial.write_best(folder / label / "best.safetensors", goal)
            executors[label] = trial.sim.runs_on
    path = folder / "compare.json"
    names = {label: executor.name for label, executor in executors.items()}
    how = {"executors": names} | how_computed(executors.values())
    write_json(path, read_json(path) | how | {"outcome": result.to_record()})
    for name in ("checkpoint.safetensors", "best.safetensors"):
        for file in folder.glob(f"*/*/{name}"):  # of the trials
            file.unlink()
