"""The advice at its edges: who is said to be like whom, which target is easier, what rows tell."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Supervised, compare
from trimtab.algorithms.registry import kind
from trimtab.problems.metrics import ACCURACY, LOSS, Metric
from trimtab.studies import advice
from trimtab.studies.compare import _settled
from trimtab.studies.entry import Entry, SeedRun, aggregate_seeds
from trimtab.studies.goal import Cost, Goal
from trimtab.studies.record import RoundLine

GOAL = Goal(ACCURACY, 0.9, slack=0.05)


def entry(name, rounds, nearly, size=100):
    """Return an algorithm with made-up rounds to the target, and to the easier one."""

    def cost(r):
        return None if r is None else Cost(r, r, size * r, 10 * r, 0.1)

    pairs = zip(rounds, nearly, strict=True)
    runs = [SeedRun(s, cost(r), 0.9, 1, {}, nearly=cost(e)) for s, (r, e) in enumerate(pairs)]
    made = Entry(name, name, {"K": 5, "eta_l": 0.1}, shown=kind(name).shown, step="eta_l", best=0.8)
    return aggregate_seeds(made, runs, GOAL)


# -- who is like whom


def test_who_differs_from_the_chosen_one_at_the_target_is_not_called_like_it():
    """The best needs 16 rounds, one like it 17; the one that sends least needs 54."""
    best = entry("scaffold", [16, 15, 17], [1, 1, 1])
    like = entry("mime", [17, 15, 17], [1, 1, 1])
    frugal = entry("fedavg", [54, 50, 58], [1, 1, 1], size=10)
    found = advice.verdict([best, like, frugal], GOAL)
    assert found.chosen is frugal
    assert found.alike == ()
    assert found.unsure == (best, like)
    said = advice.advise([best, like, frugal], GOAL)
    assert "no difference found to Scaffold and Mime at 0.85" in said
    assert "nor" not in said


def test_who_is_worse_than_an_equal_of_the_best_at_both_targets_is_not_chosen():
    best = entry("scaffold", [16, 15, 17], [9, 2, 9])
    like = entry("mime", [17, 14, 17], [2, 2, 2])
    frugal = entry("fedavg", [54, 50, 58], [9, 9, 9], size=10)
    found = advice.verdict([best, like, frugal], GOAL)
    assert found.chosen in (best, like)
    assert frugal in found.unsure


def test_a_cheaper_one_among_the_alike_is_chosen_and_the_others_keep_their_place():
    best = entry("scaffold", [16, 15, 17], [6, 5, 7])
    frugal = entry("fedavg", [17, 15, 17], [6, 5, 7], size=10)
    unsure = entry("mime", [54, 50, 58], [6, 5, 7])
    found = advice.verdict([best, frugal, unsure], GOAL)
    assert (found.chosen, found.alike, found.unsure) == (frugal, (best,), (unsure,))


def test_costs_of_nothing_are_no_difference_and_no_error():
    """Nobody was there in the round that met the target, so nothing was sent."""
    free = entry("fedavg", [1, 1, 1], [1, 1, 1], size=0)
    other = entry("scaffold", [1, 1, 1], [1, 1, 1], size=0)
    assert advice.verdict([free, other], Goal(ACCURACY, 0.9, "bytes")).labels == [
        "fedavg",
        "scaffold",
    ]


def test_an_entry_without_runs_has_no_medians():
    made = Entry("fedavg", "fedavg", {}, rounds=3)
    assert aggregate_seeds(made, [], GOAL).rounds is None


# -- which target is easier, and which one is settled


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


def lines(metric, *values):
    return [RoundLine(r, metrics={metric.name: value}) for r, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("metric", "start", "values"),
    [
        (LOSS, 1000.6, (1000.5, 1000.44)),
        (LOSS, 1000.44, (1000.5, 1000.44)),
        (Metric("score", higher=True), 99990.0, (99994.0, 99996.0)),
        (ACCURACY, 0.001, (0.002, 0.009)),
    ],
)
def test_a_settled_target_is_one_that_the_best_run_meets_and_not_at_once(metric, start, values):
    found = _settled(Goal(metric), [lines(metric, *values)], {metric.name: start})
    assert found.first(lines(metric, *values)).r == len(values)


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


def test_who_is_left_behind_is_measured_by_what_is_preferred():
    """The other needs fewer rounds, and more bytes, by which it was judged."""
    frugal = entry("fedavg", [5, 5, 5], [5, 5, 5], size=32)
    quick = entry("scaffold", [3, 3, 3], [3, 3, 3], size=64)
    said = advice.advise([frugal, quick], Goal(ACCURACY, 0.9, "bytes"))
    assert said.startswith("Use FedAvg")
    assert "where Scaffold needs 3 (192 bytes)" in said
    assert "FedAvg needs 5." in advice.advise([frugal, quick], Goal(ACCURACY, 0.9))
    large = [
        entry("fedavg", [5, 5, 5], [5, 5, 5], size=32_000),
        entry("scaffold", [3, 3, 3], [3, 3, 3], size=64_000),
    ]
    assert "needs 3 (192,000 bytes)" in advice.advise(large, Goal(ACCURACY, 0.9, "bytes"))
