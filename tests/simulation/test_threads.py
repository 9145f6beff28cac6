"""A module serves one thread at a time: what clients compute at once is what they compute alone."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Scaffold, Supervised, simulate
from trimtab.simulation.executors.threads import Threads


class Inner(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.Linear(width, width),
        )

    def forward(self, X):
        return X + self.second(torch.tanh(self.norm(self.first(X))))


class Net(nn.Module):
    """Submodules inside submodules, one of them in two places."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Inner(24), Inner(24)])
        self.again, self.out = self.blocks[0], nn.Linear(24, 3)

    def forward(self, X):
        for block in self.blocks:
            X = block(X)
        return self.out(self.again(X))


def problem(**settings):
    draw = torch.Generator().manual_seed(1)
    clients = [
        (
            torch.randn(30, 24, generator=draw, dtype=torch.float64),
            torch.randint(3, (30,), generator=draw),
        )
        for _ in range(12)
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net().double()
    return Supervised(net, F.cross_entropy, clients, batch=10, **settings)


@pytest.fixture
def hurried():
    """Let threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def check_threads(made, seeds):
    """Compare some rounds in four threads with those of the loop."""
    for seed in seeds:
        algorithm = Scaffold(eta_l=0.1, K=4)
        loop = simulate(algorithm, problem(), executor="loop", seed=seed)
        threads = simulate(algorithm, made, executor=Threads(4), seed=seed)
        for _ in range(3):
            expected, found = next(loop).x, next(threads).x
        assert (found - expected).norm() <= 1e-10 * (expected - made.x0()).norm()


@pytest.mark.usefixtures("hurried")
def test_clients_in_threads_do_what_they_do_one_by_one():
    check_threads(problem(), seeds=range(3))


@pytest.mark.usefixtures("hurried")
def test_graphs_may_be_captured_and_replayed_by_several_threads():
    made = problem()
    x = made.x0() + 0.1 * torch.randn(12, made.d, generator=torch.Generator().manual_seed(2))
    chunks = [range(j, j + size) for size in (4, 6, 8) for j in range(0, 12 - size, 2)] * 3

    def gradients(chunk):
        with torch.no_grad():
            return made.chunk_oracle(chunk, 0, 1)(x[chunk.start : chunk.stop], 1)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(gradients, chunks))
    assert made.why_not_vectorised() == ""
    for chunk, each in zip(chunks, found, strict=True):
        expected = torch.stack([made.oracle(i, 0, 1)(x[i], 1) for i in chunk])
        torch.testing.assert_close(each, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("hurried")
def test_one_module_for_all_threads_would_be_found_out(monkeypatch):
    """The mistake that the tests above are there for."""
    made = problem()
    kind = type(made._mean_loss)
    monkeypatch.setattr(kind, "thread_model", property(lambda mean: mean.model))
    with pytest.raises((ValueError, RuntimeError, AssertionError)):
        check_threads(made, seeds=range(20))
