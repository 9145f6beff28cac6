"""Cells on EMNIST: a step size found by a race, then the winner's accuracy round by round.

Setting is what a cell runs, RacedRecord what its record holds.
"""

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import ceil, log
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from torch import nn
from torch.nn import functional as F

from trimtab.core import Vector
from trimtab.core.task import Progress, Task
from trimtab.errors import BadArgument
from trimtab.problems.catalogue import logistic, mlp
from trimtab.problems.data.emnist import emnist
from trimtab.problems.metrics import ACCURACY
from trimtab.problems.partition import Scale, Split, by_similarity, split
from trimtab.problems.supervised.problem import Supervised
from trimtab.simulation import Rounds, step_size
from trimtab.studies import record as study_record
from trimtab.studies.fragility import Again, judge, moved, repeat
from trimtab.studies.goal import Goal
from trimtab_papers.engine import Cell, Computing, build, takes_base, takes_local_steps
from trimtab_papers.race import AS_GOOD, RacedTrial, Start, Trials, race, ranked
from trimtab_papers.verdicts import Record, Records

HELD = 10  # a run stays at a target if the mean of 10 rounds is >= the target
SMALL = 12  # small clients have every 12th image
TARGETS = (0.45, 0.5, 0.6)  # Every record has the rounds to these accuracies.


@dataclass(frozen=True)
class Setting:
    """What a cell runs; the defaults are those of section 7 of the SCAFFOLD paper."""

    algorithm: str
    epochs: int
    similarity: float
    S: int = 20
    N: int = 100
    target: float | None = 0.5  # The race is for it; None: for the accuracy at the limit.
    until: float = 0.6  # The winner runs on until it stays there, or to the limit.
    limit: int = 1000  # The rounds of every run are <= limit.
    network: bool = False  # True: 200 hidden units, instead of logistic regression.
    pixels: Scale = "unit"
    random_start: bool = False  # False: it starts at x = 0.
    every: int = 1  # Take every so many-th sample.
    seed: int = 0
    eta: float | None = None  # None: the step size is raced for.
    a: float = 0.1  # The share of the new gradient in those with a momentum of their own.
    classes: Literal[47, 62] = 47
    base: str = "none"  # The optimiser of those that take one.
    eta_g: float = 1.0  # The step at the server of those with a base.
    around: float | None = None  # The race is between this step size and its two neighbours.

    @property
    def name(self) -> str:
        """The name of the cell, which differs from those of all other cells of its table."""
        parts = [self.algorithm, str(self.epochs), f"{self.similarity:g}"]
        parts += [self.base] if takes_base(self.algorithm) else []
        parts += [f"etag{self.eta_g:g}"] if self.eta_g != 1 else []
        parts += [f"a{self.a:g}"] if self.a != 0.1 else []
        parts += [f"S{self.S}"] if self.S != 20 else []
        parts += ["standardised"] if self.pixels != "unit" else []
        parts += ["random-start"] if self.random_start else []
        parts += [f"every{self.every}"] if self.every != 1 else []
        parts += [f"eta{self.eta:.4g}"] if self.eta is not None else []
        parts += [f"seed{self.seed}"] if self.seed else []
        return "-".join(parts)


@dataclass(frozen=True)
class RacedRecord:
    """The race for a step size, and the winner's accuracy after every round.

    again is the winner from a start moved by a millionth; None: it was not tried.
    """

    setting: Setting
    eta: float
    candidates: list[Record]
    accuracy: tuple[float, ...]
    best: float | None
    again: Again | None
    K: int
    data: str
    bytes_a_round: int | None

    @property
    def limit(self) -> int:
        return self.setting.limit

    @property
    def fragile(self) -> bool | None:
        """Whether the winner comes out otherwise from a moved start; None: it was not tried."""
        return None if self.again is None else self.again.fragile

    def late(self, count: int) -> float:
        """Return the mean accuracy of the last rounds."""
        return fmean(self.accuracy[-count:])

    def to_json(self) -> Record:
        return {
            "setting": asdict(self.setting),
            "K": self.K,
            "data": self.data,
            "eta": self.eta,
            "candidates": self.candidates,
            "accuracy": list(self.accuracy),
            "rounds": {
                f"{target:g}": [first(self.accuracy, target), stays(self.accuracy, target)]
                for target in TARGETS
            },
            "best": self.best,
            "again": None if self.again is None else asdict(self.again),
            "limit": self.limit,
            "bytes a round": self.bytes_a_round,
        }

    @classmethod
    def from_json(cls, record: Record) -> "RacedRecord":
        """Read a record; what an older one does not name was as usual, or was not tried."""
        again: dict[str, Any] | None = record.get("again")
        return cls(
            setting=Setting(**record["setting"]),
            eta=record["eta"],
            candidates=record["candidates"],
            accuracy=tuple(record["accuracy"]),
            best=record["best"],
            again=None if again is None else Again(**again),
            K=record["K"],
            data=record["data"],
            bytes_a_round=record["bytes a round"],
        )


def read_raced(records: Records) -> list[RacedRecord]:
    return [RacedRecord.from_json(record) for record in records.values()]


def first(accuracy: Sequence[float], target: float) -> int | None:
    """Return the first round at or above the target.

    >>> first([0.1, 0.5, 0.4], 0.5)
    2
    """
    return next((r for r, a in enumerate(accuracy, 1) if a >= target), None)


def stays(accuracy: Sequence[float], target: float) -> int | None:
    """Return the first round r such that rounds r to r + 9 average at or above the target.

    >>> stays([0.1, 0.6, *[0.5] * 9], 0.5)
    2
    """
    return next(
        (
            r + 1
            for r in range(len(accuracy) - HELD + 1)
            if sum(accuracy[r : r + HELD]) / HELD >= target
        ),
        None,
    )


# -- how a cell is computed


FACTOR = 1.8  # the next step size = 1.8 x the last
SAVE_EVERY = 60.0  # an interrupted cell loses <= 60 seconds of work
_CENTRE = {"none": 1.0, "momentum": 0.1, "adam": 0.02}  # a grid's centre = this x that of no base


def cell(setting: Setting) -> Cell:
    return Cell(setting.name, lambda data, scratch: compute(setting, data, scratch))


def near_first_seed(records: Records, seeds: int) -> list[Cell]:
    """Return the cells of further seeds, which try the winner of the first and its neighbours.

    A seed changes the cut of the data, the cohorts and the mini-batches. Such a run ends where it
    stays at the target of the race.
    """
    winners = _winners_of_first_seed(records)
    return [cell(_around(record, seed)) for seed in range(1, seeds) for record in winners]


def near_full_size(records: Records, seeds: int) -> list[Cell]:
    """Return the cells of all seeds with a twelfth of the data, at the winners of the full size.

    Small versions have small clients anyway: their further seeds differ in the seed alone.
    """
    full = {name: r for name, r in records.items() if Setting(**r["setting"]).every == 1}
    if seeds == 1 or not full:
        return near_first_seed(records, seeds)
    return [
        cell(replace(_around(record, seed), every=SMALL))
        for seed in range(seeds)
        for record in _winners_of_first_seed(full)
    ]


def _winners_of_first_seed(records: Records) -> list[RacedRecord]:
    """Return what was raced for with the first seed, the usual pixels and the usual start."""
    return [
        record
        for record in read_raced(records)
        for s in [record.setting]
        if s.seed == 0 and s.eta is None and s.pixels == "unit" and not s.random_start
    ]


def _around(record: RacedRecord, seed: int) -> Setting:
    """Return the setting of another seed, at the winner of a record and its neighbours."""
    s = record.setting
    until = s.until if s.target is None else s.target
    return replace(s, seed=seed, around=record.eta, until=until)


# -- the problem


@lru_cache(maxsize=2)
def _data(data: Path | None, pixels: Scale, classes: int) -> Split:
    return emnist("balanced" if classes == 47 else "byclass", data, pixels)


@lru_cache(maxsize=2)
def _problem(s: Setting, data: Path | None) -> Supervised:
    (X, y), test, _ = _data(data, s.pixels, s.classes)
    X, y = X[:: s.every], y[:: s.every]
    clients = split(X, y, by_similarity(y, s.N, s.similarity, s.seed))

    def build() -> nn.Module:
        if s.network:
            return mlp(784, 200, s.classes)
        return nn.Linear(784, s.classes) if s.random_start else logistic(784, s.classes)

    test = (test[0][:: s.every], test[1][:: s.every])
    return Supervised(build, F.cross_entropy, clients, test, batch=0.2)


def problem_of(s: Setting, data: Path | None) -> Supervised:
    """Return the problem of a setting; settings that differ in what is run on it share it."""
    shared = Setting(
        algorithm="",
        epochs=1,
        similarity=s.similarity,
        N=s.N,
        network=s.network,
        pixels=s.pixels,
        random_start=s.random_start,
        every=s.every,
        seed=s.seed,
        classes=s.classes,
    )
    return _problem(shared, data)


# -- the race


def compute(s: Setting, data: Path | None, scratch: Path) -> Computing:
    """Race for the step size, let the winner run on, and return the record of both."""
    problem = problem_of(s, data)
    K = problem.steps(s.epochs)

    def start(eta: float, x: Vector | None = None) -> RacedTrial:
        record = _begun(scratch / f"eta{eta:.6g}{'' if x is None else '-again'}", s, eta)
        algorithm = build(s.algorithm, eta, K, base=s.base, eta_g=s.eta_g, a=s.a)
        rounds = Rounds(S=s.S, seed=s.seed, x=x)
        return RacedTrial(algorithm, problem, record, rounds, save_every=SAVE_EVERY)

    goal = Goal(ACCURACY, s.target)
    if s.eta is not None:
        trials = {s.eta: start(s.eta)}
    else:
        trials = yield from (_race if s.around is None else _neighbours)(s, start, goal)
    winner = ranked(trials, goal)[0]
    (eta,) = (eta for eta, trial in trials.items() if trial is winner)
    yield from _run_on(winner, s)
    again = None
    if s.eta is None and s.around is None and not s.network and not winner.diverged:
        again = yield from _again(start(eta, moved(problem.x0(s.seed), s.seed)), winner, goal)
    accuracy = _accuracy(winner)
    return RacedRecord(
        setting=s,
        eta=eta,
        candidates=[_candidate(eta, trial, goal) for eta, trial in sorted(trials.items())],
        accuracy=tuple(accuracy),
        best=max(accuracy, default=None),
        again=again,
        K=K,
        data=_data(data, s.pixels, s.classes).name,
        bytes_a_round=_bytes_a_round(winner),
    ).to_json()


def _begun(folder: Path, s: Setting, eta: float) -> study_record.Record:
    """Return the record of a step size, with what an interrupted cell has done of it."""
    try:
        return study_record.Record(folder, asdict(s) | {"eta": eta}, resume=True)
    except BadArgument:
        raise ValueError(
            f"{folder.parent} was begun by another version of trimtab, or with other settings; "
            "remove it, and the cell starts from the beginning."
        ) from None


def grid(s: Setting) -> list[float]:
    """Return where the race for a step size begins; it follows the winner wherever that leads.

    All are powers of the factor: the candidates of one cell are those of the others.

    >>> [round(eta, 2) for eta in grid(Setting("scaffold", 5, 0.0))]
    [0.1, 0.17, 0.31, 0.56, 1.0]
    """
    centre = 0.7 / s.epochs**0.5 if takes_local_steps(s.algorithm) else 3.0
    nearest = round(log(centre * _CENTRE[s.base], FACTOR))
    return [FACTOR**e for e in range(nearest - 2, nearest + 3)]


def _race(s: Setting, start: Start, goal: Goal) -> Generator[Progress, None, Trials]:
    work = Task(race(start, goal, s.limit, grid(s), factor=FACTOR, refine=False))
    for event in work:
        eta = step_size(event.algorithm)[1]
        yield Progress(f"step size {eta:.3g}, round {event.line.r}")
    return work.result()


def _neighbours(s: Setting, start: Start, goal: Goal) -> Generator[Progress, None, Trials]:
    """Run a known step size, then those beside it as long as they could still win."""
    assert s.around is not None
    trials: Trials = {}
    known = round(log(s.around, FACTOR))
    for eta in (FACTOR**e for e in (known, known - 1, known + 1)):
        met = [line.r for trial in trials.values() if (line := goal.first(trial.rounds))]
        trials[eta] = start(eta)
        far = min(s.limit, ceil(AS_GOOD * min(met))) if met else s.limit
        for event in trials[eta].advance(far, goal):
            yield Progress(f"step size {eta:.3g}, round {event.line.r}")
    return trials


def _run_on(winner: RacedTrial, s: Setting) -> Generator[Progress, None, None]:
    """Let the winner run until it stays where it should, or to the limit."""
    while stays(_accuracy(winner), s.until) is None:
        before = len(winner.rounds)
        for event in winner.advance(min(before + 1, s.limit), Goal(ACCURACY)):
            yield Progress(f"round {event.line.r}, accuracy {event.line.metrics['accuracy']:.3f}")
        if len(winner.rounds) == before:
            return


def _again(second: RacedTrial, winner: RacedTrial, goal: Goal) -> Generator[Progress, None, Again]:
    for event in repeat(second, winner, goal):
        yield Progress(f"again from a moved start, round {event.line.r}")
    return judge(winner.rounds, second.rounds, goal, second.diverged is not None)


def _accuracy(trial: RacedTrial) -> list[float]:
    return [round(line.metrics["accuracy"] or 0.0, 4) for line in trial.rounds]


def _candidate(eta: float, trial: RacedTrial, goal: Goal) -> Record:
    """Return a step size of the race: its rounds, the first at the target, its best accuracy."""
    met = goal.first(trial.rounds)
    return {
        "eta": eta,
        "rounds": len(trial.rounds),
        "first": met.r if met else None,
        "best": goal.best(trial.rounds),
        "diverged": trial.diverged is not None,
    }


def _bytes_a_round(trial: RacedTrial) -> int | None:
    if not trial.rounds:
        return None
    return trial.rounds[0].bytes_up + trial.rounds[0].bytes_down
