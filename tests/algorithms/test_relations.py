"""Identities between algorithms: to rounding, with noise, drop-outs and weights where they hold."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.quadratics import BASES, SCAFFOLDS, WEIGHTS, assert_same, path, quadratic
from trimtab import (
    FedAvg,
    FedOpt,
    FedProx,
    Mime,
    MimeLite,
    Momentum,
    Quadratic,
    RichardsonRomberg,
    Scaffold,
    ServerOnly,
    Sgd,
    simulate,
)
from trimtab.core.oracle import ClientOracle

weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
every_scaffold = pytest.mark.parametrize("variant", SCAFFOLDS, ids=["I", "II", "lean"])
every_base = pytest.mark.parametrize("base", BASES, ids=lambda base: type(base).__name__)
theorem = settings(derandomize=True, deadline=None, max_examples=60)
ONES = torch.ones(3, dtype=torch.float64)


@weighted
@every_scaffold
def test_scaffold_whose_controls_stay_zero_is_fedavg(variant, weights):
    problem = quadratic(sigma=1.0, weights=weights)
    scaffold = simulate(Scaffold(eta_l=0.1, K=4, eta_g=1.5, **variant), problem, x=ONES, S=3)
    for x in path(FedAvg(eta_l=0.1, K=4, eta_g=1.5), problem, 5, S=3):
        assert_same(next(scaffold).x, x)
        scaffold.server = scaffold.server._replace(c=torch.zeros_like(x))
        for i in scaffold.states:
            scaffold.states[i] = torch.zeros_like(x)


@weighted
def test_fedprox_without_proximal_term_is_fedavg(weights):
    problem = quadratic(sigma=1.0, weights=weights)
    fedprox, fedavg = FedProx(eta_l=0.1, K=4, mu=0.0, eta_g=1.5), FedAvg(eta_l=0.1, K=4, eta_g=1.5)
    assert_same(path(fedprox, problem, 5, S=3), path(fedavg, problem, 5, S=3))


def test_fedprox_is_fedavg_on_the_losses_with_proximal_term():
    problem = quadratic()
    prox = Quadratic(problem.A + torch.diag(0.7 * ONES), problem.b + 0.7 * ONES)  # + mu/2 |y - x|^2
    fedprox, fedavg = FedProx(eta_l=0.1, K=4, mu=0.7, eta_g=1.5), FedAvg(eta_l=0.1, K=4, eta_g=1.5)
    assert_same(path(fedprox, problem, 1), path(fedavg, prox, 1))


@weighted
@pytest.mark.parametrize("S", [1, 3, 6])
@pytest.mark.parametrize("eta_g", [0.5, 2.0])
def test_fedavg_with_one_full_batch_step_is_sgd(S, eta_g, weights):
    problem = quadratic(weights=weights)
    fedavg = path(FedAvg(eta_l=0.1, K=1, eta_g=eta_g), problem, 20, S=S)
    assert_same(fedavg, path(Sgd(eta=0.1 * eta_g), problem, 20, S=S))


def test_scaffold_with_one_client_and_one_step_is_saga():
    problem, eta_l, eta_g = quadratic(), 0.1, 0.7
    clients = [0, 3, 3, 1, 5, 2, 0, 4, 1, 3, 2, 2, 5, 0, 4]
    x, table, saga = ONES, torch.zeros(6, 3, dtype=torch.float64), []
    for i in clients:
        gradient = problem.client_gradient(i, x)
        x = x - eta_l * eta_g * (gradient - table[i] + table.mean(0))
        table[i] = gradient
        saga.append(x)
    scaffold = Scaffold(eta_l=eta_l, K=1, eta_g=eta_g, option="I")
    assert_same(path(scaffold, problem, 15, cohorts=[[i] for i in clients]), torch.stack(saga))


@weighted
@every_base
@pytest.mark.parametrize("S", [2, 6])
def test_mime_with_one_step_is_serveronly(base, S, weights):
    problem = quadratic(sigma=1.0, weights=weights)  # the noise of g(x, k) - g(x, k) cancels
    mime = path(Mime(eta=0.05, K=1, base=base), problem, 20, S=S)
    assert_same(mime, path(ServerOnly(eta=0.05, base=base), problem, 20, S=S))


@every_base
def test_fedopt_with_one_full_batch_unit_step_is_serveronly(base):
    problem = quadratic()
    fedopt = path(FedOpt(eta_l=1.0, K=1, base=base, eta_g=0.05), problem, 20, S=2)
    assert_same(fedopt, path(ServerOnly(eta=0.05, base=base), problem, 20, S=2))


def test_mimelite_with_momentum_and_one_full_batch_step_is_serveronly():
    problem, base = quadratic(), Momentum(0.9)  # U is linear in g; Adam's is not
    mimelite = path(MimeLite(eta=0.05, K=1, base=base), problem, 20, S=2)
    assert_same(mimelite, path(ServerOnly(eta=0.05, base=base), problem, 20, S=2))


@weighted
def test_without_momentum_mimelite_and_fedopt_are_fedavg(weights):
    problem, base = quadratic(sigma=1.0, weights=weights), Momentum(0.0)
    fedavg = path(FedAvg(eta_l=0.1, K=4), problem, 10, S=3)
    assert_same(path(MimeLite(eta=0.1, K=4, base=base), problem, 10, S=3), fedavg)
    assert_same(path(FedOpt(eta_l=0.1, K=4, base=base), problem, 10, S=3), fedavg)


@weighted
def test_mime_without_momentum_is_scaffold_with_fresh_controls(weights):
    problem = quadratic(weights=weights)
    fresh = Scaffold(eta_l=0.1, K=4, eta_g=0.0, option="I")  # sets c_i = g_i(x), leaves x
    x = ONES
    for mime in path(Mime(eta=0.1, K=4, base=Momentum(0.0)), problem, 5):
        sim = simulate(fresh, problem, x=x)
        assert_same(next(sim).x, x, atol=0)
        sim.algorithm = Scaffold(eta_l=0.1, K=4)
        x = next(sim).x
        assert_same(x, mime)


@theorem
@given(seed=st.integers(0, 2**32), K=st.integers(1, 20), eta_l=st.floats(1e-5, 0.3))
def test_control_is_the_mean_local_gradient(seed, K, eta_l):
    rng = torch.Generator().manual_seed(seed)
    x, c, c_i = torch.randn(3, 3, generator=rng, dtype=torch.float64)
    oracle, seen = quadratic(sigma=1.0).oracle(0, seed, 1), []

    def g(y, k):
        seen.append(oracle(y, k))
        return seen[-1]

    upload, c_i_new = Scaffold(eta_l=eta_l, K=K).local(ClientOracle(g), c_i, x, c)
    rounding = 2**-52 * (K + 2) * float(x.norm() + upload.dx.norm()) / (K * eta_l)
    assert len(seen) == K
    assert_same(c_i_new, torch.stack(seen).mean(0), atol=1e-12 + rounding)
    assert_same(c_i_new, c_i + upload.dc, atol=0)  # a client keeps what it sent


@theorem
@given(
    seed=st.integers(0, 2**32),
    S=st.integers(1, 6),
    lost=st.sampled_from([0.0, 0.3, 0.8]),
    weights=st.sampled_from([None, WEIGHTS]),
    variant=st.sampled_from(SCAFFOLDS),
    eta_g=st.floats(0.0, 1.5),
)
def test_server_control_is_the_mean_of_the_client_controls(seed, S, lost, weights, variant, eta_g):
    problem = quadratic(sigma=1.0, weights=weights)
    algorithm = Scaffold(eta_l=0.05, K=3, eta_g=eta_g, **variant)
    sim = simulate(algorithm, problem, x=ONES, S=S, seed=seed, lost=lost)
    for _ in range(6):
        c = next(sim).server.c
        assert_same(c, sum((problem.weights[i] * sim.states[i] for i in sim.states), 0 * c))
        assert sim.audit() < 1e-10


@weighted
def test_lean_is_option_ii(weights):
    problem = quadratic(sigma=1.0, weights=weights)
    full, lean = (Scaffold(eta_l=0.05, K=4, eta_g=1.3, lean=lean) for lean in (False, True))
    assert_same(path(full, problem, 50, S=3, lost=0.3), path(lean, problem, 50, S=3, lost=0.3))


@weighted
@pytest.mark.parametrize("eta_g", [0.6, 1.0, 1.4])
def test_mangolds_form_is_option_ii(eta_g, weights):
    problem, gamma, K = quadratic(sigma=1.0, weights=weights), 0.05, 4
    x, xi = ONES, torch.zeros(6, 3, dtype=torch.float64)  # xi_c = c - c_i
    mangold = []
    for r in range(1, 21):
        y = x.repeat(6, 1)
        for i in range(6):
            g = problem.oracle(i, 0, r)
            for k in range(K):
                y[i] = y[i] - gamma * (g(y[i], k) + xi[i])
        y_bar = problem.weights @ y  # the slide's new x, which is y_bar for eta_g = 1 only
        xi = xi + (y - y_bar) / (K * gamma)
        x = x + eta_g * (y_bar - x)
        mangold.append(x)
    assert_same(path(Scaffold(eta_l=gamma, K=K, eta_g=eta_g), problem, 20), torch.stack(mangold))


@weighted
def test_vrl_sgd_is_option_ii(weights):
    """Liang et al. (2019), with D_i = c_i - c: all clients, eta_g = 1."""
    problem, gamma, K = quadratic(sigma=1.0, weights=weights), 0.05, 4
    x, D, vrl = ONES, torch.zeros(6, 3, dtype=torch.float64), []
    for r in range(1, 21):
        y = x.repeat(6, 1)
        for i in range(6):
            g = problem.oracle(i, 0, r)
            for k in range(K):
                y[i] = y[i] - gamma * (g(y[i], k) - D[i])
        x = problem.weights @ y
        D = D + (x - y) / (K * gamma)
        vrl.append(x)
    assert_same(path(Scaffold(eta_l=gamma, K=K), problem, 20), torch.stack(vrl))


class Rotating(Quadratic):
    """Linear systems A_i y = b_i whose A_i are not symmetric, as those of temporal differences."""

    def turn(self, i):
        return torch.tensor([[0.0, 1, 0], [-1, 0, 2], [0, -2, 0]]).to(self.A) * (0.2 + 0.1 * i)

    def oracle(self, i, seed, r):
        g = super().oracle(i, seed, r)
        return lambda y, k=None: g(y, k) + self.turn(i) @ y


@weighted
def test_scafflsa_is_option_ii_on_linear_systems_that_are_no_gradients(weights):
    """Mangold et al. (2024), with xi_i = c_i - c; it solves the mean system."""
    some, eta, K = quadratic(), 0.05, 4
    problem = Rotating(some.A, some.b, weights=weights)
    theta, xi, found = ONES, torch.zeros(6, 3, dtype=torch.float64), []
    for r in range(1, 101):
        thetas = theta.repeat(6, 1)
        for i in range(6):
            g = problem.oracle(i, 0, r)
            for k in range(K):
                thetas[i] = thetas[i] - eta * (g(thetas[i], k) - xi[i])
        theta = problem.weights @ thetas
        xi = xi + (theta - thetas) / (K * eta)
        found.append(theta)
    assert_same(path(Scaffold(eta_l=eta, K=K), problem, 100), torch.stack(found))
    p = problem.weights
    A = sum(p[i] * (some.A[i] + problem.turn(i)) for i in range(6))
    assert_same(theta, torch.linalg.solve(A, p @ some.b), atol=1e-8)


@weighted
def test_richardson_romberg_extrapolates_two_fedavgs_on_the_same_samples(weights):
    problem = quadratic(sigma=1.0, weights=weights)
    fine, coarse = FedAvg(eta_l=0.05, K=4, eta_g=1.2), FedAvg(eta_l=0.1, K=4, eta_g=1.2)
    expected = 2 * path(fine, problem, 20, S=3) - path(coarse, problem, 20, S=3)
    assert_same(path(RichardsonRomberg(fine), problem, 20, S=3), expected)


@pytest.mark.parametrize("equal", ["clients", "hessians"])
@pytest.mark.parametrize("algorithm", [FedAvg(eta_l=0.1, K=4), Scaffold(eta_l=0.1, K=4)])
def test_with_equal_hessians_a_round_is_K_steps_of_gradient_descent(algorithm, equal):
    """Also with G > 0: delta is zero, and the mean of affine maps of one slope is such a map."""
    some = quadratic()
    b = some.b[:1].expand(6, -1) if equal == "clients" else some.b
    problem = Quadratic(some.A[:1].expand(6, -1, -1), b, weights=WEIGHTS)
    step = torch.linalg.matrix_power(torch.eye(3) - 0.1 * problem.H, 4)  # (I - eta H)^K
    errors = path(algorithm, problem, 20) - problem.x_star
    assert_same(errors[0], step @ (ONES - problem.x_star))
    assert_same(errors[1:], errors[:-1] @ step.mT)


def test_mime_takes_both_gradients_of_a_step_on_the_same_mini_batch():
    asked = []

    def g(y, k=None):
        asked.append(k)
        return y

    x = torch.ones(3, dtype=torch.float64)
    Mime(eta=0.1, K=3, base=Momentum()).local(ClientOracle(g), (), x, torch.zeros_like(x), x)
    assert asked == [0, 0, 1, 1, 2, 2]
