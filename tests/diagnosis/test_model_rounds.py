"""Rounds on the quadratic model: side by side they are what each would be alone."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from tests.helpers.losses import quadratics, random
from trimtab.diagnosis import model_rounds
from trimtab.diagnosis.model_rounds import Goal, Rounds, predict
from trimtab.diagnosis.quadratic_model import QuadraticModel

KS = (64, 8, 1)


def model(sigma=0.0, steps=None):
    problem = quadratics(G=1.0, delta=0.2)
    a, U = torch.linalg.eigh(problem.A)
    gradients = torch.stack([problem.client_gradient(i, problem.x_star) for i in range(problem.N)])
    start = problem.x0() - problem.x_star
    return QuadraticModel(problem.weights, a, U, -gradients, start, sigma, steps)


@pytest.mark.parametrize("S", [6, 4])
@pytest.mark.parametrize("sigma", [0.0, 0.02])
@pytest.mark.parametrize("name", ["sgd", "fedavg", "scaffold", "mimelite"])
def test_several_K_side_by_side_are_what_each_is_alone(name, sigma, S, monkeypatch):
    """Rounds, step sizes and finer targets are the same, whatever else runs beside them."""
    goal = Goal(share=0.03, S=S, N=6, R=200, fewest=200)
    together = predict(model(sigma), name, KS, goal)
    monkeypatch.setattr(model_rounds, "NUMBERS", 1)  # So each K runs by itself.
    alone = predict(model(sigma), name, KS, goal)
    assert [one.K for one in together] == list(KS)
    assert any(one.rounds for one in together)
    for a, b in zip(together, alone, strict=True):
        assert (a.rounds, a.eta, a.finer) == (b.rounds, b.eta, b.finer)


@pytest.mark.parametrize("name", ["sgd", "fedavg"])
def test_a_round_without_state_is_one_matrix(name):
    noisy = model(sigma=0.3, steps=5)
    lanes = torch.tensor([1.0, 7.0, 12.0]).double(), torch.tensor([0.5, 0.1, 0.05]).double()
    whole, by_client = (Rounds(noisy, name, *lanes, S=6, N=6) for _ in range(2))
    assert whole.map is not None
    by_client.map = None
    for x, y in islice(zip(whole, by_client, strict=True), 9):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


def test_lanes_that_are_put_away_leave_the_others_as_they_are():
    lanes = torch.tensor([2.0, 3.0, 4.0]).double(), torch.tensor([0.2, 0.1, 0.3]).double()
    every, some = (Rounds(model(0.1), "scaffold", *lanes, S=3, N=6) for _ in range(2))
    next(every), next(some)
    some.keep(torch.tensor([True, False, True]))
    for x, y in islice(zip(every, some, strict=True), 5):
        torch.testing.assert_close(x[[0, 2]], y)


def test_a_K_that_is_slow_is_given_up_and_says_after_how_many_rounds():
    """FedAvg with many local steps stops early; nobody waits for it for a thousand rounds."""
    drifting = replace(model(), b=50 * model().b)
    goal = Goal(share=1e-6, S=6, N=6, R=1000)
    fast = predict(drifting, "scaffold", [8], goal)[0]
    slow = predict(drifting, "fedavg", [8], replace(goal, fewest=fast.rounds))[0]
    assert slow.rounds is None
    assert slow.ran == max(100, 20 * fast.rounds) < 1000


def test_a_start_at_the_optimum_needs_no_rounds():
    there = replace(model(), start=torch.zeros_like(random(12)))
    found = predict(there, "fedavg", [1, 4], Goal(share=0.1, S=6, N=6, R=10))
    assert [(one.rounds, one.finer) for one in found] == [(0, (0, 0))] * 2
