"""Clients one by one, and the sentences that are shown with results."""

import json
from math import isnan, nan

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.learning import CLASSES, FEATURES, classifier, clients, data, net, randn
from trimtab import Metric, Quadratic, Supervised
from trimtab.problems.clients import per_client, problem_notes
from trimtab.problems.metrics import ACCURACY, BUILTIN_METRICS, LOSS

SCORE = Metric("score", higher=True)


class Given(Quadratic):
    """Clients whose metric is as given."""

    def __init__(self, values, groups=None):
        super().__init__(A=[1.0] * len(values), b=[0.0] * len(values))
        self.values, self.groups = values, groups

    def evaluate(self, x, client=None):
        return {"loss": 0.0} | ({} if client is None else {"score": self.values[client]})


def found(values, metric=SCORE, groups=None):
    return per_client(Given(values, groups), torch.zeros(1), metric)


def test_mean_worst_tenth_worst_and_spread():
    values = [float(v) for v in range(20, 0, -1)]
    up = found(values)
    assert (up.mean, up.worst_tenth, up.worst, up.worst_client) == (10.5, 1.5, 1.0, 19)
    assert up.spread == pytest.approx((399 / 12) ** 0.5)
    assert (up.clients, up.undefined) == (20, 0)
    down = found(values, Metric("score", higher=False))
    assert (down.worst_tenth, down.worst, down.worst_client) == (19.5, 20.0, 0)


def test_the_worst_tenth_is_one_client_at_least_and_rounded_up():
    assert found([3.0, 1.0, 2.0]).worst_tenth == 1.0
    assert found([float(v) for v in range(11)]).worst_tenth == 0.5
    assert found([2.0, 1.0, 1.0]).worst_client == 1  # the first of equals


def test_what_is_undefined_is_left_out_and_counted():
    some = found([nan, 0.5, nan, 1.0])
    assert (some.mean, some.clients, some.undefined, some.worst_client) == (0.75, 2, 2, 1)
    none = found([nan, nan])
    assert (none.clients, none.undefined, none.worst_client) == (0, 2, None)
    assert isnan(none.mean)
    assert none.to_json()["mean"] is none.to_json()["worst"] is None
    json.dumps(none.to_json(), allow_nan=False)


def test_groups_have_their_means():
    some = found([1.0, 2.0, 3.0, nan], groups=["rome", 7, "rome", "oslo"])
    assert some.groups == {"rome": 2.0, "7": 2.0, "oslo": None}
    assert found([1.0]).groups is None
    assert json.loads(json.dumps(some.to_json()))["groups"]["rome"] == 2.0


def test_infinity_is_no_number_in_json():
    far = found([float("inf"), 1.0], Metric("score", higher=False))
    assert far.worst == float("inf")
    json.dumps(far.to_json(), allow_nan=False)


def test_problems_that_cannot_evaluate_clients_have_none():
    class NoClients(Quadratic):
        def evaluate(self, x):
            return {"loss": 0.0}

    problem = NoClients(A=[1.0, 2.0], b=[0.0, 1.0])
    assert per_client(problem, torch.zeros(1), LOSS) is None
    pair = Quadratic(A=[1.0, 2.0], b=[0.0, 1.0])
    assert per_client(pair, torch.zeros(1), Metric("distance", higher=False)) is None
    assert per_client(pair, torch.zeros(1), LOSS).on is None


def test_supervised_says_what_clients_were_measured_on():
    problem = classifier(9, 7, metrics=["auc"], groups=["a", "b"])
    x, auc = problem.x0(), BUILTIN_METRICS["auc"].metric
    trained = per_client(problem, x, auc)
    each = [problem.evaluate(x, client=i)["auc"] for i in range(2)]
    assert trained.mean == pytest.approx(sum(each) / 2)
    assert trained.groups == pytest.approx({"a": each[0], "b": each[1]})
    assert trained.on == "training data"
    both = problem.replace(tests=clients(8, 8))
    assert per_client(both, x, auc).on == "own test parts"
    assert per_client(both, x, auc).worst == min(both.evaluate(x, i)["auc"] for i in range(2))
    mixed = problem.replace(tests=[None, data(8)])
    assert (
        per_client(mixed, x, auc).on == "own test parts of 1 clients, training data of the others"
    )


def test_a_client_of_one_class_is_left_out():
    X = randn(6, FEATURES)
    lone = (X, torch.ones(6, dtype=torch.long))
    problem = Supervised(net(), F.cross_entropy, [lone, data(12)], metrics=["auc"])
    measured = per_client(problem, problem.x0(), BUILTIN_METRICS["auc"].metric)
    assert (measured.clients, measured.undefined, measured.worst_client) == (1, 1, 1)


# -- notes


def labelled(y, **settings):
    y = torch.as_tensor(y)
    X = randn(len(y), FEATURES)
    classes = max(2, int(y.max()) + 1)
    return Supervised(nn.Linear(FEATURES, classes), F.cross_entropy, [(X, y)], **settings)


def test_accuracy_on_unbalanced_labels_comes_with_a_note():
    test = randn(50, FEATURES), torch.tensor([0] * 47 + [1] * 3)
    note, weights = problem_notes(labelled([0, 1, 0, 1], test=test), ACCURACY)
    assert note == (
        "94 % of the test labels are class 0, so accuracy 0.94 is what always saying that scores; "
        "auc, f1 and balanced accuracy tell more."
    )
    assert weights.startswith("all clients weigh the same")
    assert len(problem_notes(labelled([0, 1, 0, 1], test=test), BUILTIN_METRICS["auc"].metric)) == 1
    assert "93" in problem_notes(labelled([1] * 14 + [0]), ACCURACY)[0]
    assert (
        "of the clients' labels are class 1" in problem_notes(labelled([1] * 14 + [0]), ACCURACY)[0]
    )


@pytest.mark.parametrize(
    ("counts", "noted"),
    [
        ((50, 50), False),
        ((75, 25), False),  # of two classes it takes more than 75 %
        ((76, 24), True),
        ((60, 20, 20), False),  # and of more, more than 60 %
        ((61, 20, 19), True),
        ((30, 20, 20, 30), False),
        ((50, 0), True),
    ],
)
def test_only_large_classes_are_noted(counts, noted):
    y = [label for label, count in enumerate(counts) for _ in range(count)]
    assert (len(problem_notes(labelled(y), ACCURACY)) == 2) is noted


def test_shares_of_clients_labels_are_weighted_as_accuracy_is():
    few, many = (randn(2, FEATURES), torch.tensor([1, 1])), data(200)
    problem = Supervised(nn.Linear(FEATURES, CLASSES), F.cross_entropy, [few, many])
    shares = problem.class_shares()[1]
    half = torch.bincount(many[1], minlength=3).double() / 400
    torch.testing.assert_close(shares, half + torch.tensor([0, 0.5, 0]).double())


def test_one_logit_has_notes_and_numbers_and_lazy_clients_have_none():
    X = randn(20, FEATURES)
    y = torch.tensor([0.0] * 18 + [1.0] * 2).double()[:, None]
    problem = Supervised(nn.Linear(FEATURES, 1), nn.BCEWithLogitsLoss(), [(X, y)])
    assert problem_notes(problem, ACCURACY)[0].startswith("90 % of the clients' labels are class 0")
    assert problem.replace(loss=F.mse_loss, clients=[(X, y + 0.5)]).class_shares() is None

    class Lazy:
        def __len__(self):
            return 1

        def __getitem__(self, i):
            raise AssertionError("nobody asked for it")

    assert len(problem_notes(Supervised(nn.Linear(2, 2), F.cross_entropy, Lazy()), ACCURACY)) == 1


def test_labels_that_are_ignored_do_not_count():
    loss = nn.CrossEntropyLoss(ignore_index=0)
    problem = labelled([0] * 90 + [1] * 5 + [2] * 5).replace(loss=loss)
    assert problem.class_shares()[1].tolist() == [0.0, 0.5, 0.5]


def test_the_weights_in_force_are_said():
    (uniform,) = problem_notes(classifier(9, 7), LOSS)
    assert "whatever their size (the papers' default)" in uniform
    assert 'weights="samples"' in uniform
    assert problem_notes(classifier(9, 7, weights="samples").split(), LOSS) == [
        "clients weigh by their number of samples."
    ]
    assert problem_notes(classifier(9, 7, weights=[1, 3]), LOSS) == [
        "clients weigh by the weights given, from 0.25 to 0.75."
    ]
    assert problem_notes(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0], weights=[1, 4]), LOSS) == [
        "clients weigh by the weights given, from 0.2 to 0.8."
    ]
