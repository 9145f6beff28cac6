"""The claims on EMNIST are judged by the records; the published numbers satisfy them."""

from dataclasses import asdict, replace
from math import log

import pytest

from trimtab.core.task import Task
from trimtab.reproduce.mime2020.mime import MIME
from trimtab.reproduce.published import TABLE3, TABLE4, TABLE5
from trimtab.reproduce.raced_cells import compute, grid
from trimtab.reproduce.raced_record import Setting, first, read_raced, stays
from trimtab.reproduce.reproduction import read, reproduce
from trimtab.reproduce.rounds_to_target import PUBLISHED, fragile_note
from trimtab.reproduce.rounds_to_target import rounds as needed
from trimtab.reproduce.scaffold2020.emnist400 import CLIENTS, EMNIST400
from trimtab.reproduce.scaffold2020.table3 import TABLE_3
from trimtab.reproduce.scaffold2020.table3.cells import best_common, common
from trimtab.reproduce.scaffold2020.table3.table import distance
from trimtab.reproduce.scaffold2020.table4 import TABLE_4
from trimtab.reproduce.scaffold2020.table5 import TABLE_5
from trimtab.studies.events import CellDone


def record(setting, rounds, best=0.7):
    return {
        "setting": asdict(setting),
        "eta": 0.1,
        "limit": setting.limit,
        "accuracy": [0.0] * ((rounds or 1000) - 1) + [0.7 if rounds else 0.0] * 10,
        "best": best,
        "candidates": [
            candidate(0.1, rounds),
            candidate(0.2, rounds and 2 * rounds),
            candidate(0.05, None),
            candidate(0.3, None),
        ],
        "K": 5 * setting.epochs,
        "data": "none",
        "bytes a round": 1,
    }


def candidate(eta, first):
    return {"eta": eta, "rounds": 1, "first": first, "best": 0.7, "diverged": False}


def published3():
    settings = {
        Setting(name, epochs, s, limit=1000 if epochs <= 5 else 300): rounds
        for (name, epochs), row in TABLE3.items()
        for s, rounds in row.items()
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
    settings = common(published3())
    assert len(settings) == 3 * 39
    etas = {s.eta for s in settings if s.algorithm == "scaffold"}
    assert {0.1, 0.2} < etas
    assert len(etas) == 3


def test_the_best_common_step_size_and_how_far_a_reading_is_from_the_paper():
    def far(records, common):
        found = distance(read_raced(records), PUBLISHED, common)
        assert found.cells > 20
        return found.rounds, found.speed_ups

    records = published3()
    assert far(records, {}) == pytest.approx((1, 1))
    for setting in common(records):
        slower = 3 if setting.eta == 0.1 else 2
        there = TABLE3[setting.algorithm, setting.epochs][setting.similarity]
        records[setting.name] = record(setting, there and slower * there)
    assert set(best_common(records)) == {"sgd", "scaffold", "fedavg", "fedprox"}
    assert 0.1 not in best_common(records).values()
    assert far(records, best_common(records)) == pytest.approx((2, 1))
    text = TABLE_3.table(records)
    assert "one step size for all cells" in text
    assert "| one step size per algorithm, first at 0.5 | 2.00 | 1.00 |" in text


def test_fragile_winners_are_marked_and_counted():
    records = published3()
    assert fragile_note(read_raced(records)).endswith("not tried.")
    for name, one in records.items():
        one["again"] = {"rounds": 1, "best": 0.5, "fragile": name == "scaffold-5-10"}
    assert fragile_note(read_raced(records)).startswith("† fragile: 1 of 39 winners")
    assert TABLE_3.table(records).count("0.1 †") == 1
    del records["sgd-1-0"]["again"]
    assert fragile_note(read_raced(records)).endswith("Not tried for 1.")


def test_an_older_record_was_as_usual_in_what_it_does_not_name():
    records = published3()
    for one in records.values():
        del one["setting"]["classes"], one["setting"]["base"]
    assert verdicts(TABLE_3, records) == ["held"] * 6


def test_the_published_table_4_satisfies_its_claims():
    records = {}
    for (name, S), row in TABLE4.items():
        for s, rounds in row.items():
            setting = Setting(name, 5, s, S=S, target=0.45)
            records[setting.name] = record(setting, rounds)
    assert verdicts(TABLE_4, records) == ["held", "held"]
    slow = Setting("scaffold", 5, 10, S=1, target=0.45)
    records[slow.name] = record(slow, 9 * 20)
    assert verdicts(TABLE_4, records) == ["not held", "not held"]


def test_the_published_table_5_satisfies_its_claim():
    records = {}
    for name, row in TABLE5.items():
        for s, best in row.items():
            setting = Setting(name, 1 if name == "sgd" else 5, s, network=True)
            records[setting.name] = record(setting, 10, best)
    assert verdicts(TABLE_5, records) == ["held"]
    records["fedavg-5-0"]["best"] = 0.9
    assert verdicts(TABLE_5, records) == ["not held"]


def test_on_the_network_the_step_below_the_winner_runs_on_and_the_better_counts():
    raced = Setting("fedavg", 5, 0, network=True, target=0.75, until=1.0)
    records = {raced.name: record(raced, 10, best=0.78) | {"eta": 0.5556}}
    (below,) = TABLE_5.more(records)
    assert below.name == "fedavg-5-0-eta0.3087"
    given = replace(raced, eta=0.5556 / 1.8)
    for accuracy, shown in ((0.77, "0.780"), (0.79, "0.790")):
        both = records | {below.name: record(given, 10, best=accuracy) | {"eta": given.eta}}
        assert f"| FedAvg | {shown} |" in TABLE_5.table(both)
        assert [cell.name for cell in TABLE_5.more(both)] == [below.name]


def test_claims_with_400_clients_hold_or_not():
    def verdict(reproduction, **rounds):
        records = {}
        for key, need in rounds.items():
            name, S = key.split("_")
            setting = Setting(name, 1, 0, N=400, S=int(S))
            records[setting.name] = record(setting, need)
        return verdicts(reproduction, records)

    assert verdict(EMNIST400, scaffold_20=10, fedavg_20=20, sgd_20=30) == ["held"] * 2
    assert verdict(EMNIST400, scaffold_20=25, fedavg_20=20, sgd_20=30) == ["not held", "held"]
    assert verdict(EMNIST400, scaffold_20=10) == ["open"] * 2
    assert verdict(CLIENTS, scaffold_5=10, fedavg_50=20) == ["held"]
    assert verdict(CLIENTS, scaffold_5=20, fedavg_50=20) == ["not held"]
    assert verdict(CLIENTS, scaffold_5=20) == ["open"]


def mimes(**changed):
    """Return records that agree with the caption of Mime's figure, but for what is changed."""
    accuracy = {"serveronly": 0.6, "fedopt": 0.5, "mimelite": 0.7, "mime": 0.7}
    wanted = {f"{n}_{b}": a for n, a in accuracy.items() for b in ("momentum", "adam")}
    wanted |= {"fedopt_none": 0.48, "mime_none": 0.6} | changed
    records = {}
    for key, value in wanted.items():
        name, base = key.split("_")
        setting = Setting(name, 2, 10, N=1000, classes=62, base=base, target=None)
        records[setting.name] = record(setting, 1) | {"accuracy": [value] * 40}
    return records


@pytest.mark.parametrize(
    ("changed", "failing"),
    [
        ({}, None),
        ({"mimelite_adam": 0.68}, 0),
        ({"serveronly_momentum": 0.71}, 1),
        ({"fedopt_momentum": 0.61, "fedopt_adam": 0.61, "fedopt_none": 0.6}, 2),
        ({"mime_none": 0.69}, 3),
    ],
)
def test_each_claim_on_mime_can_fail(changed, failing):
    expected = ["not held" if j == failing else "held" for j in range(4)]
    assert verdicts(MIME, mimes(**changed)) == expected


def test_the_server_of_fedavg_has_the_best_of_its_step_sizes():
    records = mimes()
    better = Setting("fedopt", 2, 10, N=1000, classes=62, base="adam", eta_g=0.01, target=None)
    records[better.name] = record(better, 1) | {"accuracy": [0.65] * 40}
    assert "| FedAvg | 0.500 | 0.650 | 0.480 |" in MIME.table(records)
    assert "0.01 at the server" in MIME.table(records)


def test_step_sizes_of_all_cells_are_on_one_grid():
    many = [grid(Setting(n, e, 0.0)) for n in ("sgd", "scaffold") for e in (1, 5, 10, 20)]
    powers = [log(eta, 1.8) for etas in many for eta in etas]
    assert powers == pytest.approx([round(p) for p in powers])


ON_EMNIST = [TABLE_3, TABLE_4, TABLE_5, EMNIST400, CLIENTS, MIME]


# What a quick version must show, by a margin that no rounding takes away: the rounds of the first
# are at most three quarters of those of the second.
FASTER = {
    "table3": [("scaffold", "fedavg", {"epochs": 5, "similarity": 0})],
    "table4": [("scaffold", "fedavg", {"S": 8}), ("scaffold", "fedavg", {"S": 4})],
    "emnist400": [("scaffold", "fedavg", {}), ("scaffold", "sgd", {})],
    "clients": [("scaffold", "fedavg", {"S": 5})],
}


@pytest.mark.parametrize("reproduction", ON_EMNIST, ids=lambda r: r.name)
def test_quick_versions_run_and_show(reproduction, tmp_path, real_data):
    work = reproduce.start(reproduction, tmp_path, quick=True, data=real_data)
    done = [event.name for event in work if isinstance(event, CellDone)]
    records = work.result()
    assert records == read(tmp_path)
    assert set(done) == set(records) == {c.name for c in reproduction.cells(True, 1)}
    assert not list(reproduce.start(reproduction, tmp_path, quick=True, data=real_data))  # resumed
    assert len(reproduction.table(records).splitlines()) > 3
    assert reproduction.figure(records).axes
    for one in records.values():
        assert one["accuracy"]
        assert len(one["candidates"]) >= 3
        assert (one["again"] is None) is (reproduction is TABLE_5)
    assert set(verdicts(reproduction, records)) <= {"held", "not held"}
    for fast, slow, wanted in FASTER.get(reproduction.name, ()):
        ours, theirs = (
            needed(read_raced(records), algorithm=name, **wanted) for name in (fast, slow)
        )
        assert ours <= 0.75 * theirs


@pytest.mark.parametrize("target", [0.4, None])
@pytest.mark.parametrize("stop", [1, 20, 60, 110])
def test_an_interrupted_cell_goes_on(tmp_path, real_data, monkeypatch, stop, target):
    monkeypatch.setattr("trimtab.reproduce.raced_cells.SAVE_EVERY", 0.02)
    setting = Setting("scaffold", 1, 0, S=4, N=20, target=target, until=0.45, limit=40, every=24)
    expected = Task(compute(setting, real_data, tmp_path / "whole")).result()
    steps = compute(setting, real_data, tmp_path / "cut")
    for _ in range(stop):
        next(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt)
    assert Task(compute(setting, real_data, tmp_path / "cut")).result() == expected
    assert not list(compute(setting, real_data, tmp_path / "whole"))  # there was nothing left to do


def test_a_step_size_may_be_given(real_data, tmp_path):
    setting = Setting("fedavg", 1, 100, S=4, N=20, limit=3, every=12, eta=0.3)
    found = Task(compute(setting, real_data, tmp_path)).result()
    assert found["eta"] == 0.3
    assert len(found["accuracy"]) == 3


def test_the_two_criteria():
    assert (first([0.4, 0.5], 0.5), first([0.4], 0.5)) == (2, None)
    assert stays([0.6, *[0.4] * 20], 0.5) is None
    assert stays([0.3] * 5 + [0.6] * 9, 0.5) == 3
