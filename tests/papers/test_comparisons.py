"""What a comparison costs is measured over the search that it names, and the record resumes."""

import json
from collections import Counter
from dataclasses import replace

import comparisons as driver
import pytest
from click.testing import CliRunner

from trimtab.core.hyper import step_size
from trimtab_papers.bench import WORKLOADS, machine


@pytest.fixture
def comparisons(monkeypatch):
    small = {"W8": replace(WORKLOADS["W8"], N=3, S=3, K=2)}
    monkeypatch.setattr(driver, "WORKLOADS", small)
    return driver


def test_the_search_of_before_races_a_grid_of_step_sizes_for_each_of_five_algorithms(comparisons):
    before = replace(comparisons.CASES[0], R=2)
    tried = Counter()
    for event in comparisons.rounds_of(before):
        tried[type(event.algorithm).__name__, step_size(event.algorithm)[1]] += 1
    names = Counter(name for name, _ in tried)
    assert set(names) == {"Sgd", "FedAvg", "Scaffold", "MimeLite", "Mime"}
    assert all(count >= 9 for count in names.values())  # seven, and two between the best
    most = Counter(name for name, _ in (key for key, rounds in tried.items() if rounds == 4))
    assert all(most[name] == 1 for name in names)  # the winner runs twice


def test_a_case_tells_its_seconds_and_rounds(comparisons):
    case = replace(comparisons.CASES[0], R=1)
    found = comparisons.measure(case)
    assert found["cpu"] > 0
    assert found["met"] == (found["cpu"] <= 5)
    assert found["rounds"] == sum(1 for _ in comparisons.rounds_of(case))


def test_a_rerun_measures_only_what_is_missing(comparisons, monkeypatch, tmp_path):
    asked = []

    def run(command, **_):
        asked.append(command[-1])
        row = {"name": command[-1], "shows": "", "cpu": 1, "wall": 1, "goal": 5, "met": True}
        return type("Done", (), {"stdout": json.dumps(row | {"rounds": 7})})

    monkeypatch.setattr(comparisons.subprocess, "run", run)
    out = tmp_path / "new" / "comparisons.json"
    options = ["--out", str(out)]
    assert CliRunner().invoke(comparisons.main, options).exit_code == 0
    assert asked == [case.name for case in comparisons.CASES]
    record = json.loads(out.read_text())
    assert record["machine"]["cores"] == machine()["cores"]
    del record["cases"][1]
    out.write_text(json.dumps(record))
    CliRunner().invoke(comparisons.main, options)
    assert asked[3:] == [comparisons.CASES[1].name]
