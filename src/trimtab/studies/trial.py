"""One algorithm with one step size: run round by round, recorded, resumed."""

from collections.abc import Callable, Iterator
from itertools import islice
from math import ceil, inf
from pathlib import Path
from shutil import copyfile
from time import perf_counter
from typing import Any

from torch import Tensor

from trimtab.core import Algorithm, Vector
from trimtab.core.hyper import at
from trimtab.errors import Diverged
from trimtab.problems.problem import Problem
from trimtab.simulation import Round, Rounds, Simulation
from trimtab.studies.goal import Goal
from trimtab.studies.holdout import read_model
from trimtab.studies.record import Record, RoundDone, RoundLine, model_round, write_model

SAVE_EVERY = 5.0  # seconds of work that a crash may cost a run


class Trial:
    """One algorithm with one step size: its simulation, and the record of its rounds."""

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
        self.dropped: int | None = None  # the round at which a race gave it up
        self._sim: Simulation | None = None
        self._unsaved = 0.0  # seconds of work since the last checkpoint
        self._best: tuple[int, Vector] | None = None  # the best round, if this process ran it
        self._most: float | None = None  # the best score, of whoever ran it

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
        while self._sim.r < len(self.rounds):  # after the checkpoint: the same bits once more
            next(self._sim)
        return self._sim

    def look_again(self) -> None:
        """Go on from where another process has left this trial, if one has."""
        if self.record.reload():
            self._sim = self._best = self._most = None

    def advance(self, to: int, goal: Goal, patience: int | None = None) -> Iterator[RoundDone]:
        """Run until round `to`, the goal, divergence, or `patience` rounds that were no better.

        Tell of each new round. Whether to go on is decided by the rounds so far alone, and those
        that are in the record already come one by one too, so that a run that is resumed ends where
        it would have ended.
        """
        so_far = _SoFar(goal)
        try:
            while len(self.rounds) < to and not self.diverged:
                so_far.look(self.rounds)
                if so_far.met or (patience is not None and so_far.without_gain >= patience):
                    return
                if self.record.repeat():
                    continue
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
                yield RoundDone(self.label, self.algorithm, self.rounds[-1], self.name)
        except GeneratorExit:
            self.save()  # stopped between two rounds: an interrupted run goes on here
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
        line = goal.best_round(self.rounds)
        if line is None:
            return
        r, own = line.r, self.record.best if self.record.folder is not None else None
        if own is not None and model_round(own) == r:
            if own != path:
                copyfile(own, path)
        elif self._best is not None and self._best[0] == r:
            write_model(path, self._tensors(self._best[1]), r)
        else:
            write_model(path, self._tensors(self.x_after(r)), r)

    def x_of(self, r: int) -> Vector:
        """Return x after the best round, from its file where that is there and can be read."""
        record = self.record
        readable = self.problem.flatten is not None
        if readable and record.folder is not None and model_round(record.best) == r:
            return read_model(record.best, self.problem)
        return self.x_after(r)

    def x_after(self, r: int) -> Vector:
        """Return x after a round that was not kept before an interruption: it is run once more."""
        again = self.simulation(self.algorithm, self.problem, self.settings)
        *_, last = islice(again, r)
        x: Vector = last.x
        return x

    def best_x(self, goal: Goal) -> tuple[int, Vector] | None:
        """Return the best round and the model after it."""
        line = goal.best_round(self.rounds)
        if line is None:
            return None
        if self._best is None or self._best[0] != line.r:
            self._best = line.r, self.x_of(line.r)
        return self._best

    def _note_best(self, r: int, x: Vector, score: float, goal: Goal) -> None:
        if self._most is None:
            self._most = max((goal.score(line.metrics) for line in self.rounds), default=-inf)
        if score > self._most:
            self._best, self._most = (r, x), score

    def _tensors(self, x: Vector) -> dict[str, Tensor]:
        return self.problem.unflatten(x)

    def standing(self, goal: Goal, r: int | None = None) -> tuple[float, float, float]:
        """Return what trials are ranked by.

        What it cost to the target; without it how far they came, since those dropped early were
        worse, and the mean of their last quarter. Only the first r rounds count, and none after the
        target or after it was dropped, so that a race that is resumed decides as it did before.
        """
        rounds = self.rounds[: self.dropped if r is None else r]
        if self.diverged or not rounds:
            return (-inf, -inf, -inf)
        met = goal.first(rounds)
        if met:
            return (-goal.cost(rounds[: met.r]), 0.0, 0.0)
        last = [goal.score(line.metrics) for line in rounds[-ceil(len(rounds) / 4) :]]
        return (-inf, goal.cost(rounds), sum(last) / len(last))


class _SoFar:
    """What some rounds come to for a goal; each is looked at once, however often they are asked."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.met = False  # whether one has met the target
        self.without_gain = 0  # rounds since the best one; all of them if none is finite
        self._seen, self._most = 0, -inf

    def look(self, rounds: list[RoundLine]) -> None:
        """Take in those that have come since."""
        for line in rounds[self._seen :]:
            self.met = self.met or self.goal.reached(line.metrics)
            score = self.goal.score(line.metrics)
            self.without_gain = 0 if score > self._most else self.without_gain + 1
            self._most = max(self._most, score)
        self._seen = len(rounds)


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
