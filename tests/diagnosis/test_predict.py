"""Rounds on the quadratic model: the algorithms themselves, several step sizes side by side."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from tests.helpers.losses import quadratics, random
from trimtab import simulate
from trimtab.algorithms.registry import NAMES, kind
from trimtab.diagnosis import predict as module
from trimtab.diagnosis.predict import (
    Aim,
    QuadraticModel,
    SideBySide,
    predict,
    runs_side_by_side,
)
from trimtab.diagnosis.rules import RULES, make

ETAS = torch.tensor([0.05, 0.4], dtype=torch.float64)


def model(sigma=0.0, steps=None):
    problem = quadratics(G=1.0, delta=0.2)
    gradients = torch.stack([problem.client_gradient(i, problem.x_star) for i in range(problem.N)])
    start = problem.x0() - problem.x_star
    return QuadraticModel(problem.weights, problem.A, -gradients, start, sigma, steps)


@pytest.mark.parametrize("S", [6, 4])
@pytest.mark.parametrize(("sigma", "steps"), [(0.0, None), (0.02, None), (0.02, 3)])
@pytest.mark.parametrize("name", ["sgd", "fedavg", "scaffold", "mimelite"])
def test_step_sizes_side_by_side_are_what_each_is_alone(name, sigma, steps, S):
    aim, noisy = Aim(0.0, S, 6, R=6), model(sigma, steps)
    together = list(module._gaps(noisy, name, 5, ETAS, aim))
    for j, eta in enumerate(ETAS):
        alone = module._gaps(noisy, name, 5, eta[None], aim, scaled=False)
        for both, one in zip(together, alone, strict=True):
            torch.testing.assert_close(both[j], one[0])


@pytest.mark.parametrize("name", ["sgd", "fedavg", "scaffold"])
def test_rounds_on_the_model_of_quadratics_are_rounds(name):
    problem, aim = quadratics(G=1.0, delta=0.2), Aim(0.0, 6, 6, R=8)
    first = problem.evaluate(problem.x0())["gap"]
    rounds = simulate(make(name, 5, 0.3), problem)
    gaps = module._gaps(model(), name, 5, torch.tensor([0.3], dtype=torch.float64), aim)
    for gap, done in zip(gaps, islice(rounds, 8), strict=True):
        assert float(gap[0]) == pytest.approx(problem.evaluate(done.x)["gap"] / first, rel=1e-6)


def test_what_is_not_linear_in_its_gradients_runs_alone():
    assert all(runs_side_by_side(name) for name in ("sgd", "fedavg", "scaffold", "mime"))
    assert not runs_side_by_side("fedprox")  # Its proximal term does not grow with the step size.


@pytest.mark.parametrize("name", [name for name in NAMES if kind(name).step])
def test_every_registered_algorithm_can_be_predicted(name):
    aim = Aim(share=0.2, S=6, N=6, R=12)
    found = predict(model(), name, 2, aim)
    assert found.algorithm == name
    assert found.ran > 0
    assert found.eta > 0
    assert found.gap < 1


def test_an_exploded_step_size_leaves_the_others_as_they_are():
    aim = Aim(0.0, 6, 6, R=30)
    both = torch.tensor([0.3, 50.0], dtype=torch.float64)
    gaps = torch.stack(list(module._gaps(model(), "scaffold", 16, both, aim)))
    alone = torch.stack(list(module._gaps(model(), "scaffold", 16, both[:1], aim)))
    assert len(gaps) == 30
    assert gaps[-1, 1] > module.EXPLODED
    torch.testing.assert_close(gaps[:, 0], alone[:, 0])


def test_noise_over_a_pass_adds_up_to_nothing_and_has_its_size():
    problem = SideBySide(model(0.3, steps=4), torch.ones(1, dtype=torch.float64))
    drawn = torch.stack([problem._drawn(0, 1, k) for k in range(4)])
    assert float(drawn.sum(0).abs().max()) < 1e-12
    many = torch.stack([problem._drawn(0, r, 0) for r in range(1, 400)])
    assert float(many.square().sum(2).mean()) == pytest.approx(0.09, rel=0.1)


def test_a_K_that_is_slow_is_given_up_and_says_after_how_many_rounds():
    """FedAvg with many local steps stops early; nobody waits for it."""
    drifting = replace(model(), b=50 * model().b)
    aim = Aim(share=1e-6, S=6, N=6)
    fast = predict(drifting, "scaffold", 8, aim)
    slow = predict(drifting, "fedavg", 8, aim, fewest=fast.rounds)
    assert slow.rounds is None
    assert slow.ran == max(RULES.least, RULES.behind * fast.rounds) < RULES.rounds


def test_rounds_end_when_the_time_is_over():
    asked = iter([False, False, True])
    found = predict(model(), "fedavg", 4, Aim(1e-30, 6, 6), out_of_time=lambda: next(asked))
    assert (found.rounds, found.ran) == (None, 3)


def test_a_start_at_the_optimum_needs_no_rounds():
    there = replace(model(), start=torch.zeros_like(random(12)))
    assert predict(there, "fedavg", 4, Aim(0.1, 6, 6)).rounds == 0


def test_a_lucky_round_does_not_count_where_rounds_are_drawn_at_random():
    """As in `compare`, a target is held if at most a quarter of the next rounds miss it."""
    gaps = [1.0, 0.05, 0.9, 0.5, 0.08, 0.07, 0.06, 0.05]
    rounds = [torch.tensor([gap], dtype=torch.float64) for gap in gaps]
    eta, never = torch.ones(1, dtype=torch.float64), lambda: False
    lucky, steady = (
        module._counted("sgd", 1, eta, iter(rounds), Aim(0.1, 3, 6, by_chance=b), None, never)
        for b in (False, True)
    )
    assert (lucky.rounds, steady.rounds) == (2, 5)


def test_the_step_size_is_the_smallest_that_is_about_as_good():
    found = predict(model(), "scaffold", 4, Aim(1e-3, 6, 6))
    gaps = module._gaps(model(), "scaffold", 4, module.step_sizes(model(), 4), Aim(0, 6, 6, R=99))
    there = torch.stack(list(islice(gaps, found.ran))) <= 1e-3
    good = there[: int(RULES.near * found.rounds)].any(0)
    assert found.eta == float(module.step_sizes(model(), 4)[good].min())
