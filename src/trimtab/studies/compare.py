"""Compare algorithms on one problem: each with its own best settings, over several seeds."""

from collections.abc import Generator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import floor, inf, isfinite
from pathlib import Path
from typing import Any

from trimtab._files import Lock, read_json, write_json
from trimtab.core import Vector
from trimtab.core.task import Note, task
from trimtab.errors import BadArgument
from trimtab.problems.loading import load_problem
from trimtab.problems.metric import ACCURACY
from trimtab.problems.population import population_of
from trimtab.problems.problem import Problem
from trimtab.simulation.sampling import Available
from trimtab.studies.advice import advise
from trimtab.studies.budget import Deadline, check_budget
from trimtab.studies.comparison import About, Comparison
from trimtab.studies.cost import unit_of
from trimtab.studies.entry import Entry, over_seeds, without_messages
from trimtab.studies.events import RoundDone
from trimtab.studies.goal import Goal, goal_of, round_count
from trimtab.studies.lanes import LocalSteps, baseline_lanes, lanes_of
from trimtab.studies.race import calm_down, ranked
from trimtab.studies.record import RoundLine, how_computed
from trimtab.studies.search import TIES, Search
from trimtab.studies.split import held_out
from trimtab.studies.study import Study
from trimtab.studies.trial import Trial

DEFAULT = ("sgd", "fedavg", "scaffold", "mimelite", "mime")
LEAST = 20  # the curves of all algorithms have >= 20 rounds, if R allows it
MINUTES = 5.0


@task
def compare(
    problem: Problem | str,
    algorithms: Sequence[Any] | None = None,
    *,
    target: float | None = None,
    K: LocalSteps = None,
    S: int | float | None = None,
    R: int = 200,
    seed: int = 0,
    base: Any = None,
    metric: str | None = None,
    eta_g: float | None = None,
    seeds: int | None = None,
    prefer: str = "rounds",
    minutes: float | None = MINUTES,
    budget: float | None = None,
    split: float | None = 0.1,
    baselines: bool = False,
    x: Vector | None = None,
    slow: float = 0.0,
    lost: float = 0.0,
    available: Available = None,
    name: str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Generator[RoundDone | Note, None, Comparison]:
    """Tune each algorithm on the problem, and tell which is best, and how sure that is.

    problem: one, or the name of one as for `trimtab compare`, with the target it suggests.
    algorithms: names, classes, or instances (which keep the settings they have); by default
    sgd, fedavg, scaffold, mimelite and mime. Step size, K, eta_g and the base's momentum are
    searched, with one budget for every algorithm; what is given is not: K (one number, several, or
    Epochs), eta_g, base. The search has `seed`, the report the `seeds` after it (by default 5 where
    they fit the budget, else 3); 1 reports the search itself.
    target: an accuracy (for regression, a loss), or a value of `metric`, which any of the problem's
    metrics may be; None takes one that the best nearly reaches. split: the share of the samples on
    which runs are tuned, stopped and compared; the test data tell what the chosen models are worth.
    None looks at the test data all along. prefer: what is to be saved: rounds, exchanges, bytes or
    work (sample gradients at the clients). minutes are turned into a budget of sample gradients by
    a few timed rounds; `budget` repeats a comparison anywhere. baselines: each client alone, and
    all data in one place, beside the algorithms. x, slow, lost and available are as in `simulate`.
    With `out`, everything is written there and an interrupted comparison can be resumed.
    `compare.start` takes the same arguments and returns a task that tells of every round.

    >>> import torch, trimtab
    >>> pair = trimtab.Quadratic(A=torch.tensor([2.0, 0.0]), b=torch.tensor([42.0, -40.0]))
    >>> found = trimtab.compare(pair, ["fedavg", "scaffold"], K=10, target=-0.4999, R=30, seeds=1)
    >>> [(entry.name, entry.rounds is not None) for entry in found.entries]  # f_star is -0.5
    [('fedavg', False), ('scaffold', True)]
    """
    R = round_count(R)
    check_budget(minutes, budget)
    if seeds is not None and (isinstance(seeds, bool) or seeds < 1):
        raise BadArgument("seeds", "{seeds:{_given}}; pass a number of seeds >= 1.", _given=seeds)
    if isinstance(problem, str):
        name = name or problem
        problem, suggested = load_problem(problem, seed=seed)
        target = suggested if target is None and metric is None else target
    measured = held_out(problem, split, seed, metric)
    goal = replace(goal_of(measured.problem, target), unit=unit_of(prefer))
    study = Study(
        measured=measured,
        name=name or type(problem).__name__.lower(),
        goal=goal,
        lanes=[
            *lanes_of(algorithms or DEFAULT, measured.problem, K, {"base": base, "eta_g": eta_g}),
            *(baseline_lanes(measured, K) if baselines else ()),
        ],
        R=R,
        options={"S": S, "x": x, "slow": slow, "lost": lost, "available": available},
        seed=seed,
        folder=None if out is None else Path(out),
        resume=resume,
    )
    with nullcontext() if study.folder is None else Lock(study.folder):
        study.open()
        return (yield from _compared(study, seeds, minutes, budget))


def _compared(
    study: Study, seeds: int | None, minutes: float | None, budget: float | None
) -> Generator[RoundDone | Note, None, Comparison]:
    """Search for every lane, settle the target, let the winners run with further seeds."""
    deadline = Deadline.of(minutes)
    study.budget = yield from study.set_budget(minutes, budget)
    searches: dict[str, Search] = {}
    begun = {}
    for lane in study.lanes:  # all begin first, so that there soon is something to tell
        searches[lane.label], begun[lane.label] = yield from study.begun(lane, deadline)
        yield study.so_far(lane, searches[lane.label])
    for lane in study.lanes:
        if lane.space is not None:
            yield from searches[lane.label].go_on(begun[lane.label])
            yield study.so_far(lane, searches[lane.label])
    curves = [search.trials[search.winner].rounds for search in searches.values()]
    study.goal = goal = _settled(study.goal, curves, study.at_start())
    order: dict[str, list[Trial]] = {}
    for lane in study.lanes:  # once more, now that there surely is a target
        search = searches[lane.label]
        search.goal = goal
        trials = search.along(search.winner)
        if lane.space is not None:
            starter = study.starter(lane, search.winner)
            yield from calm_down(starter, trials, goal, study.R, furthest=TIES)
        order[lane.label] = ranked(trials, goal)
    winners = {label: tried[0] for label, tried in order.items()}
    count = seeds or study.affordable_seeds(winners)
    horizon = _horizon(goal, winners, study.R)
    entries: list[Entry] = []
    for lane in study.lanes:
        search, winner = searches[lane.label], winners[lane.label]
        entry = yield from study.finish(lane, order[lane.label], horizon, search, deadline)
        entry.not_run, entry.searched = search.not_run, search.candidates()
        runs = yield from study.runs(lane, winner, entry, count, horizon, search, deadline)
        entry.per_client = study.per_client(lane)
        entries.append(without_messages(over_seeds(entry, runs, goal)))
    about = About(
        split=study.measured.split,
        tested_on=study.measured.tested_on,
        seeds=study.reported(count),
        budget=None if study.budget == inf else study.budget,
        complete=all(search.complete for search in searches.values()),
        notes=tuple(study.measured.notes(goal.metric)),
    )
    advice = advise(entries, goal)
    result = Comparison(study.name, goal, entries, advice, study.folder, about=about)
    result.population = population_of(study.measured.problem)
    if study.folder is not None:
        _write(study.folder, result, winners, goal)
    return result


# -- the outcome


def _settled(goal: Goal, curves: list[list[RoundLine]], start: dict[str, float]) -> Goal:
    """Return the goal with a target: if none was given, one that the best run nearly reaches."""
    if goal.target is not None:
        return goal
    bests = [best for curve in curves if (best := goal.best(curve)) is not None]
    if not bests:
        return replace(goal, target=0.5)
    if goal.metric == ACCURACY:
        return replace(goal, target=floor(98 * max(bests)) / 100)
    best = max(bests) if goal.metric.higher else min(bests)
    begun = start[goal.name] if isfinite(start[goal.name]) else best
    short = 0.02 if goal.metric.higher else 0.01  # the target is so much of the way short of it
    return replace(goal, target=float(f"{best - short * (best - begun):.4g}"))


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
