"""Momentum with variance reduction, central and local: what it is, and where it goes."""

import pytest
import torch

from tests.helpers.quadratics import WEIGHTS, assert_same, path, quadratic
from trimtab import FedAvg, Mime, MimeLiteMvr, MimeMvr, Momentum, ServerMvr, Sgd, simulate

weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
ONES = torch.ones(3, dtype=torch.float64)

eta, K = 0.05, 5
ALL = (
    ServerMvr(eta=K * eta, a=0.3),
    MimeLiteMvr(eta=eta, K=K, a=0.3),
    MimeMvr(eta=eta, K=K, a=0.3),
)


@weighted
@pytest.mark.parametrize("algorithm", ALL, ids=repr)
def test_with_all_clients_the_momentum_is_the_gradient(algorithm, weights):
    problem = quadratic(weights=weights)
    sim = simulate(algorithm, problem, x=ONES)
    for _ in range(20):
        x = sim.server.x
        assert_same(next(sim).server.m, problem.gradient(x))


@weighted
@pytest.mark.parametrize("S", [2, 6])
def test_mvr_without_momentum(S, weights):
    problem = quadratic(sigma=1.0, weights=weights)
    pairs = [
        (ServerMvr(eta=0.2, a=1.0), Sgd(eta=0.2)),
        (MimeLiteMvr(eta=eta, K=K, a=1.0), FedAvg(eta_l=eta, K=K)),
        (MimeMvr(eta=eta, K=K, a=1.0), Mime(eta=eta, K=K, base=Momentum(0.0))),
    ]
    for mvr, plain in pairs:
        assert_same(path(mvr, problem, 20, S=S), path(plain, problem, 20, S=S))


def test_the_error_of_the_momentum_falls_with_a():
    problem = quadratic()

    def error(a):
        """Return the mean of |m - grad f(x)| over the last of many rounds of 2 clients."""
        sim, errors = simulate(ServerMvr(eta=0.1, a=a), problem, S=2, x=ONES), []
        for _ in range(400):
            x = sim.server.x
            errors.append(float((next(sim).server.m - problem.gradient(x)).norm()))
        return sum(errors[100:]) / 300

    large, middling, small = map(error, (1.0, 0.3, 0.1))
    assert small < 0.7 * middling < 0.49 * large


@weighted
def test_central_mvr_reaches_the_optimum_with_all_clients_only(weights):
    problem = quadratic(weights=weights)
    assert_same(path(ServerMvr(eta=0.3, a=0.3), problem, 150)[-1], problem.x_star, atol=1e-9)
    xs = path(ServerMvr(eta=0.3, a=0.3), problem, 150, S=2)
    assert float((xs[-50:] - problem.x_star).norm(dim=1).min()) > 0.01


@weighted
@pytest.mark.parametrize("a", [0.1, 0.5])
def test_mimelite_mvr_stops_at_a_part_of_fedavgs_distance(a, weights):
    """P_i, the sum over k < K of (I - eta A_i)^k, takes a g_i(x) + (1 - a) grad f(x) to -dx_i."""
    problem = quadratic(weights=weights)
    one, p = torch.eye(3, dtype=torch.float64), problem.weights
    P = sum(torch.linalg.matrix_power(one - eta * problem.A, k) for k in range(K))
    mixed = torch.einsum("i,ijk->jk", p, P)  # the mean of P_i, which takes grad f(x)
    of_A = torch.einsum("i,ijk,ikl->jl", p, P, problem.A)
    of_b = torch.einsum("i,ijk,ik->j", p, P, problem.b)
    left = a * of_A + (1 - a) * mixed @ problem.H
    right = a * of_b + (1 - a) * mixed @ (p @ problem.b)
    x = path(MimeLiteMvr(eta=eta, K=K, a=a), problem, 300)[-1]
    assert_same(x, torch.linalg.solve(left, right), atol=1e-9)
    fedavg = problem.fedavg_limit(eta, K)
    ratio = (x - problem.x_star).norm() / (fedavg - problem.x_star).norm()
    assert float(ratio) == pytest.approx(a, rel=0.2)


@weighted
@pytest.mark.parametrize("S", [2, 6])
def test_mime_mvr_with_one_step_is_central(S, weights):
    problem = quadratic(sigma=1.0, weights=weights)  # the noise of g(x, k) - g(x, k) cancels
    local = path(MimeMvr(eta=0.2, K=1, a=0.3), problem, 20, S=S)
    assert_same(local, path(ServerMvr(eta=0.2, a=0.3), problem, 20, S=S))


@weighted
def test_mime_mvr_reaches_the_optimum_with_all_clients_only(weights):
    problem, algorithm = quadratic(weights=weights), MimeMvr(eta=eta, K=K, a=0.3)
    assert_same(path(algorithm, problem, 150)[-1], problem.x_star, atol=1e-9)
    xs = path(algorithm, problem, 150, S=2)
    assert float((xs[-50:] - problem.x_star).norm(dim=1).min()) > 0.01
