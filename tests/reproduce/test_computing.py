"""Which cells are computed: those without a record that were picked, further ones included."""

from dataclasses import replace

import pytest

from trimtab.reproduce.reproduction import Cell, Reproduction, computing


def cell(name):
    return Cell(name, lambda data, say, scratch: {"value": 1.0})


def reproduction():
    return Reproduction(
        name="small",
        shows="",
        source="",
        minutes=1,
        cells=lambda quick, seeds: [cell("a-1"), cell("b-1")],
        claims=lambda records: [],
        table=lambda records: "",
        figure=lambda records: None,
        more=lambda records: [cell(f"{name}-again") for name in records if "again" not in name],
    )


def names(folder, *pick, **options):
    return [name for name, _ in computing(reproduction(), folder, pick=pick, **options)]


def test_further_cells_follow_from_the_records(tmp_path):
    assert names(tmp_path, "*") == ["a-1", "b-1", "a-1-again", "b-1-again"]
    assert names(tmp_path, "*") == []


def test_patterns_pick_from_both(tmp_path):
    assert names(tmp_path, "a-1") == ["a-1"]
    assert names(tmp_path, "*again") == ["a-1-again"]
    assert names(tmp_path, "b*") == ["b-1", "b-1-again"]


def test_what_an_interrupted_cell_has_done_goes_with_its_record(tmp_path):
    def compute(data, say, scratch):
        (scratch / "half").touch()
        return {}

    one = replace(reproduction(), cells=lambda quick, seeds: [Cell("a", compute)])
    assert [name for name, _ in computing(one, tmp_path, quick=True)] == ["a"]
    assert not list(tmp_path.rglob("half"))


def test_a_cell_that_another_process_computes_is_left_to_it(tmp_path, held):
    said = []
    with held(tmp_path / ".unfinished" / "a-1"):
        assert names(tmp_path, "*-1", say=said.append) == ["b-1"]
    assert said == ["a-1: another process is at it"]
    assert names(tmp_path, "*-1") == ["a-1"]


def test_quick_versions_have_no_further_cells(tmp_path):
    assert names(tmp_path, "*", quick=True) == ["a-1", "b-1"]


def test_a_pattern_that_fits_nothing_is_refused_with_the_names(tmp_path):
    with pytest.raises(ValueError, match=r"small has no cell 'c\*'; it has a-1, b-1\."):
        names(tmp_path, "c*")
