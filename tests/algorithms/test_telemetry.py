"""What a Round tells of its clients, against the definitions."""

import pytest
import torch
from quadratics import SCAFFOLDS, WEIGHTS, path, quadratic

from trimtab import FedAvg, Quadratic, Scaffold, simulate

weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
ONES = torch.ones(3, dtype=torch.float64)


@weighted
def test_drift_is_the_mean_length_of_the_moves_and_cosine_their_agreement(weights):
    problem, algorithm, cohort = (
        quadratic(weights=weights),
        FedAvg(eta_l=0.1, K=3, eta_g=2.0),
        [0, 2, 5],
    )
    round = next(simulate(algorithm, problem, x=ONES, cohorts=[cohort]))
    alone = [path(FedAvg(eta_l=0.1, K=3), problem, 1, cohorts=[[i]])[0] for i in cohort]
    dx = torch.stack(alone) - ONES
    p = problem.weights[cohort] / problem.weights[cohort].sum()
    assert round.drift == pytest.approx(float(p @ dx.norm(dim=1)), rel=1e-12)

    pairs = torch.outer(p, p).fill_diagonal_(0)
    agreement = (pairs * (dx @ dx.T)).sum() / pairs.sum() / (p @ dx.square().sum(1))
    assert round.cosine == pytest.approx(float(agreement), rel=1e-12)


@weighted
@pytest.mark.parametrize("algorithm", [FedAvg(eta_l=0.1, K=3), Scaffold(eta_l=0.1, K=3)])
def test_cosine_is_one_and_spread_is_zero_when_all_clients_are_equal(algorithm, weights):
    one = quadratic()
    problem = Quadratic(one.A[:1].expand(6, -1, -1), one.b[:1].expand(6, -1), weights=weights)
    sim = simulate(algorithm, problem, x=ONES)
    for _ in range(3):
        round = next(sim)
        assert round.cosine == pytest.approx(1, abs=1e-12)
        if isinstance(algorithm, Scaffold):
            assert round.spread == pytest.approx(0, abs=1e-7)  # a root of a difference of squares


def test_cosine_is_minus_one_when_two_clients_pull_against_each_other():
    problem = Quadratic(torch.tensor([1.0, 1.0]).double(), torch.tensor([-1.0, 1.0]).double())
    assert next(simulate(FedAvg(eta_l=0.1, K=3), problem)).cosine == pytest.approx(-1, abs=1e-12)


@weighted
@pytest.mark.parametrize("variant", SCAFFOLDS, ids=["I", "II", "lean"])
def test_spread_is_the_standard_deviation_of_the_new_controls(variant, weights):
    problem = quadratic(weights=weights)
    sim = simulate(Scaffold(eta_l=0.1, K=3, **variant), problem, x=ONES, S=4)
    for round in (next(sim) for _ in range(3)):
        c = torch.stack([sim.states[i] for i in round.cohort])
        p = problem.weights[list(round.cohort)] / problem.weights[list(round.cohort)].sum()
        variance = p @ (c - p @ c).square().sum(1)
        assert round.spread == pytest.approx(float(variance.sqrt()), rel=1e-10)
