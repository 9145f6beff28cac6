"""Table 2, the knee and the laws of noise, against the papers, runs and closed forms."""

from dataclasses import replace
from itertools import combinations, islice
from math import inf, sqrt

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.losses import random
from trimtab import FedAvg, Quadratic, Scaffold, Supervised, diagnose, simulate
from trimtab.diagnosis import theory
from trimtab.diagnosis.theory import Constants, dominating, knee, rates
from trimtab.problems.linear_system import solve_continuous_lyapunov
from trimtab_papers.many_runs import Chains, Noisy

AT = Constants(L=2, mu=0.1, delta=0.3, G=3, B=1.5, sigma=0.7, N=20, S=5, eps=0.01)


def total(at, K, name):
    return sum(rates(at, K)[name].values())


def test_strongly_convex_rates_are_table_2():
    L, mu, G, B, s2, N, S, eps, K = 2, 0.1, 3, 1.5, 0.49, 20, 5, 0.01, 4
    assert total(AT, K, "sgd") == pytest.approx(s2 / (mu * N * K * eps) + L / mu)
    fedavg = s2 / (mu * S * K * eps) + (1 - S / N) * G**2 / (mu * S * eps)
    fedavg += sqrt(L) * G / (mu * sqrt(eps)) + B**2 * L / mu
    assert total(AT, K, "fedavg") == pytest.approx(fedavg)
    scaffold = s2 / (mu * S * K * eps) + L / mu + N / S
    assert total(AT, K, "scaffold") == pytest.approx(scaffold)
    quadratic = s2 / (mu * N * K * eps) + (L + 0.3 * K) / (mu * K)
    assert total(AT, K, "scaffold on quadratics") == pytest.approx(quadratic)


def test_general_convex_rates_have_eps_for_mu():
    for name in rates(AT, 4):
        assert total(replace(AT, mu=0.0), 4, name) == total(replace(AT, mu=AT.eps), 4, name)
    assert replace(AT, mu=1e-9).convexity == "general convex"


def test_non_convex_rates_are_table_2():
    at, K = replace(AT, mu=-0.5, F=2.0), 4
    L, G, B, s2, N, S, eps, F = 2, 3, 1.5, 0.49, 20, 5, 0.01, 2.0
    assert total(at, K, "sgd") == pytest.approx(L * s2 * F / (N * K * eps**2) + L * F / eps)
    fedavg = L * s2 * F / (S * K * eps**2) + (1 - S / N) * G**2 * F / (S * eps**2)
    fedavg += sqrt(L) * G / eps**1.5 + B**2 * L * F / eps
    assert total(at, K, "fedavg") == pytest.approx(fedavg)
    scaffold = L * s2 * F / (S * K * eps**2) + (N / S) ** (2 / 3) * L * F / eps
    assert total(at, K, "scaffold") == pytest.approx(scaffold)


@pytest.mark.parametrize(
    ("change", "name", "term"),
    [
        ({"sigma": 0.0, "S": 20}, "fedavg", "drift"),
        ({"sigma": 100.0}, "fedavg", "noise"),
        ({"sigma": 0.0}, "fedavg", "sampled clients that differ"),
        ({"sigma": 0.0, "G": 0.0}, "fedavg", "smoothness"),
        ({"sigma": 0.0, "S": 1, "N": 1000}, "scaffold", "late clients"),
        ({"sigma": 0.0, "delta": 1.9}, "scaffold on quadratics", "different Hessians"),
    ],
)
def test_the_dominating_term_is_named(change, name, term):
    assert dominating(rates(replace(AT, **change), 10)[name]) == term


def test_the_knee():
    assert knee(1, 0.01, 1e-6, "I") == pytest.approx(100)
    assert knee(1, 0.01, 0.01, "I") == pytest.approx(100)
    assert knee(1, 0.01, 0.01, "II") == pytest.approx(10)
    assert knee(1, 0, 0) == inf
    assert knee(1, 5, 1) == 1


@pytest.mark.parametrize("kind", [FedAvg, Scaffold])
def test_the_stationary_variance_is_that_of_a_long_run(kind):
    """Thousands of chains of quadratics with i.i.d. noise; covariance within 5 %."""
    A = torch.tensor([[1.1, 2.0], [0.9, 2.2], [1.0, 1.8], [1.0, 2.0]], dtype=torch.float64)
    model = Noisy(Quadratic(A, random(4, 2), sigma=1.0))
    eta, K, R = 0.006, 5, 110
    many, x_star = Chains(model, 3000), model.quadratic.x_star
    C = torch.eye(2, dtype=torch.float64) / 2
    trace = eta * float(solve_continuous_lyapunov(model.quadratic.H, C).trace())
    predicted = theory.sampled_noise(trace, 0.0, kind.__name__.lower(), K, 4, 4)
    rounds = list(islice(simulate(kind(eta_l=eta, K=K), many, x=many.start(x_star)), R))
    late = [float(torch.cov(many.rows(done.x).T).trace()) for done in rounds[-40::10]]
    assert sum(late) / len(late) == pytest.approx(predicted, rel=0.05)


def test_the_variance_of_fedavg_with_sampled_clients_is_exact_for_small_steps():
    """In one dimension, a round is x -> m x + n + noise with (m, n) drawn by the cohort."""
    a = torch.tensor([1.0, 0.8, 1.3, 0.9], dtype=torch.float64)
    b, sigma, eta, K, N, S = random(4, seed=3), 0.5, 1e-4, 6, 4, 2
    problem = Quadratic(a, b, sigma)
    q, steps = (1 - eta * a) ** K, torch.arange(K)
    P = (1 - q) / a
    noise = (eta * sigma) ** 2 * ((1 - eta * a)[:, None] ** (2 * steps)).sum(1)
    draws = [
        (q[list(c)].mean(), (P * b)[list(c)].mean(), noise[list(c)].sum() / S**2)
        for c in combinations(range(N), S)
    ]
    m, n, v = (torch.stack(part) for part in zip(*draws, strict=True))
    mean = n.mean() / (1 - m.mean())
    square = ((n**2).mean() + 2 * (m * n).mean() * mean + v.mean()) / (1 - (m**2).mean())
    g = problem.A[:, 0, 0] * problem.x_star - problem.b[:, 0]
    spread = float(g.square().mean())
    predicted = theory.sampled_noise(sigma**2, spread, "fedavg", K, N, S)
    predicted *= eta / (2 * float(problem.H))
    assert float(square - mean**2) == pytest.approx(predicted, rel=0.01)


@pytest.mark.parametrize("weights", [None, (7.0, 1.0, 1.0, 1.0)])
def test_the_noise_of_a_weighted_mean_is_that_of_its_weights(weights):
    """In one dimension, a round of all clients is x -> m x + n + noise."""
    a = torch.tensor([1.0, 0.8, 1.3, 0.9], dtype=torch.float64)
    problem = Quadratic(a, random(4, seed=3), sigma=0.5, weights=weights)
    found = diagnose(problem)
    eta, p = 1e-4, problem.weights
    m = float(p @ (1 - eta * a))
    exact = eta**2 * 0.25 * float(p.square().sum()) / (1 - m**2)
    assert found.variance.fedavg * eta / found.eta_l == pytest.approx(exact, rel=1e-3)
    assert found.variance.scaffold == found.variance.fedavg
    assert found.bias.stochastic == found.bias.scaffold == 0.0


def test_unequal_clients_that_come_and_go_are_weighed_too():
    """On a constant, f_i is the mean of (x - y)^2: all is known; cohorts are gone through."""
    shifts, S = {20: 0.5, 12: -1.0, 9: 1.5, 8: 0.0, 6: -1.0}, 3
    clients = [(torch.ones(n, 1).double(), random(n, 1, seed=n) + by) for n, by in shifts.items()]
    module = nn.Linear(1, 1, bias=False).double()
    problem = Supervised(module, F.mse_loss, clients, batch=1, sampling="iid", weights="samples")
    p, centres = problem.weights, torch.stack([y.mean() for _, y in clients])
    g = 2 * (p @ centres - centres)
    noise = torch.stack([4 * y.var(correction=0) for _, y in clients])

    found = diagnose(problem, minutes=1)
    exact = found.eta_l * float(p.square() @ noise) / 4
    assert found.variance.fedavg == pytest.approx(exact, rel=1e-3)
    assert found.bias.stochastic is found.bias.scaffold is None  # its Hessians may vary with x

    found, pulls, noises = diagnose(problem, S=S, minutes=1), [], []
    for cohort in map(list, combinations(range(5), S)):
        q = p[cohort] / p[cohort].sum()
        pulls.append(float(q @ g[cohort]))
        noises.append(float(q.square() @ noise[cohort]))
    spread = float(torch.tensor(pulls).var(correction=0))
    exact = found.eta_l * (found.K * spread + sum(noises) / len(noises)) / 4
    assert found.variance.fedavg == pytest.approx(exact, rel=0.15)  # The mean is a ratio.
