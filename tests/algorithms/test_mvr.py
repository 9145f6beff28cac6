"""Momentum with variance reduction, central and local: what it is, and where it goes."""

import pytest
import torch
from quadratics import WEIGHTS, assert_same, path, quadratic

from trimtab import ServerMvr, Sgd, simulate

weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
ONES = torch.ones(3, dtype=torch.float64)

eta, K = 0.05, 5
ALL = (ServerMvr(eta=K * eta, a=0.3),)


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
    pairs = [(ServerMvr(eta=0.2, a=1.0), Sgd(eta=0.2))]
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
