"""docs/reproduction.md and the list are what the records say."""

import json
from pathlib import Path

from trimtab import cli
from trimtab_papers.items import REPRODUCTIONS, read
from trimtab_papers.page import IDENTITIES, UNJUDGED, excerpt, page, write
from trimtab_papers.verdicts import VERDICTS

ROOT = Path(__file__).parents[2]
NAMES = (
    "figure3 theorem2 table3 table4 table5 concrete emnist400 clients mime mvr bias speedup lsa "
    "contraction local-steps dane nonconvex unequal"
)


def test_the_page_is_made_from_the_records():
    found = {name: read(ROOT / "results" / name) for name in REPRODUCTIONS}
    assert page(found) == (ROOT / "docs" / "reproduction.md").read_text("utf-8"), (
        "run `python -m trimtab_papers.page` after a new record"
    )
    for name in REPRODUCTIONS:
        assert not found[name] or (ROOT / "docs" / "reproduction" / f"{name}.svg").exists()


def test_the_numbers_of_the_readme_come_from_the_records():
    found = {name: read(ROOT / "results" / name) for name in REPRODUCTIONS}
    assert excerpt(found) in (ROOT / "README.md").read_text("utf-8")


def test_a_page_without_records_says_so(tmp_path):
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text("utf-8"), "utf-8")
    write(tmp_path)
    text = (tmp_path / "docs" / "reproduction.md").read_text("utf-8")
    assert text.count("No record yet.") == len(REPRODUCTIONS)
    assert "0 held" not in text


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
    text = page({})
    for sentence in UNJUDGED:
        claim = sentence.judged({})
        assert claim.verdict == "not judged"
        assert claim.numbers
        assert f"{sentence.where}: {sentence.text} Reason: {claim.numbers}." in text
