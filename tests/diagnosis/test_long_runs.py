"""The predicted bias against long runs."""

from itertools import islice, pairwise

import pytest
import torch
from torch.nn.functional import cosine_similarity

from tests.helpers.losses import logistic, quadratics, random
from trimtab import FedAvg, Quadratic, RichardsonRomberg, Scaffold, Supervised, diagnose, simulate
from trimtab.diagnosis import hessians, measure, optimum, theory
from trimtab.diagnosis.budget import Budget
from trimtab.diagnosis.panel import choose_panel
from trimtab_papers import many_runs
from trimtab_papers.many_runs import Chains, Logistic

K = 10
STEPS = (0.02, 0.01, 0.005)
A = [[1.2, 1.8, 1.0], [0.4, 0.6, 1.4], [0.9, 1.1, 1.5], [0.7, 1.3, 0.9]]  # diagonals
PROBLEMS = {
    "quadratics": lambda: Quadratic(torch.tensor(A, dtype=torch.float64), random(4, 3)),
    "logistic": logistic,
}


def limit(algorithm, problem, start):
    *_, last = islice(simulate(algorithm, problem, x=start), 80 if problem.d == 3 else 150)
    return last.x


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_predicted_bias_is_that_of_a_long_run(name):
    """Full batches: the relative gap halves with the step, cosine above 0.999."""
    problem, budget = PROBLEMS[name](), Budget(60.0)
    panel = choose_panel(problem, 0, budget)
    found = optimum.best_point(panel, problem.x0(), budget, budget.until(1))
    x_star = found.x
    H = hessians.full_hessian(panel, x_star, budget.until(1))
    x_star = x_star - torch.linalg.solve(H, problem.gradient(x_star))  # its last digits
    here = measure.at_point(panel, x_star)
    pull = theory.pull_of(panel, x_star, here.rows - here.mean)
    assert found.reached
    gaps, left = [], []
    for eta in STEPS:
        predicted = eta * (K - 1) / 2 * torch.linalg.solve(H, pull)
        reach = 0.8 / (eta * K)  # eta_g, which does not move the fixed point
        bias = limit(FedAvg(eta_l=eta, K=K, eta_g=reach), problem, x_star) - x_star
        gaps.append(float((bias - predicted).norm() / predicted.norm()))
        assert cosine_similarity(bias, predicted, dim=0) > 0.999
        halved = RichardsonRomberg(FedAvg(eta_l=eta, K=K, eta_g=reach / 1.5))
        left.append(float((limit(halved, problem, x_star) - x_star).norm()))
    assert all(1.8 < a / b < 2.2 for a, b in pairwise(gaps))
    assert all(3.4 < a / b < 4.6 for a, b in pairwise(left))  # second order
    scaffold = limit(Scaffold(eta_l=0.02, K=K, eta_g=4.0), problem, x_star)
    assert float((scaffold - x_star).norm()) < 1e-6


def test_what_richardson_romberg_leaves_is_predicted_on_quadratics():
    problem = quadratics(4, 3, G=1.0, delta=0.3)
    found = diagnose(problem, eps=1e-6)
    if found.bias.richardson_romberg is None:
        pytest.skip("the advised step cannot be doubled")
    one, two = (problem.fedavg_limit(e * found.eta_l, found.K) for e in (1, 2))
    left = float((2 * one - two - problem.x_star).norm())
    assert found.bias.richardson_romberg == pytest.approx(left, rel=1e-6)


def test_the_covariance_of_the_noise_is_that_of_the_exact_derivatives():
    """Labels and samples of the chains' logistic regression, by samples and differences."""
    model = Logistic(4, batch=5)
    module = torch.nn.Linear(model.d, 1, bias=False)
    clients = [(model.X[i], model.y[i][:, None]) for i in range(4)]
    problem = Supervised(
        module,
        lambda out, y: torch.nn.functional.softplus(-y * out).mean(),
        clients,
        batch=5,
        sampling="iid",
        l2=model.l2,
    )
    x, budget = many_runs.optimum(model), Budget(60.0)
    panel = choose_panel(problem, 0, budget)
    batches = theory.covariance(panel, x, 0, budget.until(1))
    C = torch.stack([model.covariance(i, x) for i in range(4)]).mean(0)
    assert float((batches - C).norm() / C.norm()) < 0.05


def test_with_mini_batches_fedavg_ends_where_both_parts_say():
    """The mean of many many_runs, within 30 %: the tolerance of the stochastic part."""
    model, gamma, R = Logistic(4, batch=5), 0.004, 120
    problem, x = Chains(model, 400), many_runs.optimum(model)
    predicted = many_runs.heterogeneity_bias(model, x, gamma, K)
    predicted = predicted + many_runs.noise_bias(model, x, gamma)
    late = torch.zeros_like(x)
    start = problem.start(x + predicted)
    for done in islice(simulate(FedAvg(eta_l=gamma, K=K), problem, x=start), R):
        if done.r > R // 2:
            late += (problem.rows(done.x).mean(0) - x) / (R // 2)
    assert float((late - predicted).norm() / predicted.norm()) < 0.3
    budget, one = Budget(60.0), Chains(model)
    panel = choose_panel(one, 0, budget)
    here, H = measure.at_point(panel, x), hessians.full_hessian(panel, x, budget.until(1))
    ours = torch.linalg.solve(H, theory.pull_of(panel, x, here.rows - here.mean)) / 2
    torch.testing.assert_close(ours, many_runs.heterogeneity_bias(model, x, 1.0, 2))


def test_a_step_at_which_local_steps_go_back_and_forth_has_no_limit():
    """With eta_l = 2/h and an even K, FedAvg stays where it is along a curvature h."""
    alike = Quadratic(torch.tensor([[1.0, 0.1]]).repeat(2, 1), torch.tensor([[2.0, 0.3]] * 2))
    assert diagnose(alike, minutes=0.3).algorithm is not None
