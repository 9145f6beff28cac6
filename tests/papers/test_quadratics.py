"""What `dane` and `nonconvex` stand on: exact maps, and many step sizes side by side."""

from itertools import islice

import pytest
import torch

from trimtab import Scaffold, simulate
from trimtab_papers.dane import problem_of, weight_of
from trimtab_papers.nonconvex import fitted
from trimtab_papers.nonconvex_cells import Regression
from trimtab_papers.quadratics import (
    dane_map,
    quadratics,
    radius,
    scaffold_is_off_by,
)


def small(delta=0.2, seed=0):
    return quadratics(torch.tensor([0.1, 0.4, 0.7], dtype=torch.float64), delta, 4, seed)


@pytest.mark.parametrize("seed", [0, 1])
def test_hessians_are_delta_apart_around_what_was_asked_for(seed):
    problem = small(seed=seed)
    torch.testing.assert_close(problem.H.diag(), torch.tensor([0.1, 0.4, 0.7]).double())
    assert problem.delta == pytest.approx(0.2)
    assert problem.x_star.norm() < 1e-12
    assert problem.G > 0.1
    A, B = problem.A[:2]
    assert (A @ B - B @ A).norm() > 1e-3  # They do not commute.


@pytest.mark.parametrize("delta", [0.0, 0.2])
def test_the_map_of_scaffold_is_what_it_does(delta):
    assert scaffold_is_off_by(small(delta or 1e-9), 0.3, 7) < 1e-12


@pytest.mark.parametrize("ratio", [3, 100])
def test_dane_contracts_as_fast_as_the_norm_of_H_says(ratio):
    # If w >= delta, then H/(H + w + delta) <= (A_i + w)^-1 H <= 1 in the norm of H.
    problem = problem_of(ratio, 0)
    weights = problem.delta * torch.tensor([1.0, 2.0, 10.0], dtype=torch.float64)
    bound = 1 - problem.mu / (problem.mu + weights + problem.delta)
    assert (radius(dane_map(problem, weights)) <= bound + 1e-9).all()
    assert weight_of(problem) == pytest.approx((8 * ratio**2 - 1) * problem.mu)


def sweep(hidden, etas):
    return Regression(hidden, torch.tensor(etas, dtype=torch.float64), 0, N=4, n=5, p=3)


@pytest.mark.parametrize("hidden", [0, 2])
def test_gradients_of_a_regression_are_those_of_its_loss(hidden):
    problem = sweep(hidden, [1.0, 1.0])
    models = problem.rows(torch.linspace(-1, 1, problem.d).double()).requires_grad_()
    (expected,) = torch.autograd.grad(problem.losses(models).sum(), models)
    found = problem.gradients(range(4), models.detach().expand(4, -1, -1)).mean(0)
    torch.testing.assert_close(found, expected)
    if hidden:
        torch.testing.assert_close(
            problem.errors(models.detach().flatten())[0], found[0] @ found[0]
        )


def test_the_error_of_a_linear_model_is_its_loss_above_the_least():
    problem = sweep(0, [1.0])
    x = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64)
    gap = problem.losses(x[None]) - problem.losses(problem.best[None])
    torch.testing.assert_close(problem.errors(x), gap)


@pytest.mark.parametrize("executor", ["batched", "loop"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_step_sizes_side_by_side_are_runs_of_their_own(executor, option):
    etas = [0.05, 0.2, 0.4]
    together = sweep(2, etas)
    one = Scaffold(eta_l=1.0, K=3, option=option)
    *_, many = islice(simulate(one, together, S=2, seed=3, executor=executor), 6)
    for eta, row in zip(etas, together.rows(many.x), strict=True):
        alone = Scaffold(eta_l=eta, K=3, option=option)
        *_, last = islice(simulate(alone, sweep(2, [1.0]), S=2, seed=3), 6)
        torch.testing.assert_close(row, last.x, rtol=0, atol=1e-12)


def test_a_model_that_diverges_leaves_the_others_alone():
    both, alone = sweep(0, [0.1, 1e9]), sweep(0, [0.1])
    runs = [islice(simulate(Scaffold(eta_l=1.0, K=2), problem), 9) for problem in (both, alone)]
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(both.rows(a.x)[0], b.x)


def test_an_exponent_is_common_to_seeds_with_factors_of_their_own():
    fit = fitted({0: {1: 2.0, 4: 4.0, 16: 8.0}, 1: {1: 10.0, 4: 20.0, 16: 40.0}})
    assert (fit.exponent, fit.error) == (pytest.approx(0.5), pytest.approx(0, abs=1e-7))
    noisy = fitted({0: {1: 2.0, 4: 5.0, 16: 8.0}, 1: {1: 9.0, 4: 20.0, 16: 46.0}})
    assert noisy.at_most(1.0) is True
    assert noisy.at_most(0.2) is False
    assert noisy.at_most(noisy.exponent) is None
