"""Compare algorithms on one problem: each with its own best settings, over several seeds."""

import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import ceil, inf, isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trimtab._files import Lock, read_json, write_json
from trimtab.algorithms.registry import algorithm_list
from trimtab.core import Vector, plain_number
from trimtab.core.task import Note, task
from trimtab.problems.clients import summarise_clients
from trimtab.problems.problem import Problem
from trimtab.problems.saved import Card, recommend, save_model
from trimtab.simulation import Rounds
from trimtab.simulation.sampling import Available
from trimtab.studies.advice import advise
from trimtab.studies.budget import TIME, Budget, Deadline, check_budget
from trimtab.studies.comparison import About, Comparison
from trimtab.studies.goal import Goal, checked_count, rounded
from trimtab.studies.holdout import ProblemSpec, check_compare
from trimtab.studies.pool import Finished, Pool, WorkerError, process_pool, ray_pool
from trimtab.studies.record import RoundDone, execution_facts
from trimtab.studies.search import FIRST_REPORT_SEED
from trimtab.studies.space import LocalSteps, Prior
from trimtab.studies.statistics import NORMAL
from trimtab.studies.study import Study, StudySettings
from trimtab.studies.tuner import Stage, Tuner

DEFAULT = ("sgd", "fedavg", "scaffold", "mimelite", "mime")
SEEDS = 5  # Three seeds give no 90 % interval: measured coverage 75 to 81 %.
MINUTES = 5.0
SHORTEST_CURVE = 20  # rounds of the curves, so that they show more than the way to the target
FIRST_PILOT = 16  # rounds of the first pilot; they double
GAIN = 0.01  # Without an error of held-out rows, the target is 1 % of the gain below the best.
LEFT = 0.05  # of the minutes: a smaller rest is not divided again
FEW_ROUNDS = 4  # A default target that is held before this round says little.

Events = Generator[RoundDone | Note, None, None]


@task
def compare(
    problem: Problem | ProblemSpec | str,
    algorithms: Sequence[Any] | None = None,
    *,
    target: float | None = None,
    K: LocalSteps = None,
    S: int | float | None = None,
    R: int = 200,
    metric: str | None = None,
    minutes: float | None = None,
    seeds: int = SEEDS,
    prefer: str = "rounds",
    split: float | None = 0.1,
    baselines: bool = False,
    jobs: int = 1,
    out: str | Path | None = None,
    resume: bool = False,
    # What most comparisons leave as it is: the search, the rounds, the machines.
    seed: int = 0,
    eta_g: float | None = None,
    base: Any = None,
    prior: Prior | None = None,
    budget: float | None = None,
    round_cost: float = 0.0,
    x: Vector | None = None,
    slow: float = 0.0,
    lost: float = 0.0,
    available: Available = None,
    name: str | None = None,
    cluster: str | bool = False,
) -> Generator[RoundDone | Note, None, Comparison]:
    """Tune each algorithm on the problem, and recommend one.

    problem: a problem, or the name of one as for `trimtab compare`, with the target it suggests.
    algorithms: names, classes, or instances, whose settings are kept; by default sgd, fedavg,
        scaffold, mimelite and mime. Step size, K, eta_g and the base's momentum are searched.
    target: the value of the metric to reach; by default, what the best candidate of a pilot
        reaches, less one standard error of the held-out rows.
    K: local steps: one number, several, or Epochs; searched by default.
    S: clients in a round, a number or a share; by default all.
    R: the highest number of rounds of a run, by default 200.
    metric: any metric of the problem; by default its own.
    minutes: the time for everything, by default 5, or no limit with `budget`; inf for no limit.
    seeds: the number of report seeds, which had no part in the search, by default 5. Fewer give a
        range instead of an interval.
    prefer: the cost to minimise: rounds (the default), exchanges, bytes or work (sample gradients).
    split: the share of the samples on which runs are tuned, stopped and compared, by default 0.1;
        None uses the test data, which flatters all of them.
    baselines: add each client alone, and all data in one place.
    jobs: the number of processes that search algorithms side by side, for a problem given by name;
        by default 1.
    out: a folder for everything; by default nothing is written.
    resume: continue an interrupted comparison in `out`.

    Most comparisons leave the rest as it is:

    seed: of the search, by default 0; the finals and the report use seeds counted from it.
    eta_g, base: as in the algorithms; given values are not searched.
    prior: what a diagnosis expects; the search begins there.
    budget: the sample gradients of each algorithm; repeats a comparison on any machine.
    round_cost: the sample gradients that a round costs besides its own; belongs to `budget`.
    x, slow, lost, available: as in `simulate`.
    name: of the problem in records.
    cluster: the address of a Ray cluster, or True for one on this machine. No number depends on
        jobs or cluster.

    `compare.start` takes the same arguments and returns a task that yields every round.

    >>> import torch, trimtab
    >>> pair = trimtab.Quadratic(A=torch.tensor([2.0, 0.0]), b=torch.tensor([42.0, -40.0]))
    >>> found = trimtab.compare(pair, ["fedavg", "scaffold"], K=10, target=-0.4999, R=30, seeds=1)
    >>> [(entry.name, entry.rounds is not None) for entry in found.entries]  # f_star is -0.5
    [('fedavg', False), ('scaffold', True)]
    """
    R = checked_count("R", R, "rounds R")
    check_compare(K=K, eta_g=eta_g, name=name, out=out, resume=resume, prior=prior, cluster=cluster)
    check_budget(minutes, budget, round_cost)
    seeds = checked_count("seeds", seeds, "seeds")
    jobs = checked_count("jobs", jobs, "processes")
    if isinstance(problem, str):
        problem = ProblemSpec(problem, seed=seed)
    if isinstance(problem, ProblemSpec):
        name = name or problem.spec
        target = problem.problem_and_target[1] if target is None and metric is None else target
    settings = StudySettings(
        problem=problem,
        algorithms=DEFAULT if algorithms is None else algorithm_list(algorithms),
        name=name or type(problem).__name__.lower(),
        target=plain_number(target),
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
    portable = settings.to_json(None if cluster else jobs) if jobs > 1 or cluster else None
    with ExitStack() as at_end:
        folder = None if out is None else Path(out)
        if portable is not None and folder is None:
            folder = Path(at_end.enter_context(TemporaryDirectory(prefix="trimtab-")))
        study = Study.of(settings, folder, resume)
        lock = None if folder is None else at_end.enter_context(Lock(folder))
        study.open()
        limit = MINUTES if minutes is None and budget is None else minutes or inf
        deadline = Deadline(limit)
        given = None if budget is None else Budget(float(budget), float(round_cost))
        yield from study.set_budget(given, limit)
        pool = None
        if portable is not None and lock is not None:
            study.resume = True  # This process repeats what the workers have written.
            if study.keeps_cores_busy and not cluster:
                yield Note("one client keeps all cores busy, so that algorithms run in turn")
            else:
                if cluster:
                    started = ray_pool(None if cluster is True else cluster, study, portable)
                else:
                    started = process_pool(jobs, study, portable, lock)
                pool = at_end.enter_context(started)
        result = yield from _Run(study, deadline, pool).result(seeds)
        if out is None:
            result.folder = None
        return result


class _Run:
    """A comparison while it runs: the stages of all tuners, and the result as it grows."""

    def __init__(self, study: Study, deadline: Deadline, pool: Pool | None) -> None:
        self.study, self.deadline, self.pool = study, deadline, pool
        self.tuners = [Tuner(study, spec) for spec in study.specs]
        self.target_from = ""

    def result(self, seeds: int) -> Generator[RoundDone | Note, None, Comparison]:
        """Pilot if there is no target, search, report; return the result."""
        study, goal = self.study, self.study.goal
        self._save(goal, finished=False)
        if goal.target is None:
            goal = yield from self._default_target()
        yield from self._search(goal)
        error = self._metric_error(goal)
        goal = replace(goal, slack=error or 0.0)
        report = Stage(
            "report",
            0.0,
            target=goal.target,
            seeds=seeds,
            horizon=self._horizon(goal),
            metric_error=goal.slack,
        )
        yield from self._stage(report, until=1.0, goal=goal)
        notes = [*study.measured.notes(goal, untold=error is None), *self._few_rows(goal)]
        notes += study.unused_settings()
        result = self._save(goal, finished=True, notes=notes)
        if study.folder is not None:
            self._write_models(goal, study.folder, result)
        return result

    # -- stages

    def _search(self, goal: Goal) -> Events:
        """Search; who runs out of time gets what the others leave."""
        stage, left = Stage("search", 0.0, target=goal.target), self.tuners
        while left:
            yield from self._stage(stage, until=0.8, goal=goal, tuners=left)
            left = [tuner for tuner in left if TIME in tuner.search.undone]
            if self.deadline.until(0.8) < LEFT * 60 * self.deadline.minutes:
                return

    def _stage(
        self, stage: Stage, until: float, goal: Goal, tuners: Sequence[Tuner] | None = None
    ) -> Events:
        """Run a stage of tuners, by default of all, which ends at a share of the time.

        Where there are workers, they run the stage first; this process then repeats it from disk,
        so that no number depends on how many there are.
        """
        left = {tuner.spec.label: tuner for tuner in tuners or self.tuners}
        errors = list[WorkerError]()
        if self.pool is not None:
            slots = ceil(len(left) / self.pool.size)
            timed = replace(stage, seconds=self.deadline.until(until) / slots)
            for event in self.pool.run_all([(label, timed) for label in left]):
                if not isinstance(event, Finished):
                    yield event
                elif event.error is None:
                    # The worker stopped where it had to, so that repeating its stage takes no time.
                    yield from self._repeat(left.pop(event.label), replace(stage, seconds=0.0))
                    self._save(goal, finished=False)
                else:
                    errors.append(event.error)
        for count, tuner in zip(range(len(left), 0, -1), left.values(), strict=True):
            seconds = self.deadline.until(until) / count
            yield from self._repeat(tuner, replace(stage, seconds=seconds))
            self._save(goal, finished=False)
        for error in errors:  # An error of a user's file has been raised here by now.
            warnings.warn(f"{error}; this process continued its work.", stacklevel=2)

    def _repeat(self, tuner: Tuner, stage: Stage) -> Events:
        """Run a stage with the rounds that are on disk, and those that are not."""
        if self.pool is not None:
            tuner.reload()
        yield from tuner.run(stage)

    def _default_target(self) -> Generator[RoundDone | Note, None, Goal]:
        """Return the goal with a target that good settings can hold.

        Rounds double until the best candidate of all algorithms gains less than one standard error
        of the held-out rows. The target is its late median, less one standard error. The start has
        no influence unless there are no such rows.
        """
        goal, r, last = self.study.goal, FIRST_PILOT, -inf
        own = [tuner for tuner in self.tuners if tuner.spec.measured is None]
        while True:
            r = min(r, self.study.R)
            yield from self._stage(Stage("pilot", 0.0, R=r), until=0.2, goal=goal)
            found = [best for t in own if (best := t.search.late_best(r)) is not None]
            if not found:  # The budget ended before round r.
                found = [best for t in own if (best := t.search.late_best(1)) is not None]
            if not found:
                return self._without_a_pilot()
            score, run = max(found, key=lambda each: each[0])
            error = self.study.measured.metric_error(run.trial.sim.server.x, goal.metric)
            short = error / NORMAL if error else GAIN * abs(score - run.scores[0])
            if score - last < short or r == self.study.R or len(run.scores) < r:
                break
            r, last = 2 * r, score
        score = max(score, last) - short
        target = rounded(score if goal.metric.higher else -score, short)
        how = f"one standard error ({short:.2g}) of the held-out rows"
        below = "below" if goal.metric.higher else "above"
        how = how if error else "1 % of the gain"
        self.target_from = (
            f"The target, {goal.name} {target:g}, lies {how} {below} the value that the best of "
            f"all candidates has after {r} rounds."
        )
        return replace(goal, target=target)

    def _without_a_pilot(self) -> Goal:
        """Return a goal where every candidate of the pilot diverged."""
        goal = self.study.goal
        start = self.study.at_start()[goal.name]
        self.target_from = "The target is the value at the start, since every candidate diverged."
        worst = goal.metric.high if goal.metric.higher else goal.metric.low
        return replace(goal, target=next(v for v in (start, worst, 0.0) if isfinite(v)))

    # -- numbers that all entries share

    def _ours(self, goal: Goal) -> list[Tuner]:
        """Return the tuners of algorithms, not baselines, that have a finite score."""
        return [
            tuner
            for tuner in self.tuners
            if tuner.spec.measured is None and goal.best_round(tuner.winner.trial.rounds)
        ]

    def _metric_error(self, goal: Goal) -> float | None:
        """Return the 90 % error of the metric on the held-out rows; None: they are too few."""
        ours = self._ours(goal)
        if not ours:
            return 0.0
        trials = [tuner.winner.trial for tuner in ours]
        best = max(trials, key=lambda trial: goal.score({goal.name: goal.best(trial.rounds)}))
        found = best.best_x(goal)
        return 0.0 if found is None else self.study.measured.metric_error(found[1], goal.metric)

    def _horizon(self, goal: Goal) -> int:
        """Return the round to which all curves run."""
        held = [tuner.winner.rounds for tuner in self.tuners]
        return min(self.study.R, max(SHORTEST_CURVE, *(r or self.study.R for r in held)))

    def _few_rows(self, goal: Goal) -> list[str]:
        """Return a note if the default target was held at once."""
        rounds = [t.entry.rounds for t in self._ours(goal) if t.entry.rounds is not None]
        if not self.target_from or not rounds or min(rounds) >= FEW_ROUNDS:
            return []
        return [
            f"the best algorithm holds the target in round {min(rounds)}: there are too few rows "
            "for a target; give one, or hold out more."
        ]

    # -- the result

    def _save(self, goal: Goal, finished: bool, notes: Sequence[str] = ()) -> Comparison:
        """Return the result so far, and write it to the folder."""
        study = self.study
        entries = [tuner.entry for tuner in self.tuners if tuner.has_begun]
        seeds = max((len(tuner.reported) for tuner in self.tuners), default=0)
        first = study.rounds.seed + FIRST_REPORT_SEED
        prior = study.prior
        judged = [] if prior is None or not finished else [prior.judged(entries)]
        about = About(
            split=study.measured.split,
            tested_on=study.measured.tested_on,
            seeds=tuple(range(first, first + seeds)),
            budget=None if study.budget.gradients == inf else study.budget.gradients,
            round_cost=study.budget.round_cost,
            complete=finished and all(tuner.search.complete for tuner in self.tuners),
            notes=(*notes, *judged),
            target_from=self.target_from,
            finished=finished,
        )
        searched = sum(tuner.search.chosen is not None for tuner in self.tuners)
        advice = f"Not finished: {searched} of {len(self.tuners)} algorithms have been searched."
        if finished:
            advice = advise(entries, goal)
        result = Comparison(study.name, goal, entries, advice, study.folder, about=about)
        result.population = summarise_clients(study.measured.problem)
        if study.folder is not None:
            result.save()
        return result

    def _write_models(self, goal: Goal, folder: Path, result: Comparison) -> None:
        """Write the models of the winners, and delete the checkpoints of all trials."""
        executors, paths, scores = {}, {}, dict[str, float]()
        for tuner in self.tuners:
            label, trial = tuner.spec.label, tuner.winner.trial
            if trial.rounds:
                trial.write_last(folder / label / "model.safetensors")
                executors[label], paths[label] = trial.sim.runs_on, trial.sim.path
                if tuner.entry.baseline:
                    trial.write_best(folder / label / "best.safetensors", goal)
                elif self._save_model(tuner, goal, folder / label, result):
                    scores[label] = goal.score({goal.name: tuner.entry.best})
        for label in [*result.advised, *sorted(scores, key=scores.__getitem__, reverse=True)][:1]:
            recommend(folder, label)
        names = {label: executor.name for label, executor in executors.items()}
        how = {"executors": names, "paths": paths} | execution_facts(executors.values())
        path = folder / "compare.json"
        write_json(path, read_json(path) | how)
        for name in ("checkpoint.safetensors", "best.safetensors"):
            for file in folder.glob(f"*/*/{name}"):  # of the trials
                file.unlink()

    def _save_model(self, tuner: Tuner, goal: Goal, folder: Path, result: Comparison) -> bool:
        """Write the best model, and what `trimtab.load` needs; return whether there is one."""
        trial, entry = tuner.winner.trial, tuner.entry
        best = trial.best_x(goal)
        if best is None:
            return False
        card = Card(
            data=result.problem,
            algorithm=entry.name,
            settings=entry.settings,
            seed=trial.settings.seed,
            round=best[0],
            metrics=trial.problem.evaluate(best[1]),
            measured_on=f"{result.about.tested_on} data",
            notes=result.about.notes,
        )
        save_model(folder, trial.problem, best[1], card, weights="best.safetensors")
        return True
