"""docs/studies.md says how steady the advice is, as the record has it."""

import json
from pathlib import Path

import stability

ROOT = Path(__file__).parents[2]


def test_the_page_counts_what_the_record_holds():
    record = json.loads((ROOT / "results/studies/stability.json").read_text())
    assert all(len(case["runs"]) == 5 for case in record["cases"].values())
    found = stability.told(record)
    words = " ".join((ROOT / "docs/studies.md").read_text().split())
    assert f"In {found['holds']} of {found['cases']} cases the advice holds for all five" in words
    assert f"In {found['same']} of {found['cases']} all five advise the same one" in words
