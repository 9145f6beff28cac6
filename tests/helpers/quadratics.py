"""Small heterogeneous quadratics in float64, and the path of an algorithm on a problem."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab import Adagrad, Adam, Momentum, Problem, Quadratic, Yogi, simulate
from trimtab.core import leaves, map_leaves
from trimtab.core.replies import Tally
from trimtab.simulation.executors import Exchange, Executor

WEIGHTS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
SCAFFOLDS = ({"option": "I"}, {"option": "II"}, {"option": "II", "lean": True})
# Each base has x* as an attracting fixed point: U is linear in g near 0, with slope 1/eps at most.
BASES = (Momentum(0.5), Adam(0.5, 0.9, eps=0.1), Yogi(0.5, 0.9, eps=0.1), Adagrad(eps=0.1))


def quadratic(N: int = 6, d: int = 3, seed: int = 0, **settings: Any) -> Quadratic:
    """Return N quadratics; the Hessians have eigenvalues from 0.5 to 3 in random directions."""
    rng = torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(N, d, d, generator=rng, dtype=torch.float64))
    eigenvalues = 0.5 + 2.5 * torch.rand(N, d, generator=rng, dtype=torch.float64)
    A = Q @ torch.diag_embed(eigenvalues) @ Q.mT
    b = 2 * torch.randn(N, d, generator=rng, dtype=torch.float64)
    return Quadratic((A + A.mT) / 2, b, **settings)


def path(algorithm: Any, problem: Problem, R: int, **settings: Any) -> Tensor:
    """Return x_1, ..., x_R as rows; the start is a vector of ones unless told."""
    start = {"x": torch.ones(problem.d, dtype=torch.float64)}
    rounds = islice(simulate(algorithm, problem, **start | settings), R)
    return torch.stack([round.x for round in rounds])


def distances(xs: Tensor, x: Tensor) -> Tensor:
    """Return |x_r - x| for every row x_r."""
    return (xs - x).norm(dim=-1)


def fit(x: Iterable[float], y: Iterable[float]) -> tuple[float, float]:
    """Return slope and r^2 of the straight line through the points (x, y)."""
    x, y = np.asarray(x), np.asarray(y)
    return float(np.polyfit(x, y, 1)[0]), float(np.corrcoef(x, y)[0, 1] ** 2)


def assert_same(a: Tensor, b: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


class Unequal(Executor):
    """Client i makes K_i local steps, whatever K is."""

    name = "unequal"

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = steps

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        e, tally = exchange, Tally()
        for i in clients:
            g = replace(e.oracle(i), count=lambda K, i=i: self.steps[i])
            upload, state = e.run(i, g, e.state(i), e.broadcast)
            tally.add(e.weight(i), upload, state)
            e.store_state(i, state)
        return tally


@dataclass(frozen=True)
class RandomTwo:
    """A stage that sends two numbers of each vector, chosen at random: unbiased."""

    def init(self, x: Tensor) -> tuple[()]:
        return ()

    def send(self, upload: Any, state: tuple[()], g: Any) -> tuple[Any, tuple[()]]:
        def two(leaf: Tensor) -> Tensor:
            u = g.uniform(leaf)
            chosen = u >= u.sort(dim=-1).values[..., -2:-1]
            return torch.where(chosen, leaf * (leaf.shape[-1] / 2), torch.zeros_like(leaf))

        return map_leaves(two, upload), ()

    def receive(self, mean: Any, count: int, clients: Any) -> Any:
        return mean

    def size(self, upload: Any) -> int:
        return sum(24 for _ in leaves(upload))
