"""f and its gradient in one pass over all samples: the same numbers as client by client."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import OnBatch, Supervised


def clients(sizes=(5, 9, 3), classes=3):
    draw = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(n, 4, generator=draw, dtype=torch.float64),
            torch.randint(classes, (n,), generator=draw),
        )
        for n in sizes
    ]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


@pytest.mark.parametrize("weights", [None, "samples", [1.0, 2.0, 5.0]])
@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_one_pass_gives_what_the_clients_give_one_by_one(weights, loss):
    problem = Supervised(network(), loss, clients(), weights=weights, l2=0.1)
    one_pass = problem.in_one_pass()
    x = problem.x0() + 0.3
    value, gradient = one_pass.loss_and_gradient(x)
    expected = sum(float(p) * problem.client_loss(i, x) for i, p in enumerate(problem.weights))
    assert value == pytest.approx(expected, rel=1e-12)
    assert one_pass.loss(x) == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(gradient, problem.gradient(x))


def test_a_loss_of_ones_own_is_asked_client_by_client():
    """Its mean over all samples is not the mean of the clients' means."""
    asked = []

    def loss(output, y):
        asked.append(len(y))
        return F.cross_entropy(output, y).exp()

    problem = Supervised(network(), loss, clients())
    one_pass = problem.in_one_pass()
    asked.clear()
    value, _ = one_pass.loss_and_gradient(problem.x0())
    assert asked == [5, 9, 3]
    assert value == pytest.approx(problem.loss(problem.x0()), rel=1e-12)


class Centred(nn.Module):
    """A module whose outputs depend on the other samples of the batch."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3).double()

    def forward(self, X):
        return self.inner(X - X.mean(0))


def test_samples_are_not_pooled_where_that_is_something_else():
    assert Supervised(Centred(), F.cross_entropy, clients()).in_one_pass() is None
    on_batch = OnBatch(lambda module, batch: F.cross_entropy(module(batch[0]), batch[1]))
    assert Supervised(network(), on_batch, clients()).in_one_pass() is None
    assert Supervised(network(), F.cross_entropy, clients()).in_one_pass() is not None


def test_many_bytes_are_not_pooled():
    X, y = torch.zeros(70_000, 16), torch.zeros(70_000, dtype=torch.long)
    problem = Supervised(nn.Linear(16, 2), F.cross_entropy, [(X[:9], y[:9]), (X, y)])
    assert problem.in_one_pass() is None
