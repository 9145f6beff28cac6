"""Partition a data set into clients: disjoint lists of row numbers that cover all rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trimtab.core.streams import PARTITION, mix, stream
from trimtab.errors import BadArgument


def by_similarity(labels: Tensor, N: int, s: float, seed: int = 0) -> list[Tensor]:
    """Give each client s per cent i.i.d. data, the rest sorted by label (SCAFFOLD, section 7.1).

    labels: one number per row; classes, or targets of a regression.
    N: the number of clients.
    s: the similarity in per cent, from 0 (sorted) to 100 (i.i.d.).
    seed: of the shuffle.

    >>> labels = torch.tensor([0, 1, 0, 1, 0, 1])
    >>> [labels[rows].tolist() for rows in by_similarity(labels, N=2, s=0)]
    [[0, 0, 0], [1, 1, 1]]
    """
    if not 0 <= s <= 100:
        raise ValueError(f"similarity s={s}; pass per cent, from 0 (sorted) to 100 (i.i.d.).")
    n, labels = _check(labels, N), labels.cpu()
    shuffled = torch.randperm(n, generator=stream(seed, PARTITION))
    mixed, rest = torch.tensor_split(shuffled, [round(n * s / 100)])
    ordered = rest[torch.argsort(labels[rest], stable=True)]
    pairs = zip(_cut(mixed, N), reversed(_cut(ordered, N)), strict=True)
    # Reversed, so that the longer cuts of both do not meet and sizes differ by one at most.
    clients = [torch.cat(pair) for pair in pairs]
    return clients[::-1]


def by_label(labels: Tensor, N: int, seed: int = 0) -> list[Tensor]:
    """Sort by label and cut into N parts: 0 % similarity, the most different clients."""
    return by_similarity(labels, N, 0, seed)


def dirichlet(labels: Tensor, N: int, alpha: float, seed: int = 0) -> list[Tensor]:
    """Divide each class among the clients by a draw from Dirichlet(alpha) (Hsu et al., 2019).

    labels: one class per row.
    N: the number of clients. An empty client gets one sample of the largest client.
    alpha: positive; small for few classes per client, large for i.i.d. clients.
    seed: of the draws.

    >>> labels = torch.arange(40) % 4
    >>> sum(len(rows) for rows in dirichlet(labels, N=5, alpha=0.1))
    40
    """
    if not 0 < alpha < inf:
        raise ValueError(f"alpha={alpha}; pass a positive number.")
    _check(labels, N)
    labels = labels.cpu()
    generator = np.random.default_rng(mix(seed, PARTITION))
    clients: list[list[Tensor]] = [[] for _ in range(N)]
    for label in sorted(set(labels.tolist())):
        rows = (labels == label).nonzero().flatten().numpy()
        generator.shuffle(rows)
        shares = generator.dirichlet([alpha] * N)
        cuts = (np.cumsum(shares)[:-1] * len(rows)).round().astype(int)
        for client, part in zip(clients, np.split(rows, cuts), strict=True):
            client.append(torch.from_numpy(part.copy()))
    parts = [torch.cat(client) for client in clients]
    for i in range(N):
        if not len(parts[i]):
            j = max(range(N), key=lambda j: len(parts[j]))
            parts[i], parts[j] = parts[j][-1:], parts[j][:-1]
    return parts


@dataclass(frozen=True)
class PartitionSpec:
    """A partition as users type it: a word, and a number where the word needs one."""

    word: str
    number: float | None = None

    def rows(self, labels: Tensor, N: int, seed: int = 0) -> list[Tensor]:
        """Return the rows of each client; Dirichlet needs labels that are classes."""
        if self.word == "dirichlet":
            if labels.is_floating_point():
                raise BadArgument(
                    "partition",
                    "{partition:{_given}} divides classes, but these targets are numbers; pass "
                    "similarity:10 or label.",
                    _given=str(self),
                )
            return dirichlet(labels, N, self.number or 0.0, seed)
        return by_similarity(labels, N, self.number or 0.0, seed)

    def __str__(self) -> str:
        return self.word if self.number is None else f"{self.word}:{self.number:g}"


def parse_partition(spec: str) -> PartitionSpec:
    """Parse `dirichlet:0.1` (alpha), `similarity:10` (per cent) or `label`.

    >>> parse_partition("similarity:10"), parse_partition("label")
    (PartitionSpec(word='similarity', number=10.0), PartitionSpec(word='label', number=None))
    """
    word, colon, text = spec.partition(":")
    try:
        number = float(text) if colon else None
    except ValueError:
        number = nan
    allowed = {
        "dirichlet": number is not None and 0 < number < inf,
        "similarity": number is not None and 0 <= number <= 100,
        "label": number is None,
    }
    if not allowed.get(word, False):
        raise BadArgument(
            "partition",
            "{partition:{_given}}; pass dirichlet:0.1 (any alpha above 0), similarity:10 (per "
            "cent, from 0 to 100) or label.",
            _given=spec,
        )
    return PartitionSpec(word, number)


def by_column(column: Sequence[Any] | Tensor) -> dict[Any, Tensor]:
    """Make one client per value of a column, such as the hospital, the writer or the speaker.

    >>> by_column(["rome", "oslo", "rome"])
    {'oslo': tensor([1]), 'rome': tensor([0, 2])}
    """
    rows: dict[Any, list[int]] = {}
    for row, value in enumerate(column.tolist() if isinstance(column, Tensor) else column):
        rows.setdefault(value, []).append(row)
    return {value: torch.tensor(rows[value]) for value in sorted(rows, key=_order)}


def _order(value: Any) -> tuple[str, Any]:
    return ("", value) if isinstance(value, int | float) else (type(value).__name__, str(value))


def split(X: Tensor, y: Tensor, parts: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return the clients' data for a partition."""
    return [(X[rows], y[rows]) for rows in parts]


def _check(labels: Tensor, N: int) -> int:
    n = len(labels)
    if not 1 <= N <= n:
        raise ValueError(f"N={N} clients of {n} samples; pass 1 <= N <= {n}.")
    return n


def _cut(rows: Tensor, N: int) -> list[Tensor]:
    return list(torch.tensor_split(rows, N))


Pair = tuple[Tensor, Tensor]
Scale = Literal["unit", "standardised"]


class Split(NamedTuple):
    """Inputs and targets for training and for the test, and the name of the data in tables."""

    train: Pair
    test: Pair
    name: str


def named(what: str, train: Pair, test: Pair) -> Split:
    """Return a Split whose name gives the sizes of both parts."""
    return Split(train, test, f"{what}, {len(train[1]):,} / {len(test[1]):,}")


def scaled(split: Split, pixels: Scale, dims: tuple[int, ...]) -> Split:
    """Return pixels in 0..1 as they are, or with mean 0 and deviation 1 over `dims`, in place.

    Mean and deviation are those of the training part.
    """
    if pixels == "standardised":
        X = split.train[0]
        mean, deviation = X.mean(dims, keepdim=True), X.std(dims, keepdim=True)
        for part in (split.train, split.test):
            part[0].sub_(mean).div_(deviation)
    elif pixels != "unit":
        raise ValueError(f"pixels={pixels!r}; pass 'unit' (0..1) or 'standardised'.")
    return split
