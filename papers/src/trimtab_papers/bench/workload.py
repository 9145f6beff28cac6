"""What a workload is: a model, data, and the rounds to run on them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab.problems.supervised.losses import Loss
from trimtab_papers.bench.data import Samples


@dataclass(frozen=True)
class Workload:
    """N clients of n samples, S of them a round, K local steps on mini-batches of b.

    n: one number, or from where to where (the end excluded). b: a size, or a part of n.
    products: (rows, inner, columns) of each matrix product of one local step; without them the
    calls that the step makes are taken, or with bare="step" the whole training step.
    """

    name: str
    shows: str
    build: Callable[[], nn.Module]
    data: Samples
    N: int
    S: int
    n: int | tuple[int, int]
    b: int | float
    K: int
    goals: dict[str, float]  # ratio <= goal; for 'plain / …' ratio >= goal
    loss: Loss = F.cross_entropy
    eta: float = 0.1
    repeats: int = 9
    products: tuple[tuple[int, int, int], ...] = ()
    bare: Literal["calls", "step"] = "calls"
    test: int = 0  # If > 0, an evaluation on so many samples is measured too.
    autocast: bool = False  # If true, a round in bfloat16 is measured too.
    compiled: bool = False  # If true, a round with a step by torch.compile is measured too.
    seed: int = 0  # of data and parameters

    def module(self) -> nn.Module:
        """Return the model, always with the same parameters."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.build()

    def clients(self) -> list[tuple[Tensor, Tensor]]:
        """Return the data of all clients."""
        draw = torch.Generator().manual_seed(self.seed)
        low, high = (self.n, self.n + 1) if isinstance(self.n, int) else self.n
        sizes: list[int] = torch.randint(low, high, (self.N,), generator=draw).tolist()
        return [self.data(n, draw) for n in sizes]

    def test_set(self) -> tuple[Tensor, Tensor] | None:
        """Return data to evaluate on, if there is an evaluation."""
        return (
            self.data(self.test, torch.Generator().manual_seed(self.seed + 2))
            if self.test
            else None
        )

    def small(self) -> "Workload":
        """Return the same with little data and few steps, to see that everything runs."""
        return replace(
            self,
            N=min(self.N, 4),
            S=min(self.S, 2),
            n=12 if isinstance(self.n, int) else (8, 13),
            b=5 if isinstance(self.b, int) else self.b,
            K=min(self.K, 2),
            repeats=2,
            compiled=False,  # It would take tens of seconds.
            test=min(self.test, 50),
        )
