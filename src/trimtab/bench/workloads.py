"""What is measured: seven workloads, from logistic regression to a ResNet, and their goals."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from trimtab.problems.models import logistic, mlp, resnet18

ETA = 0.1


@dataclass(frozen=True)
class Workload:
    """N clients of n samples, S of them a round, mini-batches of b, so many epochs.

    products: (rows, inner, columns) of each matrix product of one local step.
    """

    name: str
    shows: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    N: int
    S: int
    n: int
    b: int
    epochs: int
    goals: dict[str, float]  # ratio <= goal; for 'plain / …' ratio >= goal
    repeats: int = 9
    products: tuple[tuple[int, int, int], ...] = ()
    test: int = 0  # If > 0, an evaluation on so many samples is measured too.
    autocast: bool = False  # If true, a round in bfloat16 is measured too.

    @property
    def K(self) -> int:
        """Local steps of a round."""
        return self.epochs * self.n // self.b

    def clients(self) -> list[tuple[Tensor, Tensor]]:
        """Return made-up data, four fifths of the inputs zero as in EMNIST."""
        draw = torch.Generator().manual_seed(0)
        clients = []
        for _ in range(self.N):
            X = torch.rand(self.n, *self.shape, generator=draw)
            X *= torch.rand(self.n, *self.shape, generator=draw) < 0.2
            clients.append((X, torch.randint(self.classes, (self.n,), generator=draw)))
        return clients

    def test_set(self) -> tuple[Tensor, Tensor] | None:
        """Return made-up data to evaluate on, if there is an evaluation."""
        if not self.test:
            return None
        draw = torch.Generator().manual_seed(2)
        X = torch.rand(self.test, *self.shape, generator=draw)
        return X, torch.randint(self.classes, (self.test,), generator=draw)


class _Wrapped(nn.Module):
    """A module as people write them: nothing here tells that it is a logistic regression."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, classes)

    def forward(self, X: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.inner(X)
        return logits


def _linear(b: int, classes: int) -> tuple[tuple[int, int, int], ...]:
    wide = -(-classes // 16) * 16
    return (b, 784, wide), (wide, b, 784)


def _goals(bare: float, plain: float, fedavg: float, **others: float) -> dict[str, float]:
    return {"scaffold / bare": bare, "plain / scaffold": plain, "scaffold / fedavg": fedavg} | {
        name.replace("_", " / "): value for name, value in others.items()
    }


_W1 = Workload(
    name="W1",
    shows="logistic regression 784-47, 20 of 100 clients, batch 225, 1 epoch",
    build=partial(logistic, 784, 47),
    shape=(784,),
    classes=47,
    N=100,
    S=20,
    n=1125,
    b=225,
    epochs=1,
    goals=_goals(bare=1.6, plain=6, fedavg=1.1, evaluation_scaffold=0.3),
    repeats=100,
    products=_linear(225, 47),
    test=9400,
)
_W1X10 = replace(
    _W1,
    name="W1x10",
    shows="the same, 10 epochs",
    epochs=10,
    goals=_goals(bare=1.6, plain=6, fedavg=1.1),
    repeats=3,
    test=0,
)
_ANY = replace(
    _W1,
    name="any",
    shows="a module of the size of W1 that nothing is known of, through autograd",
    build=partial(_Wrapped, 784, 47),
    goals={"plain / scaffold": 3},
    repeats=25,
    test=0,
)
_W2 = replace(
    _W1,
    name="W2",
    shows="MLP 784-200-47, 20 of 100 clients, batch 225, 5 epochs",
    build=partial(mlp, 784, 200, 47),
    epochs=5,
    goals=_goals(bare=1.3, plain=2.5, fedavg=1.1),
    repeats=3,
    products=((225, 784, 200), (225, 200, 48), (225, 48, 200), (48, 225, 200), (200, 225, 784)),
    test=0,
)
_W3 = Workload(
    name="W3",
    shows="ResNet-18 with GroupNorm, 3 x 32 x 32, batch 64, one step of one client",
    build=resnet18,
    shape=(3, 32, 32),
    classes=10,
    N=1,
    S=1,
    n=64,
    b=64,
    epochs=1,
    goals=_goals(bare=1.05, plain=0.97, fedavg=1.1, autocast_scaffold=1 / 1.7),
    repeats=30,
    autocast=True,
)
_W4 = Workload(
    name="W4",
    shows="logistic regression 784-62, 100 of 3,400 clients, batch 20, 1 epoch",
    build=partial(logistic, 784, 62),
    shape=(784,),
    classes=62,
    N=3400,
    S=100,
    n=100,
    b=20,
    epochs=1,
    goals=_goals(bare=3.5, plain=6, fedavg=1.35),
    repeats=40,
    products=_linear(20, 62),
)
_W4X5 = replace(_W4, name="W4x5", shows="the same, 5 epochs", epochs=5, repeats=5)
WORKLOADS = {work.name: work for work in (_W1, _W1X10, _ANY, _W2, _W3, _W4, _W4X5)}
