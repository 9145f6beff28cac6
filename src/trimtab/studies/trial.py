"""One algorithm with one seed: run round by round, recorded, resumed, and paid for."""

from collections.abc import Callable, Generator, Iterator
from itertools import islice
from math import inf, log
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from torch import Tensor

from trimtab.core import Algorithm, Vector
from trimtab.core.hyper import at
from trimtab.errors import Diverged
from trimtab.problems.clients import per_client
from trimtab.problems.metrics import Metric
from trimtab.problems.problem import Problem
from trimtab.simulation import Round, Rounds, Simulation
from trimtab.studies.budget import Ledger
from trimtab.studies.goal import Goal, cost_of, crossing
from trimtab.studies.holdout import read_model
from trimtab.studies.record import Record, RoundDone, RoundLine, model_round, write_model

SAVE_EVERY = 5.0  # seconds of work that a crash may cost a run


class Trial:
    """One algorithm with one seed: its simulation, and the record of its rounds."""

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Problem,
        record: Record,
        settings: Rounds,
        *,
        label: str = "",
        save_every: float = SAVE_EVERY,
        keep_best: bool = False,
        measure: Callable[[Vector], dict[str, float]] | None = None,
        simulation: Callable[[Algorithm, Any, Rounds], Any] = Simulation,
    ) -> None:
        self.algorithm, self.problem, self.record = algorithm, problem, record
        self.label, self.save_every, self.keep_best = label, save_every, keep_best
        self.measure = measure  # what rounds are judged by; None: the problem's evaluate
        self.simulation, self.settings = simulation, settings
        self.diverged: Diverged | None = None
        self._sim: Simulation | None = None
        self._unsaved = 0.0  # seconds of work since the last checkpoint
        self._best: tuple[int, Vector] | None = None  # the best round, if this process ran it
        self._most: float | None = None  # the best score, whichever process ran it

    @property
    def name(self) -> str:
        """The name of its folder; empty where nothing is written."""
        return "" if self.record.folder is None else self.record.folder.name

    @property
    def rounds(self) -> list[RoundLine]:
        """The rounds so far."""
        return self.record.rounds

    @property
    def sim(self) -> Simulation:
        """The simulation, after the rounds so far."""
        if self._sim is None:
            path, done = self.record.checkpoint, len(self.rounds)
            sim = None
            if path is not None and path.exists():
                given = self.settings
                sim = Simulation.load(
                    path,
                    self.algorithm,
                    self.problem,
                    # Where none was chosen, the executor of the checkpoint gives the same bits.
                    executor=None if given.executor == "auto" else given.executor,
                    memory=given.memory,
                    available=given.available,
                )
            if sim is None or sim.r > done:
                sim = self.simulation(self.algorithm, self.problem, self.settings)
            self._sim = sim
        while self._sim.r < len(self.rounds):  # after the checkpoint: the same bits again
            next(self._sim)
        return self._sim

    @property
    def recorded(self) -> bool:
        """Whether an earlier process has run the next round, so that it takes no time."""
        known = self.record.diverged
        return self.record.pending or (known is not None and known["r"] == len(self.rounds) + 1)

    def reload(self) -> None:
        """Continue from where another process has left this trial."""
        if self.record.reload():
            self._sim = self._best = self._most = None

    def advance(self, to: int, goal: Goal, patience: int | None = None) -> Iterator[RoundDone]:
        """Run until round `to`, the round that holds the target, divergence, or early stopping.

        patience: the number of rounds without a better score after which the run stops early.
        Rounds on record are repeated one by one, and decide as they did when they were run, so that
        a run that is resumed ends where it would have ended.
        """
        tracker, gain, scores = goal.tracker(), RoundsWithoutGain(goal), list[float]()
        while len(self.rounds) < to and not self.diverged:
            scores += [goal.score(line.metrics) for line in self.rounds[len(scores) :]]
            held = tracker.add(scores).round is not None
            if held or (patience is not None and gain.count(self.rounds) >= patience):
                return
            yield from self.step(goal)

    def step(self, goal: Goal) -> Iterator[RoundDone]:
        """Add one round, unless it diverges: from the record, or run and yielded."""
        if self.record.repeat():
            return
        started = perf_counter()
        try:
            done = self._next()
        except Diverged as error:
            self.diverged = error
            self.record.note(diverged={"r": error.r, "why": error.why})
            return
        measured = (self.measure or self.problem.evaluate)(done.x)
        if self.keep_best:
            self._note_best(done.r, done.x, goal.score(measured), goal)
        self.record.append(_line(done, measured))
        self._unsaved += perf_counter() - started
        if self._unsaved > self.save_every:
            self.save()
        try:
            yield RoundDone(self.label, self.algorithm, self.rounds[-1], self.name)
        except GeneratorExit:
            self.save()  # An interrupted run continues from here.
            raise

    def _next(self) -> Round:
        """Run a round, unless it is known to diverge."""
        known = self.record.diverged
        if known is not None:
            raise Diverged(at(self.algorithm, known["r"]), known["r"], known["why"])
        return next(self.sim)

    def save(self) -> None:
        """Write a checkpoint, if there is a folder and anything to write; the best model first."""
        if self.record.checkpoint is not None and self._sim is not None and self._unsaved:
            if self._best is not None and model_round(self.record.best) != self._best[0]:
                write_model(self.record.best, self._tensors(self._best[1]), self._best[0])
            self._sim.save(self.record.checkpoint)
            self._unsaved = 0.0

    def write_last(self, path: Path) -> None:
        """Write the model after the last round."""
        write_model(path, self._tensors(self.sim.server.x), self.sim.r)

    def write_best(self, path: Path, goal: Goal) -> None:
        """Write the model after the best round; what another trial left at `path` is replaced."""
        best = self.best_x(goal)
        if best is not None:
            write_model(path, self._tensors(best[1]), best[0])

    def best_x(self, goal: Goal) -> tuple[int, Vector] | None:
        """Return the best round and the model after it."""
        line = goal.best_round(self.rounds)
        if line is None:
            return None
        if self._best is None or self._best[0] != line.r:
            self._best = line.r, self._x_after(line.r)
        return self._best

    def _x_after(self, r: int) -> Vector:
        """Return x after the best round: from its file, or by running again if it has none."""
        record = self.record
        readable = self.problem.flatten is not None
        if readable and record.folder is not None and model_round(record.best) == r:
            return read_model(record.best, self.problem)
        again = self.simulation(self.algorithm, self.problem, self.settings)
        *_, last = islice(again, r)
        x: Vector = last.x
        return x

    def client_metrics(self, x: Vector, metric: Metric) -> dict[str, Any] | None:
        """Return a metric of each client at x, if the clients have samples."""
        found = None if self.problem.samples is None else per_client(self.problem, x, metric)
        return None if found is None else found.to_json()

    def _note_best(self, r: int, x: Vector, score: float, goal: Goal) -> None:
        if self._most is None:
            self._most = max((goal.score(line.metrics) for line in self.rounds), default=-inf)
        if score > self._most:
            self._best, self._most = (r, x), score

    def _tensors(self, x: Vector) -> dict[str, Tensor]:
        return self.problem.unflatten(x)


class Run:
    """One candidate with one seed: its trial, its scores, and its cost to the target."""

    def __init__(self, trial: Trial, goal: Goal, ledger: Ledger) -> None:
        self.trial, self.ledger = trial, ledger
        self.scores: list[float] = []
        self.work = self.spent = 0.0
        self.set_goal(goal)

    def set_goal(self, goal: Goal) -> None:
        """Judge the rounds so far, and those to come, by a goal."""
        self.goal, self.tracker = goal, goal.tracker()
        self._update()

    def _update(self) -> None:
        r = self.tracker.add(self.scores).round
        self.rounds = r
        self.cost: float | None = None  # to the target, in the unit of the goal
        if r is not None:
            whole = self.goal.cost(self.trial.rounds[:r])
            # The fraction tells candidates apart that need the same number of rounds.
            self.cost = max(1e-9, whole * crossing(self.scores, self.tracker.target, r) / r)

    @property
    def diverged(self) -> bool:
        """Whether the run diverged."""
        return self.trial.diverged is not None

    @property
    def cost_of_a_round(self) -> float:
        """The mean cost of a round, in the unit of the goal; 0 before the first."""
        return self.goal.cost(self.trial.rounds) / max(1, len(self.trial.rounds))

    def advance(self, to: int) -> Generator[RoundDone, None, None]:
        """Run until the target is held, or no round up to `to` can be the first to hold it."""
        while self.rounds is None and not self.diverged:
            if len(self.scores) >= to and not self.tracker.undecided(to):
                return
            expected = self.spent / max(1, len(self.scores))
            self.ledger.ask(expected, recorded=self.trial.recorded)
            yield from self.trial.step(self.goal)
            new = self.trial.rounds[len(self.scores) :]
            self.scores += [self.goal.score(line.metrics) for line in new]
            # A round that diverges has no line; it is charged as one of the rounds before it.
            self.work += (
                work := cost_of(new).work if new else self.work / max(1, len(self.scores))
            )
            self.spent += self.ledger.charge(work)
            self._update()

    def standing(self, r: int) -> tuple[float, float]:
        """Return what candidates are ranked by: the cost to the target, else a late median."""
        if self.diverged or not self.scores:
            return (-1.0, 0.0)
        return (0.0, median(self.scores[:r][-3:])) if self.cost is None else (1.0, -log(self.cost))


class RoundsWithoutGain:
    """Counts the rounds since the best one, looking at each round once."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self._seen, self._best, self._count = 0, -inf, 0

    def count(self, rounds: list[RoundLine]) -> int:
        """Return the rounds since the best one; all of them if no score is finite."""
        for line in rounds[self._seen :]:
            score = self.goal.score(line.metrics)
            self._count = 0 if score > self._best else self._count + 1
            self._best = max(self._best, score)
        self._seen = len(rounds)
        return self._count


def _line(done: Round, measured: dict[str, float]) -> RoundLine:
    return RoundLine(
        r=done.r,
        bytes_down=done.bytes_down,
        bytes_up=done.bytes_up,
        seconds=done.seconds,
        drift=done.drift,
        spread=done.spread,
        cosine=done.cosine,
        clients=len(done.cohort),
        exchanges=done.exchanges,
        work=done.work,
        metrics=dict(measured),
    )
