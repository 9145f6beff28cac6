"""benchmarks/search.py: the grid resumes, the numbers agree, the page says what the records say."""

import json
from dataclasses import replace

import pytest
import search
import search_cases
import search_grid

from trimtab import FedAvg

CASE = search_cases.Case(
    "convex",
    lambda: search_cases._quadratic(1, 3, 3, 0.05, 1.0, 0.0),
    *("gap", 0.01),
    budget=1e4,
    round_cost=10,
)
COARSE = {"KS": (1, 3), "STEPS": range(8, -41, -8), "FINER": (4,)}
COARSE |= {"PICKED": range(1000, 1005), "FRESH": range(2000, 2003)}


def coarse(patch, folder):
    """Judge one quadratic with noise by a coarse grid and few seeds."""
    patch.setattr(search, "RECORDS", folder)
    patch.setattr(search, "CASES", {"tiny": CASE})
    for name, value in COARSE.items():
        patch.setattr(search_grid, name, value)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the record of a grid that nobody interrupted, and what was run for it."""
    asked, rounds = [], search_grid.Runs.rounds

    def counted(self, algorithm, seed, cap=search_grid.R):
        asked.append((algorithm, seed))
        return rounds(self, algorithm, seed, cap)

    with pytest.MonkeyPatch.context() as patch:
        coarse(patch, tmp_path_factory.mktemp("search"))
        patch.setattr(search_grid.Runs, "rounds", counted)
        search.find_best("tiny", "fedavg")
        return json.loads(search.path_of("tiny", "fedavg").read_text()), asked


@pytest.fixture
def path(whole, tmp_path, monkeypatch):
    """Return the path of a record that is whole."""
    coarse(monkeypatch, tmp_path)
    path = search.path_of("tiny", "fedavg")
    path.write_text(json.dumps(whole[0]))
    return path


def test_a_killed_grid_goes_on_to_the_same_record(whole, path, monkeypatch):
    record, asked = whole
    first, *_ = record["grid"]
    few = dict(list(search_grid.unpacked(record["grid"][first]).items())[-5:])
    kept = {"grid": {first: search_grid.packed(few)}, "picked": {}, "best": None}
    path.write_text(json.dumps(record | kept))
    again, rounds = [], search_grid.Runs.rounds
    monkeypatch.setattr(
        search_grid.Runs,
        "rounds",
        lambda self, algorithm, seed, *cap: again.append(1) or rounds(self, algorithm, seed, *cap),
    )
    search.find_best("tiny", "fedavg")
    assert json.loads(path.read_text()) == record
    assert len(asked) - 15 <= len(again) <= len(asked) - 5  # a record of rounds has three seeds
    again.clear()
    search.find_best("tiny", "fedavg")
    assert not again


def test_the_best_is_measured_on_fresh_seeds_and_better_than_its_neighbours(whole, path):
    best, runs = whole[0]["best"], search_grid.Runs(CASE)
    made = FedAvg(eta_l=best["step"], K=best["K"], eta_g=best["eta_g"])
    again = {seed: runs.rounds(made, seed) for seed in search_grid.FRESH}
    assert best["rounds"] == search_grid.packed(again)
    for factor in (4, 1 / 4):
        other = FedAvg(eta_l=best["step"] * factor, K=best["K"], eta_g=best["eta_g"])
        assert search_grid.measured(runs, other)["mean"] > best["mean"]


def test_no_seed_chooses_and_measures():
    assert not set(search_grid.PICKED) & set(search_grid.FRESH)
    assert min(*search_grid.PICKED, *search_grid.FRESH) >= 1000  # The search counts from 0.


def test_a_failure_counts_all_rounds():
    assert search_grid.mean([None, None]) == pytest.approx(search_grid.R)
    assert search_grid.mean([2.0, 8.0]) == pytest.approx(4.0)


def test_the_regret_is_that_of_what_the_search_chose(whole, path, monkeypatch):
    best = whole[0]["best"]
    slow = FedAvg(eta_l=best["step"] / 8, K=best["K"], eta_g=best["eta_g"])
    choice = search.Choice(slow, complete=False, at_edge=["K"], spent=0.5)
    monkeypatch.setattr(search, "searched", lambda runs, name, share: choice)
    search.judge("tiny", "fedavg", [1.0], again=False)
    verdict = json.loads(path.read_text())["judged"]["1"]
    mine = search_grid.measured(search_grid.Runs(CASE), slow)
    assert verdict["regret"] == pytest.approx(mine["mean"] / best["mean"], abs=1e-3)
    assert verdict["regret"] > 2
    row = search.summary(search.records(), 1.0)
    assert row["worst"] == verdict["regret"]
    assert row["complete"] == 0
    assert row["worst of the complete"] is None
    assert f"missed by {row['worst'] - 1.5:.2f}" in search.page_part(search.records())


def test_what_compare_finds_is_judged(path):
    search.judge("tiny", "fedavg", [1.0], again=False)
    verdict = json.loads(path.read_text())["judged"]["1"]
    assert verdict["regret"] < 2
    assert 0 < verdict["spent"] <= 1.01


def test_a_case_whose_grid_misses_the_target_is_said_and_has_no_verdict(tmp_path, monkeypatch):
    coarse(monkeypatch, tmp_path)
    monkeypatch.setattr(search, "ALGORITHMS", {"fedavg": search_grid.ALGORITHMS["fedavg"]})
    monkeypatch.setattr(search_grid.Runs, "rounds", lambda *asked: None)
    verdict = {"regret": 1.0, "complete": True, "failed": 0, "spent": 0.5}
    judged = {("other", "fedavg"): {"judged": {"1": verdict}}}
    cases = search.CASES | {"other": CASE}
    monkeypatch.setattr(search, "CASES", cases)
    assert "1 cases have no verdict yet." in search.page_part(judged)
    search.find_best("tiny", "fedavg")
    assert search.records() == {}
    text = search.page_part(judged)
    assert "In 1 of 2 cases no settings of the grid reach the target." in text
    assert "no verdict" not in text


def test_a_record_of_another_problem_is_refused(path, monkeypatch):
    monkeypatch.setattr(search, "CASES", {"tiny": replace(CASE, target=0.02)})
    with pytest.raises(ValueError, match="is of another tiny; remove it"):
        search.find_best("tiny", "fedavg")


def test_the_records_are_of_the_problems_and_the_summary_is_of_the_records():
    found = search.records()
    for problem, name in found:
        search.opened(problem, name, search_grid.Runs(search.CASES[problem]))
    stored = json.loads((search.RECORDS / "summary.json").read_text())
    assert stored == {f"{share:g}": search.summary(found, share) for share in search.SHARES}


def test_the_page_is_made_from_the_records():
    text = search.PAGE.read_text("utf-8")
    assert search.BEGIN in text
    assert search.filled(text) == text, "run `python benchmarks/search.py --page`"
