"""What few validation rows can tell, and what the advice of a comparison makes of it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import OnBatch, Supervised, compare
from trimtab.problems.metrics import ACCURACY, LOSS
from trimtab.studies.comparison import Comparison
from trimtab.studies.goal import Goal
from trimtab.studies.holdout import held_out


def clients(n, seed=0, features=5):
    draw = torch.Generator().manual_seed(seed)
    w = torch.randn(features, generator=draw)
    for _ in range(4):
        X = torch.randn(n, features, generator=draw)
        yield X, (X @ w + torch.randn(n, generator=draw) > 0).long()


def classifier(n=100, **settings):
    module = nn.Linear(5, 2)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return Supervised(module, F.cross_entropy, list(clients(n)), batch=16, **settings)


def trained(problem):
    x = problem.x0()
    for _ in range(50):
        x = x - 0.5 * problem.gradient(x)
    return x


# -- the error of a metric


def test_the_error_of_an_accuracy_is_that_of_a_share():
    problem = classifier(n=500).split(0.8, 0)
    x = trained(problem)
    p, n = problem.validate(x)["accuracy"], len(problem._evaluation_data.validation)
    error = problem.validation_error(x, "accuracy")
    assert error == pytest.approx((p * (1 - p) / n) ** 0.5, rel=0.5)


def test_the_error_is_what_fresh_rows_show():
    """Fresh rows scatter as the rows of one draw say, for metrics that are no means."""
    kept = classifier(metrics=["auc"])
    x, found, errors = trained(kept), [], []
    for seed in range(40):
        rows = torch.cat([X for X, _ in clients(60, seed=100 + seed)])
        w = torch.randn(5, generator=torch.Generator().manual_seed(0))
        noise = torch.randn(len(rows), generator=torch.Generator().manual_seed(seed))
        fresh = kept.replace(validation=(rows, (rows @ w + noise > 0).long()))
        found.append(fresh.validate(x)["auc"])
        errors.append(fresh.validation_error(x, "auc"))
    scatter, said = torch.tensor(found).std().item(), torch.tensor(errors).median().item()
    assert said == pytest.approx(scatter, rel=0.4)


def test_four_times_the_rows_have_half_the_error():
    x = trained(classifier())
    few, many = (classifier(n).split(0.5, 0).validation_error(x, "loss") for n in (100, 400))
    assert many == pytest.approx(few / 2, rel=0.5)


def test_a_loss_of_module_and_batch_has_an_error_too():
    loss = OnBatch(lambda module, batch: F.cross_entropy(module(batch[0]), batch[1]))
    plain = classifier().split(0.2, 0)
    other = Supervised(nn.Linear(5, 2), loss, list(clients(100)), batch=16).split(0.2, 0)
    x = trained(plain)
    expected = plain.validation_error(x, "loss")
    assert other.validation_error(x, "loss") == pytest.approx(expected, rel=1e-4)


def test_one_row_and_a_class_of_its_own_tell_nothing():
    X, y = torch.randn(6, 5), torch.tensor([0, 0, 0, 0, 0, 1])
    problem = classifier(metrics=["auc"])
    assert problem.replace(validation=(X[:1], y[:1])).validation_error(problem.x0(), "loss") is None
    alone = problem.replace(validation=(X, y))
    assert alone.validation_error(problem.x0(), "auc") is None  # without row 5 there is no auc
    assert alone.validation_error(problem.x0(), "loss") == pytest.approx(0.0, abs=1e-7)
    assert (
        held_out(problem, None, 0, None).metric_error(problem.x0(), LOSS) == 0.0
    )  # nothing is held out


# -- what the advice makes of it


GOAL = Goal(ACCURACY, 0.9, slack=0.05)


def test_less_is_easier_or_harder_by_the_metric():
    assert Goal(LOSS, 0.5, slack=0.1).easier() == Goal(LOSS, 0.6)
    assert Goal(ACCURACY, 0.5, slack=0.1).easier() == Goal(ACCURACY, 0.4)
    assert GOAL.easier().easier() == GOAL.easier()
    assert Goal.from_json(GOAL.to_json()) == GOAL


def test_a_comparison_says_what_its_rows_can_tell(tmp_path):
    how = {"K": 5, "R": 30, "budget": 30_000, "seeds": 3, "target": 0.8}
    found = compare(classifier(), ["fedavg", "scaffold"], **how, out=tmp_path / "out")
    assert 0.02 < found.goal.slack < 0.2  # 40 rows
    assert any(f"to ± {found.goal.slack:g} (90 %)" in note for note in found.about.notes)
    again = Comparison.load(tmp_path / "out")
    assert again.goal == found.goal
    assert again.advised == found.advised
    assert found.to_json()["advised"] == found.advised
    assert all(run.nearly is not None for each in again.entries for run in each.runs)
    looked = compare(classifier(), ["fedavg"], **how, split=None)
    assert looked.goal.slack == 0.0
