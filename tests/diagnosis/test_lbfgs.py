"""L-BFGS: it finds minima, steps back from where f is not a number, and ends."""

from math import inf, nan

import pytest
import torch

from tests.helpers.losses import everybody, logistic
from trimtab.diagnosis import optimum
from trimtab.diagnosis.optimum import minimise
from trimtab.diagnosis.rules import RULES


def of(f, seen=None):
    """Return f with its gradient, by autograd."""

    def look(x):
        leaf = x.clone().requires_grad_()
        value = f(leaf)
        if seen is not None:
            seen.append(float(value.detach()))
        return float(value.detach()), torch.autograd.grad(value, leaf)[0]

    return look


def rosenbrock(x):
    return 100 * (x[1:] - x[:-1] ** 2).square().sum() + (1 - x[:-1]).square().sum()


def test_the_minimum_of_rosenbrocks_function_is_found():
    found = minimise(of(rosenbrock), torch.tensor([-1.2, 1.0] * 3).double(), memory=10, most=500)
    torch.testing.assert_close(found, torch.ones(6).double(), rtol=1e-6, atol=1e-6)


def test_an_ill_conditioned_quadratic_takes_far_fewer_steps_than_gradient_descent():
    scales, seen = torch.logspace(-4, 0, 50, dtype=torch.float64), []
    f = of(lambda x: (scales * x.square()).sum() / 2, seen)
    found = minimise(f, torch.ones(50).double(), memory=20, most=200)
    assert float((scales * found.square()).sum()) < 1e-6 * float(scales.sum())
    assert len(seen) < 300  # Gradient descent would need some 10,000 x log(1e6) of them.


def test_f_never_rises_from_one_step_to_the_next_and_nan_is_stepped_back_from():
    """log(x) is not a number below 0, where the first step leads."""
    start = torch.tensor([3.0]).double()
    found = minimise(of(lambda x: (x - 0.1 * torch.log(x)).sum()), start, memory=5, most=50)
    torch.testing.assert_close(found, torch.tensor([0.1]).double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [nan, inf])
def test_a_function_that_is_nowhere_lower_ends(value):
    seen = []

    def look(x):
        seen.append(x)
        return (0.0, torch.ones_like(x)) if len(seen) == 1 else (value, torch.ones_like(x))

    start = torch.zeros(2).double()
    assert torch.equal(minimise(look, start, memory=5, most=50), start)
    assert len(seen) < 50


def test_a_search_ends_where_f_hardly_falls_any_more():
    """A valley without end: f falls for ever, and its slope hardly changes."""

    class Valley:
        N, d, weights = 2, 3, torch.ones(2).double() / 2
        looks = 0
        x0 = oracle = None

        def loss(self, x):
            return float(1e3 * x[0] ** 2 - 1e-6 * x[1])

        def gradient(self, x):
            self.looks += 1
            return torch.tensor([2e3 * float(x[0]), -1e-6, 0.0]).double()

    valley = Valley()
    way = optimum.descend(everybody(valley), torch.ones(3).double())
    assert valley.looks < 3 * RULES.patience
    assert abs(float(way[-1].x[0])) < 1e-3


def test_a_search_of_a_convex_problem_goes_on_until_it_is_close():
    problem = logistic(l2=1e-4)
    way = optimum.descend(everybody(problem), problem.x0())
    start = float(problem.gradient(problem.x0()).norm())
    assert way[-1].slope <= RULES.flat * start
    assert way[-1].f == pytest.approx(problem.loss(way[-1].x))
    losses = [passed.f for passed in way]
    assert losses == sorted(losses, reverse=True)
