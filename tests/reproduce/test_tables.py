"""The claims on EMNIST are judged by the records; the published numbers satisfy them."""

from dataclasses import asdict

import pytest

from trimtab.reproduce.emnist import Setting, compute, first, stays
from trimtab.reproduce.published import TABLE3, TABLE4, TABLE5
from trimtab.reproduce.reproduction import computing, read
from trimtab.reproduce.tables import SIMILARITIES, TABLE_3, TABLE_4, TABLE_5, _common


def record(setting, rounds, best=0.7):
    both = {"0.45": [rounds] * 2, "0.5": [rounds] * 2, "0.6": [rounds] * 2}
    accuracy = [0.0] * ((rounds or 1000) - 1) + [0.5 if rounds else 0.0]
    return {
        "setting": asdict(setting),
        "eta": 0.1,
        "limit": setting.limit,
        "rounds": both,
        "accuracy": accuracy,
        "best": best,
        "candidates": [
            {"eta": 0.1, "first": rounds},
            {"eta": 0.2, "first": rounds and 2 * rounds},
            {"eta": 0.05, "first": None},
            {"eta": 0.3, "first": None},
        ],
    }


def published3():
    settings = {
        Setting(name, epochs, s, limit=1000 if epochs <= 5 else 300): rounds
        for (name, epochs), row in TABLE3.items()
        for s, rounds in zip(SIMILARITIES, row, strict=True)
    }
    return {s.name: record(s, rounds) for s, rounds in settings.items()}


def verdicts(reproduction, records):
    return [claim.verdict for claim in reproduction.claims(records)]


def test_the_published_table_3_satisfies_its_claims():
    assert verdicts(TABLE_3, published3()) == ["held"] * 6


@pytest.mark.parametrize(
    ("cell", "rounds", "claim"),
    [
        ("scaffold-5-100", 500, 0),
        ("scaffold-1-0", 259, 1),
        ("fedavg-20-0", 200, 2),
        ("scaffold-10-10", 21, 3),
        ("sgd-1-100", 500, 4),
        ("fedprox-5-100", 9, 5),
    ],
)
def test_each_claim_of_table_3_can_fail(cell, rounds, claim):
    records = published3()
    setting = Setting(**records[cell]["setting"])
    records[cell] = record(setting, rounds)
    assert TABLE_3.claims(records)[claim].verdict == "not held"


def test_claims_are_open_while_cells_are_missing():
    assert set(verdicts(TABLE_3, {})) == {"open"}
    records = published3()
    del records["scaffold-5-0"]
    assert verdicts(TABLE_3, records) == ["open", "open", "open", "held", "held", "held"]
    assert verdicts(TABLE_4, {}) == ["open"] * 2
    assert verdicts(TABLE_5, {}) == ["open"]


def test_one_step_size_for_all_cells_is_chosen_from_the_races():
    settings = _common(published3())
    assert len(settings) == 3 * 39
    etas = {s.eta for s in settings if s.algorithm == "scaffold"}
    assert {0.1, 0.2} < etas
    assert len(etas) == 3


def test_the_published_table_4_satisfies_its_claims():
    records = {}
    for (name, S), row in TABLE4.items():
        for s, rounds in zip((0, 10), row, strict=True):
            setting = Setting(name, 5, s, S=S, target=0.45)
            records[setting.name] = record(setting, rounds)
    assert verdicts(TABLE_4, records) == ["held", "held"]
    slow = Setting("scaffold", 5, 10, S=1, target=0.45)
    records[slow.name] = record(slow, 9 * 20)
    assert verdicts(TABLE_4, records) == ["not held", "not held"]


def test_the_published_table_5_satisfies_its_claim():
    records = {}
    for name, row in TABLE5.items():
        for s, best in zip((0, 10), row, strict=True):
            setting = Setting(name, 1 if name == "sgd" else 5, s, network=True)
            records[setting.name] = record(setting, 10, best)
    assert verdicts(TABLE_5, records) == ["held"]
    records["fedavg-5-0"]["best"] = 0.9
    assert verdicts(TABLE_5, records) == ["not held"]


@pytest.mark.parametrize("reproduction", [TABLE_3, TABLE_4, TABLE_5], ids=lambda r: r.name)
def test_quick_versions_run_and_show(reproduction, tmp_path, real_data):
    done = dict(computing(reproduction, tmp_path, quick=True, data=real_data))
    records = read(tmp_path)
    assert set(done) == set(records) == {c.name for c in reproduction.cells(True, 1)}
    assert not list(computing(reproduction, tmp_path, quick=True, data=real_data))  # resumed
    assert len(reproduction.table(records).splitlines()) > 3
    assert reproduction.figure(records).axes
    for one in records.values():
        assert one["accuracy"]
        assert len(one["candidates"]) >= 3


def test_a_step_size_may_be_given(real_data):
    setting = Setting("fedavg", 1, 100, S=4, N=20, limit=3, every=12, eta=0.3)
    found = compute(setting, real_data, lambda text: None)
    assert found["eta"] == 0.3
    assert len(found["accuracy"]) == 3


def test_the_two_criteria():
    assert (first([0.4, 0.5], 0.5), first([0.4], 0.5)) == (2, None)
    assert stays([0.6, *[0.4] * 20], 0.5) is None
    assert stays([0.3] * 5 + [0.6] * 9, 0.5) == 3
