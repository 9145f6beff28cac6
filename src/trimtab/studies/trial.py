"""One algorithm with one step size: run round by round, recorded, resumed."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from math import ceil, inf
from pathlib import Path
from shutil import copyfile
from time import perf_counter
from typing import Any

from torch import Tensor

from trimtab.core import Algorithm, Vector
from trimtab.problems.problem import Problem
from trimtab.simulation import Diverged, Simulation, simulate
from trimtab.studies.goal import Goal
from trimtab.studies.record import Record, model_round, write_model

SAVE_EVERY = 5.0  # seconds of work that a crash may cost a run


class Trial:
    """One algorithm with one step size: its simulation, and the record of its rounds."""

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Problem,
        record: Record,
        *,
        save_every: float = SAVE_EVERY,
        keep_best: bool = False,
        **options: Any,
    ) -> None:
        self.algorithm, self.problem, self.record = algorithm, problem, record
        self.save_every, self.keep_best = save_every, keep_best
        self.options = options
        self.diverged: Diverged | None = None
        self.dropped: int | None = None  # the round at which a race gave it up
        self._sim: Simulation | None = None
        self._unsaved = 0.0  # seconds of work since the last checkpoint
        self._best: tuple[int, Vector] | None = None  # the best round, if this process ran it
        self._most: float | None = None  # the best score, of whoever ran it

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The rounds so far."""
        return self.record.rounds

    @property
    def sim(self) -> Simulation:
        """The simulation, at the last round of the record."""
        if self._sim is None:
            path, done = self.record.checkpoint, len(self.rounds)
            sim = None
            if path is not None and path.exists():
                sim = Simulation.load(path, self.algorithm, self.problem)
            if sim is None or sim.r > done:
                sim = simulate(self.algorithm, self.problem, **self.options)
            while sim.r < done:  # rounds after the checkpoint: the same bits once more
                next(sim)
            self._sim = sim
        return self._sim

    def advance(self, to: int, goal: Goal) -> Iterator["Trial"]:
        """Run until round `to`, the goal or divergence; yield after each new round."""
        try:
            while len(self.rounds) < to and not self.diverged and goal.first(self.rounds) is None:
                started = perf_counter()
                try:
                    done = next(self.sim)
                except Diverged as error:
                    self.diverged = error
                    return
                facts = {k: v for k, v in vars(done).items() if k not in ("x", "server", "cohort")}
                measured = self.problem.evaluate(done.x)
                if self.keep_best:
                    self._note_best(done.r, done.x, goal.score(measured), goal)
                self.record.append(facts | {"clients": len(done.cohort)} | measured)
                self._unsaved += perf_counter() - started
                if self._unsaved > self.save_every:
                    self.save()
                yield self
        except GeneratorExit:
            self.save()  # stopped between two rounds: an interrupted run goes on here
            raise

    def save(self) -> None:
        """Write a checkpoint, if there is a folder and anything to write; the best model first."""
        if self.record.checkpoint is not None and self._sim is not None:
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
        r, own = line["r"], self.record.best if self.record.folder is not None else None
        if own is not None and model_round(own) == r:
            if own != path:
                copyfile(own, path)
        elif self._best is not None and self._best[0] == r:
            write_model(path, self._tensors(self._best[1]), r)
        else:  # it was run before an interruption, and not written by then
            *_, last = islice(simulate(self.algorithm, self.problem, **self.options), r)
            write_model(path, self._tensors(last.x), r)

    def _note_best(self, r: int, x: Vector, score: float, goal: Goal) -> None:
        if self._most is None:
            self._most = max(map(goal.score, self.rounds), default=-inf)
        if score > self._most:
            self._best, self._most = (r, x), score

    def _tensors(self, x: Vector) -> dict[str, Tensor]:
        """Return a model as a state_dict, or x where there is no module."""
        unflatten = getattr(self.problem, "unflatten", None)
        return {"x": x.clone()} if unflatten is None else unflatten(x)

    def standing(self, goal: Goal, r: int | None = None) -> tuple[float, float, float]:
        """Return what trials are ranked by.

        Rounds to the target; without it how far they came, since those dropped early were worse,
        and the mean of their last quarter. Only the first r rounds count, and none after the target
        or after it was dropped, so that a race that is resumed decides as it did before.
        """
        rounds = self.rounds[: self.dropped if r is None else r]
        if self.diverged or not rounds:
            return (-inf, -inf, -inf)
        met = goal.first(rounds)
        if met:
            return (-met["r"], 0.0, 0.0)
        last = rounds[-ceil(len(rounds) / 4) :]
        return (-inf, len(rounds), sum(map(goal.score, last)) / len(last))


def settings_of(algorithm: Algorithm) -> dict[str, Any]:
    """Return an algorithm's hyper-parameters as JSON holds them.

    >>> from trimtab import FedAvg, Mime, Momentum
    >>> settings_of(FedAvg(eta_l=0.1, K=5))
    {'eta_l': 0.1, 'K': 5, 'eta_g': 1.0}
    >>> settings_of(Mime(eta=0.1, K=5, base=Momentum()))
    {'eta': 0.1, 'K': 5, 'base': 'Momentum(beta=0.9)'}
    """
    fields = asdict(algorithm)  # type: ignore[call-overload]
    if "fedavg" in fields:  # a wrapper speaks of what it wraps
        return dict(fields["fedavg"])
    return {k: repr(getattr(algorithm, k)) if isinstance(v, dict) else v for k, v in fields.items()}
