"""What `diagnose` measures, against closed forms (5 %) and dense computations (10 %)."""

from math import isfinite, sqrt

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.losses import Opaque, dense_hessian, everybody, logistic, quadratics, random
from trimtab import Quadratic, Supervised, diagnose
from trimtab.core.task import Task
from trimtab.diagnosis import hessians, intervals, measure, optimum
from trimtab.diagnosis.budget import Budget
from trimtab.diagnosis.intervals import drawn
from trimtab.diagnosis.panel import choose_panel, thinned
from trimtab.diagnosis.rules import RULES
from trimtab.problems.catalogue import mlp

CLOSED = ("G", "B", "delta", "L", "mu", "zeta", "sigma")
WEIGHTS = [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
@pytest.mark.parametrize(("G", "delta"), [(0.1, 0.02), (3.0, 0.4)])
def test_quadratics_have_their_closed_forms(G, delta, weights):
    problem = quadratics(G=G, delta=delta, sigma=0.7, weights=weights)
    found = diagnose(problem)
    for name in CLOSED:
        assert getattr(found, name) == pytest.approx(getattr(problem, name), rel=0.05), name
    norms = torch.linalg.eigvalsh(problem.A - problem.H).abs().amax(1)
    assert found.second == pytest.approx(sqrt(float(problem.weights @ norms.square())), rel=0.05)
    assert found.optimum


def test_without_closed_forms_the_same_is_measured():
    problem = quadratics(sigma=0.7)
    found = diagnose(Opaque(problem))
    for name in CLOSED:
        if name != "B":  # a supremum; elsewhere the largest over the points tried
            assert getattr(found, name) == pytest.approx(getattr(problem, name), rel=0.05), name
    assert 1 <= found.B <= 1.01 * problem.B
    assert found.errors["sigma"] < 0.05 * found.sigma


def by_products(problem, x, seconds=60.0, seed=0, worst=RULES.followed):
    budget = Budget(seconds)
    panel = everybody(problem)
    work = Task(hessians.by_products(panel, x, seed, budget, budget.until(1), worst))
    return work.result(), budget


def test_products_alone_find_the_same_hessians():
    problem = quadratics(N=30, d=40, delta=0.5)
    found, budget = by_products(problem, problem.x_star)
    for name in ("delta", "L", "mu"):
        assert getattr(found, name) == pytest.approx(getattr(problem, name), rel=0.05), name
    assert not budget.cut


def wide(N=6, n=24):
    """Return a network with d = 390, more than the directions that are looked at."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 10)).double()
    truth, clients = random(8, 10, seed=5), []
    for i in range(N):
        X = (1 + 0.1 * i) * random(n, 8, seed=i) + random(8, seed=100 + i)
        clients.append((X, (X @ truth).argmax(1)))
    return Supervised(module, F.cross_entropy, clients, l2=0.01)


def test_what_the_directions_leave_out_is_within_the_errors():
    """Also if the steepest client was not among the few that were followed."""
    problem = wide()
    x, norm = problem.x0(), lambda M: float(torch.linalg.eigvalsh(M).abs().max())
    H_i = torch.stack([dense_hessian(problem, i, x) for i in range(problem.N)])
    H = H_i.mean(0)
    truth = {"L": norm(H_i), "delta": norm(H_i - H), "norm": norm(H)}
    truth["mu"] = float(torch.linalg.eigvalsh(H)[0])
    missed = 0
    for worst, seed in ((w, s) for w in (1, 2, 6) for s in range(4)):
        found, _ = by_products(problem, x, seed=seed, worst=worst)
        for name, value in truth.items():
            off = abs(getattr(found, name) - value)
            assert off <= found.errors[name] <= 0.5 * truth["L"], (name, worst, seed)
            missed += off > 0.05 * truth["L"]
    assert missed  # Else there would have been nothing to leave out.


def test_when_time_is_over_the_worst_client_by_random_vectors_comes_first():
    A = (1 + 0.01 * torch.arange(100).double())[:, None].repeat(1, 8)
    A[13] *= 5
    problem = Quadratic(A, random(100, 8))
    found, budget = by_products(problem, problem.x0(), seconds=1e-9)
    assert "drawn at random" in " ".join(budget.cut)
    some_of_all(problem, found)
    found, _ = by_products(problem, problem.x0())
    assert max(range(100), key=lambda i: found.apart[i]) == 13
    assert found.measured[13]
    assert not all(found.measured)


def some_of_all(problem, found):
    """Hessians of some clients are not taken for all of them: the interval has room for others."""
    seen = [i for i in range(problem.N) if isfinite(found.apart[i])]
    assert 0 < len(seen) < problem.N
    assert seen != list(range(len(seen)))  # Those that come first may be alike.
    assert found.restricted.clients == tuple(seen)
    assert not found.exact
    assert not found.mu_exact
    x, panel = problem.x0(), everybody(problem)
    draws, here = drawn(panel, problem.N, 0), measure.at_point(panel, x)
    sample = intervals.at_point("x", x, draws, panel.p, here, found)
    assert float(sample.replicates["mu"].std()) > 0


def test_logistic_regression_agrees_with_a_dense_computation():
    problem = logistic(batch=10, sampling="iid")
    found = diagnose(problem)
    x = problem.x0()
    for _ in range(30):  # Newton
        H_i = torch.stack([dense_hessian(problem, i, x) for i in range(4)])
        x = x - torch.linalg.solve(H_i.mean(0), problem.gradient(x))
    H = H_i.mean(0)
    gradients = torch.stack([problem.client_gradient(i, x) for i in range(4)])
    each = []
    for i in range(4):
        data = problem.clients[i]
        rows = [
            Supervised(
                problem.model.module, problem.loss_function, [(X[None], y[None])], l2=0.05
            ).client_gradient(0, x)
            for X, y in zip(data.X, data.y, strict=True)
        ]
        each.append(float(torch.stack(rows).var(0, correction=0).sum()) / 10)
    expected = {
        "zeta": sqrt(float(gradients.square().sum(1).mean())),
        "delta": float(torch.linalg.eigvalsh(H_i - H).abs().max()),
        "L": float(torch.linalg.eigvalsh(H_i).abs().max()),
        "mu": float(torch.linalg.eigvalsh(H)[0]),
        "sigma": sqrt(sum(each) / 4),
    }
    expected["G"] = expected["zeta"]
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=0.1), name
    assert found.points[0].where == "start"
    assert max(row.B for row in found.points[:-1]) == found.B


def test_the_average_drift_is_that_of_local_steps_and_of_first_order_for_small_ones():
    problem = quadratics(delta=0.4)
    found = diagnose(problem)
    limit = problem.x_star
    moved = []
    for i in range(problem.N):
        y = limit
        for _ in range(found.K):
            y = y - found.eta_l * problem.client_gradient(i, y)
        moved.append(y)
    mean = problem.weights @ torch.stack(moved)
    assert found.drift == pytest.approx(float((limit - mean).norm()) / (found.eta_l * found.K))


def test_the_outlier_is_named():
    usual = quadratics(delta=0.05, G=0.3)
    b = usual.b.clone()
    b[3] += 20
    problem = Quadratic(usual.A, b)
    first = diagnose(problem).clients[0]
    assert first.client == 3
    assert "gradient" in first.outlier


def test_sampled_data_have_standard_errors_and_no_bias_upwards():
    n, rows = 400, random(400, 6)
    clients = [(rows.clone(), (rows[:, :1] * 2)) for _ in range(5)]  # equal clients
    whole = Supervised(lambda: mlp(6, 4, 1), torch.nn.functional.mse_loss, clients)
    budget = Budget(60.0)
    assert choose_panel(whole, 0, budget).thinned is None
    corrected = naive = 0.0
    for seed in range(8):  # by chance one estimate may be far off
        thin, x = thinned(whole, tuple(range(5)), n // 8, seed, budget), whole.x0(seed)
        found, each = measure.at_point(thin, x), thin.gradients(x)
        corrected += found.zeta**2
        naive += float((each - each.mean(0)).square().sum(1).mean())
    assert any(note.startswith("At most 50 samples of each client") for note in budget.cut)
    assert corrected < naive / 2  # the clients are equal: all that differs is the sample


def test_a_problem_without_minimum_says_so():
    X = torch.tensor([[1.0], [-1.0]]).double()
    clients = [(X, torch.tensor([0, 1]))] * 3
    found = diagnose(Supervised(torch.nn.Linear(1, 2), torch.nn.functional.cross_entropy, clients))
    assert not found.optimum
    assert any("no minimum nearby" in doubt for doubt in found.doubts)


def test_descent_ends_at_the_optimum_of_logistic_regression():
    problem = logistic()
    *_, last = optimum.descend(everybody(problem), problem.x0())
    assert last.slope < 1e-5
