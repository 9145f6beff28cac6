"""Built-in metrics: right by hand, NaN where undefined, chosen by name, with their directions."""

import subprocess
import sys
from math import exp, inf, isnan, log, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from torch import nn
from torch.nn import functional as F

from tests.helpers.learning import CLASSES, FEATURES, classifier, clients, net, randn
from trimtab import BadArgument, Metric, Quadratic, Supervised
from trimtab.problems.identity import matches_fingerprint
from trimtab.problems.metrics import ACCURACY, BUILTIN_METRICS, LOSS, find_metric, metric_named
from trimtab.problems.problem import metric_of, with_target_metric

CLASSIFY = ["accuracy", "balanced accuracy", "auc", "f1", "log loss", "perplexity"]
REGRESS = ["mse", "mae", "r2"]


def value(name, outputs, targets):
    return BUILTIN_METRICS[name].function(torch.as_tensor(outputs), torch.as_tensor(targets))


def test_the_table_has_the_names_of_the_design():
    assert set(BUILTIN_METRICS) == {*CLASSIFY, *REGRESS}
    assert all(each.metric.name == name for name, each in BUILTIN_METRICS.items())
    assert {name for name, each in BUILTIN_METRICS.items() if each.metric.higher} == {
        *("accuracy", "balanced accuracy", "auc", "f1", "r2")
    }


# -- values, by hand

LOGITS = [2.0, -1.0, 0.5, -3.0]  # says 1 0 1 0
LABELS = [1.0, 0.0, 0.0, 0.0]
BY_HAND = {
    "accuracy": 3 / 4,
    "balanced accuracy": (1 + 2 / 3) / 2,
    "auc": 1.0,  # the one positive has the greatest logit
    "f1": 2 / 3,
    "log loss": (log(1 + exp(-2)) + log(1 + exp(-1)) + log(1 + exp(0.5)) + log(1 + exp(-3))) / 4,
}
BY_HAND["perplexity"] = exp(BY_HAND["log loss"])


@pytest.mark.parametrize("name", BY_HAND)
def test_one_logit_and_two_say_the_same(name):
    one = torch.tensor(LOGITS, dtype=torch.float64)
    two = torch.stack([torch.zeros(4), one], 1)
    labels = torch.tensor(LABELS)
    assert value(name, one, labels) == pytest.approx(BY_HAND[name])
    assert value(name, one[:, None], labels[:, None]) == pytest.approx(BY_HAND[name])
    assert value(name, one[:, None], labels.long()) == pytest.approx(BY_HAND[name])
    assert value(name, two, labels.long()) == pytest.approx(BY_HAND[name])
    assert value(name, two.float() + 7, labels.long()) == pytest.approx(BY_HAND[name], rel=1e-5)


def test_several_classes_are_those_of_scikit_learn():
    outputs = randn(60, 3)
    y = torch.arange(60) % 3
    found, p = outputs.argmax(1), F.softmax(outputs, 1)
    expected = {
        "accuracy": sklearn_metrics.accuracy_score(y, found),
        "balanced accuracy": sklearn_metrics.balanced_accuracy_score(y, found),
        "auc": sklearn_metrics.roc_auc_score(y, p, multi_class="ovr", average="macro"),
        "f1": sklearn_metrics.f1_score(y, found, average="macro"),
        "log loss": sklearn_metrics.log_loss(y, p),
        "perplexity": exp(sklearn_metrics.log_loss(y, p)),
    }
    assert {name: value(name, outputs, y) for name in expected} == pytest.approx(expected)


def test_regression_by_hand():
    predicted, y = [1.0, 2.0, 4.0], [1.0, 3.0, 5.0]
    assert value("mse", predicted, y) == pytest.approx(2 / 3)
    assert value("mae", predicted, y) == pytest.approx(2 / 3)
    assert value("r2", predicted, y) == pytest.approx(1 - 2 / 8)
    column = torch.tensor(y)[:, None]
    assert value("r2", torch.tensor(predicted)[:, None], column) == pytest.approx(0.75)
    both = torch.cat([column, torch.ones(3, 1)], 1)  # the second is constant and does not count
    assert value("r2", torch.tensor([[1.0, 0], [2, 1], [4, 2]]), both) == pytest.approx(0.75)


@given(st.lists(st.tuples(st.integers(-6, 6), st.booleans()), min_size=2, max_size=30))
def test_auc_is_the_share_of_pairs_in_the_right_order(rows):
    scores = torch.tensor([float(score) for score, _ in rows])
    labels = torch.tensor([float(positive) for _, positive in rows])
    up, down = scores[labels == 1].tolist(), scores[labels == 0].tolist()
    right = [1.0 if a > b else 0.5 if a == b else 0.0 for a in up for b in down]
    expected = sum(right) / len(right) if right else nan
    assert value("auc", scores, labels) == pytest.approx(expected, nan_ok=True)


def test_labels_below_0_do_not_count_and_sequences_are_laid_out():
    outputs = randn(4, 3, 5)
    y = torch.arange(20).reshape(4, 5) % 3
    hidden = y.clone()
    hidden[1, 2] = -100
    keep = hidden.flatten() >= 0
    flat = outputs.movedim(1, -1).reshape(-1, 3)
    for name in CLASSIFY:
        assert value(name, outputs, y) == pytest.approx(value(name, flat, y.flatten()))
        expected = value(name, flat[keep], y.flatten()[keep])
        assert value(name, outputs, hidden) == pytest.approx(expected)


def test_several_logits_a_sample_are_columns():
    outputs, y = randn(30, 2), (randn(30, 2, seed=1) > 0).double()
    assert value("accuracy", outputs, y) == pytest.approx(
        float(((outputs > 0) == y).double().mean())
    )
    for name in ("auc", "f1", "balanced accuracy"):
        columns = [value(name, outputs[:, j], y[:, j]) for j in range(2)]
        assert value(name, outputs, y) == pytest.approx(sum(columns) / 2)


# -- what is not defined


@pytest.mark.parametrize("name", ["auc", "balanced accuracy"])
@pytest.mark.parametrize("label", [0, 1])
def test_of_one_class_there_is_none(name, label):
    assert isnan(value(name, randn(5), torch.full((5,), float(label))))
    assert isnan(value(name, randn(5, 3), torch.full((5,), label)))


def test_of_no_positives_found_or_true_there_is_no_f1():
    assert isnan(value("f1", [-1.0, -2.0], [0.0, 0.0]))
    assert value("f1", [1.0, -2.0], [0.0, 0.0]) == 0
    assert value("f1", [1.0, 2.0], [1.0, 1.0]) == 1


def test_of_constant_targets_there_is_no_r2():
    assert isnan(value("r2", [1.0, 2.0], [3.0, 3.0]))
    assert isnan(value("r2", [1.0], [3.0]))


@pytest.mark.parametrize("name", BUILTIN_METRICS)
@pytest.mark.parametrize("bad", [nan, inf])
def test_of_outputs_that_are_not_finite_there_is_none(name, bad):
    outputs = torch.tensor([1.0, bad, -1.0])
    assert isnan(value(name, outputs, torch.tensor([1.0, 0.0, 1.0])))


@pytest.mark.parametrize("name", CLASSIFY)
def test_of_no_labels_that_count_there_is_none(name):
    assert isnan(value(name, randn(3, 4), torch.full((3,), -100)))


def test_a_class_that_is_not_there_does_not_count():
    outputs, y = randn(40, 3), torch.arange(40) % 2  # there is no class 2
    p = F.softmax(outputs, 1)
    each = [sklearn_metrics.roc_auc_score(y == c, p[:, c]) for c in (0, 1)]
    assert value("auc", outputs, y) == pytest.approx(sum(each) / 2)


# -- in Supervised


def regression(*sizes, **settings):
    rows = [(randn(n, FEATURES, seed=n), randn(n, 1, seed=n + 1)) for n in sizes]
    return Supervised(nn.Linear(FEATURES, 1), F.mse_loss, rows, **settings)


def binary(*sizes, loss=None, **settings):
    rows = [(randn(n, FEATURES, seed=n), (randn(n, 1, seed=n + 1) > 0).double()) for n in sizes]
    return Supervised(nn.Linear(FEATURES, 1), loss or nn.BCEWithLogitsLoss(), rows, **settings)


def test_names_functions_and_both_are_taken():
    ways = [
        ["auc", "log_loss"],
        ("auc", "log loss"),
        {"auc": "auc", "log loss": "log-loss"},
        {"auc": BUILTIN_METRICS["auc"].function, "log loss": "log loss"},
    ]
    x = None
    for metrics in ways:
        problem = classifier(5, 9, metrics=metrics)
        x = problem.x0() if x is None else x
        assert set(problem.evaluate(x)) == {"loss", "accuracy", "auc", "log loss"}
        assert problem.replace(batch=2).evaluate(x) == problem.evaluate(x)
    own = classifier(5, 9, metrics={"Fläche": "auc", "rows": lambda output, y: len(y)})
    measured = own.evaluate(x, client=1)
    assert measured["Fläche"] == problem.evaluate(x, client=1)["auc"]
    assert measured["rows"] == 9


def test_unknown_names_are_refused(refused):
    for metrics in (["acc"], {"mine": "acc"}):
        with refused("'acc' is not a built-in metric", *BUILTIN_METRICS, "function"):
            classifier(5, metrics=metrics)
    with refused("metrics='auc'", "['auc']"):
        classifier(5, metrics="auc")
    with refused("is not a built-in metric"):
        classifier(5, metrics=[lambda output, y: 1.0])
    with refused("metrics=3"):
        classifier(5, metrics=3)


def test_metrics_that_the_problem_cannot_have_are_refused(refused):
    for name in ("accuracy", "f1", "log loss"):
        with refused(name, "needs a classifier", "mse_loss"):
            regression(5, metrics=[name])
    labelled = classifier(5, metrics=["mse"])
    with refused("metric 'mse'", "not those of a regression"):
        labelled.evaluate(labelled.x0())
    numbers = regression(5, metrics=["auc"])
    with refused("metric 'auc'", "not those of a classifier"):
        numbers.evaluate(numbers.x0())


def test_the_log_loss_is_the_cross_entropy_and_mse_the_mse():
    for problem, name in ((classifier(5, 9), "log loss"), (regression(5, 9), "mse")):
        measured = problem.with_metric(name)
        x = problem.x0() + 0.3
        for client in (None, 0, 1):
            found = measured.evaluate(x, client)
            assert found[name] == pytest.approx(found["loss"])


def test_where_there_is_no_test_set_pooled_metrics_are_those_of_all_samples():
    names = ["auc", "f1", "balanced accuracy", "perplexity"]
    apart = classifier(5, 2, 9, metrics=names)
    X, y = (torch.cat(part) for part in zip(*clients(5, 2, 9), strict=True))
    together = apart.replace(test=(X, y))
    x = apart.x0() + 0.1
    found, expected = apart.evaluate(x), together.evaluate(x)
    assert {n: found[n] for n in names} == pytest.approx({n: expected[n] for n in names})
    assert found["accuracy"] == pytest.approx(
        sum(apart.evaluate(x, client=i)["accuracy"] for i in range(3)) / 3
    )


def test_pooled_r2_without_a_test_set():
    problem = regression(5, 9, metrics=["r2"])
    x = problem.x0()
    assert problem.evaluate(x)["r2"] == pytest.approx(
        problem.replace(test=_joined(problem)).evaluate(x)["r2"]
    )


def _joined(problem):
    pairs = [(problem.clients[i].X, problem.clients[i].y) for i in range(problem.N)]
    return tuple(torch.cat(part) for part in zip(*pairs, strict=True))


def test_one_logit_has_accuracy_and_a_client_of_one_class_no_auc():
    problem = binary(8, 6, metrics=["auc", "f1", "log loss"])
    x = problem.x0()
    assert "accuracy" in problem.evaluate(x)
    found = problem.evaluate(x, client=0)
    assert found["log loss"] == pytest.approx(found["loss"])
    X = randn(4, FEATURES)
    lone = problem.replace(clients=[(X, torch.zeros(4, 1).double()), *_pairs(problem)])
    assert isnan(lone.evaluate(x, client=0)["auc"])
    assert not isnan(lone.evaluate(x)["auc"])


def _pairs(problem):
    return [(problem.clients[i].X, problem.clients[i].y) for i in range(problem.N)]


def test_probabilities_are_turned_into_logits():
    logits = binary(8, 6, metrics=["auc", "f1", "log loss", "accuracy"])
    sigmoid = nn.Sequential(nn.Linear(FEATURES, 1), nn.Sigmoid())
    chances = Supervised(sigmoid, nn.BCELoss(), _pairs(logits), metrics=list(logits.metrics))
    x = logits.x0()
    assert chances.evaluate(x) == pytest.approx(logits.evaluate(x))


def test_a_metric_of_probabilities_is_the_users_own():
    def brier(outputs, y):
        return (F.softmax(outputs, 1)[:, 1] - (y == 1).double()).square().mean()

    problem = classifier(5, 9, metrics={"brier loss": brier, "auc": "auc"})
    judged = with_target_metric(problem, "brier loss")
    assert metric_of(judged, {}) == Metric("brier loss", higher=False)
    assert 0 < judged.evaluate(problem.x0())["brier loss"] < 1


def test_a_label_that_the_loss_ignores_does_not_count():
    X, y = randn(12, FEATURES), torch.arange(12) % CLASSES
    problem = Supervised(
        net(), nn.CrossEntropyLoss(ignore_index=2), [(X, y)], metrics=["log loss", "accuracy"]
    )
    found = problem.evaluate(problem.x0())
    assert found["log loss"] == pytest.approx(found["loss"])
    rest = problem.replace(clients=[(X[y != 2], y[y != 2])]).evaluate(problem.x0())
    assert found == pytest.approx(rest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernel_measures_the_same(dtype, monkeypatch):
    problem = classifier(
        30, 20, module=nn.Linear(FEATURES, CLASSES), dtype=dtype, metrics=["auc", "log loss", "f1"]
    )
    fast = problem.evaluate(problem.x0())
    monkeypatch.setattr(Supervised, "kernel", None)
    assert problem.evaluate(problem.x0()) == pytest.approx(fast, rel=1e-5)


class Unhashable:
    __hash__ = None

    def __call__(self, outputs, y):
        return 0.5


def test_a_metric_need_not_be_hashable():
    problem = classifier(5, metrics={"mine": Unhashable()})
    assert problem.evaluate(problem.x0())["mine"] == 0.5


def test_ready_metrics_are_told_apart_in_a_saved_run():
    one, other = (classifier(5, metrics=[name]) for name in ("auc", "f1"))
    assert matches_fingerprint(other, one.fingerprint).differs == ("the metrics differ",)
    assert one.fingerprint == classifier(5, metrics={"auc": "auc"}).fingerprint
    assert "metrics=?" not in one.fingerprint


# -- judged by


def test_a_ready_metric_is_added_and_judges():
    problem = classifier(5, 9)
    judged = with_target_metric(problem, "balanced_accuracy")
    assert judged.metric == BUILTIN_METRICS["balanced accuracy"].metric
    assert "balanced accuracy" in judged.evaluate(judged.x0())
    assert problem.metric is None
    assert "balanced accuracy" not in problem.evaluate(problem.x0())
    assert with_target_metric(judged, "balanced accuracy") is judged
    assert judged.replace(batch=2).metric == judged.metric


def test_what_is_measured_already_judges_without_another_problem():
    problem = classifier(5, 9, metrics={"AUC": "auc", "f1": lambda output, y: 70.0})
    assert with_target_metric(problem, "accuracy").metric == ACCURACY
    assert with_target_metric(problem, "loss").metric == LOSS
    assert with_target_metric(problem, "AUC").metric == Metric("AUC", True, 0.0, 1.0)
    assert with_target_metric(problem, "f1").metric == Metric(
        "f1", higher=True
    )  # the user's, in per cent
    assert with_target_metric(problem, "AUC").fingerprint == problem.fingerprint


def test_a_metric_says_its_direction_itself():
    down = Metric("regret", higher=False, low=0.0)
    problem = classifier(5, metrics={"regret": lambda output, y: 1.0})
    assert with_target_metric(problem, "regret").metric.higher
    assert with_target_metric(problem, down).metric == down
    assert with_target_metric(problem, down).metric == down


@pytest.mark.parametrize(
    ("name", "higher"),
    [("rmse", False), ("Error", False), ("val_loss", False), ("distance", False), ("ndcg", True)],
)
def test_the_direction_of_a_plain_name_is_in_its_end(name, higher):
    assert metric_named(name).higher is higher
    assert metric_named(name).high == inf


def test_names_of_ready_metrics_are_read_generously():
    assert find_metric("log_loss") is find_metric("Log-Loss") is BUILTIN_METRICS["log loss"]
    assert find_metric("") is None


def test_other_problems_are_judged_by_what_they_measure(refused):
    problem = Quadratic(A=[1.0, 2.0], b=[0.0, 1.0])
    judged = with_target_metric(problem, "distance")
    assert judged.metric == Metric("distance", higher=False)
    assert problem.metric is None
    with refused("metric=auc is not measured here", "loss, gap, distance"):
        with_target_metric(problem, "auc")


def test_a_name_that_nobody_has_is_refused_with_what_there_is(refused):
    with refused("metric=acc is not measured", "loss, accuracy", "balanced accuracy, auc, f1"):
        with_target_metric(classifier(5), "acc")
    with pytest.raises(BadArgument) as caught:
        with_target_metric(classifier(5), "acc")
    assert caught.value.spelled(lambda name, given: f"--{name} {given}").startswith("--metric acc")


def test_a_problem_whose_metric_cannot_be_set_is_refused(refused):
    class Frozen(Quadratic):
        @property
        def metric(self):
            return Metric("loss", higher=False)

    with refused("Frozen", "cannot be set"):
        with_target_metric(Frozen(A=[1.0, 2.0], b=[0.0, 1.0]), "gap")


def test_scikit_learn_is_imported_when_it_is_used():
    code = "import sys, trimtab.problems.metrics; print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
