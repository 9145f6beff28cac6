"""What a referee asks for: each client alone, and all data in one place.

Both make the same local steps as FedAvg, with a search and a budget of their own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import nan
from pathlib import Path
from time import perf_counter

import torch

from trimtab.core import Algorithm, Gradient, Vector
from trimtab.problems.problem import Problem
from trimtab.problems.supervised.evaluation import weighted_mean
from trimtab.problems.supervised.problem import Supervised
from trimtab.simulation import Round, Rounds, Simulation
from trimtab.simulation.executors import Executor
from trimtab.studies.holdout import Evaluate, HeldOutProblem


def pooled(measured: HeldOutProblem) -> HeldOutProblem | None:
    """Return the problem with the data of all clients in one place; None if it has no samples."""
    problem = measured.problem
    if not isinstance(problem, Supervised):
        return None
    data = [problem.clients[i] for i in range(problem.N)]
    whole = data[0].joined(data[1:], "all clients")
    together = problem.replace(clients=[whole], weights=None, tests=None, groups=None)
    return HeldOutProblem(together, measured.validate, measured.split, measured.evaluate)


def local(measured: HeldOutProblem) -> HeldOutProblem | None:
    """Return the problem of clients that learn alone; None if it has no samples."""
    problem = measured.problem
    if not isinstance(problem, Supervised):
        return None
    alone = Alone(problem, measured.validate)
    return HeldOutProblem(alone, alone.look, measured.split, alone.evaluate, AloneSimulation)


class Alone(Problem):
    """Every client has a model of its own: x has one row for each; metrics are their mean."""

    def __init__(self, problem: Supervised, look_at_one: Evaluate) -> None:
        self.problem, self.look_at_one = problem, look_at_one
        self.N, self.d, self.weights = problem.N, problem.d, problem.weights

    def x0(self, seed: int = 0) -> Vector:
        """Return the start, a row for each client."""
        return self.problem.x0(seed).expand(self.N, self.d).clone()

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return g_i."""
        return self.problem.oracle(i, seed, r)

    def steps(self, epochs: float) -> int:
        """Return K for a number of epochs."""
        return self.problem.steps(epochs)

    def look(self, X: Vector) -> dict[str, float]:
        """Return what is looked at while it runs, the mean over the clients' models."""
        return self._mean(self.look_at_one, X)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return the mean over the clients' models."""
        return self._mean(self.problem.evaluate, x)

    def _mean(self, measure: Evaluate, X: Vector) -> dict[str, float]:
        rows = []
        for i, x in enumerate(X):
            # A client that is alone knows no statistics of BatchNorm but its own.
            with self.problem.normalised_by(self.problem.statistics(x, client=i)):
                rows.append(measure(x))
        return weighted_mean(rows, self.weights.tolist())


class AloneSimulation(Iterator[Round]):
    """One simulation for each client, which is alone in it; a round is a round of all of them.

    Only seed and x of the rounds count: all clients learn in each. x is where all of them start, or
    a row for each.
    """

    def __init__(self, algorithm: Algorithm, alone: Alone, rounds: Rounds) -> None:
        seed, x = rounds.seed, rounds.x
        start = alone.x0(seed) if x is None else x.expand(alone.N, alone.d)
        self.r, self.server = 0, _Server(start)
        each = [Rounds(available=_only(i), seed=seed, x=start[i]) for i in range(alone.N)]
        self.simulations = [Simulation(algorithm, alone.problem, own) for own in each]

    @property
    def runs_on(self) -> Executor:
        """The executor of the clients."""
        return self.simulations[0].runs_on

    @property
    def path(self) -> str:
        """How gradients of the clients are computed."""
        return self.simulations[0].path

    def __next__(self) -> Round:
        started = perf_counter()
        rounds = [next(simulation) for simulation in self.simulations]
        self.r += 1
        self.server = _Server(torch.stack([done.x for done in rounds]))
        return Round(
            r=self.r,
            x=self.server.x,
            server=self.server,
            cohort=tuple(range(len(rounds))),
            bytes_down=0,
            bytes_up=0,
            seconds=perf_counter() - started,
            drift=nan,
            spread=nan,
            cosine=nan,
            exchanges=0,
            work=sum(done.work for done in rounds),
        )

    def save(self, path: str | Path) -> None:
        """Write nothing: its rounds are run again when it is resumed."""


@dataclass(frozen=True)
class _Server:
    x: Vector


def _only(client: int) -> Callable[[int], list[int]]:
    return lambda r: [client]


BASELINES = {"local": local, "pooled": pooled}
TITLES = {"local": "each client alone", "pooled": "all data in one place"}
COLOURS = {"local": "#999999", "pooled": "#222222"}
