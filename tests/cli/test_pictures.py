"""Pictures, and what `trimtab doctor`, `completion` and help tell."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from trimtab import Scaffold, simulate
from trimtab.cli import EXAMPLES, SECTIONS, cli, main
from trimtab.report.charts.colours import DARK, LEAST, contrast, readable
from trimtab.report.drift import drift

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def printed(capsys, *words):
    main([*map(str, words)])
    return capsys.readouterr().out


# -- drift


def test_fedavg_stops_at_a_wrong_point_and_scaffold_does_not():
    fedavg, scaffold = drift().walks
    assert fedavg.distance > 1
    assert scaffold.distance < 1e-5


@pytest.mark.parametrize("G", [0.1, 0.5, 3.0])
def test_the_clients_differ_by_the_G_that_is_asked_for(G):
    found = drift(G=G, R=3)
    gradients = [found.problem.client_gradient(i, found.problem.x_star) for i in range(2)]
    assert torch.stack(gradients).square().sum(1).mean().sqrt().item() == pytest.approx(G)


def test_what_is_drawn_is_what_the_simulator_does():
    found = drift(K=4, R=5)
    walk = found.walks[1]
    sim = simulate(Scaffold(eta_l=0.4, K=4), found.problem, x=walk.servers[0])
    for r, clients in enumerate(walk.rounds, start=1):
        x = next(sim).x
        assert torch.equal(x, walk.servers[r])
        assert all(len(points) == 5 for points in clients)
        mean = torch.stack([points[-1] for points in clients]).mean(0)
        assert torch.allclose(mean, x, atol=1e-12)


def test_the_picture_of_the_readme_is_what_the_command_draws():
    path = ROOT / "docs" / "drift.svg"
    assert path.stat().st_size < 40_000
    ours, theirs = ([float(n) for n in re.findall(r"[-\d.]+\d", text)] for text in
                    (drift().svg(), path.read_text()))  # fmt: skip
    assert ours == pytest.approx(theirs, abs=0.3)


def test_a_drift_that_nobody_can_draw_is_one_sentence(capsys):
    for words, sentence in ((["--G=-1"], "--G -1.0; pass a positive number."),
                            (["--eta-l", "30"], "diverged at round")):  # fmt: skip
        with pytest.raises(SystemExit):
            main(["picture", "drift", *words])
        assert sentence in capsys.readouterr().err


def test_picture_drift_writes_an_svg(capsys):
    found = json.loads(printed(capsys, "picture", "drift", "--K", 3, "-R", 4, "--json"))
    assert set(found["distance"]) == {"FedAvg", "Scaffold"}
    ET.fromstring(Path(found["picture"]).read_text())


# -- who has which labels


def test_picture_partition_shows_every_client_and_label(capsys):
    words = ("picture", "partition", "digits", "--partition", "dirichlet:0.3", "--json")
    found = json.loads(printed(capsys, *words))
    picture = ET.fromstring(Path(found["picture"]).read_text())
    texts = [element.text for element in picture.iter() if element.tag.endswith("text")]
    assert {f"label {j}" for j in range(10)} <= set(texts)
    assert {str(i) for i in range(found["N"])} <= set(texts)
    assert [sum(row) for row in found["labels"]] == found["sizes"]
    assert "var(" not in Path(found["picture"]).read_text()


def test_a_problem_without_samples_has_no_such_picture(capsys):
    with pytest.raises(SystemExit):
        main(["picture", "partition", "quadratic"])
    assert "has no samples to draw" in capsys.readouterr().err


# -- colours


@pytest.mark.parametrize("colour", ["#edae49", "#00798c", "#4f3b78", "#444444", "#ffffff"])
def test_every_colour_is_made_to_stand_out(colour):
    assert contrast(readable(colour, "#ffffff"), "#ffffff") >= LEAST
    assert contrast(readable(colour, "#16191d", DARK), "#16191d") >= DARK


# -- habits


def test_help_has_every_command_in_one_section_and_its_examples_are_commands():
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(
        cli.list_commands(None)
    )
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
    assert "downloaded when it is first used" in before["a9a"]["missing"]
    (tmp_path / "data" / "a9a").mkdir(parents=True)
    (tmp_path / "data" / "a9a" / "a9a").write_text("")
    after = {f["name"]: f for f in json.loads(printed(capsys, "doctor", "--json"))}
    assert after["a9a"]["missing"] == ""
    text = printed(capsys, "doctor")
    assert "missing  emnist: not here yet" in text
    assert "trimtab works without them." in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_what_the_shell_reads(capsys, shell):
    assert "_TRIMTAB_COMPLETE" in printed(capsys, "completion", shell)
