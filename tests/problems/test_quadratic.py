"""Quadratic: the closed forms against brute force, the shapes, the noise, and bad input."""

from itertools import islice

import pytest
import torch

from trimtab import FedAvg, Quadratic, simulate

N, D = 5, 3
WEIGHTS = (1.0, 2.0, 3.0, 4.0, 5.0)
weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])


def randn(*shape, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def quadratic(**settings):
    """Return quadratics of which the first is singular and the second indefinite."""
    Q = torch.linalg.qr(randn(N, D, D)).Q
    eigenvalues = 0.5 + randn(N, D, seed=1).abs()
    eigenvalues[0, 0], eigenvalues[1, 1] = 0, -0.3
    A = Q @ torch.diag_embed(eigenvalues) @ Q.mT
    return Quadratic((A + A.mT) / 2, randn(N, D, seed=2), **settings)


def f(problem, i, x):
    return 0.5 * x @ problem.A[i] @ x - problem.b[i] @ x


def mean(problem, terms):
    """Return the mean over clients, written out."""
    p = torch.tensor(WEIGHTS if problem.weights[0] != problem.weights[1] else [1.0] * N).double()
    return sum(p_i * t for p_i, t in zip(p / p.sum(), terms, strict=True))


def gradients(problem, x):
    """Return the clients' gradients by autograd."""
    x = x.clone().requires_grad_()
    return [torch.autograd.grad(f(problem, i, x), x)[0] for i in range(N)]


def minimum(problem):
    """Return x* by one Newton step from zero on the weighted sum, by autograd."""

    def total(x):
        return mean(problem, [f(problem, i, x) for i in range(N)])

    zero = torch.zeros(D, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(total, zero)
    slope = torch.autograd.functional.jacobian(total, zero)
    return -torch.linalg.inv(hessian) @ slope


def close(a, b, atol=1e-10):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=0, atol=atol)


# -- the losses


@weighted
def test_losses_and_gradients_are_those_of_the_definition(weights):
    problem, x = quadratic(weights=weights), randn(D, seed=3)
    expected = gradients(problem, x)
    for i in range(N):
        assert problem.client_loss(i, x) == pytest.approx(float(f(problem, i, x)))
        assert problem.evaluate(x, client=i) == {"loss": problem.client_loss(i, x)}
        close(problem.client_gradient(i, x), expected[i])
        close(problem.oracle(i, seed=0, r=1)(x), expected[i])
    close(problem.gradient(x), mean(problem, expected))
    losses = [f(problem, i, x) for i in range(N)]
    assert problem.loss(x) == pytest.approx(float(mean(problem, losses)))


@weighted
def test_gap_and_distance_are_measured_from_the_optimum(weights):
    problem, x = quadratic(weights=weights), randn(D, seed=3)
    found = problem.evaluate(x)
    assert found["loss"] == problem.loss(x)
    assert found["gap"] == pytest.approx(problem.loss(x) - problem.f_star, rel=1e-10)
    assert found["distance"] == pytest.approx(float((x - minimum(problem)).norm()), rel=1e-10)


def test_gradients_also_take_a_chunk_of_points():
    problem, y = quadratic(), randn(4, D, seed=3)
    rows = torch.stack([problem.client_gradient(2, row) for row in y])
    close(problem.client_gradient(2, y), rows)


# -- closed forms


@weighted
def test_x_star_is_where_newton_ends_and_f_star_the_loss_there(weights):
    problem = quadratic(weights=weights)
    x_star = minimum(problem)
    close(problem.x_star, x_star)
    close(problem.gradient(problem.x_star), torch.zeros(D, dtype=torch.float64))
    losses = [f(problem, i, x_star) for i in range(N)]
    assert problem.f_star == pytest.approx(float(mean(problem, losses)))
    assert all(problem.loss(x_star + v) > problem.f_star for v in randn(50, D, seed=4))


@weighted
def test_weights_move_the_optimum_and_are_normalised(weights):
    problem = quadratic(weights=weights)
    expected = [w / 15 for w in WEIGHTS] if weights else [1 / N] * N
    assert problem.weights.tolist() == pytest.approx(expected)
    assert problem.weights.dtype == torch.float64
    assert torch.allclose(problem.x_star, quadratic().x_star) == (weights is None)


@weighted
def test_G_and_zeta_are_the_root_mean_square_gradient_at_the_optimum(weights):
    problem = quadratic(weights=weights)
    squares = [g.square().sum() for g in gradients(problem, minimum(problem))]
    close(problem.G, mean(problem, squares).sqrt().item())
    assert problem.zeta == problem.G


def dissimilarity(problem, e):
    """Return mean |grad f_i(x) - grad f_i(x*)|^2 / |grad f(x)|^2 for x = x* + e."""
    squares = [(problem.A[i] @ e).square().sum() for i in range(N)]
    return mean(problem, squares) / (problem.H @ e).square().sum()


@weighted
def test_B_is_the_supremum_of_the_gradient_dissimilarity(weights):
    problem = quadratic(weights=weights)
    points = randn(100, D, seed=5)  # x - x*
    ratios = [float(dissimilarity(problem, x)) for x in points]
    assert max(ratios) <= problem.B**2 * (1 + 1e-10)

    x = points[ratios.index(max(ratios))].clone().requires_grad_()
    climb = torch.optim.LBFGS([x], line_search_fn="strong_wolfe", tolerance_change=0)

    def uphill():
        climb.zero_grad()
        (loss := -dissimilarity(problem, x)).backward()
        return loss

    climb.step(uphill)
    assert dissimilarity(problem, x).item() == pytest.approx(problem.B**2, rel=1e-6)


@weighted
def test_assumption_A1_holds_with_root_two_G_and_root_two_B(weights):
    problem = quadratic(weights=weights)
    for x in 3 * randn(100, D, seed=6):
        squares = mean(problem, [g.square().sum() for g in gradients(problem, x)])
        bound = 2 * problem.G**2 + 2 * problem.B**2 * problem.gradient(x).square().sum()
        assert squares <= bound * (1 + 1e-10)


@weighted
def test_L_mu_and_delta_are_extreme_curvatures(weights):
    problem = quadratic(weights=weights)
    H = mean(problem, problem.A)
    spectral = torch.linalg.matrix_norm
    close(problem.L, spectral(problem.A, 2).max().item())
    close(problem.delta, spectral(problem.A - H, 2).max().item())
    v = torch.nn.functional.normalize(randn(2000, D, seed=7), dim=1)
    curvature = torch.einsum("si,ij,sj->s", v, H, v)
    assert problem.mu <= float(curvature.min()) <= problem.mu + 0.01
    differences = torch.einsum("si,nij,sj->ns", v, problem.A - H, v).abs()
    assert problem.delta - 0.01 <= float(differences.max()) <= problem.delta


@weighted
@pytest.mark.parametrize("eta_g", [1.0, 1.7])
def test_fedavg_limit_is_where_fedavg_stops(weights, eta_g):
    problem = quadratic(weights=weights)
    sim = simulate(FedAvg(eta_l=0.1, K=4, eta_g=eta_g), problem)
    x = list(islice(sim, 400))[-1].x
    close(x, problem.fedavg_limit(eta_l=0.1, K=4))


@weighted
def test_fedavg_bias_is_the_limit_to_first_order(weights):
    problem = quadratic(weights=weights)
    steps = (1e-2, 1e-3, 1e-4)
    gaps = [
        float((problem.fedavg_limit(e, 4) - problem.x_star - problem.fedavg_bias(e, 4)).norm())
        for e in steps
    ]
    assert gaps[0] / gaps[1] == pytest.approx(100, rel=0.2)
    assert gaps[1] / gaps[2] == pytest.approx(100, rel=0.05)
    close(problem.fedavg_bias(0.1, K=1), torch.zeros(D, dtype=torch.float64))


# -- shapes and types


def test_diagonals_and_numbers_stand_for_matrices():
    diagonals, b = randn(N, D).abs(), randn(N, D)
    assert torch.equal(Quadratic(diagonals, b).A, torch.diag_embed(diagonals))
    numbers = Quadratic(diagonals[:, 0], b[:, 0])
    assert numbers.A.shape == (N, 1, 1)
    assert numbers.b.shape == (N, 1)
    assert (numbers.N, numbers.d) == (N, 1)


def test_lists_of_numbers_are_taken_as_floats():
    pair = Quadratic([2, 0], [-1, 1])  # Figure 3 with G = 1
    assert pair.b.dtype == torch.float32
    assert (pair.G, pair.delta, pair.L, pair.mu) == (1, 1, 2, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_is_that_of_the_tensors(dtype):
    problem = Quadratic(randn(N, D).abs().to(dtype), randn(N, D).to(dtype), sigma=1.0)
    assert problem.x0().dtype == problem.x_star.dtype == dtype
    assert problem.oracle(0, 0, 1)(problem.x0(), 0).dtype == dtype


def test_singular_and_indefinite_clients_are_allowed_if_the_mean_is_positive_definite():
    least = torch.linalg.eigvalsh(quadratic().A)[:, 0]
    assert abs(least[0]) < 1e-12
    assert least[1] < -0.1
    assert quadratic().mu > 0


def test_a_run_starts_at_zero():
    assert torch.equal(quadratic().x0(seed=7), torch.zeros(D, dtype=torch.float64))


# -- noise


def noise(problem, y=None, *, seed=0, i=0, r=1, k=0):
    g, y = problem.oracle(i, seed, r), problem.x0() if y is None else y
    return g(y, k) - g(y)


def test_the_mean_square_of_the_noise_is_sigma_squared_in_all_directions():
    problem = quadratic(sigma=3.0)
    draws = torch.stack([noise(problem, k=k) for k in range(4000)])
    assert float(draws.square().sum(1).mean()) == pytest.approx(9, rel=0.05)
    close(draws.T @ draws / 4000, 3 * torch.eye(D, dtype=torch.float64), atol=0.3)
    close(draws.mean(0), torch.zeros(D, dtype=torch.float64), atol=0.1)


@pytest.mark.usefixtures("same_global_rng")
def test_the_noise_depends_on_seed_client_round_and_k_alone():
    problem = quadratic(sigma=1.0)
    first = noise(problem)
    for other in ({"seed": 1}, {"i": 1}, {"r": 2}, {"k": 1}):
        assert float((noise(problem, **other) - first).norm()) > 0.1
    close(noise(problem), first)
    close(noise(problem, y=randn(D)), first)


def test_without_sigma_and_on_all_data_there_is_no_noise():
    assert noise(quadratic()).norm() == 0
    noisy, x = quadratic(sigma=1.0), randn(D)
    assert torch.equal(noisy.oracle(0, 0, 1)(x), noisy.client_gradient(0, x))


# -- fingerprint and bad input


def test_the_fingerprint_tells_problems_apart():
    one = quadratic()
    others = [
        quadratic(sigma=0.1),
        quadratic(weights=WEIGHTS),
        Quadratic(one.A, one.b + 1e-9),
        Quadratic(1.001 * one.A, one.b),
        Quadratic(one.A.float(), one.b.float()),
    ]
    assert one.fingerprint == quadratic().fingerprint
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 6


EYES, ZEROS = torch.eye(2).expand(3, 2, 2), torch.zeros(3, 2)


@pytest.mark.parametrize(
    ("A", "b", "words"),
    [
        (torch.ones(3, 2, 3), ZEROS, ["(3, 2, 3)", "(N, d, d)"]),
        (torch.ones(2, 2), ZEROS, ["(2, 2, 2)", "(3, 2)"]),
        (EYES, torch.zeros(3, 2, 1), ["(3, 2, 1)"]),
        (EYES * torch.nan, ZEROS, ["NaN"]),
        (EYES, ZEROS + torch.inf, ["infinity"]),
        (EYES + torch.tensor([[0.0, 1.0], [0.0, 0.0]]), ZEROS, ["symmetric"]),
        (torch.tensor([[1.0, 1.0], [1.0, -1.0]]), torch.zeros(2, 2), ["positive definite"]),
        (torch.zeros(0, 2, 2), torch.zeros(0, 2), ["client"]),
    ],
    ids=["shape", "count", "b", "nan", "inf", "asymmetric", "singular mean", "no clients"],
)
def test_bad_matrices_are_refused(refused, A, b, words):
    with refused("Quadratic", *words):
        Quadratic(A, b)


@pytest.mark.parametrize("sigma", [-1, float("nan")])
def test_a_bad_sigma_is_refused(refused, sigma):
    with refused("sigma", "zero or positive"):
        Quadratic(EYES, ZEROS, sigma)


@pytest.mark.parametrize("weights", [[1, 2], [1, 2, 0], [1, 2, -3], [1, 2, float("nan")]])
def test_bad_weights_are_refused(refused, weights):
    with refused("weights", "N=3"):
        Quadratic(EYES, ZEROS, weights=weights)
