"""The claims on EMNIST are judged by the records; the published numbers satisfy them."""

from dataclasses import asdict, replace
from math import log

import pytest

from trimtab.core.task import Task
from trimtab_papers.emnist400 import CLIENTS, EMNIST400
from trimtab_papers.engine import CellDone, reproduce
from trimtab_papers.mime import MIME
from trimtab_papers.mvr import MVR
from trimtab_papers.raced import Setting, compute, first, grid, read_raced, stays
from trimtab_papers.rounds_to_target import PUBLISHED, TABLE3, TABLE4, TABLE5, Reading, fragile_note
from trimtab_papers.rounds_to_target import rounds as needed
from trimtab_papers.table3 import TABLE_3, distance
from trimtab_papers.table3_claims import FOR_ALL, best_common, common, for_all
from trimtab_papers.table4 import TABLE_4
from trimtab_papers.table5 import TABLE_5, kin, small
from trimtab_papers.verdicts import read

UNTIL = Reading("until", "first")


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


def of(reproduction, text, records):
    """Return the claim whose sentence begins so."""
    (claim,) = (c for c in reproduction.claims(records) if c.sentence.startswith(text))
    return claim


NOT_EVEN_PUBLISHED = [
    "Across all epochs and similarities SCAFFOLD is the fastest (no other is faster).",
    "FedAvg is always slower than SCAFFOLD.",
    "FedProx is always the worst, SGD included.",
]


def test_the_published_table_3_satisfies_its_claims_but_for_three():
    claims = [claim for claim in TABLE_3.claims(published3()) if not claim.own]
    assert {claim.verdict for claim in claims} == {"held", "not held"}
    assert [c.sentence for c in claims if c.verdict == "not held"] == NOT_EVEN_PUBLISHED
    assert all("one seed" in claim.numbers for claim in claims)


@pytest.mark.parametrize(
    ("cell", "rounds", "claim"),
    [
        ("scaffold-5-100", 500, 0),
        ("scaffold-1-0", 259, 1),
        ("fedavg-20-0", 200, 2),
        ("scaffold-10-10", 21, 3),
        ("sgd-1-100", 500, 4),
        ("fedprox-5-100", 9, 5),
        ("scaffold-1-10", 365, 8),
        ("fedavg-10-0", 428, 9),
        ("fedavg-10-0", 317, 10),
        ("scaffold-5-0", 77, 11),
        ("scaffold-20-0", 400, 11),
        ("fedavg-1-10", 258, 12),
        ("fedavg-1-100", 416, 13),
        ("fedprox-5-100", 10, 14),
        ("fedavg-20-0", 999, 17),
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
    judged = verdicts(TABLE_3, records)
    assert judged[:6] == ["open", "open", "open", "held", "held", "held"]
    assert verdicts(TABLE_4, {}) == ["open"] * 3
    assert verdicts(TABLE_5, {}) == ["open"] * 5


def another_seed(records, seed=1, **rounds):
    """Return records with a further seed, the same but for the rounds of some cells."""
    more = {}
    for name, one in records.items():
        setting = replace(Setting(**one["setting"]), seed=seed, around=0.1)
        found = next((r for r, a in enumerate(one["accuracy"], 1) if a > 0), None)
        more[setting.name] = record(setting, rounds.get(name.replace("-", "_"), found), one["best"])
    return records | more


def test_one_seed_turns_a_sentence_round_and_it_is_mixed():
    text = "SCAFFOLD beats FedAvg at 0 %"
    agreed = another_seed(another_seed(published3()), seed=2) | published3()
    assert of(TABLE_3, text, agreed).verdict == "held"
    assert "all 3 seeds" in of(TABLE_3, text, agreed).numbers
    turned = of(TABLE_3, text, another_seed(published3(), scaffold_1_0=259))
    assert turned.verdict == "mixed"
    assert "seed 0: yes, seed 1: no" in turned.numbers
    assert "168 (77 to 259)" in turned.numbers


def test_a_seed_that_is_not_complete_does_not_judge():
    records = another_seed(published3(), scaffold_1_0=259)
    del records["fedavg-5-0-seed1"]
    assert of(TABLE_3, "SCAFFOLD beats FedAvg at 0 %", records).verdict == "held"


def test_what_only_the_first_seed_ran_on_to_is_read_from_it_alone():
    records = another_seed(published3())
    assert needed(read_raced(records), UNTIL, algorithm="scaffold", epochs=5, similarity=10) == 20
    del records["scaffold-5-10"]
    assert needed(read_raced(records), UNTIL, algorithm="scaffold", epochs=5, similarity=10) is None


def test_further_seeds_race_beside_the_winner_of_the_first():
    records = {name: published3()[name] for name in ("scaffold-5-0", "fedavg-5-0")}
    names = [cell.name for cell in CLIENTS.repeats(records, 3)]
    assert names == [f"{n}-5-0-seed{seed}" for seed in (1, 2) for n in ("scaffold", "fedavg")]
    assert CLIENTS.repeats(records, 1) == []


def test_seeds_of_large_tables_have_small_clients():
    records = {"scaffold-5-0": published3()["scaffold-5-0"]}
    names = [cell.name for cell in TABLE_3.repeats(records, 3)]
    start = "scaffold-5-0-every12"
    assert names == [start, f"{start}-seed1", f"{start}-seed2"]
    assert TABLE_3.repeats(records, 1) == []
    quick = replace(Setting("sgd", 1, 0, every=12), N=20)
    assert [cell.name for cell in TABLE_3.repeats({"": record(quick, 9)}, 2)] == [
        "sgd-1-0-every12-seed1"
    ]


def test_small_clients_stand_beside_the_full_size():
    records = published3()
    for one in published3().values():
        setting = replace(Setting(**one["setting"]), every=12, around=0.1)
        rounds = next((r for r, a in enumerate(one["accuracy"], 1) if a > 0), None)
        records[setting.name] = record(setting, rounds and 300 - rounds % 300)
    assert of(TABLE_3, "At 0 % FedAvg with the most epochs", records).verdict == "held"
    mixed = of(TABLE_3, "SGD does not depend", records)
    assert mixed.verdict == "mixed"
    assert "full size, seed 0: yes, small clients, seed 0: no" in mixed.numbers
    text = TABLE_3.table(records)
    assert "| SCAFFOLD, 1 epoch | 1 | 223 | 238 | 240 |" in text
    assert "| SCAFFOLD | 1 | 77 / " in text


def test_one_step_size_for_all_algorithms_is_compared_where_all_arrive():
    records = published3()
    for eta in FOR_ALL[:2]:
        for setting in for_all(eta):
            there = TABLE3[setting.algorithm, setting.epochs][setting.similarity]
            slow = there and (2 if eta == FOR_ALL[0] else 4) * there
            lost = eta == FOR_ALL[1] and setting.algorithm == "fedprox"
            records[setting.name] = record(setting, None if lost else slow)
    text = TABLE_3.table(records)
    assert "| 0.095 | 2.00 | 1.00 | 26 | 0 |" in text
    assert "| 0.31 | 4.00 | 1.00 | 26 | 8 |" in text
    check = of(TABLE_3, "With one step size for all", records)
    assert (check.own, check.verdict) == (True, "held")
    sgd = for_all(FOR_ALL[0])[0]
    records[sgd.name] = record(sgd, 300)
    assert of(TABLE_3, "With one step size for all", records).verdict == "not held"


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
        del one["setting"]["classes"], one["setting"]["base"], one["setting"]["around"]
    assert verdicts(TABLE_3, records) == verdicts(TABLE_3, published3())


def test_the_published_table_4_satisfies_its_claims():
    records = {}
    for (name, S), row in TABLE4.items():
        for s, rounds in row.items():
            setting = Setting(name, 5, s, S=S, target=0.45)
            records[setting.name] = record(setting, rounds)
    assert verdicts(TABLE_4, records) == ["held", "held", "held"]
    level = Setting("scaffold", 5, 10, S=1, target=0.45)
    even = records | {level.name: record(level, 35)}
    assert verdicts(TABLE_4, even) == ["held", "not held", "held"]
    slow = records | {level.name: record(level, 9 * 20)}
    assert verdicts(TABLE_4, slow) == ["not held", "not held", "not held"]
    assert verdicts(TABLE_4, another_seed(even, scaffold_5_10_S1=28))[1] == "mixed"


def test_the_published_table_5_satisfies_its_claim():
    records = {}
    for name, row in TABLE5.items():
        for s, best in row.items():
            setting = Setting(name, 1 if name == "sgd" else 5, s, network=True)
            records[setting.name] = record(setting, 10, best)
    assert verdicts(TABLE_5, records) == ["held"] * 5
    small = {}
    for one in records.values():
        setting = replace(Setting(**one["setting"]), every=12)
        small[setting.name] = record(setting, 10, one["best"])
    assert verdicts(TABLE_5, records | small) == ["held"] * 5
    small["fedavg-5-0-every12"]["best"] = 0.9
    mixed = records | small
    assert verdicts(TABLE_5, mixed) == ["mixed", "mixed", "held", "held", "mixed"]
    assert "full size, seed 0: yes, small clients, seed 0: no" in TABLE_5.claims(mixed)[0].numbers
    records["fedavg-5-0"]["best"] = 0.7
    assert verdicts(TABLE_5, records)[:3] == ["not held", "held", "not held"]
    records["sgd-1-10"]["best"] = 0.78
    assert verdicts(TABLE_5, records)[3] == "not held"


def test_what_might_help_on_the_network_stands_apart_and_judges_nothing():
    settings = [
        Setting(n, 1 if n == "sgd" else 5, s, network=True) for n in TABLE5 for s in (0, 10)
    ]
    full = {s.name: record(s, 10, TABLE5[s.algorithm][s.similarity]) for s in settings}
    both = full | {s.name: record(s, 10, full[s.name.split("-every")[0]]["best"]) for s in small(0)}
    assert "what might help" not in TABLE_5.table(both)
    helped = both | {s.name: record(s, 10, 0.99) for s in kin()}
    text = TABLE_5.table(helped)
    for row in ("SCAFFOLD-M | 5", "FedDyn | 5", "Mime, momentum | 5", "SCAFFOLD | 1", "FedAvg | 1"):
        assert f"| {row} | 0.990 | 0.990 |" in text
    assert verdicts(TABLE_5, helped) == verdicts(TABLE_5, both) == ["held"] * 5


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
        ({}, []),
        ({"mimelite_adam": 0.68}, [0]),
        ({"serveronly_momentum": 0.71}, [1]),
        ({"fedopt_momentum": 0.61, "fedopt_adam": 0.61, "fedopt_none": 0.59}, [2]),
        ({"mime_none": 0.69}, [3, 4]),
        ({"mime_none": 0.66}, [4]),
        ({"fedopt_none": 0.51}, [5]),  # Momentum does not help.
        ({"fedopt_none": 0.61, "fedopt_momentum": 0.62}, [5]),  # Drift does not harm without it,
        ({"fedopt_momentum": 0.705, "mime_none": 0.605, "fedopt_none": 0.6}, [1, 3, 5]),  # or with.
    ],
)
def test_each_claim_on_mime_can_fail(changed, failing):
    expected = ["not held" if j in failing else "held" for j in range(6)]
    assert verdicts(MIME, mimes(**changed)) == [*expected, "not judged"]


def test_one_seed_turns_a_claim_on_mime_round():
    records = mimes()
    for one in mimes(mimelite_adam=0.68).values():
        setting = replace(Setting(**one["setting"]), seed=1)
        records[setting.name] = record(setting, 1) | {"accuracy": one["accuracy"]}
    assert verdicts(MIME, records) == ["mixed", *["held"] * 5, "not judged"]


def mvrs(seeds=3, **changed):
    """Return records that agree with the table of Mime's rates, but for what is changed."""
    wanted = {"serveronly_none": 0.5, "serveronly_momentum": 0.55, "servermvr_none": 0.6}
    wanted |= {"mime_none": 0.6, "mime_momentum": 0.65, "mimemvr_none": 0.7}
    wanted |= {"mimelitemvr_none": 0.7} | changed
    records = {}
    for seed in range(seeds):
        for key, value in wanted.items():
            name, base = key.split("_")
            setting = Setting(name, 2, 50, classes=62, base=base, target=None, seed=seed)
            accuracy = value[seed] if isinstance(value, tuple) else value
            records[setting.name] = record(setting, 1) | {"accuracy": [accuracy] * 40}
    return records


@pytest.mark.parametrize(
    ("changed", "verdict", "changing"),
    [
        ({}, "", ()),
        ({"serveronly_none": 0.61}, "not held", (0, 2)),
        ({"mime_none": 0.71}, "not held", (1,)),
        ({"mimemvr_none": 0.59}, "not held", (1, 3, 4, 6)),
        ({"mime_none": (0.49, 0.6, 0.6)}, "mixed", (2,)),
        ({"mimelitemvr_none": (0.7, 0.68, 0.7)}, "mixed", (4,)),
        ({"serveronly_momentum": 0.61}, "not held", (5,)),
    ],
)
def test_each_claim_on_mvr_can_fail(changed, verdict, changing):
    expected = [verdict if j in changing else "held" for j in range(7)]
    assert verdicts(MVR, mvrs(**changed)) == expected


def test_a_row_of_mvr_that_is_missing_leaves_the_claims_open():
    records = {name: one for name, one in mvrs().items() if not name.startswith("mimelitemvr")}
    assert verdicts(MVR, records) == ["open"] * 7


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


ON_EMNIST = [TABLE_3, TABLE_4, TABLE_5, EMNIST400, CLIENTS, MIME, MVR]


# What a quick version must show, by a margin that no rounding takes away: the rounds of the first
# are at most three quarters of those of the second.
FASTER = {
    "table3": [("scaffold", "fedavg", {"epochs": 5, "similarity": 0})],
    "table4": [("scaffold", "fedavg", {"S": 8}), ("scaffold", "fedavg", {"S": 4})],
    "emnist400": [("scaffold", "fedavg", {}), ("scaffold", "sgd", {})],
    "clients": [("scaffold", "fedavg", {"S": 5})],
}


# A quick table 3 has at most 5 epochs and no step size for all, a quick table 4 one similarity.
OPEN_IF_QUICK = {"table3": 2, "table4": 1}


@pytest.mark.parametrize(
    "reproduction",
    [
        pytest.param(r, id=r.name, marks=() if r is MVR else pytest.mark.reproduce)
        for r in ON_EMNIST
    ],
)  # mvr takes seconds, and stays in the fast suite
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
    judged = verdicts(reproduction, records)
    assert set(judged) <= {"held", "not held", "open", "not judged"}
    assert judged.count("open") == OPEN_IF_QUICK.get(reproduction.name, 0)
    for fast, slow, wanted in FASTER.get(reproduction.name, ()):
        ours, theirs = (
            needed(read_raced(records), algorithm=name, **wanted) for name in (fast, slow)
        )
        assert ours <= 0.75 * theirs


@pytest.mark.parametrize("target", [0.4, None])
@pytest.mark.parametrize("stop", [1, 20, 60, 110])
def test_an_interrupted_cell_goes_on(tmp_path, real_data, monkeypatch, stop, target):
    monkeypatch.setattr("trimtab_papers.raced.SAVE_EVERY", 0.02)
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


def test_a_further_seed_tries_the_known_step_size_and_its_neighbours(real_data, tmp_path):
    setting = Setting("sgd", 1, 100, S=4, N=20, target=0.1, until=0.1, limit=12, every=12)
    setting = replace(setting, seed=1, around=1.0)
    found = Task(compute(setting, real_data, tmp_path)).result()
    candidates = {c["eta"]: c for c in found["candidates"]}
    assert list(candidates) == pytest.approx([1 / 1.8, 1.0, 1.8])
    assert found["eta"] in candidates
    assert found["again"] is None
    known = candidates[1.0]["first"]
    assert all(c["rounds"] <= -(-1.05 * known // 1) + 10 for c in candidates.values())


def test_the_two_criteria():
    assert (first([0.4, 0.5], 0.5), first([0.4], 0.5)) == (2, None)
    assert stays([0.6, *[0.4] * 20], 0.5) is None
    assert stays([0.3] * 5 + [0.6] * 9, 0.5) == 3


def test_further_seeds_of_the_quick_table_5_are_quick_too():
    quick = {cell.name for cell in TABLE_5.cells(True, 1)}
    setting = Setting("sgd", 1, 0, S=4, N=20, network=True, every=24)
    assert setting.name in quick
    names = {cell.name for cell in TABLE_5.repeats({setting.name: record(setting, 9)}, 3)}
    assert names == {f"{name}-seed{seed}" for name in quick for seed in (1, 2)}


def test_what_another_version_has_begun_is_named(real_data, tmp_path):
    setting = Setting("fedavg", 1, 100, S=4, N=20, limit=3, every=12, eta=0.3)
    next(compute(setting, real_data, tmp_path / "cell"))
    other = replace(setting, limit=4)
    with pytest.raises(ValueError, match=r"cell was begun by another version .* remove it, and"):
        next(compute(other, real_data, tmp_path / "cell"))
