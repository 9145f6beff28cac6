"""What `trimtab doctor`, `completion` and help print, and the colours of charts."""

import json
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from trimtab.cli import COMMANDS, EXAMPLES, SECTIONS, cli, doctor, main
from trimtab.report.charts.svg import DARK, LEAST, contrast, readable

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def printed(capsys, *words):
    main([*map(str, words)])
    return capsys.readouterr().out


# -- colours


@pytest.mark.parametrize("colour", ["#edae49", "#00798c", "#4f3b78", "#444444", "#ffffff"])
def test_every_colour_is_made_to_stand_out(colour):
    assert contrast(readable(colour, "#ffffff"), "#ffffff") >= LEAST
    assert contrast(readable(colour, "#16191d", DARK), "#16191d") >= DARK


# -- habits


def test_help_has_every_command_in_one_section_and_its_examples_are_commands():
    listed = sorted(name for names in SECTIONS.values() for name in names)
    assert listed == sorted(cli.list_commands(None)) == sorted({*COMMANDS, "reproduce", "bench"})
    text = CliRunner().invoke(cli, ["--help"]).output
    for name in (*SECTIONS, *EXAMPLES):
        assert name in text
    for command in EXAMPLES:
        name, *rest = command.split()[1:]
        known = {o for p in cli.get_command(None, name).params for o in p.opts}
        assert {word for word in rest if word.startswith("-")} <= known


def test_doctor_says_what_is_missing_and_how_to_get_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TRIMTAB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = {f["name"]: f for f in json.loads(printed(capsys, "doctor", "--json"))}
    assert {"trimtab", "torch", "cores", "kernel", "digits"} <= set(before)
    assert "downloaded on first use" in before["a9a"]["missing"]
    (tmp_path / "data" / "a9a").mkdir(parents=True)
    (tmp_path / "data" / "a9a" / "a9a").write_text("")
    after = {f["name"]: f for f in json.loads(printed(capsys, "doctor", "--json"))}
    assert after["a9a"]["missing"] == ""
    text = printed(capsys, "doctor")
    assert "missing  emnist: not here yet" in text
    assert "trimtab works without them." in text


def test_doctor_lists_every_extra_and_what_of_it_is_missing(capsys, monkeypatch):
    monkeypatch.setattr(
        doctor, "find_spec", lambda name: None if name == "peft" else find_spec(name)
    )
    found = [f for f in json.loads(printed(capsys, "doctor", "--json")) if f["part"] == "extras"]
    listed = {f["name"].partition(",")[0]: f for f in found[:-1]}  # the last is Chromium
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(listed) == set(project["optional-dependencies"])
    assert listed["lora"]["value"] == "not installed (peft)"
    assert listed["lora"]["missing"] == "pip install 'trimtab[lora]'."
    assert listed["pandas"]["missing"] == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_what_the_shell_reads(capsys, shell):
    assert "_TRIMTAB_COMPLETE" in printed(capsys, "completion", shell)
