"""Where the algorithms go at constant steps without noise, and how fast."""

from math import log

import pytest
import torch

from tests.helpers.quadratics import (
    BASES,
    SCAFFOLDS,
    WEIGHTS,
    Unequal,
    assert_same,
    distances,
    fit,
    path,
    quadratic,
)
from trimtab import (
    Adagrad,
    FedAvg,
    FedOpt,
    FedProx,
    Mime,
    MimeLite,
    Momentum,
    Quadratic,
    Scaffold,
    ServerOnly,
    Sgd,
)

weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
every_scaffold = pytest.mark.parametrize("variant", SCAFFOLDS, ids=["I", "II", "lean"])
every_base = pytest.mark.parametrize("base", BASES, ids=lambda base: type(base).__name__)
# With S < N Adagrad's v grows for ever: its steps vanish, so it nears x* as slowly as they do.
steady_base = pytest.mark.parametrize("base", BASES[:3], ids=lambda base: type(base).__name__)

eta_l, K = 0.05, 5


def step(base):
    return 2.5 if isinstance(base, Adagrad) else 0.25  # Adagrad divides by all it has seen


def stays_away(xs, x_star):
    return bool((distances(xs[-50:], x_star) > 0.01).all())


# -- SCAFFOLD and FedAvg


@weighted
@every_scaffold
@pytest.mark.parametrize("lost", [0.0, 0.3])
def test_scaffold_reaches_the_optimum_with_sampling_and_drop_outs(variant, lost, weights):
    problem = quadratic(weights=weights)
    x = path(Scaffold(eta_l=eta_l, K=K, **variant), problem, 200, S=2, lost=lost)[-1]
    assert_same(x, problem.x_star, atol=1e-8)


@weighted
@pytest.mark.parametrize("S", [2, 6])
def test_fedavg_with_the_same_steps_stays_away(S, weights):
    problem = quadratic(weights=weights)
    assert stays_away(path(FedAvg(eta_l=eta_l, K=K), problem, 100, S=S), problem.x_star)


@weighted
@pytest.mark.parametrize("S", [2, 6])
@pytest.mark.parametrize("variant", SCAFFOLDS[:2], ids=["I", "II"])
def test_scaffold_reaches_the_optimum_with_unequal_numbers_of_steps(variant, S, weights):
    """At x*, with c_i = grad f_i(x*), no client moves, however many steps it makes."""
    problem, executor = quadratic(weights=weights), Unequal([1, 2, 3, 4, 6, 9])
    x = path(Scaffold(eta_l=eta_l, K=K, **variant), problem, 300, S=S, executor=executor)[-1]
    assert_same(x, problem.x_star, atol=1e-9)


def test_the_weighted_optimum_is_another_one():
    assert (quadratic(weights=WEIGHTS).x_star - quadratic().x_star).norm() > 0.1


def test_sgd_reaches_the_optimum_with_all_clients_only():
    problem = quadratic()
    assert_same(path(Sgd(eta=0.3), problem, 100)[-1], problem.x_star)
    assert stays_away(path(Sgd(eta=0.3), problem, 100, S=2), problem.x_star)


# -- where the biased ones stop: P_i, the sum over k < K of (I - eta_l B_i)^k, takes g_i(x) to -dx_i


def sum_of_powers(B):
    return sum(torch.linalg.matrix_power(torch.eye(3) - eta_l * B, k) for k in range(K))


def mean(problem, t):
    return torch.tensordot(problem.weights, t, dims=1)


def limit(problem, P):
    """Return the x at which the mean of P_i (A_i x - b_i) is zero."""
    P_b = (P @ problem.b[:, :, None]).squeeze(2)
    return torch.linalg.solve(mean(problem, P @ problem.A), mean(problem, P_b))


@weighted
@pytest.mark.parametrize("eta_g", [0.5, 1.0, 1.5])
def test_fedavg_stops_at_its_limit_for_every_global_step(eta_g, weights):
    problem = quadratic(weights=weights)
    x = path(FedAvg(eta_l=eta_l, K=K, eta_g=eta_g), problem, 150)[-1]
    assert_same(x, limit(problem, sum_of_powers(problem.A)), atol=1e-9)
    assert_same(x, problem.fedavg_limit(eta_l, K), atol=1e-9)


@weighted
@every_base
def test_fedopt_stops_where_fedavg_does(base, weights):
    """The pseudo-gradient, mean of x - y, vanishes nowhere else."""
    problem = quadratic(weights=weights)
    xs = path(FedOpt(eta_l=eta_l, K=K, base=base, eta_g=2 * step(base)), problem, 100)
    assert_same(xs[-1], problem.fedavg_limit(eta_l, K), atol=1e-8)
    assert stays_away(xs, problem.x_star)


@weighted
def test_fedprox_stops_where_fedavg_does_to_first_order(weights):
    """The proximal term adds the same to every A_i, and the first-order bias sees A_i - H."""
    problem, mu = quadratic(weights=weights), 2.0
    x = path(FedProx(eta_l=eta_l, K=K, mu=mu), problem, 150)[-1]
    assert_same(x, limit(problem, sum_of_powers(problem.A + mu * torch.eye(3))), atol=1e-9)
    bias, bias_fedavg = x - problem.x_star, problem.fedavg_limit(eta_l, K) - problem.x_star
    assert 0.001 < (bias - bias_fedavg).norm() / bias_fedavg.norm() < 0.05


@weighted
def test_momentum_shrinks_the_bias_of_mimelite(weights):
    """At the fixed point beta m = beta/(1 - beta) grad f(x), a part that all clients share."""
    problem, beta = quadratic(weights=weights), 0.8
    x = path(MimeLite(eta=eta_l, K=K, base=Momentum(beta)), problem, 250)[-1]
    P = sum_of_powers(problem.A)
    assert_same(x, limit(problem, P + beta / (1 - beta) * mean(problem, P)), atol=1e-9)
    fedavg = problem.fedavg_limit(eta_l, K)
    ratio = distances(x, problem.x_star) / distances(fedavg, problem.x_star)
    assert ratio == pytest.approx(1 - beta, rel=0.2)  # to first order in eta


@steady_base
def test_mimelite_stays_away_even_with_all_clients(base):
    problem = quadratic()
    assert stays_away(
        path(MimeLite(eta=step(base) / K, K=K, base=base), problem, 100), problem.x_star
    )


# -- Mime and the central optimiser


@weighted
@every_base
def test_mime_reaches_the_optimum_with_all_clients(base, weights):
    problem = quadratic(weights=weights)
    x = path(Mime(eta=step(base) / K, K=K, base=base), problem, 100)[-1]
    assert_same(x, problem.x_star, atol=1e-8)


@steady_base
def test_mime_does_not_with_a_sample(base):
    problem = quadratic()
    assert stays_away(
        path(Mime(eta=step(base) / K, K=K, base=base), problem, 100, S=2), problem.x_star
    )


@weighted
@every_base
def test_serveronly_reaches_the_optimum_with_all_clients(base, weights):
    problem = quadratic(weights=weights)
    x = path(ServerOnly(eta=step(base), base=base), problem, 100)[-1]
    assert_same(x, problem.x_star, atol=1e-8)


@steady_base
def test_serveronly_does_not_with_a_sample(base):
    problem = quadratic()
    assert stays_away(
        path(ServerOnly(eta=step(base), base=base), problem, 100, S=2), problem.x_star
    )


# -- rates


@every_scaffold
def test_scaffold_converges_linearly_with_sampling(variant):
    problem = quadratic()
    errors = distances(
        path(Scaffold(eta_l=eta_l, K=K, **variant), problem, 100, S=2), problem.x_star
    )
    slope, r2 = fit(range(100), errors.log())
    assert r2 > 0.98
    assert slope < -0.5 * eta_l * K * problem.mu


@every_scaffold
def test_scaffolds_rate_is_that_of_K_steps_on_f_when_hessians_are_similar(variant):
    """Theorem IV for delta -> 0: K local steps are worth K rounds of SGD, whatever G is."""
    some = quadratic(d=1)
    problem = Quadratic(some.H + 0.01 * (some.A - some.H), 10 * some.b)
    assert problem.delta < 0.02
    assert problem.G > 10
    errors = distances(path(Scaffold(eta_l=eta_l, K=K, **variant), problem, 60), problem.x_star)
    slope, r2 = fit(range(10, 60), errors[10:].log())
    assert r2 > 0.9999
    assert slope == pytest.approx(K * log(1 - eta_l * problem.mu), rel=0.01)
