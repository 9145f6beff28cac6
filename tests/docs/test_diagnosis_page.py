"""docs/diagnosis.md is what its records say."""

import json
from pathlib import Path

import advice as maker
import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_is_made_from_the_records():
    assert maker.page(maker.records()) == (ROOT / "docs" / "diagnosis.md").read_text("utf-8"), (
        "run `python benchmarks/advice.py --page` after a new record"
    )


def test_there_are_forty_cases_of_every_kind_with_seeds_of_their_own():
    cases = maker.CASES.values()
    assert len(cases) >= 40
    kinds = {"quadratics", "logistic", "CNN", "transformer", "regression", "unbalanced labels"}
    assert kinds | {"unequal sizes"} <= {case.kind for case in cases}
    assert sum(case.S is not None for case in cases) >= 5
    assert len({case.seed for case in cases}) == len(cases)
    assert min(case.seed for case in cases) > 7000


def row(algorithm="scaffold", K=8, rounds=10):
    return {"algorithm": algorithm, "K": K, "eta": 0.1, "rounds": rounds, "complete": True}


def record(mine=10, best=9, verdict="choice", sure="fairly sure; it got there."):
    """Return a record whose advice needs so many rounds, beside a best that needs so many."""
    diagnosis = {"zeta": 1.0, "delta": 0.1, "L": 1.0, "rough": False, "sure": sure}
    diagnosis |= {"verdict": verdict, "algorithm": None if verdict == "no advice" else "scaffold"}
    advised = None if verdict == "no advice" else row(rounds=mine)
    return {"diagnosis": diagnosis, "advised": advised, "best": [row("sgd", 1, best)]}


def test_a_part_of_an_account_says_how_large_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(maker, "ACCOUNT", tmp_path)
    assert f"**0 of {len(maker.CASES)} cases are in**" in maker.page(maker.records())
    for name in maker.CASES:
        assert "cases are in**" in maker.page(maker.records())
        (tmp_path / f"{name}.json").write_text(json.dumps(record()))
        if name == next(iter(maker.CASES)):
            assert f"**1 of {len(maker.CASES)} cases are in**" in maker.page(maker.records())
    assert "cases are in**" not in maker.page(maker.records())


def test_cases_of_every_kind_come_before_second_ones():
    kinds = [case.kind for case in maker.CASES.values()]
    small = {kind for kind in kinds if kind not in ("CNN", "two layers", "transformer")}
    assert set(kinds[: len(small)]) == small
    assert set(kinds[:25]) == set(kinds)


def test_the_times_are_those_of_the_record(tmp_path, monkeypatch):
    rows = [("0.1.0", 12.0, "digits"), ("0.2.0", 3.0, "digits"), ("0.1.0", 290.0, "a network")]
    kept = [{"workload": w, "version": v, "cpu": cpu, "d": 7} for v, cpu, w in rows]
    monkeypatch.setattr(maker, "TIMES", tmp_path / "time.json")
    maker.TIMES.write_text(json.dumps(kept))
    lines = maker.times().splitlines()
    assert lines[2] == "| digits | 7 | 12.0 | 3.0 |"
    assert lines[3] == "| a network | 7 | 290.0 when the minutes were over | not measured |"


@pytest.mark.parametrize(("good", "of"), [(0, 5), (27, 28), (40, 44), (44, 44)])
def test_the_interval_of_the_share_holds_what_it_should(good, of):
    low, high = maker.share_interval(good, of)
    assert 0 <= low <= good / of <= high <= 1
    assert high - low < 1.0


def test_of_the_advice_that_is_recorded_four_of_five_are_near_and_none_is_wrongly_sure():
    with_advice = [each for each in maker.records().values() if maker.advised(each)]
    missed = len(with_advice) - sum(map(maker.near, with_advice))
    assert missed <= 1 + 0.2 * len(with_advice)  # The first record may be a miss.
    assert not any(map(maker.wrongly_sure, with_advice))


@pytest.mark.parametrize(
    ("mine", "best", "verdict", "near"),
    [
        (13, 10, "choice", True),
        (14, 10, "choice", False),
        (None, 10, "choice", False),
        (9, 10, "choice", True),  # The advice is the best that was found.
        (None, None, "choice", False),
        (None, None, "nearest", True),  # It says that none arrives, and none does.
        (None, 10, "nearest", False),
    ],
)
def test_near_is_within_a_factor_of_the_best_that_is_known(mine, best, verdict, near):
    assert maker.near(record(mine, best, verdict)) == near


def test_a_case_without_advice_is_said_and_is_neither_a_miss_nor_a_hit():
    text = maker.page({"heart": record(verdict="no advice"), "cnn-0": record()})
    assert "1 of 1 cases with advice" in text
    line = next(line for line in text.splitlines() if line.startswith("| heart |"))
    assert "no advice" in line
    assert "missed" not in line
    assert "No advice was given for heart" in text


def test_a_miss_is_shown_and_counted_and_so_is_one_that_was_called_sure():
    text = maker.page({"heart": record(20, 10), "cnn-0": record(30, 10, sure="sure; exact.")})
    assert "missed**" in next(r for r in text.splitlines() if r.startswith("| heart |"))
    assert "Missed: heart, cnn-0. Wrong although called sure: cnn-0." in text
