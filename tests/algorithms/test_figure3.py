"""Figure 3 and Theorem II of Karimireddy et al., 2020, on the paper's pair of quadratics.

f_1(x) = mu x^2 + G x and f_2(x) = -G x (the paper's appendix), so f = mu x^2/2 and x* = 0. The
paper does not state the step size of Figure 3; with 0.12 for all, SGD is not solved in one round.
"""

from dataclasses import replace
from itertools import islice
from math import log, log10

import pytest
import torch

from tests.helpers.quadratics import assert_same, fit, path
from trimtab import FedAvg, Quadratic, Scaffold, Sgd, simulate

eta = 0.12
ONE = torch.ones(1, dtype=torch.float64)
dissimilarity = pytest.mark.parametrize("G", [1.0, 10.0, 100.0])


def pair(G, mu=1.0):
    numbers = torch.tensor([[2 * mu, 0.0], [-G, G]], dtype=torch.float64)
    return Quadratic(A=numbers[0], b=numbers[1])


def affine(eta_l, K, G, mu=1.0):
    """Return a, b of FedAvg's round x <- a x + b (eta_g = 1); eta_l may be a tensor."""
    q = (1 - 2 * mu * eta_l) ** K
    return (1 + q) / 2, eta_l * G / 2 * (K - (1 - q) / (2 * mu * eta_l))


def warm_scaffold(K, G, R):
    """Return SCAFFOLD's path once the controls are the gradients at x0."""
    algorithm = Scaffold(eta_l=eta, K=K, eta_g=0.0, option="I")
    sim = simulate(algorithm, pair(G), x=ONE)
    assert_same(next(sim).x, ONE, atol=0)
    sim.algorithm = replace(algorithm, eta_g=1.0, option="II")
    return torch.stack([round.x for round in islice(sim, R)])


def rounds(xs):
    """Return the first round with f <= 1e-8."""
    return int((xs[:, 0] ** 2 / 2 <= 1e-8).nonzero()[0]) + 1


@pytest.mark.parametrize("K", [2, 10])
def test_scaffold_does_not_see_G(K):
    for G in (10.0, 100.0):
        assert_same(warm_scaffold(K, G, 100), warm_scaffold(K, 1.0, 100), atol=1e-12)


@dissimilarity
@pytest.mark.parametrize("K", [2, 10])
def test_from_zero_controls_the_first_round_of_scaffold_sees_G(K, G):
    a, b = affine(eta, K, G)
    assert_same(path(Scaffold(eta_l=eta, K=K), pair(G), 1)[0], a * ONE + b)
    assert b == pytest.approx({2: 0.0144, 10: 0.366}[K] * G, rel=0.001)


@dissimilarity
def test_local_steps_make_scaffold_faster_than_sgd(G):
    sgd = rounds(path(Sgd(eta=eta), pair(G), 100))
    assert sgd == 70  # (1 - eta)^r = sqrt(2e-8)
    assert 1.9 <= sgd / rounds(warm_scaffold(2, G, 100)) <= 2.1
    assert 4 <= sgd / rounds(warm_scaffold(10, G, 100)) <= 5.5


@dissimilarity
@pytest.mark.parametrize(("K", "stop"), [(2, 0.0682), (10, 0.782)])
def test_fedavg_stops_at_a_distance_proportional_to_G(K, stop, G):
    a, b = affine(eta, K, G)
    x = path(FedAvg(eta_l=eta, K=K), pair(G), 300)[-1]
    assert_same(x, b / (1 - a) * ONE, atol=1e-12 * G)
    assert float(x) == pytest.approx(stop * G, rel=0.001)


# -- Theorem II: with eta_g = 1, FedAvg needs G/(mu sqrt eps) rounds whatever its step size


def best_loss(R, K, G=1.0, mu=1.0):
    """Return FedAvg's f(x_R) from x0 = G/mu at the best eta_l in (0, 1/(2 mu)]."""
    eta_l = torch.logspace(-7, log10(0.5), 4001, dtype=torch.float64) / mu
    a, b = affine(eta_l, K, G, mu)
    x_inf = b / (1 - a)
    return float((mu / 2 * (x_inf + a**R * (G / mu - x_inf)) ** 2).min())


@pytest.mark.parametrize("mu", [1.0, 0.2])
@pytest.mark.parametrize("K", [2, 10])
@pytest.mark.parametrize("R", [1, 3, 10])
def test_the_closed_form_is_fedavg(R, K, mu):
    G, eta_l = 3.0, 0.2 / mu
    a, b = affine(eta_l, K, G, mu)
    x_inf = b / (1 - a)
    x = path(FedAvg(eta_l=eta_l, K=K), pair(G, mu), R, x=G / mu * ONE)[-1]
    assert_same(x, (x_inf + a**R * (G / mu - x_inf)) * ONE)


@pytest.mark.parametrize("K", [2, 5, 10])
def test_fedavg_is_never_faster_than_theorem_ii(K):
    R = [2**j for j in range(15)]
    losses = [best_loss(r, K) for r in R]
    assert all(loss * r**2 >= 0.2 for loss, r in zip(losses, R, strict=True))
    slope, _ = fit([log(r) for r in R[6:]], [log(loss) for loss in losses[6:]])  # from R = 64
    assert -1.85 < slope < -1.70  # a log factor keeps it from -2


def test_fedavgs_best_loss_grows_with_the_square_of_G_over_mu():
    for G, mu in ((1.0, 0.2), (10.0, 1.0), (100.0, 3.0)):
        assert best_loss(64, 10, G, mu) * mu / G**2 == pytest.approx(best_loss(64, 10), rel=1e-8)
