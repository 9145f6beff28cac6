"""A diagnosis as the prior of a comparison: it orders, never forbids, and is judged afterwards."""

import json
from types import SimpleNamespace

import pytest
import torch

from trimtab import Quadratic, compare, diagnose
from trimtab.algorithms.registry import kind
from trimtab.cli import cli
from trimtab.studies.space import Expected, Point, Prior, space_of

PAIR = Quadratic(
    A=torch.tensor([[1.0, 0.1], [0.8, 0.05]]), b=torch.tensor([[2.0, 0.3], [-1.0, 0.1]])
)
EXPECTED = (Expected("scaffold", 8, 1.0, 5), Expected("fedavg", 4, 0.3, 20))
PRIOR = Prior("scaffold", 8, 1.0, expected=EXPECTED)


def entry(name, rounds, **besides):
    about = {"diverged": False, "baseline": False, "shown": kind(name).shown}
    return SimpleNamespace(name=name, rounds=rounds, **about | besides)


@pytest.mark.parametrize("name", ["scaffold", "fedavg", "sgd", "mime"])
@pytest.mark.parametrize("prior", [PRIOR, Prior("fedavg", 16, 1e-3), Prior()])
def test_nothing_that_would_be_searched_is_left_out(name, prior):
    without, found = space_of(kind(name), None, {}), space_of(kind(name), None, {}, prior)
    assert set(without.Ks) <= set(found.Ks)
    assert without.variants == found.variants
    best = Point(without.families[0], 0)
    for family in without.families:
        assert set(without.starts(best, family)) <= set(found.starts(best, family))


def test_a_prior_travels_as_json():
    assert Prior.from_json(json.loads(json.dumps(PRIOR.to_json()))) == PRIOR


def test_what_is_given_is_not_searched_whatever_the_prior_says():
    space = space_of(kind("scaffold"), 3, {}, PRIOR)
    assert space.Ks == (None,)
    assert space.build(Point(space.families[0], 0)).K == 3


@pytest.mark.parametrize(
    ("prior", "entries", "words"),
    [
        (PRIOR, [entry("scaffold", 5), entry("fedavg", 9)], "was right"),
        (PRIOR, [entry("scaffold", 13), entry("fedavg", 10)], "was right"),
        (PRIOR, [entry("scaffold", 14), entry("fedavg", 10)], "was wrong"),
        (PRIOR, [entry("scaffold", None), entry("fedavg", 10)], "does not get there"),
        (PRIOR, [entry("scaffold", None), entry("fedavg", None)], "no algorithm got there"),
        (PRIOR, [entry("fedavg", 10)], "cannot be judged"),
        (PRIOR, [entry("scaffold", 9), entry("mime", 2)], "cannot be judged"),
        (Prior(), [entry("scaffold", 5), entry("fedavg", 9)], "no advice"),
    ],
)
def test_afterwards_it_is_said_whether_the_diagnosis_was_right(prior, entries, words):
    assert words in prior.judged(entries)


def test_the_best_of_what_was_looked_at_is_not_called_the_best_of_all():
    said = PRIOR.judged([entry("fedavg", 9), entry("scaffold", 7), entry("mime", 5)])
    assert said.endswith(
        "7 rounds; of FedAvg and Scaffold, which it had looked at, it is the best."
    )


def test_a_comparison_with_a_prior_is_judged_in_its_notes():
    prior = Prior.from_diagnosis(diagnose(PAIR).to_json())
    assert prior.algorithm == "scaffold"
    result = compare(
        PAIR, ["fedavg", "scaffold"], prior=prior, R=30, budget=2000, seeds=1, target=-0.9
    )
    assert any(note.startswith("The diagnosis ") for note in result.about.notes)
    assert result.to_json()["notes"] == list(result.about.notes)


def test_the_command_reads_the_folder_of_a_diagnosis(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cli.main(
        ["diagnose", "quadratic", "--minutes", "0.05", "--out", "found"], standalone_mode=False
    )
    words = "compare quadratic --algorithms sgd,scaffold -R 10 --seeds 1 --budget 2000 --json"
    capsys.readouterr()
    cli.main([*words.split(), "--diagnosed", "found", "--out", "run"], standalone_mode=False)
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any(note.startswith("The diagnosis ") for note in notes)
