"""The problems that the advice of `diagnose` is held to account on.

Their seeds begin at 7001 and were used nowhere while `diagnose` was developed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab import Quadratic, Supervised
from trimtab.core import Oracle
from trimtab.core.streams import stream
from trimtab.problems.catalogue import heart_problem, logistic, mlp
from trimtab.problems.data.emnist import emnist
from trimtab.problems.data.images import digits
from trimtab.problems.data.shakespeare import shakespeare
from trimtab.problems.data.tables import a9a, concrete
from trimtab.problems.partition import by_similarity, dirichlet, split

FIRST_SEED = 7001
GRID = (1, 4, 16, 64)
SHORT = (1, 4, 16)  # for networks, which are slow
NETWORKS = ("CNN", "two layers", "transformer")
LATER = 3  # the first network has its turn with the fourth case of another kind


@dataclass(frozen=True)
class Case:
    """A problem, how many clients a round has, and eps as a share of the start's f - f*."""

    make: Callable[[int], Any]  # the problem of a seed
    kind: str
    S: int | None = None
    share: float = 0.01
    grid: tuple[int, ...] = GRID
    minutes: float = 5
    seed: int = FIRST_SEED


class Chunked(Quadratic):
    """Quadratics whose clients step side by side, which is faster."""

    executor = "batched"

    def chunk_oracle(self, clients: Sequence[int], seed: int, r: int) -> Oracle:
        """Return A_i y - b_i of several clients."""
        A, b = self.A[list(clients)], self.b[list(clients)]
        return lambda y, k=None: torch.einsum("nij,nj->ni", A, y.expand(b.shape)) - b


def quadratics(
    seed: int,
    G: float,
    delta: float,
    N: int = 10,
    d: int = 20,
    sigma: float = 0.0,
    power: float = 0,
) -> Quadratic:
    """Return quadratics with L/mu about 100, |x0 - x*| = 1, and this G and delta."""
    draw = stream(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    turn = torch.linalg.qr(normal(d, d)).Q
    h = torch.logspace(-2, 0, d, dtype=torch.float64)
    root = turn @ torch.diag(h.sqrt()) @ turn.T
    D = normal(N, d, d)
    D = root @ (D + D.mT) @ root
    D = D - D.mean(0)
    D = delta / torch.linalg.eigvalsh(D).abs().max() * D
    pulls = normal(N, d)
    pulls = pulls - pulls.mean(0)
    pulls = G / pulls.square().sum(1).mean().sqrt() * pulls
    A = root @ root + D
    b = A @ torch.full((d,), d**-0.5, dtype=torch.float64) - pulls
    weights = None if not power else torch.arange(1, N + 1).double() ** -power
    return (Quadratic if sigma else Chunked)(A, b, sigma, weights)


# -- samples


@cache
def _digits() -> tuple[Tensor, Tensor]:
    return digits()[0]


@cache
def _letters() -> tuple[Tensor, Tensor]:
    """Return 1,500 images of ten letters, 7 x 7 pixels."""
    (X, y), *_ = emnist()
    rows = ((y >= 10) & (y < 20)).nonzero().flatten()
    rows = rows[torch.randperm(len(rows), generator=stream(FIRST_SEED))[:1500]]
    small = F.avg_pool2d(X[rows].view(-1, 1, 28, 28), 4).flatten(1)
    return small, y[rows] - 10


@cache
def _census() -> tuple[Tensor, Tensor]:
    (X, y), *_ = a9a()
    return X[:3000], y[:3000]


def _sizes(rows: Sequence[Tensor], power: float) -> list[Tensor]:
    """Keep fewer and fewer samples of one client after the other, but >= 8."""
    return [part[: max(8, int(len(part) * (j + 1) ** -power))] for j, part in enumerate(rows)]


def classify(
    seed: int,
    data: Callable[[], tuple[Tensor, Tensor]],
    similarity: float | None = None,
    alpha: float | None = None,
    power: float = 0.0,
    module: Callable[[], nn.Module] | None = None,
    N: int = 10,
    most: int | None = None,
    l2: float = 0.001,
) -> Supervised:
    """Return a classifier over clients cut by similarity or by Dirichlet(alpha)."""
    X, y = data()
    if most is not None:
        rows = torch.randperm(len(X), generator=stream(seed, 1))[:most]
        X, y = X[rows], y[rows]
    if alpha is not None:
        cut = dirichlet(y, N, alpha, seed)
    else:
        cut = by_similarity(y, N, similarity or 0.0, seed)
    made = module or partial(logistic, X.shape[1], int(y.max()) + 1)
    clients = split(X, y, _sizes(cut, power))
    weights = "samples" if power or alpha is not None else None
    return Supervised(made, F.cross_entropy, clients, batch=0.2, l2=l2, weights=weights)


def regression(seed: int, similarity: float, power: float = 0.0) -> Supervised:
    """Return linear regression on concrete, over ten clients."""
    X, y = concrete()
    clients = split(X, y, _sizes(by_similarity(y.flatten(), 10, similarity, seed), power))
    weights = "samples" if power else None
    return Supervised(partial(logistic, 8, 1), F.mse_loss, clients, weights=weights)


def cnn() -> nn.Module:
    """Return a small convolutional network for digits."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 8, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


class Reader(nn.Module):
    """A tiny transformer that reads eight characters and guesses the next."""

    def __init__(self, classes: int, length: int = 8, width: int = 16) -> None:
        super().__init__()
        self.token = nn.Embedding(classes, width)
        self.place = nn.Parameter(0.1 * torch.randn(length, width))
        self.layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(width, classes)

    def forward(self, X: Tensor) -> Tensor:
        """Return the scores of the next character."""
        guess: Tensor = self.out(self.layer(self.token(X) + self.place).mean(1))
        return guess


def roles(seed: int, N: int = 8, each: int = 80) -> Supervised:
    """Return the transformer on what some roles of Shakespeare say."""
    plays = shakespeare(length=8)
    chosen = torch.randperm(40, generator=stream(seed))[:N].tolist()
    clients = []
    for i in chosen:
        X, y = plays.train[i]
        rows = torch.randperm(len(y), generator=stream(seed, i))[:each]
        clients.append((X[rows], y[rows]))
    return Supervised(
        partial(Reader, len(plays.characters)), F.cross_entropy, clients, batch=0.25, l2=0.001
    )


# -- the list


def _cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    fine: dict[str, Any] = {"kind": "quadratics", "share": 1e-3}
    for G in (0.1, 1, 10):
        for delta in (0.05, 0.3, 0.7):
            made = partial(quadratics, G=G, delta=delta)
            cases[f"quadratics-G{G:g}-delta{delta:g}"] = Case(made, **fine)
    for G, delta, S in ((0.1, 0.3, 5), (1, 0.3, 5), (10, 0.05, 3)):
        made = partial(quadratics, G=G, delta=delta)
        cases[f"quadratics-G{G:g}-delta{delta:g}-S{S}"] = Case(made, S=S, **fine)
    cases["quadratics-noise"] = Case(
        partial(quadratics, G=1, delta=0.3, sigma=0.02), "quadratics", share=1e-2
    )
    cases["quadratics-weights"] = Case(partial(quadratics, G=1, delta=0.3, power=1.0), **fine)
    for name, data in (("digits", _digits), ("letters", _letters), ("census", _census)):
        for s in (0, 10, 100) if name == "census" else (0, 10, 50, 100):
            cases[f"{name}-{s}"] = Case(partial(classify, data=data, similarity=s), "logistic")
    for name, data in (("digits", _digits), ("letters", _letters)):
        cases[f"{name}-0-S5"] = Case(partial(classify, data=data, similarity=0), "logistic", S=5)
        for alpha in (0.1, 1.0):
            cases[f"{name}-labels{alpha:g}"] = Case(
                partial(classify, data=data, alpha=alpha), "unbalanced labels"
            )
    for name, data in (("digits", _digits), ("letters", _letters), ("census", _census)):
        made = partial(classify, data=data, similarity=50, power=1.0)
        cases[f"{name}-sizes"] = Case(made, "unequal sizes")
    cases["heart"] = Case(lambda seed: heart_problem(), "logistic")
    for s in (0, 10, 100):
        cases[f"concrete-{s}"] = Case(partial(regression, similarity=s), "regression")
    cases["concrete-sizes"] = Case(partial(regression, similarity=10, power=1.0), "regression")
    cases["concrete-0-S3"] = Case(partial(regression, similarity=0), "regression", S=3)
    few: dict[str, Any] = {"share": 0.1, "grid": SHORT, "minutes": 2}
    for s in (0, 50, 100):
        made = partial(classify, data=_digits, similarity=s, module=cnn, N=8, most=320)
        cases[f"cnn-{s}"] = Case(made, "CNN", **few)
    net = partial(mlp, 64, 16, 10)
    made = partial(classify, data=_digits, similarity=10, module=net, N=8, most=640)
    cases["mlp-10"] = Case(made, "two layers", **few)
    cases["mlp-10-S2"] = Case(made, "two layers", S=2, **few)
    cases["transformer"] = Case(roles, "transformer", **few)
    cases["transformer-S3"] = Case(roles, "transformer", S=3, **few)
    seeded = {
        name: replace(case, seed=FIRST_SEED + j) for j, (name, case) in enumerate(cases.items())
    }
    return dict(sorted(seeded.items(), key=lambda item: _turn(item[0], seeded)))


def _turn(name: str, cases: dict[str, Case]) -> int:
    """Return when a case has its turn: a case of every kind before a second one, networks later."""
    kind = cases[name].kind
    rank = [other for other, case in cases.items() if case.kind == kind].index(name)
    return rank + (LATER if kind in NETWORKS else 0)


CASES = _cases()
