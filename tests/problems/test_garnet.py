"""Federated TD on random MDPs: the equations against the samples, and what is refused."""

from itertools import islice, pairwise

import pytest
import torch

from trimtab import FedAvg, GarnetTD, LinearSystem, Scaffold, simulate
from trimtab.problems.identity import matches_fingerprint

SIZES = {"N": 3, "states": 8, "features": 3, "gamma": 0.8, "heterogeneity": 1.0, "seed": 1}
ONES = torch.ones(3, dtype=torch.float64)


def garnet(**changes):
    return GarnetTD(**(SIZES | changes))


def test_transitions_are_chances_and_every_state_is_visited():
    problem = garnet()
    torch.testing.assert_close(problem.P.sum(2), torch.ones(3, 8, dtype=torch.float64))
    assert float(problem.P.min()) >= 0
    assert float(problem.visits.min()) > 1e-3
    flow = torch.einsum("ns,nst->nt", problem.visits, problem.P)
    torch.testing.assert_close(flow, problem.visits)


def test_x_star_is_the_fixed_point_of_the_projected_bellman_operator():
    """With as many features as states, one client's x* gives the values themselves."""
    problem = garnet(N=1, features=8)
    eye = torch.eye(8, dtype=torch.float64)
    values = torch.linalg.solve(eye - 0.8 * problem.P[0], problem.r[0])
    torch.testing.assert_close(problem.phi @ problem.x_star, values)


def test_heterogeneity_goes_from_one_mdp_to_one_for_each_client():
    same, half, own = (garnet(heterogeneity=h) for h in (0.0, 0.5, 1.0))
    assert torch.equal(same.P[0], same.P[2])
    assert not torch.equal(own.P[0], own.P[2])
    torch.testing.assert_close(half.P, (same.P + own.P) / 2)
    torch.testing.assert_close(half.r, (same.r + own.r) / 2)
    torch.testing.assert_close(same.system.fedavg_limit(0.5, 10), same.x_star)
    assert float((own.system.fedavg_limit(0.5, 10) - own.x_star).norm()) > 1e-3


def test_equations_are_not_symmetric_and_each_is_stable():
    problem = garnet()
    assert not torch.allclose(problem.system.A, problem.system.A.mT)
    assert float(torch.linalg.eigvals(problem.system.A).real.min()) > 0
    assert not problem.symmetric


@pytest.mark.parametrize("sampling", ["iid", "markov"])
def test_the_mean_of_the_samples_is_the_mean_equation(sampling):
    problem = garnet(sampling=sampling)
    draws = torch.stack([problem.oracle(1, 0, r)(ONES, 3) for r in range(6000)])
    exact = problem.oracle(1, 0, 1)(ONES)
    error = draws.std(0) / 6000**0.5
    assert bool(((draws.mean(0) - exact).abs() < 4 * error).all())
    torch.testing.assert_close(exact, problem.system.A[1] @ ONES - problem.system.b[1])


def test_the_covariance_at_x_star_is_that_of_the_samples():
    problem = garnet()
    draws = torch.stack([problem.oracle(1, 0, r)(problem.x_star, 0) for r in range(6000)])
    C = problem.system.noise[1]
    assert float((torch.cov(draws.mT) - C).norm() / C.norm()) < 0.1


@pytest.mark.parametrize("sampling", ["iid", "markov"])
def test_samples_depend_on_seed_client_round_and_step_alone(sampling, same_global_rng):
    problem, steps = garnet(sampling=sampling), range(12)
    there = [problem.oracle(1, 5, 7)(ONES, k) for k in steps]
    g = problem.oracle(1, 5, 7)
    back = {k: g(ONES, k) for k in reversed(steps)}  # in any order, and more than once
    assert all(torch.equal(there[k], back[k]) and torch.equal(there[k], g(ONES, k)) for k in steps)
    for i, seed, r in ((0, 5, 7), (1, 6, 7), (1, 5, 8)):
        other = problem.oracle(i, seed, r)
        assert any(not torch.equal(there[k], other(ONES, k)) for k in steps)


def states(problem, r, K):
    """Return the s of K steps: with as many features as states, a sample tells its state."""
    g = problem.oracle(0, 0, r)
    away = 100 * torch.ones(problem.d, dtype=torch.float64)
    samples = torch.linalg.solve(problem.phi.mT, torch.stack([g(away, k) for k in range(K)]).mT)
    return samples.abs().argmax(0).tolist()


def test_markovian_samples_are_a_trajectory_and_others_are_not():
    """Every step of a trajectory goes where there is a transition."""

    def possible(sampling):
        problem = garnet(N=1, states=12, features=12, sampling=sampling)
        paths = [states(problem, r, 10) for r in range(1, 60)]
        moves = [(s, t) for path in paths for s, t in pairwise(path)]
        return sum(float(problem.P[0, s, t]) > 0 for s, t in moves) / len(moves)

    assert possible("markov") == 1.0
    assert possible("iid") < 0.8


def test_fedavg_stays_at_its_bias_and_scaffold_does_not_without_noise():
    problem = garnet()
    exact = LinearSystem(problem.system.A, problem.system.b)
    ends = []
    for kind in (FedAvg, Scaffold):
        *_, end = islice(simulate(kind(eta_l=0.5, K=10), exact), 800)
        ends.append(end.x)
    torch.testing.assert_close(ends[0], problem.system.fedavg_limit(0.5, 10))
    torch.testing.assert_close(ends[1], problem.x_star, atol=1e-6, rtol=0)


def test_it_is_told_apart_by_its_parts():
    stored = garnet().fingerprint
    assert matches_fingerprint(garnet(), stored).differs == ()
    changed = matches_fingerprint(garnet(gamma=0.7, sampling="markov"), stored).differs
    assert changed == ("gamma was 0.8, is now 0.7", "sampling was iid, is now markov")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"N": 0}, ["N=0", "N >= 1"]),
        ({"states": 1}, ["states=1", "states >= 2"]),
        ({"features": 9}, ["features=9", "1 to states=8"]),
        ({"gamma": 1.0}, ["gamma=1.0", "below 1"]),
        ({"heterogeneity": 1.5}, ["heterogeneity=1.5", "up to 1"]),
        ({"sampling": "all"}, ["sampling='all'", "'markov'"]),
    ],
)
def test_wrong_arguments_are_one_sentence(refused, changes, words):
    with refused(*words):
        garnet(**changes)
