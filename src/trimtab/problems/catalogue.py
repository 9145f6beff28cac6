"""The problems that come with trimtab, by name."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab.core.streams import stream
from trimtab.errors import BadArgument
from trimtab.problems.data.emnist import CLASSES, emnist
from trimtab.problems.data.files import Folder
from trimtab.problems.data.images import cifar10, digits
from trimtab.problems.data.shakespeare import joined, shakespeare
from trimtab.problems.data.tables import HEART_FEATURES, a9a, concrete, heart_disease
from trimtab.problems.garnet import GarnetTD, Sampling
from trimtab.problems.partition import Pair, PartitionSpec, Scale, parse_partition, split
from trimtab.problems.quadratic import Quadratic
from trimtab.problems.supervised.problem import Supervised


def digits_problem(
    batch: int | float | None = 0.2,
    N: int = 10,
    similarity: float | None = None,
    partition: str | None = None,
) -> Supervised:
    """Return logistic regression on scikit-learn's digits, sorted by label over N clients."""
    return _classify(
        lambda: logistic(64, 10), *digits(), batch, N, _partition_of(similarity, partition)
    )


def quadratic_problem(N: int = 10, d: int = 20, sigma: float = 0.0) -> Quadratic:
    """Return random quadratics with different curvatures and different optima, L = 1."""
    draw = stream(0)
    Q = torch.randn(N, d, d, generator=draw, dtype=torch.float64)
    A = Q @ Q.mT / d + 0.05 * torch.eye(d, dtype=torch.float64)
    A = A / torch.linalg.eigvalsh(A).max()
    return Quadratic(A, torch.randn(N, d, generator=draw, dtype=torch.float64), sigma)


def garnet_problem(
    N: int = 10,
    states: int = 30,
    features: int = 4,
    gamma: float = 0.9,
    heterogeneity: float = 1.0,
    sampling: Sampling = "iid",
) -> GarnetTD:
    """Return TD(0) with linear features on a random Garnet MDP for each client."""
    return GarnetTD(N, states, features, gamma, heterogeneity, sampling=sampling)


def emnist_problem(
    data: Folder = None,
    batch: int | float | None = 0.2,
    N: int = 100,
    similarity: float | None = None,
    split: Literal["balanced", "byclass"] = "balanced",
    pixels: Scale = "unit",
    partition: str | None = None,
) -> Supervised:
    """Return logistic regression on EMNIST, as in section 7 of the SCAFFOLD paper."""
    spec = _partition_of(similarity, partition)
    train, test, _ = emnist(split, data, pixels)
    return _classify(lambda: logistic(784, CLASSES[split]), train, test, batch, N, spec)


def cifar10_problem(
    data: Folder = None,
    batch: int | float | None = 50,
    N: int = 10,
    similarity: float | None = None,
    pixels: Scale = "standardised",
    partition: str | None = None,
) -> Supervised:
    """Return ResNet-18 with GroupNorm on CIFAR-10; hours on a CPU."""
    spec = _partition_of(similarity, partition)
    train, test, _ = cifar10(data, pixels)
    return _classify(resnet18, train, test, batch, N, spec)


def a9a_problem(
    data: Folder = None,
    batch: int | float | None = 0.2,
    N: int = 10,
    similarity: float | None = None,
    partition: str | None = None,
) -> Supervised:
    """Return logistic regression on a9a, sorted by label over N clients."""
    spec = _partition_of(similarity, partition)
    train, test, _ = a9a(data)
    return _classify(lambda: logistic(123, 2), train, test, batch, N, spec)


def heart_problem(data: Folder = None, batch: int | float | None = 0.2) -> Supervised:
    """Return logistic regression on heart disease; each of the four hospitals is a client."""
    hospitals = heart_disease(data).values()
    X, y = zip(*(hospital.test for hospital in hospitals), strict=True)
    clients = [hospital.train for hospital in hospitals]
    test = torch.cat(X), torch.cat(y)
    return Supervised(lambda: logistic(HEART_FEATURES, 2), F.cross_entropy, clients, test, batch)


def concrete_problem(
    data: Folder = None,
    batch: int | float | None = None,
    N: int = 10,
    similarity: float | None = None,
    partition: str | None = None,
) -> Supervised:
    """Return linear regression on concrete, sorted by strength over N clients, full batches."""
    spec = _partition_of(similarity, partition)
    X, y = concrete(data)
    clients = split(X, y, spec.rows(y.flatten(), N))
    return Supervised(lambda: logistic(8, 1), F.mse_loss, clients, batch=batch)


def shakespeare_problem(
    data: Folder = None, batch: int | float | None = 100, N: int = 50
) -> Supervised:
    """Return the next character from the last 20, over the N speakers who say most."""
    plays = shakespeare(data, length=20)
    classes = len(plays.characters)
    test = joined(plays.test[:N], every=10)
    return Supervised(lambda: _reader(20, classes), F.cross_entropy, plays.train[:N], test, batch)


def _classify(
    module: Callable[[], nn.Module],
    train: Pair,
    test: Pair,
    batch: int | float | None,
    N: int,
    spec: PartitionSpec,
) -> Supervised:
    X, y = train
    clients = split(X, y, spec.rows(y, N))
    return Supervised(module, F.cross_entropy, clients, test, batch)


def _partition_of(similarity: float | None, partition: str | None) -> PartitionSpec:
    """Return the partition that one of the two names; sorted by label if neither is given."""
    if partition is None:
        return PartitionSpec("similarity", similarity or 0.0)
    if similarity is not None:
        raise BadArgument(
            "partition",
            "{partition:{_given}} and {similarity:{_other}} are two partitions of the same data; "
            "pass one of them.",
            _given=partition,
            _other=f"{similarity:g}",
        )
    return parse_partition(partition)


def _reader(length: int, classes: int, size: int = 16, hidden: int = 128) -> nn.Sequential:
    """Return a network over the embeddings of the last characters (Bengio et al., 2003)."""
    return nn.Sequential(
        nn.Embedding(classes, size),
        nn.Flatten(),
        nn.Linear(length * size, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def logistic(features: int, classes: int) -> nn.Linear:
    """Return multinomial logistic regression, started at zero (the loss is convex)."""
    linear = nn.Linear(features, classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def mlp(features: int, hidden: int, classes: int) -> nn.Sequential:
    """Return a fully connected network with one hidden layer."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def resnet18(classes: int = 10, groups: int = 32) -> nn.Sequential:
    """Return ResNet-18 (He et al., 2016) for 32 x 32 images, with GroupNorm for BatchNorm.

    The stem is the usual one for CIFAR: a 3 x 3 convolution of stride 1 and no pooling.

    >>> sum(p.numel() for p in resnet18().parameters())
    11173962
    """
    layers: list[nn.Module] = [_conv(3, 64), nn.GroupNorm(groups, 64), nn.ReLU()]
    inside = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [_Block(inside, width, stride, groups), _Block(width, width, 1, groups)]
        inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class _Block(nn.Module):
    """Two 3 x 3 convolutions and a way around them."""

    def __init__(self, inside: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(inside, width, stride),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
            _conv(width, width),
            nn.GroupNorm(groups, width),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inside != width:
            self.around = nn.Sequential(
                nn.Conv2d(inside, width, 1, stride, bias=False), nn.GroupNorm(groups, width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.around(x))


def _conv(inside: int, width: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, width, 3, stride, padding=1, bias=False)
