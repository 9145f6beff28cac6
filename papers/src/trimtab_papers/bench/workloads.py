"""What is measured: workloads from logistic regression to a ResNet, their data, and the goals."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from trimtab.problems.catalogue import logistic, mlp, resnet18
from trimtab.problems.supervised.losses import Loss
from trimtab_papers.bench import modules

Samples = Callable[[int, Generator], tuple[Tensor, Tensor]]
"""Make n samples with a generator."""


def images(*shape: int, classes: int) -> Samples:
    """Return images, four fifths of the pixels zero as in EMNIST, labelled by a linear map."""
    teacher = _teacher(torch.Size(shape).numel(), classes)

    def made(n: int, draw: Generator) -> tuple[Tensor, Tensor]:
        X = torch.rand(n, *shape, generator=draw)
        X *= torch.rand(n, *shape, generator=draw) < 0.2
        return X, (X.flatten(1) @ teacher).argmax(1)

    return made


def table(features: int, *, classes: int) -> Samples:
    """Return rows of normal features with a class."""
    teacher = _teacher(features, classes)

    def made(n: int, draw: Generator) -> tuple[Tensor, Tensor]:
        X = torch.randn(n, features, generator=draw)
        return X, (X @ teacher).argmax(1)

    return made


def yes_or_no(features: int) -> Samples:
    """Return rows of normal features with an answer, 0.0 or 1.0, of shape (n, 1)."""
    teacher = _teacher(features, 1)

    def made(n: int, draw: Generator) -> tuple[Tensor, Tensor]:
        X = torch.randn(n, features, generator=draw)
        noise = torch.randn(n, 1, generator=draw)
        return X, (X @ teacher + noise > 0).to(X.dtype)

    return made


def numbers(features: int) -> Samples:
    """Return rows of normal features with a number, of shape (n, 1)."""
    teacher = _teacher(features, 1) / features**0.5

    def made(n: int, draw: Generator) -> tuple[Tensor, Tensor]:
        X = torch.randn(n, features, generator=draw)
        return X, X @ teacher + 0.1 * torch.randn(n, 1, generator=draw)

    return made


def characters(symbols: int, length: int) -> Samples:
    """Return texts with the next symbol at each place, a function of the symbol there."""

    def made(n: int, draw: Generator) -> tuple[Tensor, Tensor]:
        X = torch.randint(symbols, (n, length), generator=draw)
        return X, (7 * X + 3) % symbols

    return made


def _teacher(features: int, outputs: int) -> Tensor:
    return torch.randn(features, outputs, generator=torch.Generator().manual_seed(3))


# -- what a workload is


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
        draw = torch.Generator().manual_seed(self.seed)
        low, high = (self.n, self.n + 1) if isinstance(self.n, int) else self.n
        sizes: list[int] = torch.randint(low, high, (self.N,), generator=draw).tolist()
        return [self.data(n, draw) for n in sizes]

    def test_set(self) -> tuple[Tensor, Tensor] | None:
        return (
            self.data(self.test, torch.Generator().manual_seed(self.seed + 2))
            if self.test
            else None
        )

    def without_dropout(self) -> "Workload":
        """Return the same with dropout of nothing, so that results can be compared."""

        def build() -> nn.Module:
            module = self.build()
            for layer in module.modules():
                if isinstance(layer, nn.Dropout):
                    layer.p = 0.0
            return module

        return replace(self, build=build)

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


# -- the workloads


def _linear(b: int, classes: int) -> tuple[tuple[int, int, int], ...]:
    wide = -(-classes // 16) * 16
    return (b, 784, wide), (wide, b, 784)


def _goals(bare: float, plain: float, fedavg: float, **others: float) -> dict[str, float]:
    return {"scaffold / bare": bare, "plain / scaffold": plain, "scaffold / fedavg": fedavg} | {
        name.replace("_", " / "): value for name, value in others.items()
    }


def _compiled(bare: float, plain: float) -> dict[str, float]:
    return {"compiled / bare": bare, "plain / compiled": plain}


# -- cross-entropy classifiers, and a network that is bound by its convolutions

_W1 = Workload(
    name="W1",
    shows="logistic regression 784-47, 20 of 100 clients, batch 225, 1 epoch",
    build=partial(logistic, 784, 47),
    data=images(784, classes=47),
    N=100,
    S=20,
    n=1125,
    b=225,
    K=5,
    goals=_goals(bare=1.2, plain=6, fedavg=1.1, evaluation_scaffold=0.3),
    repeats=100,
    products=_linear(225, 47),
    test=9400,
)
_W1X10 = replace(
    _W1,
    name="W1x10",
    shows="the same, 10 epochs",
    K=50,
    goals=_goals(bare=1.6, plain=6, fedavg=1.1),
    repeats=3,
    test=0,
)
_ANY = replace(
    _W1,
    name="any",
    shows="a module of the size of W1 that nothing is known of, through autograd",
    build=partial(modules.Wrapped, 784, 47),
    goals={"plain / scaffold": 3},
    repeats=25,
    test=0,
)
_W2 = replace(
    _W1,
    name="W2",
    shows="MLP 784-200-47, 20 of 100 clients, batch 225, 5 epochs",
    build=partial(mlp, 784, 200, 47),
    K=25,
    goals=_goals(bare=1.1, plain=2.5, fedavg=1.1),
    repeats=3,
    products=((225, 784, 200), (225, 200, 48), (225, 48, 200), (48, 225, 200), (200, 225, 784)),
    test=0,
)
_W3 = Workload(
    name="W3",
    shows="ResNet-18 with GroupNorm, 3 x 32 x 32, batch 64, one step of one client",
    build=resnet18,
    data=images(3, 32, 32, classes=10),
    N=1,
    S=1,
    n=64,
    b=64,
    K=1,
    goals=_goals(bare=1.05, plain=0.97, fedavg=1.1, autocast_scaffold=1 / 1.7),
    repeats=30,
    bare="step",
    autocast=True,
)
_W4 = Workload(
    name="W4",
    shows="logistic regression 784-62, 100 of 3,400 clients, batch 20, 1 epoch",
    build=partial(logistic, 784, 62),
    data=images(784, classes=62),
    N=3400,
    S=100,
    n=100,
    b=20,
    K=5,
    goals=_goals(bare=1.7, plain=6, fedavg=1.35),
    repeats=40,
    products=_linear(20, 62),
)
_W4X5 = replace(
    _W4,
    name="W4x5",
    shows="the same, 5 epochs",
    K=25,
    goals=_goals(bare=3.5, plain=6, fedavg=1.35),
    repeats=5,
)

# -- networks that are bound by their own calls

_W5 = Workload(
    name="W5",
    shows="CNN (convolutions 1-32-64, 9216-128-62), 10 clients of 100, batch 20, K = 5",
    build=modules.cnn,
    data=images(1, 28, 28, classes=62),
    N=10,
    S=10,
    n=100,
    b=20,
    K=5,
    eta=0.05,
    goals={"scaffold / bare": 1.5, "plain / scaffold": 1.0} | _compiled(bare=1.35, plain=1.15),
    compiled=True,
)
_W6 = replace(
    _W5,
    name="W6",
    shows="transformer (2 layers of 64, 80 characters), 10 clients of 40, batch 10, K = 4",
    build=partial(modules.Transformer, 90, 64, 2, 80),
    data=characters(90, 80),
    n=40,
    b=10,
    K=4,
    goals={"scaffold / bare": 1.4, "plain / scaffold": 1.3} | _compiled(bare=1.2, plain=1.6),
)
_W7 = replace(
    _W6,
    name="W7",
    shows="LSTM (embedding 8, 2 x 256, 80 characters), 10 clients of 40, batch 10, K = 4",
    build=partial(modules.CharLSTM, 90, 8, 256),
    goals={"scaffold / bare": 1.25, "plain / scaffold": 0.95},
    compiled=False,
    repeats=5,
)

# -- small models, where everything but the products is what costs

_W8 = Workload(
    name="W8",
    shows="logistic regression with BCE, 29 clients of 30 to 69, 10 parameters, K = 10",
    build=partial(nn.Linear, 9, 1),
    data=yes_or_no(9),
    loss=F.binary_cross_entropy_with_logits,
    N=29,
    S=29,
    n=(30, 70),
    b=0.1,
    K=10,
    eta=0.05,
    goals={"scaffold / bare": 1.5, "plain / scaffold": 40},
    repeats=100,
)
_W9 = replace(
    _W8,
    name="W9",
    shows="linear regression, 139 clients of 80 to 119, 27 parameters, batch 20, K = 10",
    build=partial(nn.Linear, 26, 1),
    data=numbers(26),
    loss=F.mse_loss,
    N=139,
    S=139,
    n=(80, 120),
    b=20,
    eta=0.01,
    goals={"scaffold / bare": 1.2, "plain / scaffold": 60},
    repeats=40,
)
_W10A = Workload(
    name="W10a",
    shows="tanh regressor 20-64-64-1, 50 clients of 100, batch 20, K = 5",
    build=modules.tanh_net,
    data=numbers(20),
    loss=F.mse_loss,
    N=50,
    S=50,
    n=100,
    b=20,
    K=5,
    eta=0.05,
    goals={"scaffold / bare": 1.6, "plain / scaffold": 15},
    repeats=60,
)
_W10B = replace(
    _W10A,
    name="W10b",
    shows="GELU classifier 784-200-62, 20 clients of 100, batch 20, K = 5",
    build=modules.gelu_net,
    data=images(784, classes=62),
    loss=F.cross_entropy,
    N=20,
    S=20,
    goals={"scaffold / bare": 2.3, "plain / scaffold": 3},
)
_W10C = replace(
    _W10A,
    name="W10c",
    shows="LayerNorm and SiLU classifier 32-64-64-10, 50 clients of 100, batch 20, K = 5",
    build=modules.layer_norm_net,
    data=table(32, classes=10),
    loss=F.cross_entropy,
    goals={"plain / scaffold": 6},
    compiled=True,
)

# -- pfl's own benchmark

# pfl has 1,000 users there. With 100 a round is the same, and SCAFFOLD's states take 0.65 GB.
_W11 = replace(
    _W5,
    name="W11",
    shows="CNN with dropout of pfl's CIFAR-10 benchmark, 50 of 100 clients of 50, batch 10, K = 5",
    build=modules.dropout_cnn,
    data=images(3, 32, 32, classes=10),
    N=100,
    S=50,
    n=50,
    b=10,
    eta=0.1,
    goals={"plain / scaffold": 1.0},
    repeats=3,
    compiled=False,
)
_SMALL = (_W8, _W9, _W10A, _W10B, _W10C)
_ALL = (_W1, _W1X10, _ANY, _W2, _W3, _W4, _W4X5, _W5, _W6, _W7, *_SMALL, _W11)
WORKLOADS = {work.name: work for work in _ALL}
