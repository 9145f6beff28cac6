"""Which cells are computed, what is told meanwhile, and what a sentence says without a record."""

import gzip
import subprocess
import sys
from dataclasses import replace

import pytest

from trimtab.core.task import Progress
from trimtab.errors import BadArgument
from trimtab_papers.engine import Cell, CellDone, Reproduction, reproduce
from trimtab_papers.items import REPRODUCTIONS
from trimtab_papers.verdicts import (
    Claim,
    MissingRecordError,
    Sentences,
    Verdict,
    counted,
    over_seeds,
    write,
)


def compute(data, scratch):
    yield Progress("half", 0.5)
    return {"value": 1.0}


def cell(name):
    return Cell(name, compute)


PAPER = Sentences("section 1")


@PAPER.says("All arrive.")
def arrives(records):
    if not records:
        raise MissingRecordError
    return Verdict(all(record["value"] for record in records.values()), f"{len(records)} do")


def reproduction():
    return Reproduction(
        name="small",
        shows="",
        source="",
        minutes=1,
        cells=lambda quick, seeds: [cell("a-1"), cell("b-1")],
        sentences=PAPER,
        table=lambda records: "",
        figure=lambda records: None,
        more=lambda records: [cell(f"{name}-again") for name in records if "again" not in name],
    )


def names(folder, *pick, **options):
    return done(reproduction(), folder, pick=pick, **options)


def done(which, folder, **options):
    """Return the names of the cells that were computed."""
    events = reproduce.start(which, folder, **options)
    return [event.name for event in events if isinstance(event, CellDone)]


def test_further_cells_follow_from_the_records(tmp_path):
    assert names(tmp_path, "*") == ["a-1", "b-1", "a-1-again", "b-1-again"]
    assert names(tmp_path, "*") == []


def test_patterns_pick_from_both(tmp_path):
    assert names(tmp_path, "a-1") == ["a-1"]
    assert names(tmp_path, "*again") == ["a-1-again"]
    assert names(tmp_path, "b*") == ["b-1", "b-1-again"]


def test_what_an_interrupted_cell_has_done_goes_with_its_record(tmp_path):
    def compute(data, scratch):
        (scratch / "half").touch()
        yield Progress("half")
        return {}

    one = replace(reproduction(), cells=lambda quick, seeds: [Cell("a", compute)])
    assert done(one, tmp_path, quick=True) == ["a"]
    assert not list(tmp_path.rglob("half"))


def test_a_cell_that_another_process_computes_is_left_to_it(tmp_path, held):
    with held(tmp_path / ".unfinished" / "a-1"):
        events = list(reproduce.start(reproduction(), tmp_path, pick=["*-1"]))
    assert [event.name for event in events if isinstance(event, CellDone)] == ["b-1"]
    assert events[0] == Progress("a-1: another process is at it")
    assert names(tmp_path, "*-1") == ["a-1"]


def test_quick_versions_have_no_further_cells(tmp_path):
    assert names(tmp_path, "*", quick=True) == ["a-1", "b-1"]


def test_a_pattern_that_fits_nothing_is_refused_with_the_names(tmp_path):
    with pytest.raises(ValueError, match=r"small has no cell 'c\*'; it has a-1, b-1\."):
        names(tmp_path, "c*")


def test_what_a_cell_tells_is_told_with_its_name_and_the_result_is_all_records(tmp_path):
    work = reproduce.start(reproduction(), tmp_path, quick=True)
    told = [event for event in work if isinstance(event, Progress)]
    whole = [Progress("a-1 (1 of 2): half", 0.25), Progress("b-1 (2 of 2): half", 0.75)]
    assert told == whole
    assert {name: record["value"] for name, record in work.result().items()} == {
        "a-1": 1.0,
        "b-1": 1.0,
    }
    assert work.result() == reproduce(reproduction(), tmp_path, quick=True)


def test_the_cells_of_one_seed_alone(tmp_path):
    several = replace(
        reproduction(),
        cells=lambda quick, seeds: [cell(f"a-{seed}") for seed in range(seeds)],
        more=lambda records: [],
    )
    assert done(several, tmp_path, seed=2) == ["a-2"]
    assert done(several, tmp_path, seed=0) == ["a-0"]
    with pytest.raises(ValueError, match=r"small has no cells of seed 1; take seed 0"):
        done(reproduction(), tmp_path, seed=1)


def test_a_reproduction_that_is_closed_closes_the_cell_at_work(tmp_path):
    closed = []

    def compute(data, scratch):
        try:
            yield Progress("half")
        finally:
            closed.append(scratch.name)
        return {}

    one = replace(reproduction(), cells=lambda quick, seeds: [Cell("a", compute)])
    work = reproduce.start(one, tmp_path, quick=True)
    next(work)
    work.close()
    assert closed == ["a"]
    assert done(one, tmp_path, quick=True) == ["a"]


def test_a_sentence_without_its_records_is_open():
    assert reproduction().claims({}) == [Claim("All arrive.", None)]
    assert reproduction().claims({"a": {"value": 0}}) == [Claim("All arrive.", False, "1 do")]


def judged(held):
    """Return the claim of a sentence that is judged by seeds."""
    judge = Sentences("section 1").says("It is faster.")(
        lambda records: over_seeds(held, "7 rounds")
    )
    return judge.judged({})


@pytest.mark.parametrize(
    ("held", "verdict", "told"),
    [
        ({0: True, 1: True, 2: True}, "held", "all 3 seeds"),
        ({0: False, 1: False}, "not held", "all 2 seeds"),
        ({0: True, 1: True, 2: False}, "mixed", "seed 0: yes, seed 1: yes, seed 2: no"),
        ({0: False, 1: True}, "mixed", "seed 0: no, seed 1: yes"),
        ({0: True}, "held", "one seed"),
    ],
)
def test_a_sentence_is_judged_seed_by_seed_and_one_can_turn_it_round(held, verdict, told):
    claim = judged(held)
    assert (claim.verdict, claim.numbers) == (verdict, f"7 rounds; {told}")


def test_a_sentence_that_no_seed_judges_is_open():
    assert judged({}).verdict == "open"


def test_what_nothing_here_can_judge_says_why():
    claim = (
        Sentences()
        .not_judged("It wins on CIFAR-100.", "slides", "the data cannot be had")
        .judged({})
    )
    assert (claim.verdict, claim.numbers) == ("not judged", "the data cannot be had")


def test_a_check_of_our_own_is_told_apart():
    ours = Sentences().check("The closed form is right.")(lambda records: Verdict(True, ""))
    assert ours.judged({}) == Claim("The closed form is right.", True, own=True)
    assert not arrives.judged({}).own


def test_verdicts_are_counted_from_held_to_not_judged():
    all_kinds = ["open", "not judged", "mixed", "held", "not held", "held"]
    assert counted(all_kinds) == "2 held, 1 mixed, 1 not held, 1 open, 1 not judged"


def test_every_sentence_says_once_what_and_where():
    for which in REPRODUCTIONS.values():
        texts = [sentence.text for sentence in which.sentences]
        assert texts
        assert len(set(texts)) == len(texts)
        assert all(sentence.where for sentence in which.sentences)


def test_the_list_needs_no_plotting_library():
    code = "import sys, trimtab_papers.items; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fewer_than_one_seed_is_refused(tmp_path):
    with pytest.raises(BadArgument, match=r"seeds=0 is none; pass 1 or more\."):
        names(tmp_path, "*", seeds=0)
    with pytest.raises(BadArgument, match=r"seeds are counted from 0; pass seed=0 or more\."):
        names(tmp_path, "*", seed=-1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("quick", [False, True])
def test_a_folder_holds_records_of_one_size(tmp_path, quick):
    assert names(tmp_path, "a-1", quick=quick) == ["a-1"]
    said = "was made with" if quick else "was not made with"
    with pytest.raises(BadArgument, match=rf"a-1\.json\.gz {said} quick=True; pass another out"):
        names(tmp_path, "*", quick=not quick)
    assert names(tmp_path, "b-1", quick=quick) == ["b-1"]


def test_what_a_killed_process_left_behind_its_record_is_cleared_away(tmp_path):
    assert names(tmp_path, "a-1") == ["a-1"]
    left = tmp_path / ".unfinished" / "a-1" / "half"
    left.parent.mkdir(parents=True)
    left.touch()
    assert names(tmp_path, "a-1") == []
    assert not left.parent.exists()


def test_a_cell_that_another_process_ends_as_it_is_asked_for_is_left_to_it(tmp_path, monkeypatch):
    def too_late(folder):
        """Do as if the other process wrote the record and cleared the folder away just now."""
        write(tmp_path / "a-1.json.gz", {"value": 1.0})
        raise FileNotFoundError(folder)

    monkeypatch.setattr("trimtab_papers.engine.Lock", too_late)
    assert names(tmp_path, "a-1") == []


@pytest.mark.parametrize("damage", [b"no gzip", b"", b"flipped", b"a list"])
def test_a_damaged_record_is_named(tmp_path, damage):
    path = tmp_path / "a-1.json.gz"
    whole = bytearray(gzip.compress(b'{"value": 1.0}' * 1000, mtime=0))
    whole[20] ^= 255
    path.write_bytes({b"flipped": whole, b"a list": gzip.compress(b"[]")}.get(damage, damage))
    with pytest.raises(ValueError, match=r"a-1\.json\.gz cannot be read \(.*\); remove it"):
        names(tmp_path, "*")
