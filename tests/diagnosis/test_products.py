"""Hessian-vector products of every kind of problem against dense Hessians."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.losses import Opaque, dense_hessian, everybody, logistic, quadratics, random
from trimtab import Supervised
from trimtab.compute import kernel
from trimtab.diagnosis.panel import client_products
from trimtab.diagnosis.rules import Rules
from trimtab.problems.adapter import as_problem
from trimtab.problems.supervised.objective import Curvature


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


def several(
    *layers, sizes=(20, 20, 20, 20, 20), loss=F.cross_entropy, y=lambda n: torch.arange(n) % 2
):
    clients = [(random(n, 4, seed=i), y(n)) for i, n in enumerate(sizes)]
    return Supervised(nn.Sequential(*layers), loss, clients, l2=0.1)


def in_turn(problem, x, V):
    rows = V.expand(problem.N, *V.shape[-2:])
    return torch.stack([problem.client_hvp(i, x, rows[i]) for i in range(problem.N)])


AT_ONCE = {name: (layers, {}) for name, layers in MODULES.items()}
AT_ONCE |= {
    "unequal": (MODULES["tanh"], {"sizes": (20, 12, 20, 20, 7, 20)}),
    "linear, unequal": (MODULES["linear"], {"sizes": (20, 12, 5)}),
    "no bias": ([nn.Linear(4, 2, bias=False)], {}),
    "regression": ([nn.Linear(4, 3)], {"loss": F.mse_loss, "y": lambda n: random(n, 3)}),
    "two labels": (
        [nn.Linear(4, 3)],
        {
            "loss": F.binary_cross_entropy_with_logits,
            "y": lambda n: (random(n, 3) > 0).double(),
        },
    ),
}


@pytest.mark.parametrize("name", AT_ONCE)
@pytest.mark.parametrize("shape", [(3,), (6, 2)], ids=["rows for all", "rows for each"])
def test_products_of_several_clients_are_those_of_each(name, shape):
    layers, how = AT_ONCE[name]
    problem = several(*layers, **how)
    shape = (problem.N, *shape[1:]) if len(shape) == 2 else shape
    x, V = problem.x0() + 0.3, random(*shape, problem.d, seed=1)
    assert problem.chunk_hvp is not None
    found = problem.chunk_hvp(range(problem.N), x, V)
    torch.testing.assert_close(found, in_turn(problem, x, V), rtol=1e-9, atol=1e-9)


def test_batched_derivatives_that_are_wrong_are_found_out_and_not_used(monkeypatch):
    problem = several(*MODULES["groupnorm"])
    right = Curvature._at_once
    monkeypatch.setattr(Curvature, "_at_once", lambda *how: 1.01 * right(*how))
    x, V = problem.x0() + 0.3, random(3, problem.d, seed=1)
    found = problem.chunk_hvp(range(problem.N), x, V)
    torch.testing.assert_close(found, in_turn(problem, x, V), rtol=1e-9, atol=1e-9)
    assert problem.chunk_hvp is None


def test_several_clients_at_once_have_no_dropout():
    problem = several(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    assert problem.chunk_hvp is None  # A module that draws has no such way.
    x, V = problem.x0() + 0.3, random(2, problem.d)
    found = torch.stack(list(everybody(problem).all_products(x, V)))
    torch.testing.assert_close(found, in_turn(problem, x, V))


@pytest.mark.parametrize("make", [quadratics, logistic, lambda: several(*MODULES["tanh"])])
@pytest.mark.parametrize("at_once", [1, 2, 64])
def test_a_panel_yields_the_products_of_one_client_after_the_other(make, at_once, monkeypatch):
    problem = make()
    monkeypatch.setattr("trimtab.diagnosis.panel.RULES", Rules(step=at_once))
    x, V = problem.x0(0).double() + 0.2, random(5, problem.d, seed=3)
    panel = everybody(problem)
    expected = in_turn(problem, x, V)
    torch.testing.assert_close(torch.stack(list(panel.all_products(x, V))), expected)
    some = [2, 0]
    found = torch.stack(list(panel.all_products(x, V, clients=some)))
    torch.testing.assert_close(found, expected[some])
    mean = torch.einsum("n,nmd->md", problem.weights, expected)
    torch.testing.assert_close(panel.mean_products(x, V), mean)


def test_the_first_products_come_whatever_the_time_is():
    panel = everybody(quadratics(N=200, d=6))
    x, V = random(6), random(3, 6)
    assert 1 <= len(list(panel.all_products(x, V, out_of_time=lambda: True))) < 200


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
    opaque, V, x = as_problem(Opaque(problem, differentiable)), random(3, 12), random(12, seed=2)
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
    found = client_products(as_problem(Once(problem, differentiable=False)), 1, x, V)
    assert float((found - expected).norm() / expected.norm()) < 1e-6


@pytest.mark.parametrize("name", ["linear", "tanh", "conv"])
def test_gradients_of_single_samples_are_those_of_each(name):
    problem = network(*MODULES[name])
    x, data = problem.x0() + 0.3, problem.clients[0]
    each = [problem.sample_gradient(x, data.cut(j, j + 1)) for j in range(len(data))]
    found = problem.sample_gradients(x, data)
    torch.testing.assert_close(found, torch.stack(each), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.mean(0), problem.client_gradient(0, x), rtol=1e-9, atol=1e-12)


LINEAR = {
    "cross-entropy": (F.cross_entropy, 4),
    "one sigmoid": (F.binary_cross_entropy_with_logits, 1),
    "three sigmoids": (F.binary_cross_entropy_with_logits, 3),
    "least squares": (F.mse_loss, 2),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LINEAR)
def test_closed_forms_of_linear_models_are_what_autograd_gives(name, bias):
    loss, C = LINEAR[name]
    X = random(12, 3)
    y = torch.arange(12) % C if C == 4 else random(12, C, seed=1).sigmoid()
    module = nn.Linear(3, C, bias=bias).double()
    problem = Supervised(module, loss, [(X, y), (X[:5], y[:5])], l2=0.1)
    x = random(problem.d, seed=2)

    def f(x):
        b = x[3 * C :] if bias else None
        return loss(F.linear(X, x[: 3 * C].view(C, 3), b), y) + 0.05 * x.square().sum()

    hessian = torch.autograd.functional.hessian(f, x)
    torch.testing.assert_close(problem.client_hessian(0, x), hessian)


def test_networks_have_no_such_closed_form():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    problem = Supervised(module, F.cross_entropy, [(random(6, 3), torch.arange(6) % 2)] * 2)
    assert problem.client_hessian is None


def test_the_hessian_of_a_linear_model_does_not_need_the_kernel(monkeypatch):
    problem = network(nn.Linear(4, 2))
    x = problem.x0()
    expected = problem.client_hessian(0, x)
    monkeypatch.setattr(kernel, "works", lambda dtype: False)
    assert problem.kernel is None
    assert torch.equal(problem.client_hessian(0, x), expected)
