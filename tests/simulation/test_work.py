"""What a round costs: exchanges, and sample gradients at clients, alike in every executor."""

from itertools import islice

import pytest
import torch
from torch import nn

from tests.helpers.small_runs import SIZES, linear, quadratic, supervised
from trimtab import (
    Adam,
    Epochs,
    FedAvg,
    Mime,
    MimeMvr,
    Momentum,
    RichardsonRomberg,
    Scaffold,
    Sgd,
    simulate,
)
from trimtab.core import leaves
from trimtab.problems.capabilities import capabilities
from trimtab.simulation import executors

EVERYWHERE = sorted(executors.EXECUTORS)


def iid():
    return supervised(sampling="iid")


def tanh():
    return supervised(lambda: nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 3)))


class Rowed:
    """A problem that notes over how many samples each gradient was computed, by its forward."""

    def __init__(self):
        noted = self.samples = []

        class Noting(nn.Linear):
            def forward(self, X):
                if torch.is_grad_enabled():
                    noted.append(len(X))
                return super().forward(X)

        self.problem = supervised(lambda: Noting(4, 3))


def costs(algorithm, made, rounds=4, **settings):
    sim = simulate(algorithm, made, seed=3, **settings)
    return [(r.exchanges, r.work) for r in islice(sim, rounds)]


# -- by hand


@pytest.mark.parametrize("executor", EVERYWHERE)
@pytest.mark.parametrize(
    ("algorithm", "exchanges", "work"),
    [
        (Sgd(eta=0.1), 1, sum(SIZES)),
        (FedAvg(eta_l=0.1, K=Epochs(2)), 1, 2 * sum(SIZES)),
        (Scaffold(eta_l=0.1, K=Epochs(1)), 1, sum(SIZES)),
        (Scaffold(eta_l=0.1, K=Epochs(1), option="I"), 1, 2 * sum(SIZES)),
        (RichardsonRomberg(FedAvg(eta_l=0.1, K=Epochs(1))), 1, 2 * sum(SIZES)),
        # A full gradient, and two gradients for every local step.
        (Mime(eta=0.1, K=Epochs(1), base=Momentum()), 2, 3 * sum(SIZES)),
    ],
    ids=str,
)
def test_the_cost_of_a_round_is_that_counted_by_hand(algorithm, exchanges, work, executor):
    """Passes over all clients' data cost their samples, short mini-batches included."""
    assert costs(algorithm, linear(), 2, executor=executor) == [(exchanges, work)] * 2


def test_work_is_the_samples_that_went_through_the_module():
    watched = Rowed()
    sim = simulate(
        Scaffold(eta_l=0.1, K=5), watched.problem, S=4, seed=3, slow=0.5, executor="loop"
    )
    next(sim)
    watched.samples.clear()
    done = next(sim)
    assert done.work == sum(watched.samples) > 0


def test_without_samples_a_gradient_costs_one():
    assert costs(FedAvg(eta_l=0.1, K=3), quadratic(), 2) == [(1, 18)] * 2
    assert costs(Mime(eta=0.1, K=3, base=Momentum()), quadratic(), 1) == [(2, 6 * (1 + 2 * 3))]


def test_a_problem_says_how_many_samples_its_clients_have():
    assert capabilities(linear()).samples(1) == (13, 4)
    assert capabilities(supervised(batch=None)).samples(1) == (13, 13)
    assert capabilities(supervised(batch=0.2)).samples(1) == (13, 3)
    assert capabilities(quadratic()).samples is None


# -- all executors


ALGORITHMS = (
    FedAvg(eta_l=0.1, K=5),
    Scaffold(eta_l=0.1, K=5, option="I"),
    Mime(eta=0.05, K=5, base=Adam()),
    MimeMvr(eta=0.05, K=5, a=0.5),
    RichardsonRomberg(FedAvg(eta_l=0.1, K=5)),
)
IN_PASSES = (Scaffold(eta_l=0.1, K=Epochs(2)), Mime(eta=0.05, K=Epochs(2), base=Momentum()))
CASES = [(a, made) for made in (linear, iid, tanh, quadratic) for a in ALGORITHMS]
CASES += [(a, made) for made in (linear, iid, tanh) for a in IN_PASSES]


@pytest.mark.parametrize(("algorithm", "made"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_every_executor_counts_the_same(algorithm, made):
    how = {"S": 4, "slow": 0.5, "lost": 0.2, "rounds": 8}
    counted = [costs(algorithm, made(), executor=executor, **how) for executor in EVERYWHERE]
    assert counted == [counted[0]] * len(EVERYWHERE)
    assert len({work for _, work in counted[0]}) > 1  # slow and lost clients show


class Clipping(FedAvg):
    """Looks at numbers after its first gradient: what was computed on symbols is thrown away."""

    def local(self, g, state, x):
        first = g(x, 0)
        if float(first.norm()) > 0:
            first = first / first.norm()
        upload, state = super().local(g, state, x - self.eta_l * first)
        return upload, state


@pytest.mark.parametrize("executor", EVERYWHERE)
@pytest.mark.parametrize("made", [linear, tanh])
def test_what_was_begun_and_thrown_away_is_not_counted(made, executor):
    counted = costs(Clipping(eta_l=0.1, K=2), made(), 1, executor=executor)
    in_a_pass = [-(-n // 4) for n in SIZES]
    size = [
        [min(4, n - 4 * (k % s)) for k in range(2)] for n, s in zip(SIZES, in_a_pass, strict=True)
    ]
    assert counted == [(1, sum(2 * b[0] + b[1] for b in size))]


def test_a_round_that_nobody_answers_costs_its_exchange_alone():
    sim = simulate(FedAvg(eta_l=0.1, K=2), linear(), S=1, lost=0.9, seed=0)
    silent = [r for r in islice(sim, 10) if not r.cohort]
    assert silent
    assert {(r.exchanges, r.work) for r in silent} == {(1, 0)}


@pytest.mark.parametrize("executor", EVERYWHERE)
def test_counting_changes_no_bit_of_the_result(executor, monkeypatch):
    def end():
        sim = simulate(Scaffold(eta_l=0.1, K=5), tanh(), S=4, slow=0.5, executor=executor)
        return [*islice(sim, 3)][-1].server

    counted = end()
    monkeypatch.setattr(
        "trimtab.simulation.cohort.Work.counted", lambda self, i, gradient: gradient
    )
    assert all(map(torch.equal, leaves(counted), leaves(end())))
