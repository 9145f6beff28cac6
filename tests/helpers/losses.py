"""Small problems whose diagnosis is known, or can be computed densely."""

import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Quadratic, Supervised
from trimtab.diagnosis.panel import Panel
from trimtab.problems.adapter import as_problem


def random(*shape, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def quadratics(N=6, d=12, *, G=2.0, delta=0.3, sigma=0.0, weights=None, seed=0):
    """Return quadratics whose Hessians and pulls differ, about so much."""
    H = torch.diag(torch.logspace(-1.5, 0, d, dtype=torch.float64))
    D = random(N, d, d, seed=seed)
    D = D + D.mT
    D = delta / torch.linalg.eigvalsh(D).abs().max() * (D - D.mean(0))
    b = random(N, d, seed=seed + 1)
    return Quadratic(H + D, 1 + G / d**0.5 * (b - b.mean(0)), sigma, weights)


class Opaque:
    """A problem that offers no more than the protocol."""

    def __init__(self, problem, differentiable=True):
        self.inner, self.differentiable = problem, differentiable
        self.N, self.d, self.weights = problem.N, problem.d, problem.weights

    def x0(self, seed=0):
        return self.inner.x0(seed)

    def oracle(self, i, seed, r):
        return self.inner.oracle(i, seed, r)

    def loss(self, x):
        return self.inner.loss(x)

    def gradient(self, x):
        return self.inner.gradient(x)

    def client_gradient(self, i, x):
        gradient = self.inner.client_gradient(i, x)
        return gradient if self.differentiable else gradient.detach()

    def evaluate(self, x, client=None):
        return self.inner.evaluate(x, client)


def everybody(problem):
    """Return all clients of a problem as a panel."""
    return Panel(as_problem(problem), tuple(range(problem.N)))


def logistic(N=4, n=60, features=5, classes=3, l2=0.05, **options):
    """Return logistic regression whose clients have truths and scales of their own."""
    clients = []
    for i in range(N):
        X = random(n, features, seed=10 * i) * (0.5 + random(features, seed=10 * i + 1).abs())
        scores = X @ random(features, classes, seed=10 * i + 2)
        clients.append((X, (scores + random(n, classes, seed=10 * i + 3)).argmax(1)))
    return Supervised(nn.Linear(features, classes), F.cross_entropy, clients, l2=l2, **options)


def dense_hessian(problem, i, x):
    """Return the Hessian of a Supervised client by torch's own dense computation."""
    data, module = problem.clients[i], problem.model.module
    shapes = {name: p.shape for name, p in module.named_parameters()}

    def loss(x):
        parts = torch.split(x, [shape.numel() for shape in shapes.values()])
        views = {n: p.view(s) for (n, s), p in zip(shapes.items(), parts, strict=True)}
        output = torch.func.functional_call(module, views, (data.X,))
        return problem.loss_function(output, data.y) + problem.l2 / 2 * x.square().sum()

    return torch.autograd.functional.hessian(loss, x)
