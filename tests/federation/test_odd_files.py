"""Files that are not what they were, or are gone: one sentence, and nothing begins anew."""

import json

import pytest
import torch

from tests.helpers.operator_folder import operator_folder
from trimtab import Scaffold
from trimtab._files import read_json, write_json
from trimtab.cli import main
from trimtab.federation.setup.job import resume_job, start_job
from trimtab.federation.setup.operator import Federation, admit
from trimtab.federation.setup.site import SiteFolder, unpack
from trimtab.federation.setup.status import status_of
from trimtab.federation.storage import journal
from trimtab.federation.storage.ledger import Ledger, Member, Standing

SCAFFOLD = Scaffold(eta_l=0.1, K=2)


def unsealed(path):
    """Return what a file says, as somebody would who changes it by hand."""
    return {name: value for name, value in read_json(path).items() if name != "sha256"}


@pytest.fixture
def made(tmp_path):
    return operator_folder(tmp_path / "fed")


def begun(made, rounds):
    """Let an experiment have so many rounds behind it."""
    start_job(made, SCAFFOLD, R=9)
    ledger = Ledger(made.folder / "state")
    members = tuple(Member(name, i, 1.0) for i, name in enumerate(made.sites))
    server = SCAFFOLD.init_server(torch.zeros(8))
    standing = Standing("e", SCAFFOLD, 0, "uniform", server, members)
    (made.folder / "state").mkdir()
    ledger.commit(standing, "begin")
    for _ in range(rounds):
        facts = {"cohort": ["rome"], "metrics": {}, "bytes_up": 10, "clients": [0]}
        ledger.commit(ledger.standing, "round", **facts)
    return made.folder / "state"


def test_resume_without_a_checkpoint_refuses_if_there_were_rounds(made, capsys):
    state = begun(made, rounds=2)
    (state / "checkpoint.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has a journal of rounds, but its checkpoint.* is gone"):
        resume_job(made)
    with pytest.raises(ValueError, match="restore it from a backup"):
        start_job(made, SCAFFOLD, R=9)
    with pytest.raises(SystemExit):
        main(["federate", "resume", str(made.folder)])
    said = capsys.readouterr().err
    assert "is gone; restore it from a backup, or begin anew in another folder" in said
    assert "Traceback" not in said


def test_a_start_that_was_killed_before_its_first_checkpoint_begins_again(made):
    state = begun(made, rounds=0)
    (state / "checkpoint.safetensors").unlink()
    assert [entry.line["commit"] for entry in journal.read_chain(state / journal.JOURNAL)] == [1]
    assert resume_job(made).R == 9


@pytest.mark.parametrize("name", ["surprise", "\x1b[2J", "x" * 1000])
def test_an_unknown_field_is_one_sentence(made, tmp_path, name):
    path, site = made.folder / "federation.json", unpack(made.archive("rome"), tmp_path)
    for file, read in ((path, Federation.read), (site / "site.json", SiteFolder.read)):
        write_json(file, unsealed(file) | {name: 1})
        with pytest.raises(ValueError, match=r"is unknown to this trimtab.*; restore") as error:
            read(file.parent)
        assert len(str(error.value)) < len(str(file)) + 150
        assert str(error.value).isprintable()


@pytest.mark.parametrize("missing", ["sites", "port", "hosts", "id"])
def test_a_missing_field_is_one_sentence(made, missing):
    path = made.folder / "federation.json"
    write_json(path, {k: v for k, v in unsealed(path).items() if k != missing})
    with pytest.raises(ValueError, match=f"it has no '{missing}'"):
        Federation.read(made.folder)


@pytest.mark.parametrize(
    "content", ["{}", "[]", '"run"', "", "null", '{"kind": "run"}', "[" * 100_000]
)
def test_an_odd_run_json_is_one_sentence(made, content, capsys):
    begun(made, rounds=1)
    (made.folder / "run.json").write_text(content)
    for command in ("resume", "status", "audit"):
        with pytest.raises(SystemExit) as stop:
            main(["federate", command, str(made.folder)])
        assert stop.value.code
        said = capsys.readouterr().err
        assert "run.json cannot be read" in said or "run.json holds no JSON object" in said
        assert "Traceback" not in said


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"R": "nine"}, "its R is a str"),
        ({"algorithm": 3}, ""),
        ({"round_timeout": None}, ""),
        ({"state": 1}, ""),
        ({"more": 1}, "its entry 'more' is unknown"),
    ],
)
def test_an_odd_value_in_run_json_is_one_sentence(made, content, why):
    begun(made, rounds=1)
    path = made.folder / "run.json"
    write_json(path, unsealed(path) | content)
    with pytest.raises(ValueError, match=rf"run\.json cannot be read \({why}"):
        resume_job(made)


def test_odd_lines_of_a_journal_say_nothing(made):
    state = begun(made, rounds=2)
    odd = [*("[]", "1", "null", '"a"', "{}", '{"commit": "x"}', '{"commit": 9}', "[" * 100_000)]
    odd += [json.dumps({"commit": 2, "kind": "round"}), "\x00", '{"commit": 1e400, "kind": "a"}']
    with open(state / "journal.jsonl", "a") as file:
        file.write("\n".join(odd) + "\n")
    assert [entry.line["commit"] for entry in journal.read_chain(state / journal.JOURNAL)] == [
        1,
        2,
        3,
    ]
    assert status_of(made.folder).bytes_up == 20


def test_renewed_hosts_are_kept(made):
    assert read_json(made.folder / "federation.json")["hosts"] == ["127.0.0.1"]
    main(["federate", "renew", str(made.folder), "--host", "::1,fed.example.org"])
    assert Federation.read(made.folder).hosts == ["::1", "fed.example.org"]
    joined = admit(Federation.read(made.folder), "lima")
    site = SiteFolder.read(unpack(joined.archive("lima"), made.folder / "there"))
    assert site.server == "[::1]:9443"
    main(["federate", "renew", str(made.folder)])
    assert Federation.read(made.folder).hosts == ["::1", "fed.example.org"]
    with pytest.raises(SystemExit):
        main(["federate", "renew", str(made.folder), "--host", "no host"])
    assert Federation.read(made.folder).hosts == ["::1", "fed.example.org"]
