"""What a Round tells of its clients, against the definitions."""

import re
from itertools import islice

import pytest
import torch

from tests.helpers.quadratics import SCAFFOLDS, WEIGHTS, path, quadratic
from trimtab import Diverged, FedAvg, Mime, MimeLite, Momentum, Quadratic, Scaffold, simulate
from trimtab.algorithms.fedavg import Upload
from trimtab.core.replies import Tally

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


def test_movers_count_the_clients_that_move():
    def movers(*lengths):
        tally = Tally()
        for length in lengths:
            tally.add(0.25, Upload(torch.tensor([length], dtype=torch.float64)))
        return tally.effective_clients

    assert movers(1.0, 1.0, 1.0, -1.0) == pytest.approx(4)
    assert movers(1.0, 0.0, 0.0, 0.0) == pytest.approx(1)


# -- why a run diverges


def diverge(algorithm, problem, **options):
    with pytest.raises(Diverged) as caught:
        list(islice(simulate(algorithm, problem, x=ONES, **options), 3000))
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text
    assert not re.search(r"[.!?] [A-Z]", text), f"more than one sentence: {text}"
    return text


@pytest.mark.parametrize("K", [1, 4])
@pytest.mark.parametrize("kind", [FedAvg, Scaffold])
def test_a_step_beyond_two_over_L_is_explained_by_the_L_it_shows(kind, K):
    H = torch.diag(torch.tensor([10.0, 5.0, 1.0], dtype=torch.float64))
    problem = Quadratic(H.expand(4, 3, 3), torch.zeros(4, 3, dtype=torch.float64))
    text = diverge(kind(eta_l=0.5, K=K), problem)
    assert "try eta_l below 0.2:" in text
    assert "L is about 10" in text
    assert text.endswith("not 0.5.")


@pytest.mark.parametrize("executor", ["loop", "batched", "threads"])
def test_one_client_that_moves_alone_is_named(executor):
    A = torch.ones(6, 3, dtype=torch.float64)
    A[4] = 500
    problem = Quadratic(A, torch.ones(6, 3, dtype=torch.float64))
    text = diverge(FedAvg(eta_l=0.1, K=2), problem, executor=executor)
    assert "client 4 moves nearly alone" in text
    assert "check its data" in text


@pytest.mark.parametrize("kind", [Mime, MimeLite])
def test_momentum_is_named_where_there_is_any(kind):
    problem = quadratic()
    text = diverge(kind(eta=3.0, K=5, base=Momentum(0.9)), problem)
    assert "momentum beta = 0.9 adds up to 10 steps" in text
    assert "try eta below 0.3 or a smaller beta" in text


def test_a_run_that_diverges_at_once_names_its_step():
    with pytest.raises(Diverged, match=r"finite; try eta_l below 1e\+200\.$"):
        list(islice(simulate(FedAvg(eta_l=1e200, K=3), quadratic(), x=ONES), 5))
