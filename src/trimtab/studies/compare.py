"""Compare algorithms on one problem: each with its own best step size, side by side."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from math import floor
from pathlib import Path
from typing import Any

from trimtab._files import Lock, read_json, write_json
from trimtab.algorithms import ALGORITHMS, FedAvg, Momentum
from trimtab.core import Algorithm, Vector
from trimtab.problems.catalogue import load_problem
from trimtab.problems.problem import Problem
from trimtab.simulation import cohort_size, step_size
from trimtab.studies.comparison import Comparison, advise, entry_of, outcome_of
from trimtab.studies.fragility import judge, moved, repeat
from trimtab.studies.goal import Goal, goal_of, round_count
from trimtab.studies.race import Start, Trials, calm_down, race, ranked
from trimtab.studies.record import Record, how_computed, open_folder
from trimtab.studies.trial import Trial

DEFAULT = ("sgd", "fedavg", "scaffold", "mimelite", "mime")


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
) -> Comparison:
    """Tune each algorithm's step size on the problem, and tell which needs the fewest rounds.

    problem: one, or the name of one as for `trimtab compare`, with the target it suggests.
    algorithms: names, classes, or instances (which keep the step size they have); by default
    sgd, fedavg, scaffold, mimelite and mime. K: local steps, one number or several; by default
    those of one epoch (10 where an epoch is a single step).
    target: an accuracy (for regression, a loss); None takes one that the best nearly reaches.
    With `out`, everything is written there and an interrupted comparison can be resumed.

    >>> import torch, trimtab
    >>> pair = trimtab.Quadratic(A=torch.tensor([2.0, 0.0]), b=torch.tensor([42.0, -40.0]))
    >>> found = trimtab.compare(pair, ["fedavg", "scaffold"], K=10, target=-0.4999, R=30)
    >>> [(entry.name, entry.rounds is not None) for entry in found.entries]  # f_star is -0.5
    [('fedavg', False), ('scaffold', True)]
    """
    steps = comparing(
        problem,
        algorithms,
        target=target,
        K=K,
        S=S,
        R=R,
        seed=seed,
        base=base,
        name=name,
        out=out,
        resume=resume,
    )
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Comparison = done.value
            return result


def comparing(
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
) -> Generator[tuple[str, Trial], None, Comparison]:
    """Do what `compare` does; yield (label, trial) after each round, for progress."""
    R = round_count(R)
    if isinstance(problem, str):
        name = name or problem
        problem, suggested = load_problem(problem, seed=seed)
        target = suggested if target is None else target
    goal = goal_of(problem, target)
    lanes = _lanes(algorithms or DEFAULT, _local_steps(problem, K))
    folder = None if out is None else Path(out)
    name = name or type(problem).__name__.lower()
    common = {"problem": name, "seed": seed, "S": cohort_size(S, problem.N)}
    with nullcontext() if folder is None else Lock(folder):
        if folder is not None:
            settings = common | {"algorithms": [lane.label for lane in lanes]}
            open_folder(folder / "compare.json", "comparison", settings, problem, resume)

        def start(lane: _Lane, algorithm: Algorithm, x: Vector | None = None) -> Trial:
            step, value = step_size(algorithm)
            settings = common | {"algorithm": repr(algorithm)}
            again = "" if x is None else "-again"
            stem = f"{step or 'run'}={value:.4g}{again}"
            place = None if folder is None else folder / lane.label / stem
            record = Record(place, settings, problem=problem, resume=resume)
            return Trial(algorithm, problem, record, keep_best=True, S=S, seed=seed, x=x)

        trials: dict[str, Trials] = {}
        for lane in lanes:
            trials[lane.label] = yield from _labelled(lane, _race(lane, start, goal, R, base))
        goal = _settle(goal, [ranked(tried, goal)[0].rounds for tried in trials.values()])
        for lane in lanes:  # once more, now that there surely is a target
            if lane.fixed is None:
                heat = calm_down(_starter(lane, start, base), trials[lane.label], goal, R)
                yield from _labelled(lane, heat)
        order = {lane.label: ranked(trials[lane.label], goal) for lane in lanes}
        winners = {label: tried[0] for label, tried in order.items()}
        horizon = _horizon(goal, winners, R)
        entries = []
        for lane in lanes:
            winner = winners[lane.label]  # runs on to a common length, for the plots and the best
            yield from _labelled(lane, winner.advance(horizon, Goal(goal.metric)))
            again = None
            if winner.rounds and not winner.diverged:
                second = start(lane, winner.algorithm, moved(problem.x0(seed), seed))
                yield from _labelled(lane, repeat(second, winner, goal))
                diverged = second.diverged is not None
                again = judge(winner.rounds, second.rounds, goal, diverged)
            entries.append(entry_of(lane.name, lane.label, order[lane.label], goal, again))
        result = Comparison(name, goal.metric, goal.target, entries, advise(entries, goal), folder)
        if folder is not None:
            _write(folder, result, winners, goal)
        return result


# -- the lanes of the race


@dataclass(frozen=True)
class _Lane:
    """One algorithm at one K, still without a step size; or one that has it."""

    name: str
    K: int | None = None
    fixed: Any = None

    @property
    def label(self) -> str:
        return self.name if self.K is None else f"{self.name}-K{self.K}"

    def algorithm(self, eta: float, base: Any = None) -> Algorithm:
        cls = ALGORITHMS[self.name]
        if self.name == "richardsonromberg":
            assert self.K is not None
            wrapped: Algorithm = cls(FedAvg(eta_l=eta, K=self.K))
            return wrapped
        names = {f.name for f in fields(cls)}
        given: dict[str, Any] = {"eta_l" if "eta_l" in names else "eta": eta}
        given |= {"K": self.K} if "K" in names else {}
        given |= {"base": base or Momentum()} if "base" in names else {}
        made: Algorithm = cls(**given)
        return made


def _lanes(algorithms: Sequence[Any], Ks: Sequence[int]) -> list[_Lane]:
    lanes: list[_Lane] = []
    for algorithm in algorithms:
        name = algorithm.lower() if isinstance(algorithm, str) else _class_name(algorithm)
        if not isinstance(algorithm, str | type):
            same = sum(lane.name.split("#")[0] == name for lane in lanes)
            name = f"{name}#{same + 1}" if same else name
            lanes.append(_Lane(name, getattr(algorithm, "K", None), algorithm))
            continue
        if name not in ALGORITHMS:
            raise ValueError(f"{name!r} is no algorithm; pass some of {', '.join(ALGORITHMS)}.")
        stepless = name in ("sgd", "serveronly")
        lanes += [_Lane(name, K) for K in ([None] if stepless else Ks)]
    labels = [lane.label for lane in lanes]
    return [lane for i, lane in enumerate(lanes) if lane.label not in labels[:i]]


def _local_steps(problem: Problem, K: int | Sequence[int] | None) -> list[int]:
    if K is None:
        steps = getattr(problem, "steps", None)
        once = 1 if steps is None else steps(epochs=1)
        return [once if once > 1 else 10]  # with K = 1 there would be nothing to compare
    return list(K) if isinstance(K, Sequence) else [K]


def _class_name(algorithm: Any) -> str:
    return (algorithm if isinstance(algorithm, type) else type(algorithm)).__name__.lower()


def _starter(lane: _Lane, start: Any, base: Any) -> Start:
    """Return what makes the trial of a step size in this lane."""
    return lambda eta: start(lane, lane.algorithm(eta, base))


def _race(lane: _Lane, start: Any, goal: Goal, R: int, base: Any) -> Generator[Trial, None, Trials]:
    """Race the step sizes of one lane, or run its one algorithm; return the trials."""
    if lane.fixed is not None:
        trial: Trial = start(lane, lane.fixed)
        yield from trial.advance(R, goal)
        return {step_size(lane.fixed)[1]: trial}
    found = yield from race(_starter(lane, start, base), goal, R)
    return found


def _labelled(lane: _Lane, steps: Iterator[Trial]) -> Generator[tuple[str, Trial], None, Any]:
    """Pass on what moves with the name of its lane, and return what is returned."""
    while True:
        try:
            yield lane.label, next(steps)
        except StopIteration as done:
            return done.value


# -- the outcome


def _settle(goal: Goal, curves: list[list[dict[str, Any]]]) -> Goal:
    """Return the goal with a target: if none was given, one that the best run nearly reaches."""
    if goal.target is not None:
        return goal
    bests = [best for best in (goal.best(curve) for curve in curves) if best is not None]
    firsts = [curve[0][goal.metric] for curve in curves if curve and goal.best(curve) is not None]
    if not bests:
        return Goal(goal.metric, 0.5)
    if goal.higher:
        return Goal(goal.metric, floor(98 * max(bests)) / 100)
    least, worst = min(bests), max(firsts)
    return Goal(goal.metric, float(f"{least + 0.01 * (worst - least):.4g}"))


def _horizon(goal: Goal, winners: dict[str, Trial], R: int) -> int:
    met = [goal.first(trial.rounds) for trial in winners.values()]
    needed = [line["r"] if line else R for line in met]
    return min(R, max(20, *needed))


# -- the folder


def _write(folder: Path, result: Comparison, winners: dict[str, Trial], goal: Goal) -> None:
    executors = {}
    for label, trial in winners.items():
        if trial.rounds:
            trial.write_last(folder / label / "model.safetensors")
            trial.write_best(folder / label / "best.safetensors", goal)
            executors[label] = trial.sim.executor
    path, outcome = folder / "compare.json", outcome_of(result)
    how = {"executors": executors} | how_computed(executors.values())
    write_json(path, read_json(path) | how | {"outcome": outcome})
    for name in ("checkpoint.safetensors", "best.safetensors"):
        for file in folder.glob(f"*/*/{name}"):  # of the trials
            file.unlink()
