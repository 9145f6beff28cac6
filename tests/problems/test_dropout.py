"""Random numbers of modules: the bits of a seeded global generator, without waiting for a lock."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Scaffold, Supervised, simulate
from trimtab.problems.supervised.mean_loss import GENERATORS

FEATURES, CLASSES, N = 6, 3, 8


class Called(nn.Module):
    """A linear layer on what a function makes of the inputs, in training only."""

    def __init__(self, function):
        super().__init__()
        self.function, self.layer = function, nn.Linear(FEATURES, CLASSES)

    def forward(self, X):
        return self.layer(self.function(X) if self.training else X)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(FEATURES, 2, dropout=0.5, batch_first=True)
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, X):
        return self.out(self.attention(X[:, None], X[:, None], X[:, None])[0][:, 0])


def net(*layers, inputs=FEATURES):
    return nn.Sequential(nn.Linear(FEATURES, inputs), *layers, nn.Linear(inputs, CLASSES))


def channels(kind, *shape):
    return net(nn.Unflatten(1, (4, *shape)), kind(0.5), nn.Flatten(), inputs=16)


APART = {
    "dropout": lambda: net(nn.Dropout(0.3), nn.Tanh(), nn.Dropout(0.5)),
    "in place": lambda: net(nn.Dropout(0.3, inplace=True), nn.Tanh()),
    "of nothing": lambda: net(nn.Dropout(0.0), nn.Dropout(1.0), nn.Dropout(0.4)),
    "1d": lambda: channels(nn.Dropout1d, 4),
    "2d": lambda: channels(nn.Dropout2d, 2, 2),
    "3d": lambda: channels(nn.Dropout3d, 2, 2, 1),
    "by a function": lambda: Called(lambda X: F.dropout(F.dropout(X, 0.2), training=False)),
    "noise": lambda: Called(lambda X: X + torch.randn_like(X) * torch.rand(len(X), 1)),
    "noise in place": lambda: Called(lambda X: X * torch.empty_like(X).bernoulli_(0.7)),
    "a layer that is skipped": lambda: Called(lambda X: X if torch.rand(()) < 0.5 else -X),
}
LOCKED = {
    "attention": Attention,
    "alpha": lambda: net(nn.AlphaDropout(0.5)),
    "RReLU": lambda: net(nn.RReLU(0.1, 0.9)),
}


def problem_of(module, **options):
    draw = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(20, FEATURES, generator=draw), torch.randint(CLASSES, (20,), generator=draw))
        for _ in range(N)
    ]
    return Supervised(module, F.cross_entropy, clients, batch=5, **options)


def gradients(problem):
    """Return gradients of several clients, mini-batches and passes, and check what they leave."""
    x, before = problem.x0(), torch.get_rng_state()
    found = [problem.oracle(i, 7, 1)(x, k) for i in (0, 3) for k in (0, 1, None)]
    assert torch.equal(torch.get_rng_state(), before)
    return torch.stack(found)


def in_a_thread(function, *arguments):
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(function, *arguments).result(60)
    finally:
        pool.shutdown(wait=False)


@pytest.mark.parametrize("name", [*APART, *LOCKED])
def test_a_thread_has_the_bits_of_the_global_generator(name):
    problem = problem_of((APART | LOCKED)[name]())
    found = gradients(problem)  # the main thread seeds the global generator
    assert problem._mean_loss._draws_apart == (name in APART)
    assert torch.equal(in_a_thread(gradients, problem), found)
    assert problem._mean_loss._draws_apart == (name in APART)
    assert not torch.equal(problem.oracle(0, 8, 1)(problem.x0(), 0), found[0])


@pytest.mark.parametrize("name", APART)
def test_a_thread_waits_for_no_other(name):
    problem = problem_of(APART[name]())
    expected = gradients(problem)
    with GENERATORS:  # as a thread holds it that needs the global generators
        assert torch.equal(in_a_thread(gradients, problem), expected)


class Sometimes(nn.Module):
    """Draws inside of PyTorch for some data only, which the first client does not have."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, X):
        X = F.dropout(X, 0.5, self.training)
        return self.layer(F.alpha_dropout(X, 0.5, self.training) if X.abs().max() > 9 else X)


def test_a_module_that_draws_otherwise_later_has_the_same_bits():
    problem = problem_of(Sometimes())
    problem.clients[3].X[:] *= 100
    problem.oracle(0, 7, 1)(problem.x0(), 0)
    assert problem._mean_loss._draws_apart
    found = in_a_thread(gradients, problem)
    assert not problem._mean_loss._draws_apart
    assert torch.equal(gradients(problem), found)
    assert torch.equal(in_a_thread(gradients, problem), found)


@pytest.mark.parametrize("name", ["dropout", "2d", "attention"])
def test_threads_take_the_steps_of_the_loop(name):
    module = (APART | LOCKED)[name]()
    ends = []
    for executor in ("loop", "threads"):
        sim = simulate(Scaffold(eta_l=0.1, K=3), problem_of(module), S=4, executor=executor)
        for _ in range(3):
            x = next(sim).x
        ends.append(x)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)  # in another order of sums
