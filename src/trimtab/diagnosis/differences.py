"""How clients differ: in their labels, their features, the scale of these, and their sizes.

With them come the first facts of a diagnosis: sizes, and how far gradients are apart.

A simple probe that looks at the samples alone. Each kind has one number a client, and the number
that clients with equal data would show by chance, so that few samples do not count as a difference.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log, log2, sqrt
from statistics import median
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.streams import PARTITION, stream
from trimtab.diagnosis.intervals import Draws, Estimate
from trimtab.diagnosis.measure import Gradients
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.rules import RULES


@dataclass(frozen=True)
class Difference:
    """One way in which clients may differ."""

    what: str  # labels, targets, features, scale or size
    unit: str
    mean: float  # over the clients
    chance: float  # what equal clients would show
    values: dict[int, float]  # how far each client is off
    outliers: tuple[int, ...]  # those that stand out, the furthest first

    @property
    def found(self) -> bool:
        """Whether clients differ so, beyond chance and by more than a trifle."""
        return self.mean > max(RULES.outlier * self.chance, RULES.trifle)

    @property
    def strength(self) -> float:
        """How clearly clients differ so, to compare one kind with another."""
        return self.mean / max(RULES.outlier * self.chance, RULES.trifle)

    def __str__(self) -> str:
        if not self.found:
            return f"{self.what}: no difference ({self.mean:.2g} {self.unit})"
        who = ""
        if self.outliers:
            shown = ", ".join(f"{i} ({self.values[i]:.2g})" for i in self.outliers[:3])
            who = f"; client{'s' if len(self.outliers) > 1 else ''} {shown} most"
        return f"{self.what}: {self.mean:.2g} {self.unit}, by chance {self.chance:.2g}{who}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name, and whether it counts."""
        return asdict(self) | {"found": self.found}


@dataclass(frozen=True)
class Differences:
    """All that the probe found."""

    kinds: tuple[Difference, ...] = ()
    shares: dict[int, tuple[float, ...]] | None = None  # of each label, by client

    @property
    def sentence(self) -> str:
        """How clients differ, the clearest first."""
        found = sorted((kind for kind in self.kinds if kind.found), key=lambda k: -k.strength)
        if not self.kinds:
            return "How the clients' data differ is unknown: there are no samples to look at."
        if not found:
            looked = ", ".join(kind.what for kind in self.kinds)
            return f"The clients' data do not differ by more than chance ({looked})."
        return f"The clients differ in {'; '.join(map(str, found))}."

    def to_json(self) -> dict[str, Any]:
        """Return the kinds by name."""
        return {kind.what: kind.to_json() for kind in self.kinds}


def probe(panel: Panel, sizes: Sequence[int] | None, seed: int) -> Differences:
    """Look at samples of the clients that are measured; sizes: how many each has in all."""
    clients = panel.clients[: RULES.probed]
    kinds: list[Difference] = []
    shares = None
    samples = _samples(panel, len(clients), seed)
    if samples is not None:
        X, y = samples
        labels = _labels(y)
        if labels is not None:
            kind, shares = _in_labels(clients, labels, seed)
            kinds.append(kind)
        elif y[0].is_floating_point():
            rows = [each.double().reshape(len(each), -1) for each in y]
            kinds.append(_in_means("targets", "standard deviations apart", clients, rows))
        if X[0].is_floating_point():
            rows = _within([each.flatten(1).double() for each in X], labels)
            given = "" if labels is None else " given the label"
            unit = f"standard deviations apart{given}"
            kinds.append(_in_means("features", unit, clients, rows))
            kinds.append(_in_scale(f"octaves apart{given}", clients, rows))
    if sizes is not None:
        kinds.append(_in_size(clients, sizes))
    return Differences(tuple(kinds), shares)


def _samples(panel: Panel, count: int, seed: int) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return inputs and targets of the first clients, some of each; None if they are no tensors."""
    problem = panel.samples
    if problem is None:
        return None
    X, y = list[Tensor](), list[Tensor]()
    for j in range(count):
        data = problem.clients[j]
        if not (isinstance(data.X, Tensor) and isinstance(data.y, Tensor)):
            return None
        rows = torch.randperm(len(data), generator=stream(seed, PARTITION, 5, j))[: RULES.probed]
        X.append(data.X[rows.to(data.X.device)].cpu())
        y.append(data.y[rows.to(data.y.device)].cpu())
    return X, y


def _labels(y: list[Tensor]) -> list[Tensor] | None:
    """Return the targets if they are labels, one a sample."""
    if any(each.dim() != 1 or each.is_floating_point() or int(each.min()) < 0 for each in y):
        return None
    return y if max(int(each.max()) for each in y) < RULES.labels else None


def _in_labels(
    clients: Sequence[int], y: list[Tensor], seed: int
) -> tuple[Difference, dict[int, tuple[float, ...]]]:
    """Return how far each client's shares of the labels are from all clients' (total variation)."""
    classes = max(int(each.max()) for each in y) + 1
    shares = torch.stack([torch.bincount(each, minlength=classes) / len(each) for each in y])
    shares = shares.double()
    all_ = shares.mean(0)
    far = (shares - all_).abs().sum(1) / 2
    draw, chance = stream(seed, PARTITION, 6), []
    for each in y:
        again = torch.multinomial(all_, len(each), replacement=True, generator=draw)
        drawn = torch.bincount(again, minlength=classes) / len(each)
        chance.append(float((drawn.double() - all_).abs().sum() / 2))
    kind = _kind("labels", "apart in label shares", clients, far, sum(chance) / len(chance))
    rows = {i: tuple(row.tolist()) for i, row in zip(clients, shares, strict=True)}
    return kind, rows


def _within(X: list[Tensor], labels: list[Tensor] | None) -> list[Tensor]:
    """Return the features, less the mean of their label over all clients: what labels leave."""
    if labels is None:
        return X
    every, of = torch.cat(X), torch.cat(labels)
    means = torch.zeros(int(of.max()) + 1, every.shape[1], dtype=every.dtype)
    means.index_add_(0, of, every)
    means = means / torch.bincount(of).clamp_min(1)[:, None]
    return [x - means[y] for x, y in zip(X, labels, strict=True)]


def _in_means(what: str, unit: str, clients: Sequence[int], X: list[Tensor]) -> Difference:
    """Return how far each client's means are off, in standard deviations, over the features."""
    every = torch.cat(X)
    sd = every.std(0)
    used = sd > 1e-9 * sd.max().clamp_min(1e-300)
    far, chance = [], []
    for x in X:
        moved = ((x.mean(0) - every.mean(0))[used] / sd[used]).square()
        far.append(sqrt(float(moved.mean())) if bool(used.any()) else 0.0)
        chance.append(1 / len(x))
    return _kind(what, unit, clients, torch.tensor(far), sqrt(sum(chance) / len(chance)))


def _in_scale(unit: str, clients: Sequence[int], X: list[Tensor]) -> Difference:
    """Return by how many octaves the spread of each client's features differs from the usual."""
    spreads = [float(x.var(0, correction=0).sum().sqrt()) if len(x) > 1 else 0.0 for x in X]
    usual = median(spreads) or 1.0
    far = [abs(log2(s / usual)) if s > 0 else 0.0 for s in spreads]
    chance = sum(1 / sqrt(2 * max(2, len(x))) for x in X) / len(X)
    return _kind("scale", unit, clients, torch.tensor(far), chance)


def _in_size(clients: Sequence[int], sizes: Sequence[int]) -> Difference:
    """Return by how many octaves each client's number of samples differs from the median."""
    usual = median(sizes) or 1
    far = torch.tensor([abs(log2(max(1, n) / usual)) for n in sizes[: len(clients)]])
    # Of n samples that are dealt at random, about sqrt(n) go astray.
    chance = sum(1 / sqrt(max(1, n)) for n in sizes) / len(sizes) / log(2)
    return _kind("size", "octaves apart in the number of samples", clients, far, chance)


def _kind(what: str, unit: str, clients: Sequence[int], far: Tensor, chance: float) -> Difference:
    values = {i: float(v) for i, v in zip(clients, far, strict=True)}
    usual = median(values.values())
    apart = [
        i for i, v in values.items() if v > max(RULES.outlier * max(usual, chance), RULES.trifle)
    ]
    apart.sort(key=lambda i: -values[i])
    return Difference(what, unit, float(far.double().mean()), chance, values, tuple(apart))


# -- first facts


@dataclass(frozen=True)
class Early:
    """What the first facts rest on, for the stages after them."""

    differences: Differences
    draws: Draws  # what else might have been drawn
    x: Vector | None  # where a few rounds lead; None: there was no time
    gradients: Gradients | None  # the gradients there


@dataclass(frozen=True)
class FirstFacts:
    """The first page of a diagnosis, which later stages sharpen."""

    N: int
    d: int
    S: int
    sizes: tuple[int, ...]  # samples of each client that is measured; empty if there are none
    differences: Differences
    points: tuple[tuple[Estimate, float], ...]  # zeta and |grad f|, where they were measured
    seconds: float

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is known so far, one sentence each."""
        shape = f"{self.N} clients, {self.S} a round, d = {self.d}"
        if self.sizes:
            low, high = min(self.sizes), max(self.sizes)
            shape += f", {low} to {high} samples each" if low < high else f", {low} samples each"
        apart = [
            f"How far the clients' gradients are apart ({zeta.at}): zeta = {zeta}, where "
            f"|grad f| = {size:.3g}."
            for zeta, size in self.points
        ]
        return (f"{shape}.", self.differences.sentence, *apart)

    def __str__(self) -> str:
        return "\n".join(
            (f"After {self.seconds:.0f} seconds:", *(f"  {s}" for s in self.sentences))
        )
