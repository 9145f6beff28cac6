"""Many runs side by side are single runs, and their models those of the problems."""

from itertools import islice

import pytest
import torch
from torch.nn.functional import cosine_similarity

from trimtab import FedAvg, RichardsonRomberg, Scaffold, simulate
from trimtab.problems.catalogue import concrete_problem
from trimtab.problems.garnet import GarnetTD
from trimtab_papers import many_runs
from trimtab_papers.concrete import regression
from trimtab_papers.many_runs import BLOCK, TD, Chains, Logistic, Noisy
from trimtab_papers.speedup import quadratics


@pytest.mark.parametrize("cut", ["sorted", "iid"])
def test_the_quadratics_of_concrete_are_its_linear_regression(real_data, cut):
    problem = concrete_problem(similarity={"sorted": 0, "iid": 100}[cut])
    quadratic = regression(cut)
    x = torch.linspace(-1, 1, 9, dtype=torch.float64)
    for i in range(10):
        mine, theirs = quadratic.client_gradient(i, x), problem.client_gradient(i, x.float())
        torch.testing.assert_close(mine.float(), theirs, rtol=1e-4, atol=1e-5)


def test_features_noise_truth_and_scale_share_no_numbers(monkeypatch):
    drawn, randn = [], many_runs._randn
    monkeypatch.setattr(many_runs, "_randn", lambda *a: drawn.append(randn(*a)) or drawn[-1])
    Logistic(2)
    numbers = torch.cat([t.flatten() for t in drawn])
    assert len(drawn) == 8
    assert len(numbers.unique()) == len(numbers)


@pytest.mark.parametrize("algorithm", [FedAvg(eta_l=0.01, K=3), Scaffold(eta_l=0.01, K=3)])
def test_full_batch_chains_are_single_runs_side_by_side(algorithm):
    model = Logistic(3)
    one, many = Chains(model), Chains(model, 4)
    starts = torch.linspace(-1, 1, 12, dtype=torch.float64)
    *_, last = islice(simulate(algorithm, many, x=starts), 5)
    for row, start in zip(many.rows(last.x), many.rows(starts), strict=True):
        *_, alone = islice(simulate(algorithm, one, x=start.clone()), 5)
        torch.testing.assert_close(row, alone.x, rtol=0, atol=1e-12)


def test_chains_with_mini_batches_differ_and_repeat():
    chain = Chains(Logistic(2, batch=2), 5)
    g, again = chain.oracle(0, 0, 1), chain.oracle(0, 0, 1)
    y = chain.x0() + 0.1
    assert torch.equal(g(y, 13), again(y, 13))
    assert len({tuple(row) for row in chain.rows(g(y, 0)).tolist()}) > 1
    assert not torch.equal(g(y, 0), g(y, 1))
    fine = simulate(RichardsonRomberg(FedAvg(eta_l=0.01, K=3)), chain)
    plain = simulate(FedAvg(eta_l=0.01, K=3), chain)
    for a, b in islice(zip(fine, plain, strict=False), 3):
        assert torch.equal(a.server.fine, b.x)


def test_the_derivatives_of_the_logistic_model_are_those_of_its_loss():
    model, x = Logistic(2), torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    V = torch.tensor([[2.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 0.5]], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: model.gradients(1, x), x)
    torch.testing.assert_close(model.hessian(1, x), jacobian)
    third = torch.autograd.functional.jacobian(lambda x: model.hessian(1, x), x)
    torch.testing.assert_close(model.third(1, x, V), torch.einsum("ijk,jk->i", third, V))


def test_the_covariance_of_the_logistic_model_is_that_of_its_mini_batches():
    model, x = Logistic(1, batch=2), torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    points = x.expand(40_000, 3)
    batches = model.draw(0, 1, 40_000, torch.Generator().manual_seed(0))[0]
    seen = model.sampled(0, points, batches)
    torch.testing.assert_close(seen.mean(0), model.gradients(0, x), rtol=0, atol=0.03)
    C = model.covariance(0, x)
    assert (torch.cov(seen.T) - C).norm() < 0.05 * C.norm()


def test_theory_of_quadratics_is_that_of_the_problem():
    model = quadratics(6)
    assert isinstance(model, Noisy)
    x_star = many_runs.optimum(model)
    torch.testing.assert_close(x_star, model.quadratic.x_star)
    bias = many_runs.heterogeneity_bias(model, x_star, 0.01, 10)
    torch.testing.assert_close(bias, model.quadratic.fedavg_bias(0.01, 10))
    assert cosine_similarity(bias, model.quadratic.fedavg_limit(0.01, 10) - x_star, dim=0) > 0.99
    Sigma, H = many_runs.stationary_covariance(model, x_star, 0.01), model.quadratic.H
    C = torch.eye(3, dtype=torch.float64) / 3
    torch.testing.assert_close(H @ Sigma + Sigma @ H, 0.01 / 6 * C)
    assert not many_runs.noise_bias(model, x_star, 0.01).any()


def test_many_trajectories_have_the_law_of_the_problem():
    """Means and pairs of neighbours: a chain goes only where there is a transition."""
    base = GarnetTD(2, 12, 3, gamma=0.9, heterogeneity=1.0, sampling="markov")
    model = TD(base, 4)
    drawn = model.draw(3, BLOCK, 3000, torch.Generator().manual_seed(0))
    assert torch.equal(drawn[1:, :, 0], drawn[:-1, :, 1])
    assert bool((base.P[1][drawn[..., 0], drawn[..., 1]] > 0).all())
    visits = torch.bincount(drawn[7, :, 0], minlength=12) / 3000
    assert float((visits - base.visits[1]).abs().max()) < 0.03
    x = torch.ones(3000, 3, dtype=torch.float64)
    mean = model.sampled(3, x, drawn[5]).mean(0)
    torch.testing.assert_close(mean, model.gradients(3, x)[0], atol=0.03, rtol=0)


def test_a_sample_of_many_runs_is_the_problems_own():
    base = GarnetTD(2, 12, 3, gamma=0.9, heterogeneity=1.0)
    model, y = TD(base, 2), torch.tensor([[1.0, -2.0, 0.5]]).double()
    s, after = 4, 7
    expected = base.phi[s] * ((base.phi[s] - 0.9 * base.phi[after]) @ y[0] - base.r[1, s])
    torch.testing.assert_close(model.sampled(1, y, torch.tensor([[s, after]]))[0], expected)
    assert Chains(model, 5).d == 15
