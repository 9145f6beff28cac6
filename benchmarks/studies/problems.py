"""Five problems in the shapes of other people's data, made up with a fixed seed.

trimtab compare benchmarks/studies/problems.py:landmine --metric auc
"""

import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Supervised
from trimtab.problems.partition import dirichlet, split


def _clients(sizes, features, spread, seed):
    """Go through the inputs of clients, whose means differ by `spread`, and their weights."""
    draw = torch.Generator().manual_seed(seed)
    common = torch.randn(features, generator=draw) / features**0.5
    for n in sizes:
        shift = spread * torch.randn(features, generator=draw)
        own = common + spread * torch.randn(features, generator=draw) / features**0.5
        yield torch.randn(n, features, generator=draw) + shift, own, draw


def _sizes(count, low, high, seed):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(low, high + 1, (count,), generator=draw).tolist()


def _halves(X, y, draw):
    """Return a train part and a test part: four fifths and one fifth."""
    order = torch.randperm(len(y), generator=draw)
    cut = len(y) // 5
    train, test = order[cut:], order[:cut]
    return (X[train], y[train]), (X[test], y[test])


def _pooled(parts):
    return torch.cat([X for X, _ in parts]), torch.cat([y for _, y in parts])


def _supervised(parts, features, outputs, loss, **settings):
    train, test = zip(*parts, strict=True)
    module = nn.Linear(features, outputs)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return Supervised(module, loss, list(train), _pooled(test), batch=32, **settings)


def landmine():
    """29 fields of 445 to 690 samples with 9 features, of which 6 % are mines."""
    parts = []
    for X, w, draw in _clients(_sizes(29, 445, 690, 1), 9, 0.5, 1):
        score = 2 * X @ w
        cut = score.quantile(0.94) + 0.3
        chance = torch.sigmoid(3 * (score - cut))
        y = (torch.rand(len(X), generator=draw) < chance).long()
        parts.append(_halves(X, y, draw))
    return _supervised(parts, 9, 2, F.cross_entropy, metrics=["auc"])


def school():
    """139 schools of 22 to 251 pupils with 27 features; their marks."""
    parts = []
    for X, w, draw in _clients(_sizes(139, 22, 251, 2), 27, 0.3, 2):
        y = (X @ w + torch.randn(len(X), generator=draw))[:, None]
        parts.append(_halves(X, y, draw))
    return _supervised(parts, 27, 1, F.mse_loss, metrics=["r2"])


def parkinsons():
    """42 patients with 101 to 168 recordings of 18 features; a score."""
    parts = []
    for X, w, draw in _clients(_sizes(42, 101, 168, 3), 18, 0.6, 3):
        y = X @ w + 2 * torch.randn(1, generator=draw) + torch.randn(len(X), generator=draw)
        parts.append(_halves(X, y[:, None], draw))
    return _supervised(parts, 18, 1, F.mse_loss, metrics=["r2"])


def mushrooms():
    """22 places with 370 mushrooms of 112 binary features each."""
    parts = []
    draw = torch.Generator().manual_seed(4)
    w = torch.randn(112, generator=draw)
    for _ in range(22):
        rates = torch.rand(112, generator=draw) ** 2
        X = (torch.rand(370, 112, generator=draw) < rates).float()
        score = X @ w + 0.5 * torch.randn(370, generator=draw)
        y = (score > score.median() + torch.randn(1, generator=draw)).long()
        parts.append(_halves(X, y, draw))
    return _supervised(parts, 112, 2, F.cross_entropy)


def digits_dirichlet():
    """scikit-learn's digits over 10 clients whose labels are drawn by Dirichlet 0.1."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X, y = torch.as_tensor(X / 16, dtype=torch.float32), torch.as_tensor(y)
    train, test = _halves(X, y, torch.Generator().manual_seed(5))
    clients = split(*train, dirichlet(train[1], 10, alpha=0.1))
    module = nn.Linear(64, 10)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return Supervised(module, F.cross_entropy, clients, test, batch=32)


PROBLEMS = {
    "landmine": (landmine, "auc"),
    "school": (school, "r2"),
    "parkinsons": (parkinsons, "r2"),
    "mushrooms": (mushrooms, None),
    "digits_dirichlet": (digits_dirichlet, None),
}
