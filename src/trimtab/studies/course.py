"""One lane on its way through a comparison: it begins, is searched, settled and reported."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trimtab.core import Vector
from trimtab.core.hyper import step_size
from trimtab.core.task import Note
from trimtab.problems.clients import per_client
from trimtab.studies.baselines import COLOURS, TITLES
from trimtab.studies.budget import Clock
from trimtab.studies.entry import (
    Entry,
    SeedRun,
    aggregate_seeds,
    cost_to_target,
    entry_of,
    rounds_in_words,
    without_communication,
)
from trimtab.studies.fragility import judge, moved, repeat
from trimtab.studies.goal import Goal, cost_of
from trimtab.studies.lanes import Lane
from trimtab.studies.race import calm_down, ranked
from trimtab.studies.record import RoundDone
from trimtab.studies.search import TIES, Search
from trimtab.studies.space import Point
from trimtab.studies.study import Study
from trimtab.studies.trial import Trial

STAGES = ("begin", "go_on", "settle", "report")
"""The stages by name, in their order."""

Events = Generator[RoundDone | Note, None, None]


@dataclass
class Course:
    """One lane, stage by stage; what a stage does depends on what is said to it and on the clock.

    The target is settled, and the horizon known, when all lanes have got there.
    """

    study: Study
    lane: Lane
    clock: Clock
    goal: Goal = field(init=False)
    search: Search = field(init=False)
    alive: list[Point] = field(init=False, default_factory=list)  # who is to go on
    tried: list[Trial] = field(init=False, default_factory=list)  # best first, once settled
    entry: Entry = field(init=False)
    _last_x: Vector | None = field(init=False, default=None)  # the last model that was scored

    def __post_init__(self) -> None:
        study, lane = self.study, self.lane
        self.goal = study.goal if lane.measured is None else study.goal.without_communication()
        self.search = Search(
            lambda point: study.start(lane, point),
            self.goal,
            study.R,
            study.budget,
            self.clock.passed,
        )

    def begin(self) -> Events:
        """Begin the search, or run the one algorithm."""
        study, lane = self.study, self.lane
        if lane.space is not None:
            self.alive = yield from self.search.begin(lane.space.points)
        else:
            step, value = step_size(lane.fixed)
            trial = study.trial(lane, lane.fixed, f"{step or 'run'}={value:.4g}")
            self.search.trials[Point(value)] = trial
            yield from trial.advance(study.R, self.goal)
        study.leave(self.search.trials.values())
        yield self._so_far()

    def go_on(self) -> Events:
        """Search on to the end."""
        if self.lane.space is not None:
            yield from self.search.go_on(self.alive)
            self.study.leave(self.search.trials.values())
            yield self._so_far()

    def settle(self, goal: Goal) -> Events:
        """Look at the steps below the winner once more, now that there surely is a target."""
        self.goal = self.search.goal = goal
        search, study = self.search, self.study
        trials = search.along(search.winner)
        if self.lane.space is not None:
            starter = study.starter(self.lane, search.winner)
            yield from calm_down(starter, trials, goal, study.R, furthest=TIES)
        study.leave(trials.values())
        self.tried = ranked(trials, goal)

    def report(self, count: int, horizon: int, slack: float) -> Events:
        """Let the winner run on to a common length, and with so many further seeds."""
        self.goal = replace(self.goal, slack=slack)
        entry = yield from self._finish(horizon)
        entry.not_run, entry.searched = self.search.not_run, self.search.candidates()
        runs = yield from self._runs(entry, count, horizon)
        entry.per_client = self._per_client()
        self.entry = without_communication(aggregate_seeds(entry, runs, self.goal))

    def look_again(self) -> None:
        """Find what another process has run of this lane since."""
        for trial in {*self.search.trials.values(), *self.tried}:
            trial.look_again()

    def run(self, stage: str, facts: Mapping[str, Any]) -> Events:
        """Run the stage of a name, with what is known by then."""
        if stage == "settle":
            return self.settle(replace(self.goal, target=facts["target"]))
        if stage == "report":
            return self.report(facts["count"], facts["horizon"], facts["slack"])
        return self.begin() if stage == "begin" else self.go_on()

    @property
    def winner(self) -> Trial:
        """The trial that won."""
        return self.tried[0]

    def _so_far(self) -> Note:
        """Say how far the lane has come."""
        trial = self.search.trials[self.search.winner]
        best, met = self.goal.best(trial.rounds), self.goal.first(trial.rounds)
        shown = "no finite value" if best is None else f"{self.goal.name} {best:.4g}"
        what = "the target" if met else shown
        count = rounds_in_words(met.r if met else len(trial.rounds))
        return Note(f"so far {self.lane.label}: {what} in {count} with {trial.algorithm}")

    def _finish(self, horizon: int) -> Generator[RoundDone, None, Entry]:
        """Let the winner run on to a common length, and once more from a moved start."""
        study, lane, search, winner = self.study, self.lane, self.search, self.winner
        again = None
        lacks = self._lacks(winner, 2 * horizon - len(winner.rounds))
        if lacks:
            search.complete = search.complete and lacks != "time"
            search.not_run.append(f"the winner once more from a moved start, for lack of {lacks}")
        else:
            yield from winner.advance(horizon, self.goal.without_target())
        if winner.rounds and not winner.diverged and not lacks:
            begin, seed = study.rounds.x, study.rounds.seed
            here = lane.measured or study.measured
            x0 = here.problem.x0(seed) if begin is None else begin
            start = moved(x0.reshape(-1), seed).view(x0.shape)
            second = study.trial(lane, winner.algorithm, self._stem("again"), x=start)
            yield from repeat(second, winner, self.goal)
            study.leave([winner, second])
            diverged = second.diverged is not None
            again = judge(winner.rounds, second.rounds, self.goal, diverged)
        entry = entry_of(lane.name, lane.label, self.tried, self.goal, again)
        if lane.measured is not None:
            entry.baseline = True
            entry.shown, entry.colour = TITLES[lane.name], COLOURS[lane.name]
        return entry

    def _stem(self, what: str) -> str:
        """Return what a further run of the winner is called; another one may win when resumed."""
        folder = self.winner.record.folder
        return what if folder is None else f"{folder.name}-{what}"

    def _lacks(self, trial: Trial, rounds: int) -> str:
        """Return what is lacking for so many more rounds of a trial: time, budget, or nothing."""
        if self.clock.passed():
            return "time"
        each = cost_of(trial.rounds).work / max(1, len(trial.rounds))
        return "budget" if self.search.spent + rounds * each > self.study.budget else ""

    def _runs(
        self, entry: Entry, count: int, horizon: int
    ) -> Generator[RoundDone, None, list[SeedRun]]:
        """Run the winner with each seed until its target; the first one to the common length."""
        study, winner = self.study, self.winner
        if count == 1:
            return [self._seed_run(study.rounds.seed, winner)]
        runs: list[SeedRun] = []
        for seed in study.reported(count):
            if runs and self.clock.passed():
                self.search.complete = False
                entry.not_run.append(f"seeds from {seed} on, for lack of time")
                break
            trial = study.trial(self.lane, winner.algorithm, self._stem(f"seed={seed}"), seed)
            yield from trial.advance(study.R, self.goal)
            if not runs:
                if not self._lacks(trial, horizon - len(trial.rounds)):
                    yield from trial.advance(horizon, self.goal.without_target())
                entry.curve = trial.rounds
            study.leave([trial])
            runs.append(self._seed_run(seed, trial))
        return runs

    def _seed_run(self, seed: int, trial: Trial) -> SeedRun:
        """Return what a run cost, and what its best model is worth on the test data."""
        best, here = trial.best_x(self.goal), self.lane.measured or self.study.measured
        test = {} if best is None else here.evaluate(best[1])
        if best is not None and self.lane.measured is None:
            self._last_x = best[1]
        return SeedRun(
            seed=seed,
            cost=None if trial.diverged else cost_to_target(trial, self.goal),
            best=self.goal.best(trial.rounds),
            chosen=None if best is None else best[0],
            test=dict(test),
            diverged_at=trial.diverged.r if trial.diverged else None,
            folder=None if trial.record.folder is None else trial.record.folder.name,
            nearly=None if trial.diverged else cost_to_target(trial, self.goal.easier()),
        )

    def _per_client(self) -> dict[str, Any] | None:
        """Return how the last model that was scored serves the clients."""
        problem = self.study.measured.problem
        if self._last_x is None or problem.samples is None:
            return None
        found = per_client(problem, self._last_x, self.goal.metric)
        return None if found is None else found.to_json()
