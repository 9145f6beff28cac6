"""Made-up data of the shapes of real ones. Targets follow the inputs, so that training shows."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

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
