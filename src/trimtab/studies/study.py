"""What all lanes of a comparison have in common: the problem, the goal, the folder, the budget."""

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from trimtab._files import read_json, write_json
from trimtab.core import Algorithm, Vector
from trimtab.core.hyper import step_size
from trimtab.core.task import Note
from trimtab.errors import BadArgument
from trimtab.problems.capabilities import capabilities
from trimtab.problems.per_client import per_client
from trimtab.simulation import cohort_size
from trimtab.studies.baselines import COLOURS, TITLES
from trimtab.studies.budget import Deadline, sample_gradients
from trimtab.studies.cost import spent
from trimtab.studies.entry import Entry, SeedRun, cost_to_target, entry_of
from trimtab.studies.events import RoundDone
from trimtab.studies.fragility import judge, moved, repeat
from trimtab.studies.goal import Goal
from trimtab.studies.lanes import Lane
from trimtab.studies.prior import Prior
from trimtab.studies.record import Record, open_folder
from trimtab.studies.search import Search
from trimtab.studies.space import Point
from trimtab.studies.split import Measured
from trimtab.studies.start import known_by
from trimtab.studies.trial import Trial

SEEDS = (5, 3)  # as many are reported where they fit the budget, else the fewer


@dataclass
class Study:
    """What all lanes have in common."""

    measured: Measured
    name: str
    goal: Goal
    lanes: list[Lane]
    R: int
    options: dict[str, Any]  # of every simulation
    seed: int
    folder: Path | None
    resume: bool
    prior: Prior | None = None  # what a diagnosis expects
    budget: float = inf  # sample gradients for each lane
    last_x: dict[str, Vector] = field(default_factory=dict)  # the last model scored, by lane

    def open(self) -> None:
        """Start the folder, or check that it holds this comparison."""
        if self.folder is not None:
            settings = self._settings() | {"algorithms": [lane.label for lane in self.lanes]}
            settings |= {"split": self.measured.split, "prefer": self.goal.unit}
            settings |= {"metric": self.goal.name}
            settings |= {} if self.prior is None else {"prior": self.prior.to_json()}
            path = self.folder / "compare.json"
            open_folder(path, "comparison", settings, self.measured.problem, self.resume)

    def set_budget(
        self, minutes: float | None, budget: float | None
    ) -> Generator[RoundDone, None, float]:
        """Return the budget of each lane: as given, as written before, or by timed rounds."""
        path = None if self.folder is None else self.folder / "compare.json"
        known = None if path is None else read_json(path).get("budget")
        if budget is not None and known is not None and known != budget:
            raise BadArgument(
                "budget",
                "{_folder} was made with {budget:{_known}}, not {_given:g}; repeat that to resume "
                "it, or pass another {out}.",
                _folder=self.folder,
                _known=f"{known:g}",
                _given=budget,
            )
        found = budget or known
        if found is None:
            searched = [lane for lane in self.lanes if lane.space is not None]
            if minutes is None or not searched:
                return inf
            space = max(searched, key=lambda lane: lane.kind.has_K).space
            assert space is not None
            first = space.points[0]
            tried = [replace(first, K=K) for K in space.Ks] or [first]
            trials = [self._in_memory(space.build(point)) for point in tried]
            found = yield from sample_gradients(trials, self.goal, minutes, len(self.lanes))
        if path is not None and found != inf:
            write_json(path, read_json(path) | {"budget": found})
        return found

    def _in_memory(self, algorithm: Algorithm) -> Trial:
        here, options = self.measured, self.options | {"seed": self.seed}
        return Trial(algorithm, here.problem, Record(None, {}), measure=here.look, **options)

    def trial(
        self,
        lane: Lane,
        algorithm: Algorithm,
        stem: str,
        seed: int | None = None,
        x: Vector | None = None,
    ) -> Trial:
        """Return a trial in a folder of the lane; with another seed, or from a moved start."""
        folder = None if self.folder is None else self.folder / lane.label / stem
        settings = self._settings() | {"algorithm": repr(algorithm)}
        settings |= {} if seed is None else {"seed": seed}
        here = lane.measured or self.measured
        record = Record(folder, settings, problem=self.measured.problem, resume=self.resume)
        options = self.options | {"seed": self.seed if seed is None else seed}
        return Trial(
            algorithm,
            here.problem,
            record,
            label=lane.label,
            keep_best=True,
            measure=here.look,
            simulation=here.simulation,
            **options | ({} if x is None else {"x": x}),
        )

    def start(self, lane: Lane, point: Point) -> Trial:
        """Return the trial of a point."""
        assert lane.space is not None
        return self.trial(lane, lane.space.build(point), point.shown())

    def starter(self, lane: Lane, point: Point) -> Any:
        """Return what makes the trial of another step size, all else as at a point."""
        return lambda eta: self.start(lane, replace(point, eta=eta))

    def begun(
        self, lane: Lane, deadline: Deadline
    ) -> Generator[RoundDone, None, tuple[Search, list[Point]]]:
        """Begin the search of one lane, or run its one algorithm; return who is to go on."""
        search = Search(
            lambda point: self.start(lane, point),
            self.goal,
            self.R,
            self.budget,
            deadline.passed,
        )
        if lane.space is not None:
            return search, (yield from search.begin(lane.space.points))
        step, value = step_size(lane.fixed)
        trial = self.trial(lane, lane.fixed, f"{step or 'run'}={value:.4g}")
        search.trials[Point(value)] = trial
        yield from trial.advance(self.R, self.goal)
        return search, []

    def so_far(self, lane: Lane, search: Search) -> Note:
        """Say how far a lane has come."""
        trial = search.trials[search.winner]
        best, met = self.goal.best(trial.rounds), self.goal.first(trial.rounds)
        shown = "no finite value" if best is None else f"{self.goal.name} {best:.4g}"
        when = f"the target in {met.r}" if met else f"{shown} in {len(trial.rounds)}"
        return Note(f"so far {lane.label}: {when} rounds with {trial.algorithm}")

    def finish(
        self, lane: Lane, tried: list[Trial], horizon: int, search: Search, deadline: Deadline
    ) -> Generator[RoundDone, None, Entry]:
        """Let the winner run on to a common length, and once more from a moved start."""
        winner, again = tried[0], None
        lacks = self._lacks(winner, 2 * horizon - len(winner.rounds), search, deadline)
        if lacks:
            search.complete = search.complete and lacks != "time"
            search.not_run.append(f"the winner once more from a moved start, for lack of {lacks}")
        else:
            yield from winner.advance(horizon, self.goal.without_target())
        if winner.rounds and not winner.diverged and not lacks:
            begin = self.options["x"]
            here = lane.measured or self.measured
            x0 = here.problem.x0(self.seed) if begin is None else begin
            start = moved(x0.reshape(-1), self.seed).view(x0.shape)
            second = self.trial(lane, winner.algorithm, "again", x=start)
            yield from repeat(second, winner, self.goal)
            diverged = second.diverged is not None
            again = judge(winner.rounds, second.rounds, self.goal, diverged)
        entry = entry_of(lane.name, lane.label, tried, self.goal, again)
        if lane.measured is not None:
            entry.baseline = True
            entry.shown, entry.colour = TITLES[lane.name], COLOURS[lane.name]
        return entry

    def _lacks(self, trial: Trial, rounds: int, search: Search, deadline: Deadline) -> str:
        """Return what is lacking for so many more rounds of a trial: time, budget, or nothing."""
        if deadline.passed():
            return "time"
        each = spent(trial.rounds, "work") / max(1, len(trial.rounds))
        return "budget" if search.spent + rounds * each > self.budget else ""

    def judged(self, entries: list[Entry]) -> list[str]:
        """Say whether the diagnosis was right, if there was one."""
        return [] if self.prior is None else [self.prior.judged(entries)]

    # -- seeds

    def reported(self, count: int) -> tuple[int, ...]:
        """Return the seeds that are reported: those after the search's, or its own if one."""
        return (self.seed,) if count == 1 else tuple(self.seed + 1 + j for j in range(count))

    def affordable_seeds(self, winners: dict[str, Trial]) -> int:
        """Return how many seeds fit the budget of every lane."""
        if self.budget == inf:
            return SEEDS[0]
        most = max(spent(trial.rounds, "work") for trial in winners.values())
        return SEEDS[0] if SEEDS[0] * most <= self.budget else SEEDS[1]

    def at_start(self) -> dict[str, float]:
        """Return what is measured before the first round."""
        begin = self.options["x"]
        return self.measured.look(self.measured.problem.x0(self.seed) if begin is None else begin)

    def runs(
        self,
        lane: Lane,
        winner: Trial,
        entry: Entry,
        count: int,
        horizon: int,
        search: Search,
        deadline: Deadline,
    ) -> Generator[RoundDone, None, list[SeedRun]]:
        """Run the winner with each seed until its target; the first one to the common length."""
        if count == 1:
            return [self.seed_run(lane, self.seed, winner)]
        runs: list[SeedRun] = []
        for seed in self.reported(count):
            if runs and deadline.passed():
                search.complete = False
                entry.not_run.append(f"seeds from {seed} on, for lack of time")
                break
            trial = self.trial(lane, winner.algorithm, f"seed={seed}", seed)
            yield from trial.advance(self.R, self.goal)
            if not runs:
                if not self._lacks(trial, horizon - len(trial.rounds), search, deadline):
                    yield from trial.advance(horizon, self.goal.without_target())
                entry.curve = trial.rounds
            runs.append(self.seed_run(lane, seed, trial))
        return runs

    def seed_run(self, lane: Lane, seed: int, trial: Trial) -> SeedRun:
        """Return what a run cost, and what its best model is worth on the test data."""
        best, here = trial.best_x(self.goal), lane.measured or self.measured
        test = {} if best is None else here.evaluate(best[1])
        if best is not None and lane.measured is None:
            self.last_x[lane.label] = best[1]
        return SeedRun(
            seed=seed,
            cost=None if trial.diverged else cost_to_target(trial, self.goal),
            best=self.goal.best(trial.rounds),
            chosen=None if best is None else best[0],
            test=dict(test),
            diverged_at=trial.diverged.r if trial.diverged else None,
        )

    def per_client(self, lane: Lane) -> dict[str, Any] | None:
        """Return how the last model that was scored serves the clients."""
        x, problem = self.last_x.get(lane.label), self.measured.problem
        if x is None or capabilities(problem).samples is None:
            return None
        found = per_client(problem, x, self.goal.metric)
        return None if found is None else found.to_json()

    def _settings(self) -> dict[str, Any]:
        S = cohort_size(self.options["S"], self.measured.problem.N)
        settings: dict[str, Any] = {"problem": self.name, "seed": self.seed, "S": S}
        besides = {name: self.options[name] for name in ("slow", "lost") if self.options[name]}
        there = known_by(self.options["available"], self.measured.problem.N)
        return settings | besides | ({} if there is None else {"available": there})
