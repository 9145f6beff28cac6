"""The generated part of the site: every public name, what it documents, equations, the gallery."""

import inspect
import re
from importlib.util import find_spec

import pytest

import trimtab

if not all(map(find_spec, ("griffe", "latex2mathml"))):
    pytest.skip("needs the site's tools: pip install 'trimtab[docs]'", allow_module_level=True)

from docs.generate import gallery, reference
from docs.generate import suite as pages_of_tests
from docs.generate.__main__ import pages
from docs.generate.docstrings import described
from docs.generate.equations import blocks_as_mathml
from docs.generate.links import ROOT

FUNCTIONS = [name for name in trimtab.__all__ if inspect.isfunction(getattr(trimtab, name))]


MOST_WORDS = 1500  # of a page, without tables and code; no page is an exception


def prose(text):
    return re.sub(r"^```.*?^```$|^\|[^\n]*$|<[^>]+>", "", text, flags=re.M | re.S)


def test_no_page_is_too_long():
    words = {path: len(prose(text).split()) for path, text in pages().items()}
    assert {path: n for path, n in words.items() if n > MOST_WORDS} == {}


def test_the_readme_fits_two_screens():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 130


def test_the_reference_has_every_public_name_once():
    listed = [name for _, names in reference.GROUPS.values() for name in names]
    assert sorted([*listed, *reference.NOT_LISTED]) == sorted(trimtab.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_documents_its_arguments_and_has_an_example(name):
    function = getattr(trimtab, name)
    parameters = list(inspect.signature(function).parameters)
    text = inspect.getdoc(function)
    assert set(described(text, parameters)) == set(parameters)
    assert ">>> " in text


def test_a_newcomer_to_compare_reads_fifteen_arguments_first():
    names = list(inspect.signature(trimtab.compare).parameters)
    first, rest = inspect.getdoc(trimtab.compare).split("Most comparisons leave the rest")
    assert set(described(first, names)) == set(names[:15])
    assert set(described(rest, names)) == set(names[15:])


def test_every_suite_of_the_makefile_is_listed_with_what_it_runs():
    text = pages_of_tests.pages()["tests.md"]
    targets = re.findall(r"^(test[\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    for target in [*targets, "coverage", "mutants"]:
        assert f"| `make {target}` | " in text, f"{target} has no comment above it"
    assert "| all | " in text.partition("## Mutants")[2]


def test_no_row_of_an_equation_is_lost():
    rows = 0
    for page in ROOT.glob("docs/algorithms/*.md"):
        text = page.read_text("utf-8")
        lines = [line for line in text.splitlines() if line.startswith("    ")]
        assert blocks_as_mathml(text).count("<mtr>") == len(lines), page
        rows += len(lines)
    assert rows > 50


def test_code_between_fences_is_no_equation():
    text = "Run:\n\n```\n\n    x <- x\n```\n\nand\n\n    x <- x + dx\n\nagain\n"
    assert blocks_as_mathml(text).count("<math") == 1


def test_the_gallery_has_every_example_and_says_what_it_shows():
    shown = {path.removesuffix(".md").rpartition("/")[2] for path in gallery.pages()}
    examples = ROOT / "examples"
    there = {path.stem for path in (*examples.glob("*.py"), *examples.glob("notebooks/*.ipynb"))}
    # The pages on drift and on comparisons show these two.
    assert shown - {"index"} == (there | {"flower"}) - {"drift", "paper_table"}
    assert 8 <= len(gallery.SHOWS) <= 12
    for path, text in gallery.pages().items():
        assert "index" in path or "```text" in text or "<iframe" in text, path


def test_the_fields_of_the_json_are_listed_with_what_they_mean():
    text = reference.pages()["reference/json.md"]
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (.*) \|$", text, re.M))
    assert {"bytes_up", "work", "delta", "part"} <= set(rows)
    assert rows["part"] == "the title of its group."


def test_commands_are_listed_with_their_options():
    text = reference.pages()["reference/commands.md"]
    assert "## trimtab federate server" in text
    assert "| `--eta-g` FLOAT | The server's step size; searched by default. |" in text
