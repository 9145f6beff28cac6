"""Cells on EMNIST: a step size found by a race, then the winner's accuracy round by round."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Literal

from torch import nn
from torch.nn import functional as F

from trimtab.algorithms import (
    Adam,
    FedAvg,
    FedOpt,
    FedProx,
    Mime,
    MimeLite,
    Momentum,
    Scaffold,
    ServerOnly,
    Sgd,
)
from trimtab.algorithms.bases import Base
from trimtab.core import Algorithm, Vector
from trimtab.problems.data.emnist import emnist
from trimtab.problems.data.split import Scale, Split
from trimtab.problems.metric import ACCURACY
from trimtab.problems.models import logistic, mlp
from trimtab.problems.partition import by_similarity, split
from trimtab.problems.supervised.problem import Supervised
from trimtab.reproduce.reproduction import Cell, Record, Say
from trimtab.simulation import step_size
from trimtab.studies.fragility import judge, moved, repeat
from trimtab.studies.goal import Goal
from trimtab.studies.race import Start, Trials, race, ranked
from trimtab.studies.record import Record as Rounds
from trimtab.studies.trial import Trial

FACTOR = 1.8  # between step sizes
SAVE_EVERY = 60.0  # seconds of work that an interrupted cell may lose
HELD = 10  # rounds whose mean counts as staying at a target
TARGETS = (0.45, 0.5, 0.6)
NAMES = {
    "sgd": "SGD",
    "fedavg": "FedAvg",
    "scaffold": "SCAFFOLD",
    "fedprox": "FedProx",
    "serveronly": "server only",
    "fedopt": "FedAvg",  # with its base optimiser at the server
    "mimelite": "MimeLite",
    "mime": "Mime",
}
BASES: dict[str, Base] = {"none": Momentum(beta=0.0), "momentum": Momentum(), "adam": Adam()}


@dataclass(frozen=True)
class Setting:
    """What a cell runs; the defaults are those of section 7 of the SCAFFOLD paper."""

    algorithm: str
    epochs: int
    similarity: float
    S: int = 20
    N: int = 100
    target: float | None = 0.5  # that the race is for; None: the accuracy at the limit
    until: float = 0.6  # the winner runs on until it stays there,
    limit: int = 1000  # or for so many rounds
    network: bool = False  # with 200 hidden units, instead of logistic regression
    pixels: Scale = "unit"
    random_start: bool = False  # instead of zero
    every: int = 1  # take every so many-th sample
    seed: int = 0
    eta: float | None = None  # given, not raced for
    classes: Literal[47, 62] = 47
    base: str = "none"  # optimiser, for those that take one
    eta_g: float = 1.0  # of those with a base

    @property
    def name(self) -> str:
        """Tell the cells of a table apart."""
        parts = [self.algorithm, str(self.epochs), f"{self.similarity:g}"]
        parts += [self.base] if self.algorithm in _WITH_BASE else []
        parts += [f"etag{self.eta_g:g}"] if self.eta_g != 1 else []
        parts += [f"S{self.S}"] if self.S != 20 else []
        parts += ["standardised"] if self.pixels != "unit" else []
        parts += ["random-start"] if self.random_start else []
        parts += [f"eta{self.eta:.4g}"] if self.eta is not None else []
        parts += [f"seed{self.seed}"] if self.seed else []
        return "-".join(parts)

    def with_step(self, eta: float, K: int) -> Algorithm:
        """Return the algorithm with a step size."""
        base = BASES[self.base]
        made: dict[str, Callable[[], Algorithm]] = {
            "sgd": lambda: Sgd(eta=eta),
            "fedavg": lambda: FedAvg(eta_l=eta, K=K),
            "scaffold": lambda: Scaffold(eta_l=eta, K=K),
            "fedprox": lambda: FedProx(eta_l=eta, K=K, mu=1.0),
            "serveronly": lambda: ServerOnly(eta=eta, base=base),
            "fedopt": lambda: FedOpt(eta_l=eta, K=K, base=base, eta_g=self.eta_g),
            "mimelite": lambda: MimeLite(eta=eta, K=K, base=base),
            "mime": lambda: Mime(eta=eta, K=K, base=base),
        }
        return made[self.algorithm]()


_WITH_BASE = ("serveronly", "fedopt", "mimelite", "mime")


@lru_cache(maxsize=2)
def _data(data: Path | None, pixels: Scale, classes: int) -> Split:
    return emnist("balanced" if classes == 47 else "byclass", data, pixels)


@lru_cache(maxsize=2)
def _problem(
    data: Path | None,
    pixels: Scale,
    similarity: float,
    N: int,
    network: bool,
    random_start: bool,
    every: int,
    seed: int,
    classes: int,
) -> Supervised:
    (X, y), test, _ = _data(data, pixels, classes)
    X, y = X[::every], y[::every]
    clients = split(X, y, by_similarity(y, N, similarity, seed))

    def build() -> nn.Module:
        if network:
            return mlp(784, 200, classes)
        return nn.Linear(784, classes) if random_start else logistic(784, classes)

    test = (test[0][::every], test[1][::every])
    return Supervised(build, F.cross_entropy, clients, test, batch=0.2)


def problem_of(s: Setting, data: Path | None) -> Supervised:
    """Return the problem of a setting; those used last are kept."""
    return _problem(
        data, s.pixels, s.similarity, s.N, s.network, s.random_start, s.every, s.seed, s.classes
    )  # fmt: skip


def compute(s: Setting, data: Path | None, say: Say, scratch: Path) -> Record:
    """Race for the step size, let the winner run on, and return the record of both."""
    problem = problem_of(s, data)
    K = problem.steps(s.epochs)

    def start(eta: float, x: Vector | None = None) -> Trial:
        folder = scratch / f"eta{eta:.6g}{'' if x is None else '-again'}"
        rounds = Rounds(folder, asdict(s) | {"eta": eta}, resume=True)
        return Trial(
            s.with_step(eta, K), problem, rounds, save_every=SAVE_EVERY, S=s.S, seed=s.seed, x=x
        )

    goal = Goal(ACCURACY, s.target)
    trials = {s.eta: start(s.eta)} if s.eta is not None else _race(s, start, goal, say)
    winner = ranked(trials, goal)[0]
    (eta,) = (eta for eta, trial in trials.items() if trial is winner)
    further = winner.advance(s.limit, Goal(ACCURACY))
    while stays(_accuracy(winner), s.until) is None and next(further, None):
        accuracy = _accuracy(winner)
        say(f"round {len(accuracy)}, accuracy {accuracy[-1]:.3f}")
    again = None
    if s.eta is None and not s.network and not winner.diverged:
        second = start(eta, moved(problem.x0(s.seed), s.seed))
        for event in repeat(second, winner, goal):
            say(f"again from a moved start, round {event.line.r}")
        again = judge(winner.rounds, second.rounds, goal, second.diverged is not None)
    return {
        "setting": asdict(s),
        "K": K,
        "data": _data(data, s.pixels, s.classes).name,
        "eta": eta,
        "candidates": [_candidate(eta, trial, goal) for eta, trial in sorted(trials.items())],
        "accuracy": _accuracy(winner),
        "rounds": {
            f"{t:g}": [first(_accuracy(winner), t), stays(_accuracy(winner), t)] for t in TARGETS
        },
        "best": max(_accuracy(winner), default=None),
        "again": None if again is None else asdict(again),
        "limit": s.limit,
        "bytes a round": winner.rounds[0].bytes_up + winner.rounds[0].bytes_down
        if winner.rounds
        else None,
    }


def _race(s: Setting, start: Start, goal: Goal, say: Say) -> Trials:
    running = race(start, goal, s.limit, grid(s), factor=FACTOR, refine=False)
    while True:
        try:
            event = next(running)
        except StopIteration as over:
            trials: Trials = over.value
            return trials
        say(f"step size {step_size(event.algorithm)[1]:.3g}, round {event.line.r}")


def grid(s: Setting) -> list[float]:
    """Return where the race for a step size begins; it follows the winner wherever that leads.

    All are powers of the factor: the candidates of one cell are those of the others.

    >>> [round(eta, 2) for eta in grid(Setting("scaffold", 5, 0.0))]
    [0.1, 0.17, 0.31, 0.56, 1.0]
    """
    centre = 3.0 if s.algorithm in ("sgd", "serveronly") else 0.7 / s.epochs**0.5
    centre *= {"none": 1.0, "momentum": 0.1, "adam": 0.02}[s.base]
    nearest = round(log(centre, FACTOR))
    return [FACTOR**e for e in range(nearest - 2, nearest + 3)]


def _accuracy(trial: Trial) -> list[float]:
    return [round(line.metrics["accuracy"] or 0.0, 4) for line in trial.rounds]


def _candidate(eta: float, trial: Trial, goal: Goal) -> Record:
    met = goal.first(trial.rounds)
    return {
        "eta": eta,
        "rounds": len(trial.rounds),
        "first": met.r if met else None,
        "best": goal.best(trial.rounds),
        "diverged": trial.diverged is not None,
    }


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


def cell(s: Setting) -> Cell:
    """Return the cell of a setting."""
    return Cell(s.name, lambda data, say, scratch: compute(s, data, say, scratch))


def seeded(settings: Sequence[Setting], seeds: int) -> list[Setting]:
    """Return the settings for each seed."""
    return [replace(s, seed=seed) for seed in range(seeds) for s in settings]
