"""docs/tests.md says what the records say, and names every suite of the Makefile."""

import re
from pathlib import Path

import tests_page

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_numbers_of_the_records():
    text = tests_page.PAGE.read_text()
    assert tests_page.filled(text) == text, "run `python benchmarks/tests_page.py`"


def test_every_suite_is_on_the_page():
    targets = set(re.findall(r"^(test[\w-]*):", (ROOT / "Makefile").read_text(), re.M))
    for target in targets | {"coverage", "mutants"}:
        assert f"| `make {target}` |" in tests_page.PAGE.read_text(), target


def test_what_ci_runs_is_said():
    ran = set(re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(), re.M))
    said = re.findall(r"^\| `make ([\w-]+)` \|.*\| yes \|$", tests_page.PAGE.read_text(), re.M)
    assert ran <= set(said)


def test_coverage_is_one_sentence():
    found = {"tests": ["tests/core"], "passed": True, "lines": [9, 10], "branches": [1, 2]}
    said = "90.0 % of the lines and 50.0 % of the branches by tests/core."
    assert tests_page.coverage_line(found | {"folders": {}}) == said
