"""Comparisons at their edges: starts and units of baselines, budgets, odd arguments and metrics."""

import json
from contextlib import nullcontext
from io import BytesIO
from math import inf
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import FedAvg, Quadratic, Sgd, Supervised, compare
from trimtab._files import plain
from trimtab.errors import BadArgument
from trimtab.simulation import Rounds
from trimtab.studies.baselines import AloneSimulation
from trimtab.studies.budget import Budget, two_digits
from trimtab.studies.pool import ProcessWorker, WorkerError, worker_setup

HOW = {"K": 2, "R": 8, "budget": 20_000, "seeds": 1}


def classifier(n=40, N=3):
    draw = torch.Generator().manual_seed(0)
    w = torch.randn(5, generator=draw)
    clients = []
    for _ in range(N):
        X = torch.randn(n, 5, generator=draw)
        clients.append((X, (X @ w > 0).long()))
    module = nn.Linear(5, 2)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return Supervised(module, F.cross_entropy, clients, batch=16)


# -- baselines


def test_a_start_that_is_given_is_the_start_of_every_client_alone():
    problem = classifier()
    x = problem.x0() + 0.1
    found = compare(problem, ["fedavg"], baselines=True, x=x, target=0.8, **HOW)
    assert [entry.label for entry in found.entries] == ["fedavg-K2", "local-K2", "pooled-K2"]
    assert not any(entry.diverged for entry in found.entries)


def test_what_is_sent_does_not_choose_the_step_of_those_who_send_nothing():
    """Every step that gets there costs no bytes; the fewest rounds still count."""
    how = HOW | {"K": 1, "R": 40, "baselines": True, "target": 0.35, "metric": "loss"}
    by = {unit: compare(classifier(), ["sgd"], prefer=unit, **how) for unit in ("rounds", "bytes")}
    alone, sent = (by[unit].entries[1] for unit in ("rounds", "bytes"))
    assert alone.label == "local-K1"
    assert alone.rounds is not None
    assert (sent.settings, sent.rounds) == (alone.settings, alone.rounds)


def test_baselines_do_not_move_the_target():
    """All data in one place with steps that are searched is far better than these."""
    how = HOW | {"R": 2, "metric": "loss"}
    without, beside = (
        compare(classifier(), [Sgd(eta=0.01)], baselines=some, **how) for some in (False, True)
    )
    assert without.target == beside.target
    assert without.entries[0].rounds == beside.entries[0].rounds


# -- what a search may cost


def test_a_problem_on_which_the_timed_step_diverges_has_a_budget_all_the_same():
    steep = Quadratic(torch.tensor([1e6, 2e6]), torch.tensor([1.0, 0.0]))
    found = compare(steep, ["fedavg"], K=40, R=3, seeds=1, minutes=0.02)
    assert found.about.budget is not None


def test_minutes_without_end_are_a_budget_without_end():
    assert two_digits(inf) == inf
    pair = Quadratic([1.0, 2.0], [0.0, 1.0])
    found = compare(pair, ["fedavg"], K=2, R=3, seeds=1, minutes=inf)
    assert found.about.budget is None
    assert found.about.complete


def test_a_search_continues_past_candidates_that_diverge():
    steep = Quadratic(torch.tensor([1e9, 2e9]), torch.tensor([1.0, 0.0]))
    found = compare(steep, ["sgd"], R=30, seeds=2, minutes=inf, target=steep.f_star + 1e-9)
    assert found.entries[0].reached == 2
    assert any(candidate.diverged_at for candidate in found.entries[0].searched)


# -- arguments and metrics


@pytest.mark.parametrize("name", ["seeds", "jobs"])
@pytest.mark.parametrize("value", [2.5, "3", 0, True])
def test_what_is_no_count_is_refused_before_anything_runs(name, value):
    with pytest.raises(BadArgument, match=f"{name}=.*; pass a number of .* >= 1"):
        compare(Quadratic([1.0], [0.0]), ["sgd"], **{name: value})


def test_a_count_or_a_budget_may_be_of_numpy():
    how = {"K": 1, "R": 2, "seeds": numpy.int64(1), "budget": numpy.float32(100)}
    assert compare(Quadratic([1.0], [0.0]), ["fedavg"], **how).about.seeds == (19,)


@pytest.mark.parametrize("name", ["minutes", "budget"])
def test_what_is_no_number_is_no_budget(name):
    with pytest.raises(BadArgument, match=f"{name}=5 min; pass a positive number"):
        compare(Quadratic([1.0], [0.0]), ["sgd"], **{name: "5 min"})


class Own:
    """A problem of a user's whose `evaluate` returns what it likes."""

    N, d, weights = 2, 3, torch.tensor([0.5, 0.5], dtype=torch.float64)

    def __init__(self, number):
        self.number = number

    def x0(self, seed=0):
        return torch.ones(3)

    def oracle(self, i, seed, r):
        return lambda y, k=None: y + i - 0.5

    def evaluate(self, x, client=None):
        return {"loss": self.number(float(x.square().sum()))}


@pytest.mark.parametrize("number", [float, numpy.float32, numpy.float64, torch.tensor])
def test_a_metric_may_be_any_number(number, tmp_path):
    how = {"K": 1, "R": 3, "seeds": 1, "budget": 1000, "target": 0.5}
    found = compare(Own(number), ["fedavg"], **how, out=tmp_path / "out")
    expected = compare(Own(float), ["fedavg"], **how)
    assert found.entries[0].best == pytest.approx(expected.entries[0].best)
    assert type(found.entries[0].best) is float


@pytest.mark.parametrize("made", [str, lambda value: torch.full((2,), value), lambda value: None])
def test_a_metric_that_is_no_number_is_refused(made):
    with pytest.raises(ValueError, match=r"Own\.evaluate returns 'loss' as .*; return a number"):
        compare(Own(made), ["fedavg"], R=2, seeds=1)


def test_json_holds_numbers_of_any_kind():
    assert plain([numpy.float32(0.5), torch.tensor(2.0)]) == [0.5, 2.0]
    assert isinstance(plain(numpy.int64(3)), int)
    assert plain({"nan": numpy.float32("nan"), "dtype": torch.float32}) == {
        "nan": None,
        "dtype": "torch.float32",
    }


def test_entries_in_json_have_the_labels_that_are_advised():
    found = compare(
        Quadratic([1.0, 2.0], [0.0, 1.0]), ["fedavg"], K=[1, 2], R=4, seeds=1, budget=99
    )
    told = found.to_json()
    assert [entry["label"] for entry in told["algorithms"]] == ["fedavg-K1", "fedavg-K2"]
    assert set(told["advised"]) <= {entry["label"] for entry in told["algorithms"]}


# -- processes


def test_a_line_that_a_killed_process_left_half_written_is_the_end_of_it():
    worker = ProcessWorker.__new__(ProcessWorker)
    whole = BytesIO(b'{"note": "whole"}\n{"note"')
    worker.child = SimpleNamespace(send=lambda job: True, stdout=whole, wait=lambda: -9, process=1)
    worker._waiting, worker._code = nullcontext(), 0
    messages = worker.run({})
    assert next(messages) == {"note": "whole"}
    with pytest.raises(WorkerError, match="ended with code -9"):
        next(messages)


def test_a_worker_is_sent_numbers_of_any_kind():
    study = SimpleNamespace(folder="c", budget=Budget())
    setup = worker_setup(study, {"target": numpy.float32(0.5), "seed": numpy.int64(3)})
    again = json.loads(json.dumps(setup))
    assert again["settings"] == {"target": 0.5, "seed": 3}
    assert Budget(**again["budget"]) == Budget()


def test_each_client_alone_may_begin_with_a_row_of_its_own():
    from trimtab.studies.baselines import Alone

    problem = classifier()
    alone = Alone(problem, problem.evaluate)
    X = alone.x0() + torch.arange(3.0)[:, None]
    assert torch.equal(AloneSimulation(FedAvg(eta_l=0.1, K=1), alone, Rounds(x=X)).server.x, X)
    one = AloneSimulation(FedAvg(eta_l=0.1, K=1), alone, Rounds(x=X[1]))
    assert torch.equal(one.server.x, X[1].expand(3, -1))


def test_a_comparison_is_not_resumed_from_another_start(tmp_path):
    problem, out = classifier(), tmp_path / "out"
    x = problem.x0() + 0.1
    compare(problem, ["fedavg"], x=x, target=0.8, out=out, **HOW)
    for other in (x + 1, None):
        with pytest.raises(BadArgument, match="was made with x="):
            compare(problem, ["fedavg"], x=other, target=0.8, out=out, resume=True, **HOW)
    compare(problem, ["fedavg"], x=x.clone(), target=0.8, out=out, resume=True, **HOW)
