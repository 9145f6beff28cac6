"""The problems on which benchmarks/search.py judges the search of `compare`.

All data are in scikit-learn or are made up with fixed seeds. A target is a fixed number that the
best settings reach in 5 to 60 rounds. Nothing here may change while results/search has records of
it: the record has a digest of the source of the function that makes the problem.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab import Quadratic, Supervised
from trimtab.core import Oracle
from trimtab.core.streams import stream
from trimtab.problems.partition import by_label, dirichlet
from trimtab.problems.problem import Problem

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A problem and what its runs should reach.

    budget, round_cost: 20 seconds of an algorithm, measured once: the sample gradients, and those
        that a round costs besides its own.
    """

    kind: str
    make: Callable[[], Problem]
    metric: str
    target: float
    budget: float
    round_cost: float
    S: int | None = None
    aside: bool = False  # kept aside: no rule of the search was chosen by this problem


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=stream(seed))


def _numbers(X: object, y: object) -> Pair:
    """Return scaled features and the targets of a data set."""
    table = torch.as_tensor(X, dtype=torch.float32)
    return (table - table.mean(0)) / table.std(0).clamp_min(1e-6), torch.as_tensor(y)


class _Chunked(Quadratic):
    """Quadratics without noise whose clients step side by side, which is faster."""

    executor = "batched"

    def chunk_oracle(self, clients: Sequence[int], seed: int, r: int) -> Oracle:
        A, b = self.A[list(clients)], self.b[list(clients)]
        return lambda y, k=None: torch.einsum("nij,nj->ni", A, y.expand(b.shape)) - b


def _quadratic(seed: int, N: int, d: int, sigma: float, unlike: float, power: float) -> Quadratic:
    """Return quadratics whose Hessians differ by `unlike`; client j weighs j ** -power."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    draw = stream(seed)
    turn = torch.linalg.qr(normal(d, d)).Q
    E = unlike * normal(N, d, d) / d**0.5
    A = turn @ torch.diag(torch.logspace(-1, 0.7, d, dtype=torch.float64)) @ turn.T + E @ E.mT
    weights = torch.arange(1, N + 1, dtype=torch.float64) ** -power
    make = Quadratic if sigma else _Chunked
    return make(A, 2 * normal(N, d), sigma, weights / weights.sum())


def _supervised(
    module: Callable[[], nn.Module],
    loss: Callable[[Tensor, Tensor], Tensor],
    data: Pair,
    cut: Callable[[Tensor, Tensor], Sequence[Tensor]],
    metric: str,
    batch: int | None = 16,
    every: int = 5,
    weights: str | None = None,
) -> Supervised:
    """Return a problem whose validation rows are one in so many; the others are cut for clients."""
    X, y = data
    order = torch.randperm(len(X), generator=stream(5))
    held, kept = order[::every], order[torch.arange(len(order)) % every != 0]
    parts = cut(X[kept], y[kept])
    clients = [(X[kept][part], y[kept][part]) for part in parts]
    known = None if metric in ("accuracy", "loss") else [metric]
    return Supervised(
        *(module, loss, clients),
        batch=batch,
        weights=weights,
        metrics=known,
        validation=(X[held], y[held]),
    )


def _by(values: Tensor, N: int) -> Sequence[Tensor]:
    """Cut the rows, sorted by some values, into N parts."""
    return values.argsort(stable=True).chunk(N)


def _network(inputs: int, hidden: int, outputs: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def digits(hidden: int = 0) -> Supervised:
    """Ten clients, each with a few of the ten digits; a linear model or a small network."""
    X, y = load_digits(return_X_y=True)
    data = torch.as_tensor(X / 16, dtype=torch.float32), torch.as_tensor(y)
    module = _network(64, hidden, 10) if hidden else lambda: nn.Linear(64, 10)
    alpha = 0.3 if hidden else 0.1
    cut = lambda _, y: dirichlet(y, 10, alpha)  # noqa: E731
    return _supervised(module, F.cross_entropy, data, cut, "accuracy")


def patients() -> Supervised:
    """Regression over 42 clients whose target is not scaled, so that the start is bad."""
    draw, clients = stream(3), list[Pair]()
    w = torch.randn(12, 1, generator=draw)
    for _ in range(42):
        X = torch.randn(120, 12, generator=draw) + torch.randn(12, generator=draw)
        X = X * torch.logspace(-0.5, 0.5, 12)
        own = w + 0.5 * torch.randn(12, 1, generator=draw)
        clients.append((X, 30 + X @ own + 4 * torch.randn(120, 1, generator=draw)))
    held = torch.cat([X[100:] for X, _ in clients]), torch.cat([y[100:] for _, y in clients])
    kept = [(X[:100], y[:100]) for X, y in clients]
    module = lambda: nn.Linear(12, 1)  # noqa: E731
    return Supervised(module, F.mse_loss, kept, batch=16, metrics=["r2"], validation=held)


def tumours() -> Supervised:
    """Six hospitals, each with tumours of one kind and size; the metric is the loss on all rows."""
    X, y = _numbers(*load_breast_cancer(return_X_y=True))
    clients = [(X[part], y[part]) for part in _by(100 * y + X[:, 0], 6)]
    module = lambda: nn.Linear(30, 2)  # noqa: E731
    return Supervised(module, F.cross_entropy, clients, l2=0.01, validation=(X, y))


def iris() -> Supervised:
    """Three clients with one kind of iris each, and 19 held-out rows."""
    data = _numbers(*load_iris(return_X_y=True))
    cut = lambda _, y: by_label(y, 3)  # noqa: E731
    return _supervised(lambda: nn.Linear(4, 3), F.cross_entropy, data, cut, "loss", 8, every=8)


def diabetes() -> Supervised:
    """Six clinics with patients of another age; the target has its own unit."""
    X, y = _numbers(*load_diabetes(return_X_y=True))
    data = X, y.to(torch.float32)[:, None]
    cut = lambda X, _: _by(X[:, 0], 6)  # noqa: E731
    return _supervised(lambda: nn.Linear(10, 1), F.mse_loss, data, cut, "mse", None)


def rare() -> Supervised:
    """Twelve clients with one positive label in thirty, the more the later the client."""
    X = _normal(21, 6000, 20)
    latent = X @ _normal(22, 20, 1) / 20**0.5 + 0.5 * _normal(23, 6000, 1)
    y = (latent > latent.quantile(29 / 30)).float()
    data = X * torch.logspace(-0.7, 0.3, 20), y
    cut = lambda X, y: _by(y.flatten() + 3 * X[:, 0], 12)  # noqa: E731
    loss = F.binary_cross_entropy_with_logits
    return _supervised(lambda: nn.Linear(20, 1), loss, data, cut, "auc", 32)


def curves() -> Supervised:
    """A network on a curved surface; the first of twelve clients has most of the samples."""
    X = torch.rand(3000, 10, generator=stream(31))
    y = 10 * (torch.pi * X[:, 0] * X[:, 1]).sin() + 20 * (X[:, 2] - 0.5) ** 2
    y = y + 10 * X[:, 3] + 5 * X[:, 4] + _normal(32, 3000)
    data = X, ((y - y.mean()) / y.std())[:, None]
    ends = torch.logspace(0, -1.2, 12).cumsum(0)
    sizes = (ends / ends[-1] * 2400).long().diff(prepend=torch.zeros(1, dtype=torch.long))
    cut = lambda X, _: X[:, 3].argsort(stable=True).split(sizes.tolist())  # noqa: E731
    return _supervised(_network(10, 24, 1), F.mse_loss, data, cut, "r2", 32, weights="samples")


def crowd() -> Supervised:
    """A hundred clients with two of eight classes each, of which ten take part in a round."""
    centres = _normal(41, 8, 40)
    y = torch.arange(6000) % 8
    X = centres[y] / 2 + _normal(42, 6000, 40)
    cut = lambda _, y: dirichlet(y, 100, 0.2)  # noqa: E731
    return _supervised(lambda: nn.Linear(40, 8), F.cross_entropy, (X, y), cut, "accuracy")


def wide() -> Supervised:
    """Fewer samples than features: 500 features, of which ten matter, and eight clients."""
    X = _normal(51, 1200, 500)
    y = (X[:, :10] @ _normal(52, 10) + 0.3 * _normal(53, 1200) > 0).long()
    cut = lambda X, _: _by(X[:, 0] + X[:, 1], 8)  # noqa: E731
    return _supervised(lambda: nn.Linear(500, 2), F.cross_entropy, (X, y), cut, "accuracy", 32)


def tiny() -> Supervised:
    """Four clients with 20 samples each of a problem with three parameters."""
    X = _normal(61, 125, 2) * torch.tensor([1.0, 0.1])
    y = (X @ torch.tensor([1.0, 12.0]) + 0.5 * _normal(62, 125) > 0.3).long()[:, None].float()
    cut = lambda X, _: _by(X[:, 0], 4)  # noqa: E731
    loss = F.binary_cross_entropy_with_logits
    return _supervised(lambda: nn.Linear(2, 1), loss, (X, y), cut, "loss", 4)


def network() -> Supervised:
    """Digits by a network with 24 hidden units."""
    return digits(24)


def quadratic() -> Quadratic:
    """Eight quadratics without noise."""
    return _quadratic(1, 8, 10, 0.0, 1.0, 0.0)


def noise() -> Quadratic:
    """Eight quadratics with noise and unequal weights."""
    return _quadratic(7, 8, 10, 0.5, 0.7, 0.5)


CASES = {
    "digits": Case("convex", digits, "accuracy", 0.93, 6e7, 5800),
    "patients": Case("regression, unscaled", patients, "r2", 0.6, 6e8, 7.4e4),
    "rare": Case("imbalanced", rare, "auc", 0.966, 3.2e8, 3.2e4),
    "diabetes": Case("regression, unscaled", diabetes, "mse", 3350, 3.7e8, 1.4e4, aside=True),
    "tumours": Case("convex", tumours, "loss", 0.065, 1.4e8, 8100),
    "crowd": Case("S of N clients", crowd, "accuracy", 0.9, 8.6e7, 1.2e4, S=10, aside=True),
    "iris": Case("few rows", iris, "loss", 0.15, 7.7e7, 3100, aside=True),
    "tiny": Case("few rows", tiny, "loss", 0.4, 1.5e8, 5300),
    "wide": Case("large", wide, "accuracy", 0.82, 5.4e7, 4800),
    "network": Case("network", network, "accuracy", 0.93, 2.3e7, 2200),
    "curves": Case("network", curves, "r2", 0.85, 4.3e7, 4300, aside=True),
    "quadratic": Case("convex", quadratic, "gap", 0.001, 7.8e5, 32),
    "noise": Case(
        "noise, unequal weights",
        noise,
        "gap",
        0.3,
        3.3e5,
        10,
        S=4,
        aside=True,
    ),
}
