"""Help, completion and `status` answer at once: without torch, Flower or a plotting library."""

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.helpers.operator_folder import operator_folder
from trimtab import Scaffold
from trimtab.cli.federate import COMMANDS, federate
from trimtab.federation.setup.job import start_job
from trimtab.federation.storage.journal import read_summary
from trimtab.federation.storage.ledger import Ledger, Member, Standing

MOST = 400  # an answer loads <= 400 modules: 300 are needed, any library for numbers has hundreds
CODE = """
import sys
from trimtab.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
loaded = [name for name in ("torch", "matplotlib", "flwr", "numpy") if name in sys.modules]
print(len(sys.modules), *loaded, file=sys.stderr)
"""


@pytest.fixture
def operator(tmp_path):
    """Make an operator's folder with an experiment at round 4."""
    federation = operator_folder(tmp_path / "fed")
    algorithm = Scaffold(eta_l=0.1, K=2)
    start_job(federation, algorithm, R=9)
    (federation.folder / "state").mkdir()
    members = (Member("rome", 0, 3.0), Member("oslo", 1, 1.0))
    server = algorithm.init_server(torch.zeros(8))
    standing = Standing("e", algorithm, 0, "samples", server, members, r=4, epoch=1)
    facts = {"cohort": ["rome"], "metrics": {"accuracy": 0.5}, "bytes_up": 32}
    Ledger(federation.folder / "state").commit(standing, "round", **facts)
    return federation.folder


def answer(*words, **environment):
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    )
    modules, *loaded = done.stderr.splitlines()[-1].split()
    print(f"{' '.join(map(str, words))}: {modules} modules")
    assert loaded == []
    assert int(modules) <= MOST
    return done.stdout


def test_status_answers_at_once(operator):
    out = answer("federate", "status", operator)
    assert f"{operator}: Scaffold(eta_l=0.1, K=2, eta_g=1.0, option='II', lean=False)" in out
    assert "round 4 of 9, epoch 1" in out
    assert "rome: weight 0.75, last in round 4, no contact yet, key SHA256:" in out
    assert "oslo: weight 0.25, in no round yet, no contact yet, key SHA256:" in out


def test_status_as_json_is_what_it_was(operator):
    found = json.loads(answer("federate", "status", operator, "--json"))
    assert list(found) == [
        *("algorithm", "server", "round", "R", "epoch", "metrics", "bytes_up", "certificate"),
        *("sites", "experiments", "expiring"),
    ]
    assert (found["round"], found["R"], found["epoch"], found["bytes_up"]) == (4, 9, 1, 32)
    assert (found["server"], found["metrics"]) == ("stopped", {"accuracy": 0.5})
    assert {k: v for k, v in found["sites"]["rome"].items() if k != "key"} == {
        "weight": 0.75,
        "last": 4,
        "member": True,
        "contact": None,
    }


def test_help_answers_at_once():
    out = answer("federate", "--help")
    assert all(name in out for name in COMMANDS)


def test_completion_answers_at_once():
    words = {"COMP_WORDS": "trimtab federate ", "COMP_CWORD": "2"}
    out = answer("federate", _TRIMTAB_COMPLETE="bash_complete", **words)
    assert [line.split(",")[1] for line in out.splitlines()] == list(COMMANDS)


def test_the_helps_of_the_group_are_those_of_the_commands():
    for name, text in COMMANDS.items():
        said = " ".join(federate.get_command(None, name).help.split())
        assert said == text, name


@pytest.mark.parametrize("cut", [4, 100, -1])
def test_a_damaged_checkpoint_is_said_to_be(operator, refused, cut):
    path = operator / "state" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with refused("checkpoint.safetensors is damaged", "restore it from a backup"):
        read_summary(operator / "state")
