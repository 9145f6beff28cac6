"""Each client alone, and all data in one place: what they are, and that they stand beside."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import FedAvg, Quadratic, Supervised, compare, simulate
from trimtab.simulation import Rounds
from trimtab.studies.baselines import local, pooled
from trimtab.studies.holdout import held_out


def problem(N=3, n=20):
    draw = torch.Generator().manual_seed(0)
    w = torch.randn(4, generator=draw)

    def part(shift, count):
        X = torch.randn(count, 4, generator=draw) + shift
        return X, ((X @ w) > 0).long()

    clients = [part(i - 1, n) for i in range(N)]
    return Supervised(lambda: nn.Linear(4, 2), F.cross_entropy, clients, part(0, 60), batch=5)


def measured():
    return held_out(problem(), 0.2, 0, None)


def test_pooled_is_one_client_with_all_rows_that_are_trained_on():
    whole = measured()
    together = pooled(whole)
    assert together.problem.N == 1
    assert together.problem.clients.size(0) == sum(whole.problem.clients.size(i) for i in range(3))
    x = whole.problem.x0()
    assert together.validate(x) == whole.validate(x)
    assert together.evaluate(x) == whole.evaluate(x)
    mean = sum(
        whole.problem.clients.size(i) * whole.problem.client_gradient(i, x) for i in range(3)
    )
    total = together.problem.clients.size(0)
    torch.testing.assert_close(together.problem.client_gradient(0, x), mean / total)


def test_alone_each_client_learns_from_its_own_data_only():
    alone, algorithm = local(measured()), FedAvg(eta_l=0.1, K=4)
    rounds = alone.simulation(algorithm, alone.problem, Rounds(S=2, seed=3))
    for _ in range(3):
        done = next(rounds)
    for i in range(3):
        own = simulate(algorithm, alone.problem.problem, available=lambda r, i=i: [i], seed=3)
        for _ in range(3):
            expected = next(own)
        assert torch.equal(done.x[i], expected.x)
    assert done.bytes_up == done.bytes_down == 0
    assert done.work == 3 * 16  # 16 rows are left of 20, and four batches are a pass


def test_alone_the_metrics_are_the_mean_over_the_clients_models():
    whole = measured()
    alone = local(whole)
    draw = torch.Generator().manual_seed(1)
    X = alone.problem.x0(0) + torch.randn(3, alone.problem.d, generator=draw)
    mean = sum(whole.evaluate(x)["accuracy"] for x in X) / 3
    assert alone.evaluate(X)["accuracy"] == pytest.approx(mean)


def test_they_stand_beside_the_algorithms_and_are_not_advised(tmp_path):
    how = {"R": 10, "budget": 10_000, "seeds": 2, "target": 0.6, "out": tmp_path / "c"}
    found = compare(problem(), ["fedavg"], baselines=True, **how)
    assert [e.label for e in found.entries] == ["fedavg", "local", "pooled"]
    fedavg, *others = found.entries
    assert not fedavg.baseline
    assert all(e.baseline and e.bytes is None and e.exchanges is None for e in others)
    assert "FedAvg" in found.advice
    assert "alone" not in found.advice
    again = compare(problem(), ["fedavg"], baselines=True, resume=True, **how)
    assert [e.rounds for e in again.entries] == [e.rounds for e in found.entries]


def test_problems_without_samples_have_none():
    problem = Quadratic([1.0, 2.0], [1.0, 0.0])
    found = compare(problem, ["sgd"], baselines=True, R=3, budget=100, seeds=1)
    assert [e.label for e in found.entries] == ["sgd"]


def test_sampling_is_for_those_who_send_something():
    how = {"S": 2, "lost": 0.2, "slow": 0.5, "available": lambda r: [0, 1]}
    given = {"R": 4, "K": 2, "budget": 2000, "seeds": 1, "baselines": True, "target": 0.9}
    some = compare(problem(), ["fedavg"], **how, **given)
    every = compare(problem(), ["fedavg"], **given)
    assert [e.settings for e in some.entries[1:]] == [e.settings for e in every.entries[1:]]
    assert [e.best for e in some.entries[1:]] == [e.best for e in every.entries[1:]]
