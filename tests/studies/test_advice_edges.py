"""Targets at their edges: which one is easier, and what the rows tell."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Supervised, compare
from trimtab.problems.metrics import ACCURACY, LOSS, Metric
from trimtab.studies.goal import Goal

# -- which target is easier


@pytest.mark.parametrize(
    ("metric", "target", "slack"),
    [
        (LOSS, 1000.4, 0.04),
        (LOSS, -0.49996, 1e-5),
        (Metric("score", higher=True), 12345.0, 0.4),
        (Metric("score", higher=True), 99995.0, 12.0),
    ],
)
def test_an_easier_target_is_easier_by_the_slack(metric, target, slack):
    easier = Goal(metric, target, slack=slack).easier().target
    gained = target - easier if metric.higher else easier - target
    assert gained == pytest.approx(slack, rel=0.06)


def test_no_target_is_easier_than_what_every_model_has():
    assert Goal(ACCURACY, 0.05, slack=0.1).easier().target == 0.0
    assert Goal(Metric("share", False, 0.0, 1.0), 0.95, slack=0.1).easier().target == 1.0


# -- what the rows tell


def clients(n=40, N=4, labels=2):
    draw = torch.Generator().manual_seed(0)
    w = torch.randn(5, generator=draw)
    for _ in range(N):
        X = torch.randn(n, 5, generator=draw)
        y = (X @ w > 0).long() if labels == 2 else torch.zeros(n, dtype=torch.long)
        yield X, y


def classifier(**settings):
    module = nn.Linear(5, 2)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    given = {"clients": list(clients()), "batch": 16} | settings
    return Supervised(module, F.cross_entropy, **given)


def test_rows_that_are_all_right_do_not_show_that_the_next_would_be():
    problem = classifier(clients=list(clients(labels=1))).split(0.5, 0)
    x, n = problem.x0(), len(problem._evaluation_data.validation)
    assert problem.validate(x)["accuracy"] == 1.0
    assert problem.validation_error(x, "accuracy") == pytest.approx(1 / (n + 2))


def test_rows_that_cannot_tell_how_well_they_know_a_metric_are_told_of():
    """One row alone: nothing is known of what another would have been."""
    X, y = next(clients(labels=2))
    problem = classifier(validation=(X[:1], y[:1]))
    how = {"K": 2, "R": 4, "budget": 2000, "seeds": 2, "target": 0.9}
    found = compare(problem, ["fedavg"], **how)
    assert found.goal.slack == 0.0
    assert any("too few to tell how well they know accuracy" in note for note in found.about.notes)
    enough = compare(classifier(), ["fedavg"], **how)
    assert not any("too few" in note for note in enough.about.notes)
