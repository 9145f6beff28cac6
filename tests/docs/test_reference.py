"""The generated part of the site: every public name, what it documents, equations, the gallery."""

import inspect
import re
from importlib.util import find_spec

import pytest

import trimtab

if not all(map(find_spec, ("griffe", "latex2mathml"))):
    pytest.skip("needs the site's tools: pip install 'trimtab[docs]'", allow_module_level=True)

from docs.generate import gallery, reference
from docs.generate.__main__ import pages
from docs.generate.docstrings import described
from docs.generate.equations import blocks_as_mathml
from docs.generate.links import ROOT

FUNCTIONS = [name for name in trimtab.__all__ if inspect.isfunction(getattr(trimtab, name))]
TO_COME = {"compare", "diagnose"}  # their docstrings are rewritten with their subjects


MOST_WORDS = 1500  # of a page, without tables and code
LONGER = {  # with the reason
    "changelog.md": 2000,  # a list by version
    "diagnosis.md": 1750,  # one line for each case that missed, written from the records
    "federation.md": 2500,  # from nothing to four sites, in one go
}


def test_no_page_is_too_long():
    for path, text in pages().items():
        prose = re.sub(r"^```.*?^```$|^\|[^\n]*$|<[^>]+>", "", text, flags=re.M | re.S)
        assert len(prose.split()) <= LONGER.get(path, MOST_WORDS), path


def test_the_readme_fits_two_screens():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 130


def test_the_reference_has_every_public_name_once():
    listed = [name for _, names in reference.GROUPS.values() for name in names]
    assert sorted([*listed, *reference.NOT_LISTED]) == sorted(trimtab.__all__)


@pytest.mark.parametrize("name", sorted({*FUNCTIONS} - TO_COME))
def test_a_public_function_documents_its_arguments_and_has_an_example(name):
    function = getattr(trimtab, name)
    parameters = list(inspect.signature(function).parameters)
    text = inspect.getdoc(function)
    assert set(described(text, parameters)) == set(parameters)
    assert ">>> " in text


def test_no_row_of_an_equation_is_lost():
    text = (ROOT / "docs" / "algorithms.md").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.startswith("    ")]
    assert blocks_as_mathml(text).count("<mtr>") == len(lines) > 50


def test_code_between_fences_is_no_equation():
    text = "Run:\n\n```\n\n    x <- x\n```\n\nand\n\n    x <- x + dx\n\nagain\n"
    assert blocks_as_mathml(text).count("<math") == 1


def test_the_gallery_has_every_example_and_says_what_it_shows():
    shown = {path.removesuffix(".md").rpartition("/")[2] for path in gallery.pages()}
    examples = ROOT / "examples"
    there = {path.stem for path in (*examples.glob("*.py"), *examples.glob("notebooks/*.ipynb"))}
    there |= {path.parent.name for path in examples.glob("*/*.py")} | {"flower"}
    assert shown - {"index"} == there
    assert set(gallery.SHOWS) == shown - {"index"}


def test_the_fields_of_the_json_are_listed_with_what_they_mean():
    text = reference.pages()["reference/json.md"]
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (.*) \|$", text, re.M))
    assert {"bytes_up", "work", "delta", "part"} <= set(rows)
    assert rows["part"] == "the title of its group."


def test_commands_are_listed_with_their_options():
    text = reference.pages()["reference/commands.md"]
    assert "## trimtab federate server" in text
    assert "| `--eta-g` FLOAT | The server's step size; searched by default. |" in text
