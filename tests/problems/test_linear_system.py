"""Linear systems that are no gradients: closed forms against runs, and what is refused."""

from itertools import islice

import pytest
import torch

from trimtab import FedAvg, LinearSystem, Quadratic, Scaffold, compare, simulate
from trimtab.problems.identity import matches_fingerprint
from trimtab.problems.linear_system import solve_continuous_lyapunov, solve_discrete_lyapunov

WEIGHTS = [0.1, 0.4, 0.3, 0.2]
weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])


def systems(N=4, d=3, noise=None, weights=None, seed=0):
    """Return systems with rotations in them, of which one is unstable by itself."""
    draw = torch.Generator().manual_seed(seed)
    A = torch.randn(N, d, d, generator=draw, dtype=torch.float64)
    A = 0.4 * A @ A.mT / d + 0.3 * (A - A.mT) + 0.3 * torch.eye(d, dtype=torch.float64)
    A[0] = A[0] - 0.8 * torch.eye(d, dtype=torch.float64)
    b = torch.randn(N, d, generator=draw, dtype=torch.float64)
    return LinearSystem(A, b, noise, weights)


def covariance(d, seed=1):
    """Return a covariance that is not isotropic."""
    half = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return half @ half.mT / d


def last(algorithm, problem, R, **options):
    *_, end = islice(simulate(algorithm, problem, **options), R)
    return end.x


@weighted
def test_x_star_solves_the_mean_system_whose_matrices_are_not_symmetric(weights):
    problem = systems(weights=weights)
    p = torch.tensor(weights or [0.25] * 4, dtype=torch.float64)
    A, b = torch.einsum("n,nij->ij", p, problem.A), p @ problem.b
    torch.testing.assert_close(A @ problem.x_star, b)
    assert not torch.allclose(problem.A, problem.A.mT)
    assert float(torch.linalg.eigvals(problem.A[0]).real.min()) < 0
    assert problem.evaluate(problem.x_star)["error"] == 0


def test_oracles_are_A_i_y_minus_b_i_for_one_point_and_for_several():
    problem, y = systems(), torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 3.0]]).double()
    expected = problem.A[1] @ y[0] - problem.b[1]
    torch.testing.assert_close(problem.oracle(1, 0, 1)(y[0], 3), expected)
    torch.testing.assert_close(problem.client_gradient(1, y)[0], expected)
    torch.testing.assert_close(problem.client_hvp(1, y[0], y)[1], problem.A[1] @ y[1])


@weighted
@pytest.mark.parametrize("eta_g", [1.0, 0.6])
def test_fedavg_stops_at_its_limit_and_scaffold_does_not(weights, eta_g):
    """FedLSA stays at its bias, SCAFFLSA goes on to x*."""
    problem = systems(weights=weights)
    limit = problem.fedavg_limit(0.2, 8)
    torch.testing.assert_close(last(FedAvg(eta_l=0.2, K=8, eta_g=eta_g), problem, 200), limit)
    assert float((limit - problem.x_star).norm()) > 0.01
    end = last(Scaffold(eta_l=0.2, K=8, eta_g=eta_g), problem, 200)
    torch.testing.assert_close(end, problem.x_star, atol=1e-9, rtol=0)


def test_the_limit_is_the_fixed_point_of_the_clients_own_solutions():
    """The form of the paper: x + mean_i ((I - eta A_i)^K - I) (x - A_i^-1 b_i)."""
    problem, eta_l, K = systems(), 0.1, 5
    x = problem.fedavg_limit(eta_l, K)
    own = torch.linalg.solve(problem.A, problem.b)
    eye = torch.eye(3, dtype=torch.float64)
    powers = torch.linalg.matrix_power(eye - eta_l * problem.A, K)
    moves = torch.einsum("nij,nj->ni", powers - eye, x - own)
    torch.testing.assert_close(moves.mean(0), torch.zeros(3, dtype=torch.float64))


def test_on_symmetric_matrices_the_limit_is_that_of_a_quadratic():
    problem = systems()
    A = (problem.A + problem.A.mT) / 2 + torch.eye(3, dtype=torch.float64)
    ours, theirs = LinearSystem(A, problem.b), Quadratic(A, problem.b)
    torch.testing.assert_close(ours.x_star, theirs.x_star)
    torch.testing.assert_close(ours.fedavg_limit(0.1, 6), theirs.fedavg_limit(0.1, 6))


class Many:
    """M independent runs of a linear system as one problem, each with noise of its own."""

    def __init__(self, system, M):
        self.system, self.M, self.N, self.d = system, M, system.N, M * system.d
        self.weights = system.weights

    def x0(self, seed=0):
        return self.system.x_star.repeat(self.M)

    def oracle(self, i, seed, r):
        chol = torch.linalg.cholesky(self.system.noise[i])

        def g(y, k=None):
            draw = torch.Generator().manual_seed(((seed * 997 + i) * 997 + r) * 997 + k)
            z = torch.randn(self.M, self.system.d, generator=draw, dtype=torch.float64)
            exact = self.system.client_gradient(i, y.view(self.M, -1))
            return (exact + z @ chol.mT).flatten()

        return g

    def evaluate(self, x, client=None):
        return {"loss": 0.0}


@pytest.mark.parametrize("eta_g", [1.0, 0.7])
@pytest.mark.parametrize("kind", [FedAvg, Scaffold])
def test_the_stationary_covariance_is_that_of_many_runs(kind, eta_g):
    """4,000 chains know it up to about 3 %; the margin is 10 %."""
    noise = torch.stack([covariance(3, seed) for seed in range(4)])
    problem = systems(noise=noise, weights=WEIGHTS)
    many = Many(problem, 4000)
    end = last(kind(eta_l=0.2, K=4, eta_g=eta_g), many, 40).view(-1, 3)
    closed = problem.fedavg_covariance if kind is FedAvg else problem.scaffold_covariance
    expected = closed(0.2, 4, eta_g)
    assert float((torch.cov(end.mT) - expected).norm() / expected.norm()) < 0.1


def test_covariances_fall_as_one_over_N():
    one = systems(noise=covariance(3))
    for closed in (LinearSystem.fedavg_covariance, LinearSystem.scaffold_covariance):
        traces = [
            float(
                closed(
                    LinearSystem(one.A.repeat(n, 1, 1), one.b.repeat(n, 1), one.noise[0]), 0.05, 4
                ).trace()
            )
            for n in (1, 2, 4)
        ]
        assert traces[0] / traces[2] == pytest.approx(4, rel=0.1)


def test_noise_has_its_covariance_and_depends_on_seed_client_round_and_step_alone(same_global_rng):
    C = covariance(3)
    problem, y = systems(noise=C), torch.zeros(3, dtype=torch.float64)
    draws = torch.stack([problem.oracle(1, 0, r)(y, 2) + problem.b[1] for r in range(4000)])
    assert float((torch.cov(draws.mT) - C).norm() / C.norm()) < 0.15
    assert float(draws.mean(0).norm()) < 0.1
    first = problem.oracle(1, 5, 7)(y, 2)
    assert torch.equal(first, problem.oracle(1, 5, 7)(y, 2))
    others = [(0, 5, 7, 2), (1, 6, 7, 2), (1, 5, 8, 2), (1, 5, 7, 3)]
    for i, seed, r, k in others:
        other = problem.oracle(i, seed, r)(y, k) + problem.b[i]
        assert not torch.equal(first + problem.b[1], other)
    torch.testing.assert_close(problem.oracle(1, 5, 7)(y), -problem.b[1])


def test_lyapunov_equations_are_solved():
    problem, C = systems(), covariance(3)
    T = torch.eye(3, dtype=torch.float64) - 0.3 * problem.mean_A
    X = solve_discrete_lyapunov(T, C)
    torch.testing.assert_close(T @ X @ T.mT + C, X)
    X = solve_continuous_lyapunov(problem.mean_A, C)
    torch.testing.assert_close(problem.mean_A @ X + X @ problem.mean_A.mT, C)


def test_what_it_can_do_and_how_it_is_told_apart():
    problem = systems()
    assert (problem.symmetric, problem.constant_hessians) == (False, True)
    assert problem.metric.name == "error"
    assert Quadratic([1.0], [1.0]).symmetric
    stored = systems().fingerprint
    assert matches_fingerprint(systems(), stored).differs == ()
    changed = matches_fingerprint(systems(noise=0.1), stored)
    assert changed.differs == ("the covariances of the noise differ",)


def test_compare_judges_by_the_error():
    """FedAvg's bias is in its way, however small the step: 40 rounds are few."""
    found = compare(systems(), ["fedavg", "scaffold"], K=8, target=1e-6, R=40)
    assert found.metric == "error"
    fedavg, scaffold = found.entries
    assert (fedavg.rounds, scaffold.rounds is None) == (None, False)


TWO = [[[1.0, 0.0], [0.0, 1.0]]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"A": [1.0, 2.0], "b": [1.0, 2.0]}, ["A has shape (2,)", "(N, d, d)"]),
        ({"A": torch.zeros(0, 2, 2), "b": torch.zeros(0, 2)}, ["neither of them empty"]),
        ({"A": [[[float("nan"), 0.0], [0.0, 1.0]]], "b": [[0.0, 0.0]]}, ["NaN or infinity"]),
        ({"A": [[[0.0, 1.0], [-1.0, 0.0]]], "b": [[0.0, 0.0]]}, ["real part 0", "positive"]),
        ({"A": TWO, "b": [[0.0, 0.0]], "noise": [1.0, 2.0]}, ["noise has shape (2,)"]),
        ({"A": TWO, "b": [[0.0, 0.0]], "noise": [[1.0, 2.0], [0.0, 1.0]]}, ["not a symmetric"]),
        ({"A": TWO, "b": [[0.0, 0.0]], "noise": -1.0}, ["eigenvalue -1", "pass a covariance"]),
        ({"A": TWO, "b": [[0.0, 0.0]], "weights": [0.0]}, ["weights", "positive"]),
    ],
)
def test_wrong_arguments_are_one_sentence(refused, arguments, words):
    with refused(*words):
        LinearSystem(**arguments)


def test_a_step_without_a_stationary_law_is_refused(refused):
    with refused("eta_l=9", "grow", "smaller step"):
        systems(noise=1.0).fedavg_covariance(9.0, 1)
    with refused("an eigenvalue of T is 1 or larger"):
        solve_discrete_lyapunov(torch.eye(2), torch.eye(2))
