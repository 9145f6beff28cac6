"""A module, a loss and a collate must be functions of what they are given, on every executor.

PyTorch's own random numbers are seeded by (seed, client, round, k); all else that makes two calls
differ is refused when the first client is read.
"""

import random
from copy import deepcopy

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.learning import randn
from trimtab import FedAvg, OnBatch, Supervised, simulate

X, Y = randn(8, 3), torch.arange(8) % 2


class Shifted(nn.Module):
    """A linear layer whose outputs are shifted by what a function returns."""

    def __init__(self, shift):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.shift = shift
        self.calls = 0
        self.generator = torch.Generator()

    def __deepcopy__(self, memo):
        copy = Shifted(self.shift)
        copy.linear = deepcopy(self.linear, memo)
        return copy

    def forward(self, X):
        self.calls += 1
        return self.linear(X) + self.shift(self)


IMPURE = {
    "a counter": lambda module: 0.1 * module.calls,
    "every other call": lambda module: 0.1 * (module.calls % 2),
    "NumPy's noise": lambda module: 0.01 * numpy.random.standard_normal(),
    "Python's noise": lambda module: 0.01 * random.random(),
    "a generator of its own": lambda module: torch.randn((), generator=module.generator),
}


def read(module, loss, clients=((X, Y),), **settings):
    problem = Supervised(module, loss, list(clients), **settings)
    problem.oracle(0, 0, 1)
    return problem


@pytest.mark.parametrize("name", IMPURE)
def test_a_module_that_is_no_function_of_its_inputs_is_refused(refused, name):
    with refused("Shifted returns other outputs", "same inputs", "torch.randn"):
        read(Shifted(IMPURE[name]), nn.CrossEntropyLoss())


@pytest.mark.parametrize("name", IMPURE)
def test_so_it_is_where_the_loss_takes_module_and_batch(refused, name):
    loss = OnBatch(lambda module, batch: module(batch[0]).square().mean())
    with refused("the loss", "another value", "same batch"):
        read(Shifted(IMPURE[name]), loss)


def test_a_number_that_changes_beside_the_outputs_is_found_too(refused):
    class Counting(nn.Linear):
        calls = 0

        def forward(self, X):
            self.calls += 1
            return {"scores": super().forward(X), "step": self.calls}

    with refused("Counting returns other outputs"):
        read(Counting(3, 2), lambda output, y: F.cross_entropy(output["scores"], y))


def test_a_loss_that_is_no_function_of_outputs_and_targets_is_refused(refused):
    def noisy(output, y):
        return F.cross_entropy(output, y) + numpy.random.standard_normal()

    with refused("the loss", "another value", "torch.randn"):
        read(nn.Linear(3, 2), noisy)


def test_a_collate_that_draws_otherwise_than_by_torch_is_refused(refused):
    def masked(samples):
        X, y = zip(*samples, strict=True)
        return torch.stack(X) * random.random(), torch.tensor(y)

    samples = [(x, int(y)) for x, y in zip(X, Y, strict=True)]
    with refused("collate", "same samples"):
        read(nn.Linear(3, 2), nn.CrossEntropyLoss(), [samples], collate=masked)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
        Shifted(lambda module: torch.randn(())),
        Shifted(lambda module: 0.0),
        nn.Sequential(nn.Linear(3, 2), nn.Threshold(2.0, float("nan"))),
    ],
    ids=["dropout", "torch's noise", "a counter that changes nothing", "NaN"],
)
def test_a_module_that_draws_by_torch_or_only_counts_is_taken(module):
    read(module, nn.CrossEntropyLoss())


def test_a_loss_that_draws_by_torch_draws_by_seed_client_round_and_step():
    def smoothed(output, y):
        return F.cross_entropy(output + torch.randn_like(output), y)

    def after_a_round():
        run = simulate(FedAvg(eta_l=0.1, K=2), problem, executor="loop", seed=3)
        return next(run).x

    problem = read(nn.Linear(3, 2), smoothed)
    g, x = problem.oracle(0, 0, 1), problem.x0()
    assert torch.equal(g(x, 1), g(x, 1))
    assert not torch.equal(g(x, 1), g(x, 2))
    before = torch.get_rng_state()
    assert torch.equal(after_a_round(), after_a_round())
    assert torch.equal(before, torch.get_rng_state())
