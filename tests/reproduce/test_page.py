"""docs/reproduction.md and the list are what the records say."""

import json
from pathlib import Path

from trimtab import cli
from trimtab.reproduce import REPRODUCTIONS, read
from trimtab.reproduce.page import excerpt, page, write

ROOT = Path(__file__).parents[2]
NAMES = (
    "figure3 theorem2 table3 table4 table5 concrete emnist400 clients mime bias speedup local-steps"
)


def test_the_page_is_made_from_the_records():
    found = {name: read(ROOT / "results" / name) for name in REPRODUCTIONS}
    assert page(found) == (ROOT / "docs" / "reproduction.md").read_text("utf-8"), (
        "run `python -m trimtab.reproduce.page` after a new record"
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
        assert set(one) == {"name", "shows", "minutes", "record", "claims"}
        assert one["record"] is None or one["record"] == f"results/{one['name']}"
        assert one["claims"]
        assert set(one["claims"].values()) <= {"held", "not held", "open"}
        assert one["record"] or set(one["claims"].values()) == {"open"}
