"""trimtab finds trimtab-papers through entry points, and works without it."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import trimtab
from trimtab.cli import cli, main

ROOT = Path(__file__).parents[2]
PAPERS = tomllib.loads((ROOT / "papers" / "pyproject.toml").read_text())["project"]
CORE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def _without_papers(monkeypatch):
    monkeypatch.setattr(cli, "others", {}, raising=False)
    monkeypatch.setattr("trimtab.cli.report.entry_points", lambda group: ())


def said(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return end.value.code, capsys.readouterr().err


@pytest.mark.usefixtures("_without_papers")
@pytest.mark.parametrize("words", ["reproduce", "reproduce table3 --quick", "bench", "bench w1"])
def test_without_papers_one_sentence_says_what_to_install(capsys, words):
    name = words.split()[0]
    sentence = f"`trimtab {name}` needs trimtab-papers; run `pip install 'trimtab[papers]'`."
    assert said(capsys, *words.split()) == (2, f"trimtab: {sentence}\n")


@pytest.mark.usefixtures("_without_papers")
def test_without_papers_help_and_completion_show_the_rest(capsys):
    main(["--help"])
    out = capsys.readouterr().out
    assert "compare" in out
    assert not re.search("reproduce|bench|The papers", out)
    context = cli.make_context("trimtab", [], resilient_parsing=True)
    assert "bench" not in {item.value for item in cli.shell_complete(context, "")}
    assert cli.get_command(context, "bench") is None


@pytest.mark.usefixtures("_without_papers")
def test_without_papers_a_folder_of_records_is_refused(capsys):
    code, err = said(capsys, "report", str(ROOT / "results" / "figure3"))
    assert (code, err.count("\n")) == (2, 1)


def test_a_command_that_cannot_be_loaded_leaves_the_help_of_the_others(capsys, monkeypatch):
    broken = EntryPoint("broken", "nowhere_at_all:command", "trimtab.commands")
    monkeypatch.setattr(cli, "others", {**cli.others, "broken": broken})
    main(["--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "More commands: broken Cannot be loaded (ModuleNotFoundError: No module named" in out
    assert "reproduce Reproduce tables and figures of the papers; without NAMES" in out


def test_papers_cannot_take_the_place_of_a_command_of_ours(monkeypatch):
    points = [EntryPoint("compare", "a:b", "trimtab.commands")]
    monkeypatch.setattr("trimtab.cli.group.entry_points", lambda group: points)
    cli.__dict__.pop("others", None)
    try:
        assert cli.others == {}
    finally:
        cli.__dict__.pop("others", None)


def test_the_two_distributions_have_one_version():
    assert PAPERS["version"] == trimtab.__version__
    assert CORE["optional-dependencies"]["papers"] == [f"trimtab-papers=={trimtab.__version__}"]
    assert f"trimtab=={trimtab.__version__}" in PAPERS["dependencies"]


def test_the_two_distributions_run_on_the_same_pythons_under_one_licence():
    for field in ("requires-python", "license", "authors"):
        assert PAPERS[field] == CORE[field]
    pythons = [c for c in CORE["classifiers"] if c.startswith("Programming Language :: Python")]
    assert [c for c in PAPERS["classifiers"] if "Python" in c] == pythons
    assert (ROOT / "papers" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_trimtab_papers_itself_imports_nothing():
    code = "import sys; before = set(sys.modules); import trimtab_papers; "
    code += "print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["trimtab_papers"]
