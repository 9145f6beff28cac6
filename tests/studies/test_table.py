"""The table and the form on disk: columns, marks, other formats, JSON, unfinished folders."""

import csv
import json
import sys
from dataclasses import replace
from io import StringIO

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.made_entries import GOAL, made_entry
from trimtab import FedOpt, FedProx, MimeLite, Momentum, Quadratic, Scaffold, Sgd, compare
from trimtab._files import write_json
from trimtab.problems.metrics import LOSS
from trimtab.studies import sections
from trimtab.studies.comparison import About, Comparison
from trimtab.studies.entry import Candidate, Entry, SeedRun, new_entry
from trimtab.studies.fragility import Again
from trimtab.studies.goal import Cost, Goal
from trimtab.studies.record import RoundLine
from trimtab.studies.sections import columns, legend, rows

ROUNDS = [10, 20, 30, 12, 16]


def result(*entries, goal=GOAL, **about):
    return Comparison("digits", goal, list(entries), "Use it.", about=About(**about))


def cells(found, title):
    """Return the column with a title, as text."""
    (column,) = [column for column in columns(found) if column.title == title]
    return [column.text(entry) for entry in found.entries]


def titles(found):
    return [column.title for column in columns(found)]


# -- settings


def test_the_table_has_every_setting_that_repeats_the_result():
    entries = [
        new_entry(name, name, algorithm, 3)
        for name, algorithm in (
            ("fedprox", FedProx(eta_l=0.1, K=2, mu=0.5)),
            ("scaffold", Scaffold(eta_l=0.1, K=2, option="I")),
            ("mimelite", MimeLite(eta=0.0841, K=2, base=Momentum(beta=0.0))),
            ("fedopt", FedOpt(eta_l=0.1, K=1024, base=Momentum())),
        )
    ]
    found = result(*entries)
    assert titles(found)[:6] == ["algorithm", "K", "mu", "option", "beta", "step size"]
    names = ["FedProx", "Scaffold", "MimeLite", "FedOpt (Momentum)"]
    assert cells(found, "algorithm") == names
    assert cells(found, "K") == ["2", "2", "2", "1024"]
    assert cells(found, "mu") == ["0.5", "-", "-", "-"]
    assert cells(found, "option") == ["-", "I", "-", "-"]
    assert cells(found, "beta") == ["-", "-", "0", "0.9"]
    assert [row["beta"] for row in rows(found)] == [None, None, 0.0, 0.9]


def test_a_setting_that_was_searched_is_in_the_table_even_at_its_default():
    entry = new_entry("scaffold", "scaffold", Scaffold(eta_l=0.1, K=2), 3)
    assert "eta_g" not in titles(result(entry))
    searched = [Candidate(0.1, 8, 3, 0.9, None, K=2, eta_g=1.0)]
    assert cells(result(replace(entry, searched=searched)), "eta_g") == ["1"]


# -- rounds


def test_five_seeds_have_an_interval_and_fewer_a_range():
    many, few = made_entry("scaffold", ROUNDS), made_entry("fedavg", ROUNDS[:3])
    assert cells(result(many), "90 %") == ["11 … 25"]
    assert "range" not in titles(result(many))
    assert cells(result(few), "range") == ["10 … 30"]
    assert "90 %" not in titles(result(few))
    one = made_entry("fedavg", ROUNDS[:1])
    assert not {"90 %", "range"} & set(titles(result(one)))


def test_a_run_without_target_shows_the_cost_and_the_test_of_its_model():
    run = Entry("sgd", "sgd", {"eta": 0.1}, rounds=7, bytes=700, seconds=0.5, test=0.25, step="eta")
    found = result(run, goal=Goal(LOSS))
    assert cells(found, "rounds") == ["7"]
    assert cells(found, "bytes") == ["700 B"]
    assert cells(found, "test") == ["0.25"]
    assert "test" not in titles(result(run))  # the rows that a comparison tuned on are in "best"


def test_an_algorithm_without_report_seeds_has_no_rounds_to_the_target():
    entry = made_entry("scaffold", [], complete=False)
    assert cells(result(entry), "rounds") == ["- ~"]


def test_open_searches_and_fragile_steps_are_marked_and_explained():
    entry = made_entry("scaffold", ROUNDS, at_edge=["step", "K"], complete=False)
    fragile = made_entry("fedavg", ROUNDS, again=Again(30, 0.8, True))
    found = result(entry, fragile)
    assert cells(found, "K") == ["5 ^", "5"]
    assert cells(found, "step size") == ["0.1 ^", "0.1 *"]
    assert cells(found, "rounds") == ["16 ~", "16"]
    assert [sentence[0] for sentence in legend(found)] == ["*", "^", "~"]
    assert "search of Scaffold was cut short" in legend(found)[2]
    assert cells(result(made_entry("sgd", ROUNDS, at_edge=["K"])), "step size") == ["0.1"]
    assert legend(result(made_entry("sgd", ROUNDS))) == []
    assert set(legend(found)) <= set(sections.table(found).notes)


# -- other formats


def test_the_table_is_exported():
    found = result(made_entry("fedavg", ROUNDS), made_entry("scaffold", [5, 6, 7, 8, 9]))
    read = list(csv.DictReader(StringIO(found.to_csv())))
    assert list(read[0])[:6] == ["algorithm", "label", "K", "eta_g", "step", "rounds"]
    assert [row["rounds"] for row in read] == ["16", "7"]
    latex = found.to_latex()
    assert latex.count(r"\\") == 3
    assert r"\textbf{7}" in latex
    assert "90 \\%" in latex
    assert "<b>7</b>" in found._repr_html_()
    assert list(found.to_pandas()["rounds"]) == [16, 7]


def test_pandas_is_asked_for_in_one_sentence(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refused("pandas", "to_csv"):
        result(made_entry("sgd", ROUNDS)).to_pandas()


# -- on disk

NUMBER = st.floats(-1e6, 1e6)
MAYBE = st.one_of(st.none(), NUMBER)
COUNT = st.integers(1, 10**6)
COSTS = st.builds(Cost, COUNT, COUNT, COUNT, COUNT, NUMBER)
METRICS = st.dictionaries(st.sampled_from(["loss", "r2"]), MAYBE)
RUNS = st.builds(
    SeedRun,
    COUNT,
    st.one_of(st.none(), COSTS),
    MAYBE,
    st.one_of(st.none(), COUNT),
    METRICS,
    nearly=st.one_of(st.none(), COSTS),
    scores=st.lists(MAYBE),
)
ENTRIES = st.builds(
    Entry,
    st.just("sgd"),
    st.text(),
    st.dictionaries(st.text(), st.one_of(NUMBER, st.text())),
    interval=st.one_of(st.none(), st.tuples(NUMBER, NUMBER)),
    range=st.one_of(st.none(), st.tuples(COUNT, COUNT)),
    complete=st.booleans(),
    at_edge=st.lists(st.sampled_from(["step", "K"])),
    spent=MAYBE,
    stateful=st.booleans(),
    runs=st.lists(RUNS, max_size=2),
    again=st.one_of(st.none(), st.builds(Again, COUNT, MAYBE, st.booleans())),
    searched=st.lists(st.builds(Candidate, MAYBE, COUNT, COUNT, MAYBE, COUNT), max_size=2),
    curve=st.lists(st.builds(RoundLine, COUNT, drift=MAYBE, metrics=METRICS), max_size=2),
)


@given(ENTRIES)
def test_an_entry_is_read_as_it_was_written(entry):
    again = Entry.from_record(json.loads(json.dumps(entry.to_record())))
    assert vars(again) == vars(entry)
    assert all("scores" not in run for run in entry.to_json()["runs"])


def test_an_entry_of_an_older_record_has_the_defaults():
    record = made_entry("sgd", ROUNDS).to_record()
    for name in ("range", "complete", "at_edge", "spent", "stateful"):
        del record[name]
    again = Entry.from_record(record | {"tried": []})
    assert (again.range, again.complete, again.at_edge) == (None, True, [])


def test_a_result_is_loaded_as_it_was_saved(tmp_path):
    write_json(tmp_path / "compare.json", {"settings": {"problem": "digits"}, "budget": 3.0})
    found = result(
        made_entry("sgd", ROUNDS),
        seeds=(1, 2),
        notes=("a note",),
        target_from="From the best run.",
        round_cost=2e4,
    )
    found.folder = tmp_path
    found.save()
    assert Comparison.load(str(tmp_path)).to_json() == found.to_json()
    assert Comparison.load(tmp_path).about == found.about
    assert json.loads((tmp_path / "compare.json").read_text())["budget"] == 3.0  # it stays
    about = found.to_json()
    assert (about["target_from"], about["round_cost"]) == ("From the best run.", 2e4)
    assert (about["finished"], about["complete"]) == (True, True)


def test_an_unfinished_result_is_loaded_and_a_folder_without_one_is_refused(tmp_path, refused):
    write_json(tmp_path / "compare.json", {"settings": {"problem": "digits"}})
    with refused(str(tmp_path), "is not finished; repeat its command with resume=True first"):
        Comparison.load(tmp_path)
    found = replace(result(made_entry("sgd", ROUNDS), finished=False), folder=tmp_path)
    found.save()
    assert not Comparison.load(tmp_path).about.finished
    with refused("does not exist"):
        Comparison.load(tmp_path / "missing")


def test_a_comparison_in_a_folder_is_loaded(tmp_path):
    pair = Quadratic([1.0, 3.0], [1.0, -2.0])
    found = compare(pair, [Sgd(eta=0.1)], R=3, seeds=2, target=-5.0, out=tmp_path / "c")
    assert Comparison.load(tmp_path / "c").to_json() == found.to_json()
    assert [len(entry.curve) for entry in found.entries] == [3]
