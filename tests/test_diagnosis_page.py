"""docs/diagnosis.md is what its records say."""

import importlib.util
from copy import deepcopy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("advice", ROOT / "benchmarks" / "advice.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_from_the_records(maker):
    assert maker.page(maker.records()) == (ROOT / "docs" / "diagnosis.md").read_text("utf-8"), (
        "run `python benchmarks/advice.py --page` after a new record"
    )


def test_every_record_has_its_case(maker):
    names = {path.stem for path in (ROOT / "results" / "diagnosis").glob("*.json")}
    assert names == set(maker.records())


def test_the_advice_is_near_the_best_in_four_of_five_cases(maker):
    with_advice = [record for record in maker.records().values() if maker.advised(record)]
    assert sum(map(maker.near, with_advice)) >= 0.8 * len(with_advice)
    assert len(with_advice) >= 0.8 * len(maker.CASES)


def test_a_case_without_advice_is_said_and_is_neither_a_miss_nor_a_hit(maker):
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


def test_a_miss_is_shown_and_counted(maker):
    records = deepcopy(maker.records())
    name, record = next(iter(records.items()))
    diagnosis = record["diagnosis"]
    for row in record["found"]:
        mine = (row["algorithm"], row["K"]) == (diagnosis["algorithm"], diagnosis["K"])
        row["rounds"] = None if mine else 5
    assert not maker.near(record)
    assert "missed**" in next(r for r in maker.table(records).splitlines() if f"| {name} |" in r)
    assert f"Missed: {name}" in maker.page(records)
