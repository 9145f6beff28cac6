"""Small data, small modules, and a problem whose gradients tell which samples were used."""

import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Supervised

FEATURES, CLASSES = 4, 3


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def data(n, seed=0, dtype=torch.float64):
    y = torch.randint(CLASSES, (n,), generator=torch.Generator().manual_seed(seed))
    return randn(n, FEATURES, seed=seed, dtype=dtype), y


def clients(*sizes, dtype=torch.float64):
    return [data(n, seed, dtype) for seed, n in enumerate(sizes)]


def drawn_clients(sizes, features=4, classes=3, *, seed=1, dtype=torch.float64):
    """Return clients of these sizes whose samples come from one generator."""
    draw = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(n, features, generator=draw, dtype=dtype),
            torch.randint(classes, (n,), generator=draw),
        )
        for n in sizes
    ]


def net(*between, seed=0):
    """Return a module that is differentiated by autograd, with layers in its middle."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.Softsign(), *between, nn.Linear(5, CLASSES))


def classifier(*sizes, module=None, dtype=torch.float64, **settings):
    given = clients(*sizes, dtype=dtype)
    return Supervised(net() if module is None else module, F.cross_entropy, given, **settings)


def plain_gradient(module, loss, X, y):
    """Return the gradient of the trainable parameters by plain autograd, as a vector."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    parts = torch.autograd.grad(loss(module(X), y), trainable)
    return torch.cat([part.reshape(-1) for part in parts])


def tracer(n, clients=1, **settings):
    """Return a problem in R^n with g(x, k) = the mean of the unit vectors of the samples used."""
    X, y = torch.eye(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    build = lambda: nn.Linear(n, 1, bias=False)  # noqa: E731
    return Supervised(build, lambda output, y: output.mean(), [(X, y)] * clients, **settings)


def samples(problem, k, *, seed=0, i=0, r=1):
    """Return the samples in a mini-batch of a tracer that holds none twice, in their order."""
    return problem.oracle(i, seed, r)(problem.x0(), k).nonzero().flatten().tolist()
