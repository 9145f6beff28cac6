"""A module may return a dict that also holds numbers of the whole batch, beside rows of samples."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.learning import randn
from trimtab import Supervised
from trimtab.problems.supervised import mean_loss

X, Y = randn(12, 3), torch.arange(12) % 2
EXTRAS = {
    "0-d tensor": lambda scores: scores.square().mean(),
    "number": lambda scores: 0.25,
    "text": lambda scores: "linear",
}


class WithExtra(nn.Module):
    """Returns logits, and something that has no row for each sample."""

    def __init__(self, extra, outputs=2):
        super().__init__()
        self.linear = nn.Linear(3, outputs)
        self.extra = extra

    def forward(self, X):
        scores = self.linear(X)
        return {"logits": scores, "extra": self.extra(scores)}


def cross_entropy(output, y):
    return F.cross_entropy(output["logits"], y)


def problem_of(extra, loss=cross_entropy, **settings):
    return Supervised(WithExtra(EXTRAS[extra]), loss, [(X[:6], Y[:6]), (X[6:], Y[6:])], **settings)


@pytest.mark.parametrize("extra", EXTRAS)
def test_it_is_evaluated_as_the_logits_alone_are(extra):
    problem = problem_of(extra, metrics=["auc"])
    plain = Supervised(
        nn.Linear(3, 2), nn.CrossEntropyLoss(), [(X[:6], Y[:6]), (X[6:], Y[6:])], metrics=["auc"]
    )
    x = problem.x0()
    assert problem.evaluate(x) == pytest.approx(plain.evaluate(x))
    assert problem.evaluate(x, client=1) == pytest.approx(plain.evaluate(x, client=1))
    torch.testing.assert_close(problem.gradient(x), plain.gradient(x))


@pytest.mark.parametrize("extra", EXTRAS)
def test_large_data_are_computed_at_once(monkeypatch, extra):
    rows = torch.arange(240) % 12
    data = [(X[rows], Y[rows])]
    x = problem_of(extra).x0()
    expected = Supervised(nn.Linear(3, 2), nn.CrossEntropyLoss(), data).evaluate(x)
    monkeypatch.setattr(mean_loss, "_CHUNK", 1)
    assert problem_of(extra).replace(clients=data).evaluate(x) == pytest.approx(expected)


def test_a_number_of_the_batch_can_be_part_of_the_loss():
    def penalised(output, y):
        return F.cross_entropy(output["logits"], y) + output["extra"]

    problem = problem_of("0-d tensor", penalised)
    x = problem.x0()
    scores = F.linear(X[:6], x[:6].view(2, 3), x[6:])
    expected = F.cross_entropy(scores, Y[:6]) + scores.square().mean()
    assert problem.client_loss(0, x) == pytest.approx(float(expected))


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_sum_is_still_found_out(refused, extra):
    def summed(output, y):
        return F.cross_entropy(output["logits"], y, reduction="sum")

    with refused("it is a sum", "pass the mean"):
        problem_of(extra, summed).oracle(0, 0, 1)


@pytest.mark.parametrize("extra", EXTRAS)
def test_shapes_that_broadcast_are_still_found_out(refused, extra):
    def squared(output, y):
        return (output["logits"] - y).square().mean()

    module = WithExtra(EXTRAS[extra], outputs=1)
    with refused("broadcasts", "same shape"):
        Supervised(module, squared, [(X, Y.float())]).oracle(0, 0, 1)
