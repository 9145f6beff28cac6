"""Step sizes by racing: candidates advance together, the losers stop early."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from math import ceil, inf, isfinite
from operator import index
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from trimtab.core import Algorithm, Vector
from trimtab.problems.problem import Problem
from trimtab.simulation import Diverged, Simulation, simulate
from trimtab.studies.record import Record, model_round, write_model

SAVE_EVERY = 5.0  # seconds of work that a crash may cost a run


@dataclass(frozen=True)
class Goal:
    """What is wanted: accuracy at or above the target, or loss at or below it.

    >>> goal = Goal("accuracy", 0.9)
    >>> goal.reached({"accuracy": 0.91}), Goal("loss", 0.1).reached({"loss": 0.2})
    (True, False)
    """

    metric: str
    target: float | None = None

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return self.metric != "loss"

    def score(self, line: dict[str, Any]) -> float:
        """Return how good a round is; more is better."""
        value = line.get(self.metric)
        if value is None or not isfinite(value):
            return -inf
        return float(value) if self.higher else -float(value)

    def reached(self, line: dict[str, Any]) -> bool:
        """Tell whether a round meets the target."""
        if self.target is None:
            return False
        return self.score(line) >= self.score({self.metric: self.target})

    def first(self, rounds: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the first round that meets the target."""
        return next((line for line in rounds if self.reached(line)), None)

    def best_round(self, rounds: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the first of the best rounds."""
        finite = [line for line in rounds if self.score(line) > -inf]
        return max(finite, key=self.score) if finite else None

    def best(self, rounds: list[dict[str, Any]]) -> float | None:
        """Return the best value seen."""
        line = self.best_round(rounds)
        return None if line is None else float(line[self.metric])


def goal_of(problem: Problem, target: float | None, x: Vector | None = None) -> Goal:
    """Return the goal a problem suggests: accuracy where it has one, else loss."""
    measured = problem.evaluate(problem.x0() if x is None else x)
    metric = "accuracy" if "accuracy" in measured else "loss"
    if metric not in measured:
        has = ", ".join(map(repr, measured)) or "nothing"
        raise ValueError(
            f"{type(problem).__name__}.evaluate returns {has}, by which nobody can win; return "
            "'accuracy' or 'loss' too."
        )
    if target is not None and (
        not isfinite(target) or (metric == "accuracy" and not 0 < target <= 1)
    ):
        raise ValueError(f"target={target}; pass an accuracy above 0 and at most 1, such as 0.9.")
    return Goal(metric, target)


def round_count(R: int) -> int:
    """Return a number of rounds, or refuse what is none."""
    if isinstance(R, bool) or not hasattr(R, "__index__") or index(R) < 1:
        raise ValueError(f"R={R!r}; pass a number of rounds R >= 1.")
    return index(R)


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
        self._best: tuple[int, Vector] | None = None  # the best round, if it is one of ours
        self._most: float | None = None  # its score

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
        """Write the model after the best round, if it is not there yet."""
        line = goal.best_round(self.rounds)
        if line is None or model_round(path) == line["r"]:
            return
        if self._best is not None and self._best[0] == line["r"]:
            x = self._best[1]
        else:  # it was run before an interruption, and not written by then
            *_, last = islice(simulate(self.algorithm, self.problem, **self.options), line["r"])
            x = last.x
        write_model(path, self._tensors(x), line["r"])

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


Start = Callable[[float], Trial]
"""Make the trial of a step size."""

Trials = dict[float, Trial]
"""Trials by their step size."""

_FACTOR = 10**0.5
_FIRST = 16  # rounds before anybody is dropped
_FURTHEST = 12  # factors beyond a grid
_AS_GOOD = 1.05  # a smaller step wins if it needs <= 1.05 x the fewest rounds


def race(
    start: Start,
    goal: Goal,
    R: int,
    grid: list[float] | None = None,
    factor: float = _FACTOR,
    refine: bool = True,
) -> Generator[Trial, None, Trials]:
    """Find the step size that reaches the goal in the fewest rounds, at most R.

    Yield the trial that moved after each round; return (by StopIteration) all trials.
    All candidates of a coarse grid run 16, 32, 64, ... rounds; after each stretch the worse half
    stops. The grid, in steps of `factor`, is widened while its best lies at an edge; and since
    steps that look bad early may yet win, large ones and small ones, the neighbours of the best run
    as far as it did; so do the smallest, always the slowest at first, and smaller ones while they
    get better. To refine, the two steps between the best and its neighbours are tried too. Last,
    smaller steps get the rounds in which they would be as good. `ranked` tells who won.
    """
    trials: Trials = {}
    etas = sorted(grid or [factor**e for e in range(-4, 3)])  # 0.01 … 10
    yield from _heat(start, etas, trials, goal, R)
    yield from _widen(start, trials, goal, R, factor)
    yield from _descend(start, trials, goal, R, factor)
    yield from _widen(start, trials, goal, R, factor)
    if refine:
        best = _best(trials, goal)
        between = [best / factor**0.5, best * factor**0.5]
        yield from _heat(start, between, trials, goal, _limit(trials, goal, R))
    yield from calm_down(start, trials, goal, R, factor)
    return trials


def ranked(trials: Trials, goal: Goal) -> list[Trial]:
    """Return the trials, best first.

    The smallest step wins among those that need at most 5 % more rounds than the fewest: large ones
    win by a round or two at the edge of stability, where rounding decides. The others follow as
    they stand.
    """
    order = sorted(trials, key=lambda eta: trials[eta].standing(goal), reverse=True)
    winner = _winner(trials, goal)
    return [trials[winner], *(trials[eta] for eta in order if eta != winner)]


def calm_down(
    start: Start, trials: Trials, goal: Goal, R: int, factor: float = _FACTOR
) -> Iterator[Trial]:
    """Let the step below the winner run 5 % longer than the fewest rounds, and so on down.

    A step below is the next smaller one that was tried, or a new one where there is none.
    """
    for _ in range(_FURTHEST):
        fewest = goal.first(trials[_best(trials, goal)].rounds)
        if fewest is None or trials[_best(trials, goal)].diverged:
            return
        winner = _winner(trials, goal)
        below = max((eta for eta in trials if eta < winner), default=winner / factor)
        if below not in trials:
            trials[below] = start(below)
        trials[below].dropped = None
        yield from trials[below].advance(min(R, ceil(_AS_GOOD * fewest["r"])), goal)
        if _winner(trials, goal) == winner:
            return


def _heat(start: Start, etas: list[float], trials: Trials, goal: Goal, R: int) -> Iterator[Trial]:
    """Race new candidates until one is there, or R rounds are over."""
    alive = {eta: start(eta) for eta in etas}
    trials |= alive
    r = _FIRST
    while alive:
        r = min(r, R)
        for trial in alive.values():  # the best so far first; nobody need go on once it is there
            yield from trial.advance(_soonest(alive, goal, r), goal)
        if r == R or any(goal.first(t.rounds[:r]) for t in alive.values()):
            return
        running = [eta for eta, trial in alive.items() if not trial.diverged]
        standing = {eta: alive[eta].standing(goal, r) for eta in running}
        running.sort(key=lambda eta: standing[eta], reverse=True)
        stay = max(3, ceil(len(running) / 2))
        for eta in running[stay:]:
            alive[eta].dropped = r
        alive = {eta: alive[eta] for eta in running[:stay]}
        r *= 2


def _widen(start: Start, trials: Trials, goal: Goal, R: int, factor: float) -> Iterator[Trial]:
    """Follow each edge that wins outwards, until the best has neighbours that ran as far."""
    for _ in range(_FURTHEST):
        best = _best(trials, goal)
        limit = _limit(trials, goal, R)
        if best == max(trials) and not trials[best].diverged:
            yield from _heat(start, [best * factor], trials, goal, limit)
        elif best == min(trials):
            yield from _heat(start, [best / factor, best / factor**2], trials, goal, limit)
        elif dropped := [t for t in _beside(best, trials) if t.dropped]:
            for trial in dropped:
                trial.dropped = None
                yield from trial.advance(limit, goal)
        else:
            return


def _descend(start: Start, trials: Trials, goal: Goal, R: int, factor: float) -> Iterator[Trial]:
    """Let the smallest step run as far as the best, then ever smaller ones while that is better.

    With few clients a round large steps can be quick and noisy, small ones slow and sure, and
    those between worse than both, so that following the best does not lead to the small ones.
    """
    for _ in range(_FURTHEST):
        low = min(trials)
        below, trials[low].dropped = low / factor, None
        yield from trials[low].advance(_limit(trials, goal, R), goal)
        r = _limit(trials, goal, R)
        trials[below] = start(below)
        yield from trials[below].advance(r, goal)
        if trials[below].standing(goal, r) <= trials[low].standing(goal, r):
            return


def _soonest(trials: Trials, goal: Goal, r: int) -> int:
    """Return the round at which the first of them is there, at most r."""
    there = [goal.first(trial.rounds[:r]) for trial in trials.values()]
    return min([r, *(int(line["r"]) for line in there if line)])


def _beside(eta: float, trials: Trials) -> list[Trial]:
    etas = sorted(trials)
    j = etas.index(eta)
    return [trials[other] for other in etas[max(0, j - 1) : j + 2] if other != eta]


def _best(trials: Trials, goal: Goal) -> float:
    """Return the step size that stands best; on a tie the smaller one."""
    return max(sorted(trials), key=lambda eta: trials[eta].standing(goal))


def _winner(trials: Trials, goal: Goal) -> float:
    """Return the smallest step size that is as good as the best."""
    best = _best(trials, goal)
    fewest, *_ = trials[best].standing(goal)
    as_good = (eta for eta, t in trials.items() if t.standing(goal)[0] >= _AS_GOOD * fewest)
    return best if fewest == -inf else min(as_good)


def _limit(trials: Trials, goal: Goal, R: int) -> int:
    """Return how far newcomers need to run to be compared with the best."""
    met = goal.first(trials[_best(trials, goal)].rounds)
    return int(met["r"]) if met else R


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
