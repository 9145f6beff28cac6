"""What the rest of the family reduces to, and where it goes at constant steps without noise."""

from math import sqrt

import pytest
import torch

from tests.helpers.quadratics import (
    BASES,
    WEIGHTS,
    RandomTwo,
    Unequal,
    assert_same,
    distances,
    fit,
    path,
    quadratic,
)
from trimtab import (
    AdamW,
    Clipped,
    FedAvg,
    FedDyn,
    FedNova,
    FedProx,
    Momentum,
    Quadratic,
    Scaffnew,
    Scaffold,
    ScaffoldM,
    ScaffoldOpt,
    Scallion,
    Sgd,
    Through,
)
from trimtab.core.oracle import ClientOracle

weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
ONES = torch.ones(3, dtype=torch.float64)

eta_l, K = 0.05, 5


def some_lost(algorithm, problem):
    """Return a path with sampling, lost replies and noise."""
    return path(algorithm, problem, 30, S=3, lost=0.3)


CONTROLLED = (
    ScaffoldM(eta_l=eta_l, K=K, a=0.5),
    FedDyn(eta_l=eta_l, K=K, alpha=3.0),
    Scaffnew(eta_l=eta_l, p=0.2),
    Scallion(eta_l=eta_l, K=K, alpha=0.5),
)


@weighted
@pytest.mark.parametrize("S", [2, 6])
@pytest.mark.parametrize("algorithm", CONTROLLED, ids=repr)
def test_those_with_controls_reach_the_optimum(algorithm, S, weights):
    problem = quadratic(weights=weights)
    x = path(algorithm, problem, 400, S=S, lost=0.2)[-1]
    assert_same(x, problem.x_star, atol=1e-8)


# -- ScaffoldM


@weighted
@pytest.mark.parametrize("eta_g", [0.6, 1.0])
def test_scaffold_m_without_momentum_is_scaffold(eta_g, weights):
    problem, how = quadratic(sigma=1.0, weights=weights), {"eta_l": eta_l, "K": K, "eta_g": eta_g}
    assert_same(some_lost(ScaffoldM(a=1.0, **how), problem), some_lost(Scaffold(**how), problem))


def test_the_momentum_of_scaffold_m_does_not_lengthen_the_steps():
    """With equal clients m is the mean direction of the last round, so y - x is a mean of such."""
    some = quadratic()
    problem = type(some)(some.A[:1].expand(6, -1, -1), some.b[:1].expand(6, -1))
    first, later = (ScaffoldM(eta_l=1e-6, K=K, a=a) for a in (1.0, 0.2))
    gradient = problem.gradient(ONES)
    xs = path(later, problem, 200)
    assert_same(path(first, problem, 1)[0] - ONES, -K * 1e-6 * gradient, atol=1e-9)
    assert_same(xs[-1] - xs[-2], -K * 1e-6 * gradient, atol=1e-7)


# -- FedDyn


def test_feddyns_h_is_the_gradient_where_the_client_stops():
    """Equation (2) of the paper, if the local problem is solved."""
    problem, alpha = quadratic(), 0.7
    x, h_i = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3)
    for i in range(6):
        g = ClientOracle(problem.oracle(i, 0, 1))
        (dx,), h_i_new = FedDyn(eta_l=0.3, K=200, alpha=alpha).local(g, h_i, x)
        A = problem.A[i] + alpha * torch.eye(3, dtype=torch.float64)
        assert_same(x + dx, torch.linalg.solve(A, problem.b[i] + h_i + alpha * x))
        assert_same(h_i_new, problem.client_gradient(i, x + dx))


@pytest.mark.parametrize("S", [2, 3, 6])
def test_the_first_round_of_feddyn_is_a_longer_one_of_fedprox(S):
    problem = quadratic(sigma=1.0)
    fedprox = FedProx(eta_l=eta_l, K=K, mu=0.7, eta_g=1 + S / 6)
    feddyn = path(FedDyn(eta_l=eta_l, K=K, alpha=0.7), problem, 1, S=S)
    assert_same(feddyn, path(fedprox, problem, 1, S=S))


# -- Scaffnew


class OneNumber:
    """Clients of whom only the server's number and the broadcast K matter."""

    def __init__(self, u):
        self.u, self.K = u, 0

    def uniform(self, like):
        return torch.full_like(like, self.u)

    def run(self, program, x, c, K):
        self.K = int(K)
        return self

    share = 1.0

    def mean(self):
        return torch.zeros(3), torch.zeros(3)


@pytest.mark.parametrize("p", [0.02, 0.3, 0.9, 1.0])
def test_scaffnews_number_of_steps_is_geometric(p):
    """K > k with chance (1 - p)^k: just below that u gives at most k steps, just above more."""
    algorithm = Scaffnew(eta_l=0.1, p=p)

    def drawn(u):
        clients = OneNumber(u)
        algorithm.round(algorithm.init_server(ONES), clients)
        return clients.K

    assert drawn(0.0) == 1
    for k in range(1, 20):
        if (1 - p) ** k > 1e-3:
            assert drawn(1 - (1 - p) ** k - 1e-6) == k
            assert drawn(1 - (1 - p) ** k + 1e-6) == k + 1
    assert p < 1 or drawn(0.999) == 1


@pytest.mark.parametrize("condition", [25, 100])
def test_scaffnew_needs_the_root_of_the_rounds_of_sgd(condition):
    """Theorem: |x - x*|^2 falls by 1 - mu/L a step, so by e in sqrt(L/mu) rounds of 1/p steps."""
    rng = torch.Generator().manual_seed(0)
    A = torch.rand(6, 4, generator=rng, dtype=torch.float64).clamp(1 / condition)
    A[:, 0], A[:, -1] = 1 / condition, 1  # in directions that all clients share
    problem = Quadratic(A, A * torch.randn(6, 4, generator=rng, dtype=torch.float64))

    def rounds_for_e(algorithm, R):
        errors = distances(path(algorithm, problem, R), problem.x_star)
        slope, _ = fit(range(R // 4, R), errors[R // 4 :].log())
        return -1 / slope

    root = sqrt(condition)
    assert 0.5 * root < rounds_for_e(Scaffnew(eta_l=1.0, p=1 / root), int(20 * root)) < 2 * root
    assert rounds_for_e(Sgd(eta=1.0), 4 * condition) > 0.9 * condition


# -- Scallion


@weighted
@pytest.mark.parametrize("eta_g", [0.6, 1.0])
def test_scallion_of_whole_steps_is_scaffold(eta_g, weights):
    problem, how = quadratic(sigma=1.0, weights=weights), {"eta_l": eta_l, "K": K, "eta_g": eta_g}
    assert_same(some_lost(Scallion(alpha=1.0, **how), problem), some_lost(Scaffold(**how), problem))


@weighted
@pytest.mark.parametrize("S", [2, 6])
def test_scallion_reaches_the_optimum_through_a_random_compressor(S, weights):
    problem = quadratic(d=5, weights=weights)
    careful, bold = (Scallion(eta_l=eta_l, K=K, alpha=alpha) for alpha in (0.4, 1.0))
    x = path(Through(careful, (RandomTwo(),)), problem, 600, S=S)[-1]
    assert_same(x, problem.x_star, atol=1e-8)
    x = path(Through(bold, (RandomTwo(),)), problem, 200, S=S)[-1]
    assert distances(x, problem.x_star) > 100


@weighted
@pytest.mark.parametrize("S", [2, 6])
@pytest.mark.parametrize(
    "algorithm",
    [
        ScaffoldM(eta_l=eta_l, K=K, a=0.5),
        FedDyn(eta_l=eta_l, K=K, alpha=3.0),
        Scallion(eta_l=eta_l, K=K, alpha=0.5),
    ],
    ids=repr,
)
def test_controls_need_no_equal_numbers_of_steps(algorithm, S, weights):
    problem, executor = quadratic(weights=weights), Unequal([1, 2, 3, 4, 6, 9])
    x = path(algorithm, problem, 600, S=S, executor=executor)[-1]
    assert_same(x, problem.x_star, atol=1e-8)


# -- FedNova


@weighted
@pytest.mark.parametrize("eta_g", [0.6, 1.0])
def test_fednova_of_equal_numbers_of_steps_is_fedavg(eta_g, weights):
    problem, how = quadratic(sigma=1.0, weights=weights), {"eta_l": eta_l, "K": K, "eta_g": eta_g}
    assert_same(some_lost(FedNova(**how), problem), some_lost(FedAvg(**how), problem))


@weighted
def test_fednova_is_consistent_with_unequal_numbers_of_steps(weights):
    """Its bias is of first order in eta_l; FedAvg goes to the optimum of sum p_i K_i f_i."""
    problem, executor = quadratic(weights=weights), Unequal([1, 2, 3, 4, 6, 9])
    p_K = problem.weights * torch.tensor(executor.steps)
    inconsistent = Quadratic(problem.A, problem.b, weights=p_K).x_star

    def limit(kind, eta_l):
        return path(kind(eta_l=eta_l, K=K), problem, int(10 / eta_l), executor=executor)[-1]

    for kind, goal in ((FedNova, problem.x_star), (FedAvg, inconsistent)):
        coarse, fine = (distances(limit(kind, eta_l), goal) for eta_l in (0.02, 0.01))
        assert 1.8 < coarse / fine < 2.2
        assert fine < 0.1 * distances(inconsistent, problem.x_star)


# -- ScaffoldOpt


@weighted
@pytest.mark.parametrize("eta_g", [0.6, 1.0])
def test_scaffold_opt_without_memory_is_scaffold(eta_g, weights):
    problem, how = quadratic(sigma=1.0, weights=weights), {"eta_l": eta_l, "K": K, "eta_g": eta_g}
    without = ScaffoldOpt(base=Momentum(0.0), **how)
    assert_same(some_lost(without, problem), some_lost(Scaffold(**how), problem))


@weighted
@pytest.mark.parametrize("S", [2, 6])
@pytest.mark.parametrize("base", BASES, ids=lambda base: type(base).__name__)
def test_scaffold_opt_reaches_the_optimum(base, S, weights):
    problem = quadratic(weights=weights)
    x = path(ScaffoldOpt(eta_l=0.02, K=K, base=base), problem, 600, S=S)[-1]
    assert_same(x, problem.x_star, atol=1e-8)


# Correct, then clip, then the optimiser; without decay x* is a fixed point of each.
MODERN = (
    AdamW(eps=0.1, weight_decay=0.0),
    Clipped(AdamW(eps=0.1, weight_decay=0.0), norm=0.5),
    Clipped(Momentum(0.5), norm=0.5),
)


@weighted
@pytest.mark.parametrize("S", [2, 6])
@pytest.mark.parametrize("base", MODERN, ids=repr)
def test_scaffold_opt_reaches_the_optimum_with_adamw_and_clipping(base, S, weights):
    problem = quadratic(weights=weights)
    x = path(ScaffoldOpt(eta_l=0.02, K=K, base=base), problem, 900, S=S)[-1]
    assert_same(x, problem.x_star, atol=1e-8)


def test_with_weight_decay_it_ends_where_one_client_with_all_data_ends():
    problem = quadratic(weights=WEIGHTS)
    pooled = Quadratic(problem.H[None], (problem.H @ problem.x_star)[None])
    algorithm = ScaffoldOpt(eta_l=0.02, K=K, base=AdamW(eps=0.1, weight_decay=0.1))
    end, alone = (path(algorithm, each, 900)[-1] for each in (problem, pooled))
    assert_same(end, alone, atol=1e-8)
    assert (end - problem.x_star).norm() > 1e-3


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_one_client_steps_as_pytorchs_adamw_does(decay, clip):
    """With one client c_i = c, so that K local steps are K steps of torch.optim."""
    problem = quadratic(N=1)
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.AdamW([x], lr=0.02, weight_decay=decay)
    for _ in range(K):
        x.grad = problem.gradient(x.detach())
        if clip is not None:
            x.grad *= min(1.0, clip / float(x.grad.norm()))
        theirs.step()
    base = AdamW(weight_decay=decay)
    base = base if clip is None else Clipped(base, clip)
    ours = path(ScaffoldOpt(eta_l=0.02, K=K, base=base), problem, 1)[0]
    assert_same(ours, x.detach(), atol=1e-12)


class ClippedFirst(ScaffoldOpt):
    """The mistake: the raw gradient is clipped, then corrected."""

    def local(self, g, c_i, x, c):
        clip = Clipped(self.base, 0.5)._clip
        inner = ClientOracle(lambda y, k=None: clip(g(y, k)))
        return super().local(inner, c_i, x, c)


def test_clipping_before_the_correction_ends_elsewhere():
    problem, how = quadratic(), {"eta_l": 0.02, "K": K}
    right = ScaffoldOpt(base=Clipped(Momentum(0.0), 0.5), **how)
    wrong = ClippedFirst(base=Momentum(0.0), **how)
    ends = [path(each, problem, 900)[-1] for each in (right, wrong)]
    assert_same(ends[0], problem.x_star, atol=1e-8)
    assert (ends[1] - problem.x_star).norm() > 0.05


def test_a_base_whose_direction_does_not_take_the_point_is_refused(refused):
    class Old(Momentum):
        def U(self, g, m):
            return g

    with refused("base", "with U(g, s, y) and V(g, s)"):
        ScaffoldOpt(eta_l=0.1, K=1, base=Old())
