"""Hessian-vector products of every kind of problem against dense Hessians."""

import pytest
import torch
from losses import Opaque, dense_hessian, logistic, quadratics, random
from torch import nn
from torch.nn import functional as F

from trimtab import Supervised
from trimtab.diagnosis.panel import client_products


def network(*layers, l2=0.1):
    X, y = random(20, 4), torch.arange(20) % 2
    return Supervised(nn.Sequential(*layers), F.cross_entropy, [(X, y)], l2=l2)


MODULES = {
    "linear": [nn.Linear(4, 2)],
    "tanh": [nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)],
    "relu": [nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)],
    "groupnorm": [nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.GELU(), nn.Linear(4, 2)],
    "conv": [nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 2)],
}


@pytest.mark.parametrize("name", MODULES)
def test_products_are_those_of_the_dense_hessian_with_l2(name):
    problem = network(*MODULES[name])
    x, V = problem.x0() + 0.3, random(5, problem.d, seed=1)
    H = dense_hessian(problem, 0, x)
    torch.testing.assert_close(problem.client_hvp(0, x, V), V @ H, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(problem.client_hvp(0, x, V[0]), H @ V[0], rtol=1e-9, atol=1e-9)


def test_products_in_pieces_are_those_in_one_piece(monkeypatch):
    problem = logistic(n=200)
    x, V = problem.x0() + 0.2, random(3, problem.d)
    whole = problem.client_hvp(1, x, V)
    monkeypatch.setattr("trimtab.problems.supervised.mean_loss._CHUNK", 70 * 5 * 8)
    torch.testing.assert_close(problem.client_hvp(1, x, V), whole, rtol=1e-12, atol=1e-12)


def test_a_loss_that_is_linear_has_no_curvature():
    X, y = random(6, 3), random(6, 1)
    problem = Supervised(nn.Linear(3, 1), lambda out, y: (out * y).mean(), [(X, y)])
    assert problem.client_hvp(0, problem.x0(), random(2, 4)).abs().max() == 0


def test_quadratics_give_their_matrices():
    problem, v = quadratics(), random(12)
    torch.testing.assert_close(problem.client_hvp(2, v, v), problem.A[2] @ v)


@pytest.mark.parametrize(("differentiable", "tolerance"), [(True, 1e-10), (False, 1e-6)])
def test_other_problems_are_differentiated_or_differenced(differentiable, tolerance):
    problem = quadratics()
    opaque, V, x = Opaque(problem, differentiable), random(3, 12), random(12, seed=2)
    expected = V @ problem.A[1]
    found = client_products(opaque, 1, x, V)
    assert float((found - expected).norm() / expected.norm()) < tolerance
    assert client_products(opaque, 1, x, torch.zeros(12, dtype=x.dtype)).abs().max() == 0


def test_what_cannot_be_differentiated_twice_is_differenced():
    """Some fused operations of torch have no second derivative, and say so in a RuntimeError."""

    class Once(Opaque):
        def client_hvp(self, i, x, V):
            raise RuntimeError("derivative for aten::fused_backward is not implemented")

    problem = quadratics()
    V, x = random(3, 12), random(12, seed=2)
    expected = V @ problem.A[1]
    found = client_products(Once(problem, differentiable=False), 1, x, V)
    assert float((found - expected).norm() / expected.norm()) < 1e-6
