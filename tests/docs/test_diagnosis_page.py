"""docs/diagnosis.md is what its records say."""

import json
from copy import deepcopy
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


def test_a_part_of_an_account_says_how_large_it_is(tmp_path, monkeypatch):
    record = json.dumps(next(iter(maker.records().values())))
    monkeypatch.setattr(maker, "ACCOUNT", tmp_path)
    first, *others = maker.CASES
    (tmp_path / f"{first}.json").write_text(record)
    assert set(maker.records()) == {first}
    assert f"**1 of {len(maker.CASES)} cases are in**" in maker.page(maker.records())
    for name in others:
        (tmp_path / f"{name}.json").write_text(record)
    assert set(maker.records()) == set(maker.CASES)
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
    assert lines[2] == "| digits | 7 | 12.0 | 3.0 | 4.0 |"
    assert lines[3] == "| a network | 7 | 290.0 when the minutes were over | not measured | - |"


@pytest.mark.parametrize(("good", "of"), [(0, 5), (27, 28), (40, 44), (44, 44)])
def test_the_interval_of_the_share_holds_what_it_should(good, of):
    low, high = maker.share_interval(good, of)
    assert 0 <= low <= good / of <= high <= 1
    assert high - low < 1.0


def test_the_advice_is_near_the_best_in_four_of_five_cases():
    with_advice = [record for record in maker.records().values() if maker.advised(record)]
    assert sum(map(maker.near, with_advice)) >= 0.8 * len(with_advice)
    assert len(with_advice) >= 0.8 * len(maker.records())


def test_a_case_without_advice_is_said_and_is_neither_a_miss_nor_a_hit():
    records = deepcopy(maker.records())
    before = sum(map(maker.advised, records.values()))
    name = next(name for name, record in records.items() if maker.advised(record))
    records[name]["diagnosis"] |= {"algorithm": None, "K": None, "eta_l": None}
    text = maker.page(records)
    assert f"of {before - 1} cases with advice" in text
    row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    assert "no advice" in row
    assert "missed" not in row
    assert f"No advice was given for {name}" in text


def test_a_miss_is_shown_and_counted():
    records = deepcopy(maker.records())
    name, record = next(iter(records.items()))
    diagnosis = record["diagnosis"]
    for row in record["found"]:
        mine = (row["algorithm"], row["K"]) == (diagnosis["algorithm"], diagnosis["K"])
        row["rounds"] = None if mine else 5
    assert not maker.near(record)
    assert "missed**" in next(r for r in maker.table(records).splitlines() if f"| {name} |" in r)
    assert f"Missed: {name}" in maker.page(records)
