"""The networks that are measured beside those of `trimtab.problems.catalogue`.

This file needs torch alone: other frameworks read it in environments that have no trimtab.
"""

import torch
from torch import Tensor, nn


class Wrapped(nn.Module):
    """A module as people write them: nothing here says that it is a logistic regression."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, classes)

    def forward(self, X: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.inner(X)
        return logits


class Transformer(nn.Module):
    """A causal transformer over characters, four heads, the norms first."""

    def __init__(self, symbols: int, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.symbols, self.width, self.depth, self.length = symbols, width, depth, length
        self.embedding = nn.Embedding(symbols, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.out = nn.Linear(width, symbols)
        self.register_buffer("mask", torch.full((length, length), -torch.inf).triu(1))

    def forward(self, X: Tensor) -> Tensor:
        """Return logits of shape (batch, symbols, length)."""
        hidden = self.embedding(X) + self.position
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask)
        logits: Tensor = self.out(hidden).transpose(1, 2)
        return logits


class CharLSTM(nn.Module):
    """Two layers of LSTM over characters."""

    def __init__(self, symbols: int, embedding: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.lstm = nn.LSTM(embedding, width, 2, batch_first=True)
        self.out = nn.Linear(width, symbols)

    def forward(self, X: Tensor) -> Tensor:
        """Return logits of shape (batch, symbols, length)."""
        logits: Tensor = self.out(self.lstm(self.embedding(X))[0]).transpose(1, 2)
        return logits


def cnn() -> nn.Module:
    """Return the network of FedAvg's paper for 28 x 28 images, two convolutions of 3 x 3."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 62)),
    )


def dropout_cnn() -> nn.Module:
    """Return the network of pfl's benchmark on CIFAR-10, which has dropout."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(12544, 128), nn.ReLU()),
        *(nn.Dropout(0.5), nn.Linear(128, 10)),
    )


def tanh_net() -> nn.Module:
    """Return a small regressor, as for tabular data or a surrogate of a simulation."""
    return nn.Sequential(
        *(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()), nn.Linear(64, 1)
    )


def gelu_net() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 200), nn.GELU(), nn.Linear(200, 62))


def layer_norm_net() -> nn.Module:
    """Return a small classifier with LayerNorm and SiLU."""
    return nn.Sequential(
        *(nn.Linear(32, 64), nn.LayerNorm(64), nn.SiLU()),
        *(nn.Linear(64, 64), nn.LayerNorm(64), nn.SiLU()),
        nn.Linear(64, 10),
    )
