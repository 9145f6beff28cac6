"""Compare algorithms on one problem: each with its own best settings, over several seeds."""

import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import floor, inf, isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trimtab._files import Lock, read_json, write_json
from trimtab.core import Vector
from trimtab.core.task import Note, task
from trimtab.errors import BadArgument
from trimtab.problems.clients import summarise_clients
from trimtab.problems.metrics import ACCURACY
from trimtab.problems.problem import Problem
from trimtab.problems.saved import Card, recommend, save_model
from trimtab.simulation import Rounds
from trimtab.simulation.sampling import Available
from trimtab.studies.advice import advise
from trimtab.studies.budget import Clock, Deadline, check_budget
from trimtab.studies.comparison import About, Comparison
from trimtab.studies.course import Course
from trimtab.studies.events import RoundDone
from trimtab.studies.goal import Goal, round_count, rounded
from trimtab.studies.lanes import LocalSteps
from trimtab.studies.prior import Prior
from trimtab.studies.question import Question
from trimtab.studies.recipe import Recipe
from trimtab.studies.record import RoundLine, how_computed
from trimtab.studies.remote import helpers
from trimtab.studies.study import Study
from trimtab.studies.trial import Trial
from trimtab.studies.workers import Workers, processes

DEFAULT = ("sgd", "fedavg", "scaffold", "mimelite", "mime")
LEAST = 20  # the curves of all algorithms have >= 20 rounds, if R allows it
MINUTES = 5.0


@task
def compare(
    problem: Problem | Recipe | str,
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
    prior: Prior | None = None,
    jobs: int = 1,
    cluster: str | bool = False,
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
    prior: what a diagnosis expects; it is tried first, nothing is left out because of it, and the
    notes say whether it was right. With `out`, everything is written there and an interrupted
    comparison can be resumed. jobs: how many processes run algorithms side by side, for a problem
    given by its name; cluster: the address of a Ray cluster, or True for one on this machine, whose
    machines run them. No number depends on either.
    `compare.start` takes the same arguments and returns a task that tells of every round.

    >>> import torch, trimtab
    >>> pair = trimtab.Quadratic(A=torch.tensor([2.0, 0.0]), b=torch.tensor([42.0, -40.0]))
    >>> found = trimtab.compare(pair, ["fedavg", "scaffold"], K=10, target=-0.4999, R=30, seeds=1)
    >>> [(entry.name, entry.rounds is not None) for entry in found.entries]  # f_star is -0.5
    [('fedavg', False), ('scaffold', True)]
    """
    R = round_count(R)
    check_budget(minutes, budget)
    _check_count("seeds", seeds, "seeds")
    _check_count("jobs", jobs, "processes")
    if isinstance(problem, str):
        problem = Recipe(problem, seed=seed)
    if isinstance(problem, Recipe):
        name = name or problem.spec
        target = problem.made[1] if target is None and metric is None else target
    question = Question(
        problem=problem,
        algorithms=algorithms or DEFAULT,
        name=name or type(problem).__name__.lower(),
        target=target,
        K=K,
        R=R,
        rounds=Rounds(S=S, seed=seed, x=x, lost=lost, slow=slow, available=available),
        base=base,
        metric=metric,
        eta_g=eta_g,
        prefer=prefer,
        split=split,
        baselines=baselines,
        prior=prior,
    )
    described = question.to_json(None if cluster else jobs) if jobs > 1 or cluster else None
    with ExitStack() as at_end:
        folder = None if out is None else Path(out)
        if described is not None and folder is None:
            folder = Path(at_end.enter_context(TemporaryDirectory(prefix="trimtab-")))
        study = question.study(folder, resume)
        lock = None if folder is None else at_end.enter_context(Lock(folder))
        study.open()
        deadline = Deadline.of(minutes)
        study.budget = yield from study.set_budget(minutes, budget)
        workers = None
        if described is not None and lock is not None:
            study.resume = True  # what the workers leave is gone through here
            if study.keeps_cores_busy and not cluster:
                yield Note("one client keeps all cores busy, so that lanes run one after another")
            else:
                workers = at_end.enter_context(
                    _workers(study, described, deadline, lock, jobs, cluster)
                )
        result = yield from _compared(study, seeds, deadline, workers)
        if out is None:
            result.folder = None
        return result


def _workers(
    study: Study,
    described: dict[str, Any],
    deadline: Deadline,
    lock: Lock,
    jobs: int,
    cluster: str | bool,
) -> Workers:
    """Return who runs the lanes: so many processes here, or as many as a cluster has room for."""
    count, start = jobs, processes(lock)
    if cluster:
        assert study.folder is not None
        count, start = helpers(None if cluster is True else cluster, study.folder)
    return Workers(count, start, described, study, deadline)


def _compared(
    study: Study, seeds: int | None, deadline: Deadline, workers: Workers | None
) -> Generator[RoundDone | Note, None, Comparison]:
    """Search for every lane, settle the target, let the winners run with further seeds.

    Where there are workers they run each stage first; here it is then gone through on disk.
    """
    courses = [Course(study, lane, Clock(deadline)) for lane in study.lanes]

    def stage(names: Sequence[str], **facts: Any) -> Generator[RoundDone | Note, None, None]:
        order = courses
        if workers is not None:
            order = yield from workers.run(courses, names, facts)
            for course in courses:
                course.look_again()
        for name in names:
            for course in order:
                yield from course.run(name, facts)
        if workers is not None and workers.failed:
            sentence = "another process could not do this ({}); lanes run one after another."
            warnings.warn(sentence.format(workers.failed.rstrip(".")), stacklevel=2)
            workers.failed = ""

    # All begin first, so that there soon is something to tell.
    yield from stage(["begin", "go_on"])
    algorithms = [course.search for course in courses if course.lane.measured is None]
    curves = [search.trials[search.winner].rounds for search in algorithms]
    goal = _settled(study.goal, curves, study.at_start())
    yield from stage(["settle"], target=goal.target)
    winners = {course.lane.label: course.winner for course in courses}
    slack = _slack(study, goal, courses)
    goal = replace(goal, slack=slack or 0.0)
    count = seeds or study.affordable_seeds(winners)
    horizon = _horizon(goal, winners, study.R)
    yield from stage(["report"], count=count, horizon=horizon, slack=goal.slack)
    entries = [course.entry for course in courses]
    about = About(
        split=study.measured.split,
        tested_on=study.measured.tested_on,
        seeds=study.reported(count),
        budget=None if study.budget == inf else study.budget,
        complete=all(course.search.complete for course in courses),
        notes=(*study.measured.notes(goal, untold=slack is None), *study.judged(entries)),
    )
    advice = advise(entries, goal)
    result = Comparison(study.name, goal, entries, advice, study.folder, about=about)
    result.population = summarise_clients(study.measured.problem)
    if study.folder is not None:
        _write(study.folder, result, winners, goal)
    return result


def _save(folder: Path, result: Comparison, winners: dict[str, Trial], goal: Goal) -> None:
    """Write what `trimtab.load` needs beside the models, and which of them is recommended."""
    scores = {}
    for entry in result.entries:
        trial, test = winners[entry.label], result.about.tested_on
        best = None if entry.baseline else trial.best_x(goal)
        if best is None:
            continue
        card = Card(
            data=result.problem,
            algorithm=entry.name,
            settings=entry.settings,
            seed=trial.settings.seed,
            round=best[0],
            metrics=trial.problem.evaluate(best[1]),
            measured_on=f"{test} data",
            notes=result.about.notes,
        )
        here = folder / entry.label
        save_model(here, trial.problem, best[1], card, weights="best.safetensors")
        scores[entry.label] = goal.score({goal.name: entry.best})
    for label in [*result.advised, *sorted(scores, key=scores.__getitem__, reverse=True)][:1]:
        recommend(folder, label)


def _check_count(name: str, count: int | None, what: str) -> None:
    whole = hasattr(count, "__index__") and not isinstance(count, bool)
    if count is not None and not (whole and count >= 1):
        sentence = f"{{{name}:{{_given}}}}; pass a number of {what} >= 1."
        raise BadArgument(name, sentence, _given=count)


# -- the outcome


def _settled(goal: Goal, curves: list[list[RoundLine]], start: dict[str, float]) -> Goal:
    """Return the goal with a target: if none was given, one that the best run nearly reaches."""
    if goal.target is not None:
        return goal
    bests = [best for curve in curves if (best := goal.best(curve)) is not None]
    if not bests:
        return replace(goal, target=0.5)
    best = max(bests) if goal.metric.higher else min(bests)
    if goal.metric == ACCURACY and best >= 0.1:
        return replace(goal, target=floor(98 * best) / 100)
    begun = start[goal.name] if isfinite(start[goal.name]) else best
    short = (0.02 if goal.metric.higher else 0.01) * (best - begun)  # of the way to it
    return replace(goal, target=rounded(best - short, short))


def _slack(study: Study, goal: Goal, courses: Sequence[Course]) -> float | None:
    """Return what the rows cannot tell of the metric, at the best model; None: they are too few."""
    ours = [c.winner for c in courses if not c.lane.measured and goal.best_round(c.winner.rounds)]
    if not ours:
        return 0.0
    best = max(ours, key=lambda trial: goal.score({goal.name: goal.best(trial.rounds)}))
    found = best.best_x(goal)
    return 0.0 if found is None else study.measured.slack(found[1], goal.metric)


def _horizon(goal: Goal, winners: dict[str, Trial], R: int) -> int:
    met = [goal.first(trial.rounds) for trial in winners.values()]
    return min(R, max(LEAST, *(line.r if line else R for line in met)))


# -- the folder


def _write(folder: Path, result: Comparison, winners: dict[str, Trial], goal: Goal) -> None:
    executors, paths = {}, {}
    for label, trial in winners.items():
        if trial.rounds:
            trial.write_last(folder / label / "model.safetensors")
            trial.write_best(folder / label / "best.safetensors", goal)
            executors[label], paths[label] = trial.sim.runs_on, trial.sim.path
    _save(folder, result, winners, goal)
    path = folder / "compare.json"
    names = {label: executor.name for label, executor in executors.items()}
    how = {"executors": names, "paths": paths} | how_computed(executors.values())
    write_json(path, read_json(path) | how | {"outcome": result.to_record()})
    for name in ("checkpoint.safetensors", "best.safetensors"):
        for file in folder.glob(f"*/*/{name}"):  # of the trials
            file.unlink()
