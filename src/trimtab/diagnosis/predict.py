"""Predict: rounds of the algorithms themselves, by `simulate`, on the quadratic model.

An algorithm that does the same to every coordinate and is linear in its gradients takes steps of
size eta if it takes steps of size one and its gradients are multiplied by eta. So x is M models in
a row, each with a step size of its own, and one simulation runs them side by side. Any other
algorithm is simulated once for each step size, while there is time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import ceil, floor, inf, log2, sqrt

import torch
from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.core.streams import NOISE, stream
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.model import QuadraticModel
from trimtab.diagnosis.rules import RULES, make
from trimtab.errors import Diverged
from trimtab.problems.problem import Problem
from trimtab.simulation import simulate
from trimtab.studies.goal import HeldTarget

EXPLODED = 1e12  # a model gets no gradients any more if its gap is > 1e12 x the start's


@dataclass(frozen=True)
class Predicted:
    """How an algorithm does on the model with its best step size."""

    algorithm: str
    K: int
    rounds: int | None  # the rounds to the target; None if it does not get there in time
    eta: float | None  # the smallest step size that is about as good as the best
    gap: float  # the least f - f* over the step sizes, as a share of the start's
    ran: int = 0  # the rounds that were run


class SideBySide(Problem):
    """The quadratics of a model, for M copies of x whose gradients are multiplied by M factors."""

    def __init__(self, model: QuadraticModel, factors: Tensor) -> None:
        self.model, self.factors = model, factors.clone()
        self.A, self.H = model.A, model.H
        self.N, self.m = model.b.shape
        self.d = len(factors) * self.m
        self.weights = model.p
        self._noise = lru_cache(maxsize=2)(self._pass_of_noise)

    def x0(self, seed: int = 0) -> Vector:
        """Return the start, for all copies."""
        return self.model.start.repeat(len(self.factors))

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return the gradients of one client at all copies."""
        at_once = self.chunk_oracle([i], seed, r)

        def g(y: Vector, k: int | None = None) -> Vector:
            return at_once(y[None], k)[0]

        return g

    def chunk_oracle(self, clients: Sequence[int], seed: int, r: int) -> Gradient:
        """Return the gradients of several clients at once."""
        some = list(clients)
        A, b = self.A[some], self.model.b[some][:, None]
        factors = self.factors[:, None]

        def g(y: Vector, k: int | None = None) -> Vector:
            models = y.expand(len(some), self.d).view(len(some), -1, self.m)
            gradients = torch.baddbmm(b, models, A, beta=-1)
            if k is not None and self.model.sigma:
                gradients = gradients + self._drawn(seed, r, k)[some][:, None]
            return (factors * gradients).flatten(1)

        return g

    def _drawn(self, seed: int, r: int, k: int) -> Tensor:
        """Return the noise of mini-batch k of each client; over a pass it adds up to nothing."""
        steps = self.model.steps
        if steps is None:
            return self._noise(seed, r, k, 1)[0]
        return self._noise(seed, r, k // steps, steps)[k % steps]

    def _pass_of_noise(self, seed: int, r: int, number: int, steps: int) -> Tensor:
        draw = stream(seed, NOISE, 2, r, number)
        z = torch.randn(steps, self.N, self.m, generator=draw, dtype=torch.float64)
        if self.model.steps is not None:
            z = (z - z.mean(0)) * (sqrt(steps / (steps - 1)) if steps > 1 else 0.0)
        return z * (self.model.sigma / sqrt(self.m))

    def gaps(self, x: Vector) -> Tensor:
        """Return f - f* of each copy, as a share of the start's."""
        models, start = x.view(-1, self.m), self.model.start
        found = ((models @ self.H) * models).sum(1) / (start @ self.H @ start)
        return found.nan_to_num(nan=inf)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return the least gap of all copies."""
        return {"loss": float(self.gaps(x).min())}


@dataclass(frozen=True)
class Aim:
    """How far down, in how many rounds, and with how many of the clients."""

    share: float  # the f - f* that is wanted, as a share of the start's
    S: int
    N: int
    R: int = RULES.rounds  # no run has more rounds
    seed: int = 0
    by_chance: bool = False  # whether cohorts or mini-batches are drawn at random


def predict(
    model: QuadraticModel,
    algorithm: str,
    K: int,
    aim: Aim,
    fewest: int | None = None,
    out_of_time: OutOfTime = lambda: False,
) -> Predicted:
    """Return the rounds of an algorithm with K local steps to the target, the step size tuned.

    fewest: the rounds of the best so far; one that needs far more is given up.
    """
    if not float(model.start @ model.H @ model.start) > 0:
        return Predicted(algorithm, K, 0, None, 0.0)
    etas = step_sizes(model, K)
    if runs_side_by_side(algorithm):
        rounds = _gaps(model, algorithm, K, etas, aim)
        return _counted(algorithm, K, etas, rounds, aim, fewest, out_of_time)
    alone: list[Predicted] = []
    for eta in etas.flip(0)[::2]:
        worse = [one.rounds is None or one.rounds > (fewest or inf) for one in alone[-2:]]
        if alone and (out_of_time() or (all(worse) and any(one.rounds for one in alone))):
            break
        each = torch.tensor([float(eta)], dtype=torch.float64)
        rounds = _gaps(model, algorithm, K, each, aim, scaled=False)
        alone.append(_counted(algorithm, K, each, rounds, aim, fewest, out_of_time))
        counts = [one.rounds for one in alone if one.rounds is not None]
        fewest = min([*counts, *([] if fewest is None else [fewest])], default=None)
    there = [one for one in alone if one.rounds is not None]
    if not there:
        return min(alone, key=lambda one: one.gap)
    least = min(one.rounds or 0 for one in there)
    near = [one for one in there if (one.rounds or 0) <= RULES.near * least]
    return Predicted(algorithm, K, least, near[-1].eta, min(o.gap for o in there), there[0].ran)


def step_sizes(model: QuadraticModel, K: int) -> Tensor:
    """Return step sizes from far below 1/(K L) to what the mean Hessian can bear."""
    steepest, mean = float(model.a.abs().max()), float(torch.linalg.eigvalsh(model.H)[-1])
    low, high = floor(log2(1 / (16 * K * steepest))), ceil(log2(2 / mean))
    return 2.0 ** (torch.arange(2 * low, 2 * high + 1, dtype=torch.float64) / 2)


def _gaps(
    model: QuadraticModel, algorithm: str, K: int, etas: Tensor, aim: Aim, scaled: bool = True
) -> Iterator[Tensor]:
    """Yield the gaps of all step sizes after each round."""
    problem = SideBySide(model, etas if scaled else torch.ones(1, dtype=torch.float64))
    made = make(algorithm, K, 1.0 if scaled else float(etas[0]))
    cohort = max(1, round(aim.S * problem.N / aim.N))
    rounds = simulate(made, problem, S=cohort, seed=aim.seed, executor="batched")
    try:
        for done in islice(rounds, aim.R):
            gaps = problem.gaps(done.x)
            problem.factors[gaps > EXPLODED] = 0.0
            yield gaps
    except Diverged:
        return


def _counted(
    algorithm: str,
    K: int,
    etas: Tensor,
    rounds: Iterator[Tensor],
    aim: Aim,
    fewest: int | None,
    out_of_time: OutOfTime,
) -> Predicted:
    """Count the rounds until the best step size is there, and those that are about as good."""
    first = torch.full_like(etas, inf)
    least = torch.full_like(etas, inf)
    held, seen = [HeldTarget(-aim.share) for _ in etas], [list[float]() for _ in etas]
    last = inf if fewest is None else max(RULES.least, RULES.behind * fewest)
    r = 0
    for r, gaps in enumerate(rounds, start=1):
        least = torch.minimum(least, gaps)
        if aim.by_chance:  # A lucky round does not count, as in `compare`.
            for j, gap in enumerate(gaps.tolist()):
                seen[j].append(-gap)
                first[j] = held[j].add(seen[j]).round or inf
        else:
            first = torch.where((gaps <= aim.share) & (first == inf), float(r), first)
        best = float(first.min())
        if r >= (floor(RULES.near * best) if best < inf else last) or out_of_time():
            break
    best = float(first.min())
    if best == inf:
        nearest = int(least.argmin())
        return Predicted(algorithm, K, None, float(etas[nearest]), float(least[nearest]), r)
    eta = float(etas[first <= floor(RULES.near * best)].min())
    return Predicted(algorithm, K, int(best), eta, float(least.min()), r)


@lru_cache
def runs_side_by_side(algorithm: str) -> bool:
    """Return whether two step sizes side by side give what each gives alone."""
    a = torch.tensor([[1.0, 0.3], [0.5, 0.8]], dtype=torch.float64)
    U = torch.linalg.qr(torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)).Q
    b = torch.tensor([[1.0, -2.0], [-1.0, 2.0]], dtype=torch.float64)
    p, start = torch.full((2,), 0.5, dtype=torch.float64), b[0] + 3
    model = QuadraticModel(p, a, torch.stack([U, U.T]), b, start, 0.0, None)
    aim = Aim(0.0, 2, 2, R=3)
    etas = torch.tensor([0.25, 0.5], dtype=torch.float64)
    together = torch.stack(list(_gaps(model, algorithm, 3, etas, aim)))
    alone = [list(_gaps(model, algorithm, 3, eta[None], aim, scaled=False)) for eta in etas]
    return torch.allclose(together, torch.cat([torch.stack(one) for one in alone], 1), rtol=1e-9)
