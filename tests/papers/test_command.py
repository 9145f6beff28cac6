"""`trimtab reproduce`: what is refused, and what is shown while others compute."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from trimtab import cli
from trimtab._files import Lock
from trimtab_papers.items import REPRODUCTIONS


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused(capsys, *words):
    """Return the sentence with which a command is refused."""
    with pytest.raises(SystemExit):
        cli.main(["reproduce", *words])
    return capsys.readouterr().err


def test_what_one_name_has_not_is_refused_before_another_is_computed(capsys):
    said = refused(capsys, "figure3", "theorem2", "--cells", "G1-K2", "--out", "here")
    assert "theorem2 has no cell 'G1-K2'; it has K2, K5, K10." in said
    assert not Path("here").exists()


def test_small_records_are_not_taken_for_full_ones(capsys):
    cli.main(["reproduce", "figure3", "--quick", "--cells", "G1-K2", "--out", "here"])
    capsys.readouterr()
    said = refused(capsys, "figure3", "--out", "here")
    sentence = "here/figure3/G1-K2.json.gz was made with --quick; pass another --out, or remove it."
    assert sentence in said


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_while_others_compute_all_cells_there_is_a_page_that_says_so(capsys, name):
    with ExitStack() as others:
        for cell in REPRODUCTIONS[name].cells(True, 1):
            others.enter_context(Lock(Path("here", name, ".unfinished", cell.name)))
        cli.main(["reproduce", name, "--quick", "--out", "here"])
    assert "No record yet: others compute its cells." in capsys.readouterr().out
    assert "No record yet." in Path("here", name, "report.html").read_text("utf-8")


def test_the_page_of_a_small_version_says_so(capsys):
    cli.main(["reproduce", "figure3", "--quick", "--cells", "G1-K2", "--out", "here"])
    page = Path("here/figure3/report.html").read_text("utf-8")
    assert "A small version, not the paper&#x27;s size." in page
    assert "<pre>trimtab reproduce figure3 --quick</pre>" in page


def test_numbers_stand_in_brackets_behind_the_sentence_that_they_decide(capsys):
    cli.main(["reproduce", "figure3", "--quick", "--out", "here"])
    out = capsys.readouterr().out
    assert "held: K = 2 is twice as fast as SGD (1.9 to 2.1). (SGD 70, K = 2: 35 rounds, " in out
    assert not [line for line in out.splitlines() if line.endswith(" ")]
