"""The pages of docs/papers and the list are what the records say."""

import json
from itertools import pairwise
from pathlib import Path

from trimtab import cli
from trimtab_papers.docs import IDENTITIES, UNJUDGED, excerpt, pages, write
from trimtab_papers.items import REPRODUCTIONS, read
from trimtab_papers.verdicts import VERDICTS

ROOT = Path(__file__).parents[2]
PAPERS = ROOT / "docs" / "papers"
NAMES = (
    "figure3 theorem2 table3 table4 table5 concrete emnist400 clients mime mvr bias speedup lsa "
    "contraction local-steps dane nonconvex unequal"
)


def test_the_pages_are_made_from_the_records():
    found = {name: read(ROOT / "results" / name) for name in REPRODUCTIONS}
    written = {path.stem: path.read_text("utf-8") for path in PAPERS.glob("*.md")}
    assert pages(found) == written, "run `python -m trimtab_papers.docs` after a new record"
    assert {path.stem for path in PAPERS.glob("*.svg")} == {n for n in REPRODUCTIONS if found[n]}


def test_a_page_begins_with_its_verdict_and_folds_long_tables():
    for name in REPRODUCTIONS:
        head, shows, verdict, *rest = (PAPERS / f"{name}.md").read_text("utf-8").split("\n\n")
        assert head.startswith(f"# {name}: ")
        assert not shows.startswith(("#", "|", "!"))
        assert verdict.startswith("**Verdict.** ")
        for before, block in pairwise(rest):
            long = block.startswith("|") and block.count("\n") > 20
            assert not long or before.startswith("<details"), name


def test_prose_and_tables_of_a_page_are_apart():
    for path in PAPERS.glob("*.md"):
        prose = [line for line in path.read_text("utf-8").splitlines() if line[:1] != "|"]
        assert len(" ".join(prose).split()) <= 1500, path.name


def test_the_numbers_of_the_readme_come_from_the_records():
    found = {name: read(ROOT / "results" / name) for name in REPRODUCTIONS}
    assert excerpt(found) in (ROOT / "README.md").read_text("utf-8")


def test_a_page_without_records_says_so(tmp_path):
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text("utf-8"), "utf-8")
    write(tmp_path)
    texts = [p.read_text("utf-8") for p in (tmp_path / "docs" / "papers").glob("*.md")]
    assert sum("No record yet." in text for text in texts) == len(REPRODUCTIONS)
    assert not any("0 held" in text for text in texts)


def test_the_list_for_machines(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    cli.cli.main(["reproduce", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found] == NAMES.split()
    for one in found:
        assert set(one) == {"name", "shows", "minutes", "record", "claims", "checks"}
        assert one["record"] is None or one["record"] == f"results/{one['name']}"
        assert one["claims"] or one["checks"]
        assert not set(one["claims"]) & set(one["checks"])
        assert set(one["claims"].values()) <= set(VERDICTS)
        assert set(one["checks"].values()) <= {"held", "mixed", "not held", "open"}
        assert one["record"] or set(one["claims"].values()) <= {"open", "not judged"}
    checks = [check for one in found for check in one["checks"]]
    assert "The closed form is what FedAvg does." in checks


def test_the_readme_counts_the_papers_sentences_apart_from_our_checks():
    found = {name: read(ROOT / "results" / name) for name in REPRODUCTIONS}
    claims = [claim for name, r in REPRODUCTIONS.items() for claim in r.claims(found[name])]
    papers = [claim.verdict for claim in claims if not claim.own]
    ours = [claim.verdict for claim in claims if claim.own]
    assert ours
    text = excerpt(found)
    assert f"{papers.count('held')} of {len(papers)} sentences of the papers hold" in text
    assert f"Of {len(ours)} checks of our own {ours.count('held')} hold." in text


def test_what_tests_hold_is_there_and_what_nothing_judges_says_why():
    for identity in IDENTITIES:
        path, _, name = identity.test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text("utf-8")
    text = pages({})["index"]
    for sentence in UNJUDGED:
        claim = sentence.judged({})
        assert claim.verdict == "not judged"
        assert claim.numbers
        assert f"{sentence.where}: {sentence.text} Reason: {claim.numbers}." in text
