"""How far from x* the algorithms stop, as the step size falls: Mangold et al., 2025.

FedAvg's fixed point does not depend on eta_g, so eta_g = reach/(eta_l K) gets there at the same
speed for every eta_l.
"""

from itertools import pairwise
from math import log

import pytest
import torch
from torch.nn.functional import cosine_similarity, softplus

from tests.helpers.quadratics import WEIGHTS, assert_same, distances, fit, path, quadratic
from trimtab import FedAvg, Quadratic, RichardsonRomberg, Scaffold

weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
STEPS = (0.02, 0.01, 0.005)  # each the half of the one before


class Logistic:
    """Logistic regression with 4 clients, d = 3, full batch; each client has its own truth."""

    N, d, l2 = 4, 3, 0.1
    weights = torch.full((4,), 0.25, dtype=torch.float64)

    def __init__(self):
        rng = torch.Generator().manual_seed(0)
        X, noise, truth, scale = (
            torch.randn(*shape, generator=rng, dtype=torch.float64)
            for shape in ((4, 20, 3), (4, 20), (4, 3, 1), (4, 1, 3))
        )
        self.X = (0.5 + scale.abs()) * X
        self.y = torch.sign((self.X @ truth).squeeze(2) + noise)

    def client_loss(self, i, x):
        return softplus(-self.y[i] * (self.X[i] @ x)).mean() + self.l2 / 2 * (x @ x)

    def client_gradient(self, i, x):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(self.client_loss(i, leaf), leaf)[0]

    def client_hessian(self, i, x):
        return torch.autograd.functional.hessian(lambda x: self.client_loss(i, x), x)

    def gradient(self, x):
        return sum(p * self.client_gradient(i, x) for i, p in enumerate(self.weights))

    def loss(self, x):
        return float(sum(p * self.client_loss(i, x) for i, p in enumerate(self.weights)))

    def evaluate(self, x, client=None):
        return {"loss": self.loss(x) if client is None else float(self.client_loss(client, x))}

    def x0(self, seed=0):
        return torch.zeros(3, dtype=torch.float64)

    def oracle(self, i, seed, r):
        return lambda y, k=None: self.client_gradient(i, y)


def first_order_bias(problem, x_star, eta_l, K):
    """Return eta_l (K-1)/2 Hess^-1 sum_c p_c (Hess_c - Hess) grad f_c, all at x*."""
    gradients = torch.stack([problem.client_gradient(i, x_star) for i in range(problem.N)])
    hessians = torch.stack([problem.client_hessian(i, x_star) for i in range(problem.N)])
    hessian = torch.tensordot(problem.weights, hessians, dims=1)
    drift = torch.einsum("n,nij,nj->i", problem.weights, hessians - hessian, gradients)
    return eta_l * (K - 1) / 2 * torch.linalg.solve(hessian, drift)


def fedavg(eta_l, K, reach):
    return FedAvg(eta_l=eta_l, K=K, eta_g=reach / (eta_l * K))


def assert_first_order(biases, predictions):
    """Check that the relative gap to the prediction halves with the step, and the direction."""
    gaps = [float((b - p).norm() / p.norm()) for b, p in zip(biases, predictions, strict=True)]
    assert gaps[0] < 0.1
    for coarse, fine in pairwise(gaps):
        assert 1.8 < coarse / fine < 2.2
    for bias, prediction in zip(biases, predictions, strict=True):
        assert cosine_similarity(bias, prediction, dim=0) > 0.999


def order(errors):
    """Return the exponent p of |error| ~ eta_l^p."""
    return fit([log(eta) for eta in STEPS], [log(error) for error in errors])[0]


# -- quadratics


@weighted
def test_fedavgs_bias_is_the_first_order_formula(weights):
    problem, K = quadratic(weights=weights), 5
    biases = [path(fedavg(eta, K, 0.5), problem, 60)[-1] - problem.x_star for eta in STEPS]
    assert_first_order(biases, [problem.fedavg_bias(eta, K) for eta in STEPS])
    assert order(bias.norm() for bias in biases) == pytest.approx(1, abs=0.1)


@weighted
def test_richardson_rombergs_bias_is_second_order(weights):
    problem, K = quadratic(weights=weights), 5
    algorithms = [RichardsonRomberg(fedavg(eta, K, 0.4)) for eta in STEPS]
    errors = [distances(path(a, problem, 80)[-1], problem.x_star) for a in algorithms]
    assert 1.8 < order(errors) < 2.2
    for eta, error in zip(STEPS, errors, strict=True):
        assert error < 0.2 * distances(problem.fedavg_limit(eta, K), problem.x_star)


@weighted
@pytest.mark.parametrize("case", ["one step", "equal Hessians", "equal gradients at x*"])
def test_fedavg_has_no_bias_with(case, weights):
    some = quadratic()
    A = some.A[:1].expand(6, -1, -1) if case == "equal Hessians" else some.A
    b = A @ some.b[0] if case == "equal gradients at x*" else some.b  # all vanish at b[0]
    problem, K = Quadratic(A, b, weights=weights), 1 if case == "one step" else 5
    x = path(fedavg(0.1, K, 0.5), problem, 80)[-1]
    assert_same(x, problem.x_star)
    assert_same(problem.fedavg_limit(0.1, K), problem.x_star)
    assert_same(problem.fedavg_bias(0.1, K), torch.zeros_like(x))


# -- logistic regression


@pytest.fixture(scope="module")
def logistic():
    return Logistic()


@pytest.fixture(scope="module")
def x_star(logistic):
    x = logistic.x0()
    for _ in range(20):  # Newton
        hessian = sum(logistic.client_hessian(i, x) for i in range(4)) / 4
        x = x - torch.linalg.solve(hessian, logistic.gradient(x))
    assert logistic.gradient(x).norm() < 1e-14
    return x


def test_fedavgs_bias_on_logistic_regression(logistic, x_star):
    K = 10
    biases = [path(fedavg(eta, K, 2.0), logistic, 40)[-1] - x_star for eta in STEPS]
    assert_first_order(biases, [first_order_bias(logistic, x_star, eta, K) for eta in STEPS])
    assert order(bias.norm() for bias in biases) == pytest.approx(1, abs=0.1)


def test_richardson_rombergs_bias_on_logistic_regression_is_second_order(logistic, x_star):
    algorithms = [RichardsonRomberg(fedavg(eta, 10, 1.5)) for eta in STEPS]
    errors = [distances(path(a, logistic, 40)[-1], x_star) for a in algorithms]
    assert 1.8 < order(errors) < 2.2


def test_the_global_step_does_not_move_fedavgs_fixed_point(logistic):
    x, other = (path(fedavg(0.02, 10, reach), logistic, 50)[-1] for reach in (2.0, 3.0))
    assert_same(x, other, atol=1e-9)
    for eta_g in (0.5, 1.0, 5.0):
        stay = path(FedAvg(eta_l=0.02, K=10, eta_g=eta_g), logistic, 3, x=x)
        assert_same(stay, x.expand(3, -1), atol=1e-9)


def test_scaffold_has_no_bias_on_logistic_regression(logistic, x_star):
    x = path(Scaffold(eta_l=0.1, K=10, eta_g=2.0), logistic, 50)[-1]
    assert_same(x, x_star, atol=1e-8)
