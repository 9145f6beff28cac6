"""How clients differ: each kind is told from the others, chance is not, and outliers are named."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.losses import quadratics, random
from trimtab import Supervised, diagnose
from trimtab.diagnosis.differences import FirstFacts, probe
from trimtab.diagnosis.panel import Panel
from trimtab.report.diagnosis import difference_chart, write_first_facts

KINDS = {"labels", "features", "scale", "size"}


def problem(change, N=8, n=120):
    """Return clients with equal data, changed one by one."""
    clients = []
    for i in range(N):
        y = torch.arange(n) % 3
        X = random(n, 5, seed=i) + 2 * F.one_hot(y, 5).double()
        clients.append(change(i, X, y))
    return Supervised(nn.Linear(5, 3).double(), F.cross_entropy, clients)


def same(i, X, y):
    return X, y


def one_label(i, X, y):
    keep = y == i % 3
    return X[keep], y[keep]


def all_labels_once(i, X, y):
    """Return one label for each client but the first, with labels so far apart that X says so."""
    keep = (y == i % 3) | torch.tensor(i == 0)
    return (X + 4 * F.one_hot(y, 5).double())[keep], y[keep]


def moved(i, X, y):
    return X + 1.5 * random(5, seed=90 + i), y


def scaled(i, X, y):
    return X * 2.0 ** (i % 3 - 1), y


def cut(i, X, y):
    return X[: 12 * 2 ** (i % 4)], y[: 12 * 2 ** (i % 4)]


def found(made):
    panel = Panel(made, tuple(range(made.N)))
    sizes = [len(made.clients[i]) for i in range(made.N)]
    return probe(panel, sizes, seed=0)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (same, set()),
        (one_label, {"labels"}),
        (moved, {"features"}),
        (scaled, {"scale"}),
        (cut, {"size"}),
    ],
)
def test_each_kind_is_told_from_the_others(change, expected):
    kinds = {kind.what: kind for kind in found(problem(change)).kinds}
    assert set(kinds) == KINDS
    clear = max(kinds.values(), key=lambda kind: kind.strength)
    assert {clear.what} == expected if expected else not any(k.found for k in kinds.values())
    assert kinds[clear.what].found == bool(expected)


def test_who_stands_out_is_named_in_the_sentence_and_starred_in_the_picture():
    made = problem(lambda i, X, y: (X + (3 if i == 5 else 0), y))
    differences = found(made)
    kind = next(kind for kind in differences.kinds if kind.what == "features")
    assert kind.outliers == (5,)
    assert "client 5 (" in differences.sentence
    drawn = difference_chart(differences)
    assert drawn.startswith("<svg")
    assert drawn.count('class="over">*</text>') == sum(len(k.outliers) for k in differences.kinds)
    assert "client 5: " in drawn


def test_labels_that_spread_the_features_are_no_difference_of_scale():
    kinds = {kind.what: kind for kind in found(problem(all_labels_once)).kinds}
    assert kinds["labels"].found
    assert not kinds["scale"].found
    assert kinds["scale"].unit == "octaves apart given the label"


def test_quadratics_have_no_samples_and_it_is_said():
    differences = diagnose(quadratics()).differences
    assert differences.kinds == ()
    assert "is unknown: there are no samples" in differences.sentence
    assert difference_chart(differences) == ""


def test_regression_has_targets_in_place_of_labels():
    clients = [(random(60, 3, seed=i), random(60, 1, seed=i) + 3 * i) for i in range(5)]
    made = Supervised(nn.Linear(3, 1).double(), F.mse_loss, clients)
    kinds = {kind.what: kind.found for kind in found(made).kinds}
    assert kinds["targets"]
    assert "labels" not in kinds
    assert not any("label" in kind.unit for kind in found(made).kinds)


def test_first_facts_come_first_and_make_a_page(tmp_path):
    made = problem(one_label)
    work = diagnose.start(made)
    facts = next(event for event in work if isinstance(event, FirstFacts))
    work.close()
    assert facts.sizes == tuple(len(made.clients[i]) for i in range(made.N))
    assert [zeta.at for zeta, _ in facts.points] == ["start", "after 5 rounds of FedAvg"]
    text = str(facts)
    assert "8 clients, 8 a round, d = 18, 40 samples each." in text
    assert "The clients differ in labels: " in text
    page = write_first_facts(facts, "mine", tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "continues" in page
    assert "Use " not in page


def test_the_whole_page_has_the_picture_and_the_intervals(tmp_path):
    from trimtab.report import write_diagnosis

    whole = diagnose(problem(one_label))
    page = write_diagnosis(whole, tmp_path / "page.html").read_text()
    assert "How the clients differ" in page
    assert whole.differences.sentence in page
    assert whole.to_json()["differences"]["labels"]["found"]
