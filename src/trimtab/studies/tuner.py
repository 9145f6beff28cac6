"""One entry of a comparison: it is piloted, searched and reported."""

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

from trimtab.core import Algorithm
from trimtab.core.task import Note
from trimtab.studies.baselines import COLOURS, TITLES
from trimtab.studies.budget import Ledger, Stopped
from trimtab.studies.entry import (
    Entry,
    SeedRun,
    aggregate_seeds,
    new_entry,
    rounds_in_words,
)
from trimtab.studies.fragility import Again, judge, moved
from trimtab.studies.goal import Goal
from trimtab.studies.record import RoundDone
from trimtab.studies.search import FIRST_REPORT_SEED, Search
from trimtab.studies.space import EntrySpec, Point
from trimtab.studies.study import Study
from trimtab.studies.trial import Run, Trial

Events = Generator[RoundDone | Note, None, None]


@dataclass(frozen=True)
class Stage:
    """One stage of a tuner, and what it needs to know; plain values, which travel as JSON.

    name: pilot, search or report. seconds: the time of the stage. R: the rounds of a pilot.
    target: that of a search and a report. seeds: how many are reported. horizon: the round to which
    the first of them runs. metric_error: the 90 % error of the metric on the held-out rows.
    """

    name: str
    seconds: float
    R: int = 0
    target: float | None = None
    seeds: int = 0
    horizon: int = 0
    metric_error: float = 0.0


@dataclass
class Tuner:
    """One entry, stage by stage."""

    study: Study
    spec: EntrySpec
    goal: Goal = field(init=False)
    search: Search = field(init=False)
    entry: Entry = field(init=False)
    reported: list[Run] = field(init=False, default_factory=list)
    _runs: list[SeedRun] = field(init=False, default_factory=list)
    _again: Again | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        study, spec = self.study, self.spec
        self.ledger = Ledger(study.budget.gradients, study.budget.round_cost)
        self.goal = study.goal if spec.measured is None else study.goal.without_communication()
        self.search = Search(spec.space, self._trial, self.goal, study.R, self.ledger)
        self.entry = self._entry_of(spec.space.build(Point(spec.space.families[0], 0)))

    def run(self, stage: Stage) -> Events:
        """Run a stage."""
        self.ledger.begin_stage(stage.seconds)
        if stage.name == "pilot":
            yield from self.search.pilot(stage.R)
        else:
            self.goal = replace(self.goal, target=stage.target, slack=stage.metric_error)
            if stage.name == "search":
                yield from self.search.find(self.goal)
            else:
                yield from self._report(stage)
        self._update_entry()
        yield self._so_far()
        if self.study.shared:
            for run in self.search.runs.values():
                run.trial.save()

    @property
    def has_begun(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.search.runs)

    def reload(self) -> None:
        """Find the rounds that another process has run since."""
        for run in self.search.runs.values():
            run.trial.reload()

    @property
    def winner(self) -> Run:
        """The run of the chosen settings with the first report seed, else with the search's."""
        if self.reported:
            return self.reported[0]
        assert self.search.chosen is not None
        return self.search.run(self.search.chosen)

    def _trial(self, point: Point, seed: int) -> Trial:
        space, first = self.spec.space, self.study.rounds.seed
        stem = space.stem(point) + (f"-seed={first + seed}" if seed else "")
        return self.study.trial(self.spec, space.build(point), stem, first + seed)

    # -- the report

    def _report(self, stage: Stage) -> Events:
        """Run the chosen settings with seeds that had no part in the choice."""
        self.ledger.allow(1.0)
        search, point = self.search, self.search.chosen
        assert point is not None
        self.reported = []
        again = None
        try:
            for seed in range(FIRST_REPORT_SEED, FIRST_REPORT_SEED + stage.seeds):
                run = search.run(point, seed)
                yield from run.advance(self.study.R)
                self.reported.append(run)
        except Stopped as error:
            search.cut_short(f"the report after {len(self.reported)} of {stage.seeds} seeds", error)
        if self.reported and not self.winner.diverged:
            try:
                again = yield from self._from_moved_start()
                yield from self._run_on(self.winner, stage.horizon)
            except Stopped:  # The curve is shorter, and it is unknown whether the step is fragile.
                pass
        self._runs = [self._seed_run(run) for run in self.reported]
        self._again = again

    def _from_moved_start(self) -> Generator[RoundDone, None, Again]:
        """Run the winner again from a start that was moved by a millionth."""
        study, trial = self.study, self.winner.trial
        here = self.spec.measured or study.measured
        x, seed = trial.settings.x, trial.settings.seed
        x0 = here.problem.x0(seed) if x is None else x
        start = moved(x0.reshape(-1), seed).view(x0.shape)
        stem = f"{trial.name}-again" if trial.name else "again"
        second = study.trial(self.spec, trial.algorithm, stem, seed, start)
        run = Run(second, self.goal.without_target(), self.ledger)
        # It runs a tenth longer, which is by how much a run that is not fragile may differ.
        yield from run.advance(max(len(trial.rounds) + 1, round(1.1 * len(trial.rounds))))
        if study.shared:
            second.save()
        return judge(trial.rounds, second.rounds, self.goal, run.diverged)

    def _run_on(self, run: Run, to: int) -> Events:
        """Run to a round whether or not the target is held."""
        run.set_goal(self.goal.without_target())
        try:
            yield from run.advance(to)
        finally:
            run.set_goal(self.goal)

    def _seed_run(self, run: Run) -> SeedRun:
        """Return the cost of a run, and the value of its best model on the test data."""
        trial, goal = run.trial, self.goal
        here = self.spec.measured or self.study.measured
        best = trial.best_x(goal)
        test = {} if best is None else here.evaluate(best[1])
        return SeedRun(
            seed=trial.settings.seed,
            cost=None if run.diverged else goal.cost_to_target(trial.rounds),
            best=goal.best(trial.rounds),
            chosen=None if best is None else best[0],
            test=dict(test),
            diverged_at=trial.diverged.r if trial.diverged else None,
            folder=trial.name or None,
            nearly=None if run.diverged else goal.easier().cost_to_target(trial.rounds),
            scores=[line.metrics.get(goal.name) for line in trial.rounds],
        )

    # -- the entry

    def _entry_of(self, algorithm: Algorithm) -> Entry:
        """Return an entry without numbers."""
        spec = self.spec
        d = self.study.measured.problem.d
        entry = new_entry(spec.name, spec.label, algorithm, d)
        if spec.measured is not None:
            entry.baseline = True
            entry.shown, entry.colour = TITLES[spec.name], COLOURS[spec.name]
        return entry

    def _update_entry(self) -> None:
        """Write what is known so far into the entry."""
        search = self.search
        best = search.chosen or search.best()
        if best is None:
            return
        trial = self.winner.trial if search.chosen else search.run(best).trial
        entry = self._entry_of(trial.algorithm)
        entry.searched = search.candidates()
        entry.not_run, entry.complete = search.not_run(), search.complete
        entry.at_edge, entry.spent = search.at_edge(), self.ledger.spent
        entry.curve, entry.best = trial.rounds, self.goal.best(trial.rounds)
        entry.diverged_at = trial.diverged.r if trial.diverged else None
        entry.again = self._again
        if self.reported:
            entry.per_client = self._per_client()
            entry = aggregate_seeds(entry, self._runs, self.goal)
            if entry.baseline:  # It sends nothing.
                entry.bytes = entry.exchanges = None
        self.entry = entry

    def _per_client(self) -> dict[str, Any] | None:
        """Return the metrics of the first report seed's best model for each client."""
        # A baseline has other clients, and who only confirms looks at f alone.
        if self.spec.measured is not None or self.spec.space.expected is not None:
            return None
        trial = self.winner.trial
        best = trial.best_x(self.goal)
        return None if best is None else trial.client_metrics(best[1], self.goal.metric)

    def _so_far(self) -> Note:
        """Return the state of the entry in a sentence."""
        entry, goal = self.entry, self.goal
        value = "no finite value" if entry.best is None else f"{goal.name} {entry.best:.4g}"
        held = goal.held(entry.curve)
        what, count = ("the target", held.r) if held else (value, len(entry.curve))
        best = self.search.chosen or self.search.best()
        how = "" if best is None else f" with {self.spec.space.build(best)}"
        return Note(f"so far {self.spec.label}: {what} in {rounds_in_words(count)}{how}")
