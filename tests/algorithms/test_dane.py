"""DANE: what it solves, where it goes and how fast."""

import pytest
import torch

from tests.helpers.quadratics import WEIGHTS, assert_same, distances, path, quadratic
from trimtab import Dane, Diverged, Mime, Momentum, Quadratic

weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
ONES = torch.ones(3, dtype=torch.float64)


@weighted
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_dane_with_many_steps_solves_the_local_problem(mu, weights):
    problem = quadratic(weights=weights)
    A = problem.A + mu * torch.eye(3, dtype=torch.float64)
    moves = torch.linalg.solve(A, problem.gradient(ONES).expand(6, 3))
    x = path(Dane(eta_l=0.3, K=400, mu=mu), problem, 1)[-1]
    assert_same(x, ONES - problem.weights @ moves)


@weighted
def test_dane_without_proximal_term_is_mime(weights):
    problem = quadratic(weights=weights)
    mime = Mime(eta=0.1, K=4, base=Momentum(0.0))
    assert_same(path(Dane(eta_l=0.1, K=4, mu=0.0), problem, 20, S=3), path(mime, problem, 20, S=3))


@weighted
@pytest.mark.parametrize("times_delta", [1, 3])
def test_dane_reaches_the_optimum_with_all_clients_only(times_delta, weights):
    problem = quadratic(weights=weights)
    algorithm = Dane(eta_l=0.1, K=100, mu=times_delta * problem.delta)
    assert_same(path(algorithm, problem, 150)[-1], problem.x_star, atol=1e-9)
    xs = path(algorithm, problem, 100, S=2)
    assert float(distances(xs[-50:], problem.x_star).min()) > 0.01


def test_dane_without_proximal_term_may_diverge():
    """Two clients, of curvature 0.05 and 1.95: the mean of the inverses is 10, that of f is 1."""
    problem = Quadratic(torch.tensor([0.05, 1.95]).double(), torch.tensor([1.0, -1.0]).double())
    assert problem.delta == pytest.approx(0.95)
    near = torch.ones(1, dtype=torch.float64)
    end = path(Dane(eta_l=0.3, K=100, mu=problem.delta), problem, 100, x=near)[-1]
    assert_same(end, problem.x_star, atol=1e-9)
    far = 1e300 * near  # where infinity is not far: every round takes it nine times further
    with pytest.raises(Diverged):
        path(Dane(eta_l=0.3, K=500, mu=0.0), problem, 500, x=far)


@weighted
@pytest.mark.parametrize("alike", [1.0, 0.7, 0.4])
def test_dane_contracts_as_its_theorem_says(alike, weights):
    """Exact solves, mu = max(0, 8 delta^2/mu_f - mu_f): Shamir et al., on quadratics."""
    some = quadratic(weights=weights)
    problem = Quadratic(some.H + alike * (some.A - some.H), some.b, weights=weights)
    ratio = problem.delta / problem.mu
    mu = max(0.0, (8 * ratio**2 - 1) * problem.mu)
    xs = path(Dane(eta_l=1 / (4 + mu), K=500, mu=mu), problem, 5)
    errors = distances(torch.stack([ONES, *xs]), problem.x_star)
    assert float((errors[1:] / errors[:-1]).max()) <= max(0.5, 1 - 1 / (16 * ratio**2))
