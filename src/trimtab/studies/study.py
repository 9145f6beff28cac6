"""What all lanes of a comparison have in common: the problem, the goal, the folder, the budget."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from trimtab._files import read_json, write_json
from trimtab.core import Algorithm, Vector
from trimtab.errors import BadArgument
from trimtab.problems.identity import hashed_tensors
from trimtab.simulation import Rounds, cohort_size
from trimtab.simulation.executors import choose
from trimtab.studies.budget import TIMED_STEP, sample_gradients
from trimtab.studies.entry import Entry
from trimtab.studies.goal import Goal, cost_of
from trimtab.studies.holdout import HeldOutProblem, recorded_settings
from trimtab.studies.lanes import Lane
from trimtab.studies.prior import Prior
from trimtab.studies.record import Record, RoundDone, open_folder
from trimtab.studies.space import Point
from trimtab.studies.trial import Trial

SEEDS = (5, 3)  # as many are reported where they fit the budget, else the fewer


@dataclass
class Study:
    """What all lanes have in common."""

    measured: HeldOutProblem
    name: str
    goal: Goal
    lanes: list[Lane]
    R: int
    rounds: Rounds
    folder: Path | None
    resume: bool
    prior: Prior | None = None  # what a diagnosis expects
    budget: float = inf  # sample gradients for each lane
    shared: bool = False  # whether another process goes on from what this one leaves

    def open(self) -> None:
        """Start the folder, or check that it holds this comparison."""
        if self.folder is not None:
            settings = self._settings() | {"algorithms": [lane.label for lane in self.lanes]}
            settings |= {"split": self.measured.split, "prefer": self.goal.unit}
            settings |= {"metric": self.goal.name}
            settings |= {} if self.prior is None else {"prior": self.prior.to_json()}
            path = self.folder / "compare.json"
            open_folder(path, "comparison", settings, self.measured.problem, self.resume)
            # Whoever watches the folder knows by it which way is up.
            write_json(path, read_json(path) | {"goal": self.goal.to_json()})

    @property
    def keeps_cores_busy(self) -> bool:
        """Whether one simulation uses all cores, and has bits that depend on how many there are."""
        problem = self.measured.problem
        return choose(problem, cohort_size(self.rounds.S, problem.N)).threads == "all"

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
            first = replace(space.points[0], eta=TIMED_STEP)
            tried = [replace(first, K=K) for K in space.Ks] or [first]
            trials = [self._in_memory(space.build(point)) for point in tried]
            found = yield from sample_gradients(trials, self.goal, minutes, len(self.lanes))
        if path is not None and found != inf:
            write_json(path, read_json(path) | {"budget": found})
        return found

    def _in_memory(self, algorithm: Algorithm) -> Trial:
        here, record = self.measured, Record(None, {})
        return Trial(algorithm, here.problem, record, self.rounds, measure=here.validate)

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
        # Whether the problem is the same was asked of the whole folder, by `open`.
        there = folder is not None and (folder / "run.json").exists()
        problem = None if there else self.measured.problem
        record = Record(folder, settings, problem=problem, resume=self.resume)
        # A baseline has a problem with other clients, of which all take part.
        rounds = self.rounds if lane.measured is None else Rounds(x=self.rounds.x)
        rounds = replace(
            rounds,
            seed=self.rounds.seed if seed is None else seed,
            x=rounds.x if x is None else x,
        )
        return Trial(
            algorithm,
            here.problem,
            record,
            rounds,
            label=lane.label,
            keep_best=True,
            measure=here.validate,
            simulation=here.simulation,
        )

    def leave(self, trials: Iterable[Trial]) -> None:
        """Save trials, if another process is to go on with them."""
        for trial in trials if self.shared else ():
            trial.save()

    def start(self, lane: Lane, point: Point) -> Trial:
        """Return the trial of a point."""
        assert lane.space is not None
        return self.trial(lane, lane.space.build(point), point.shown())

    def starter(self, lane: Lane, point: Point) -> Any:
        """Return what makes the trial of another step size, all else as at a point."""
        return lambda eta: self.start(lane, replace(point, eta=eta))

    def judged(self, entries: list[Entry]) -> list[str]:
        """Say whether the diagnosis was right, if there was one."""
        return [] if self.prior is None else [self.prior.judged(entries)]

    # -- seeds

    def reported(self, count: int) -> tuple[int, ...]:
        """Return the seeds that are reported: those after the search's, or its own if one."""
        first = self.rounds.seed
        return (first,) if count == 1 else tuple(first + 1 + j for j in range(count))

    def affordable_seeds(self, winners: dict[str, Trial]) -> int:
        """Return how many seeds fit the budget of every lane."""
        if self.budget == inf:
            return SEEDS[0]
        most = max(cost_of(trial.rounds).work for trial in winners.values())
        return SEEDS[0] if SEEDS[0] * most <= self.budget else SEEDS[1]

    def at_start(self) -> dict[str, float]:
        """Return what is measured before the first round."""
        x, seed = self.rounds.x, self.rounds.seed
        return self.measured.validate(self.measured.problem.x0(seed) if x is None else x)

    def _settings(self) -> dict[str, Any]:
        rounds = self.rounds
        settings = {"problem": self.name} | recorded_settings(rounds, self.measured.problem.N)
        return settings | ({} if rounds.x is None else {"x": hashed_tensors([rounds.x])})
