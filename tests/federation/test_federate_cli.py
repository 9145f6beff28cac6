"""`trimtab federate` as its users meet it, as far as no process is needed."""

import json
import re
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.helpers.command import trimtab
from trimtab import Scaffold
from trimtab._files import write_json
from trimtab._version import RESULTS
from trimtab.cli.federate import COMMANDS, federate
from trimtab.federation.events import AuditDone
from trimtab.federation.setup.job import resume_job, start_job
from trimtab.federation.setup.operator import Federation
from trimtab.federation.setup.problem_file import ProblemFile
from trimtab.federation.setup.site import unpack
from trimtab.federation.storage.files import read_sealed
from trimtab.federation.storage.ledger import Ledger, Member, Standing

GOOD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

def model():
    return nn.Linear(3, 2), F.cross_entropy

def silo(data):
    X, y = torch.ones(6, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1, 0])
    return TensorDataset(X[:4], y[:4]), (X[4:], y[4:])
"""
FILES = {
    "good.py": GOOD,
    "broken.py": "import nosuchmodule\n",
    "nomodel.py": "def silo(data): return 1\n",
    "nosilo.py": GOOD.replace("def silo", "def silos"),
    "badmodel.py": GOOD.replace(
        "return nn.Linear(3, 2), F.cross_entropy", "return nn.Linear(3, 2)"
    ),
    "raises.py": GOOD.replace("return nn.Linear(3, 2)", "return {}['x']"),
    "norm.py": GOOD.replace("nn.Linear(3, 2)", "nn.InstanceNorm1d(3, track_running_stats=True)"),
    "badsilo.py": GOOD.replace("return TensorDataset(X[:4], y[:4]), (X[4:], y[4:])", "return X"),
    "silofails.py": GOOD.replace("X, y = torch", "X, y = data.nosuch + torch"),
    "empty.py": GOOD.replace("TensorDataset(X[:4], y[:4])", "(X[:0], y[:0])"),
    "features.py": GOOD.replace("nn.Linear(3, 2)", "nn.Linear(7, 2)"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    return tmp_path


def test_options_are_what_they_were():
    options = {
        name: sorted(o for p in command.params for o in p.opts if o.startswith("-"))
        for name in COMMANDS
        for command in [federate.get_command(None, name)]
    }
    hyper = "--K --a --alpha --base --beta --beta1 --beta2 --eps --eta --eta-g --eta-l --lean --mu"
    hyper += " --option --p --clip --weight-decay"
    run = (
        "--bind --experiment --json --live --min-sites --on-lost-state --round-timeout --target -R"
    )
    watched = ["--log-json", "--log-size", "--metrics-port"]
    assert options == {
        "approve": ["--problem", "--yes"],
        "enroll": ["--federation", "--name", "--rotate"],
        "fingerprint": [],
        "init": ["--batch", "--host", "--port", "--problem", "--sites", "--weights"],
        "register": ["--readmit", "--replace"],
        "server": sorted(
            ["--algorithm", "--seed", "--keep", *hyper.split(), *run.split(), *watched]
        ),
        "resume": sorted(["--restart-controls", *run.split(), *watched]),
        "rollback": ["--experiment", "--to"],
        "readmit": [],
        "site-log": ["--json"],
        "site": sorted(["--data", "--proxy", *watched]),
        "status": ["--experiment", "--json"],
        "audit": ["--bind", "--experiment", "--json"],
        "model": ["--experiment"],
        "join": [],
        "leave": [],
        "renew": ["--host"],
        "demo": ["--data", "--json", "--out", "--seed"],
    }


def test_init_says_what_to_send_to_whom(capsys):
    command = ("federate", "init", "fed", "--sites", "rome, oslo", "--problem", "good.py")
    code, out, err = trimtab(capsys, *command, "--host", "fed.example.org", "--batch", 2)
    assert (code, err) == (0, "")
    for name in ("rome", "oslo"):
        assert f"Send fed/sites/{name}.tar.gz to {name} over a private channel" in out
        assert stat.S_IMODE(Path(f"fed/sites/{name}.tar.gz").stat().st_mode) == 0o600
    assert "tar xzf SITE.tar.gz && trimtab federate site SITE --data PATH" in out
    assert "trimtab federate server fed --algorithm scaffold" in out
    assert Federation.read(Path("fed")).batch == 2
    code, out, _ = trimtab(capsys, "federate", "status", "fed")
    assert code == 0
    assert "fed: no experiment yet, server stopped" in out
    code, out, _ = trimtab(capsys, "federate", "renew", "fed", "--host", "elsewhere.org")
    assert code == 0
    assert "fed/keys/server.crt is valid until" in out
    code, out, _ = trimtab(capsys, "federate", "join", "fed", "lima")
    assert code == 0
    assert "Send fed/sites/lima.tar.gz to lima" in out


INIT = "federate init fed --problem good.py --sites"
SERVER = "federate server made --algorithm"
BAD = {
    f"{INIT} a,a": "two sites have one name; name them apart.",
    f"{INIT} a,B": "'B' is no name for a site; use small letters, digits, - and _, at most 31.",
    f"{INIT} a --host a/b": "'a/b' is no host name or address; pass --host NAME.",
    f"{INIT} a --batch 0": "--batch 0; pass a number of samples, or a fraction",
    "federate init made --problem good.py --sites a": "made is not empty; pass another folder.",
    "federate init fed --sites a --problem no.py": "no.py: there is no such file; pass --problem",
    "federate init fed --sites a --problem broken.py": "broken.py cannot be imported (broken.py, ",
    "federate init fed --sites a --problem nomodel.py": "nomodel.py has no function model; write ",
    "federate init fed --sites a --problem nosilo.py": "has no function silo; write silo(data) ->",
    "federate init fed --sites a --problem badmodel.py": "model in badmodel.py returned a Linear;",
    "federate init fed --sites a --problem raises.py": "KeyError: 'x'); fix it, or pass --debug",
    "federate init fed --sites a --problem norm.py": "keeps running statistics",
    "federate register made no.json": "no.json: there is no such file; pass the request of a site.",
    "federate approve nosuch": "nosuch holds no site.json; pass the archive that the operator",
    "federate fingerprint .": ". is no folder of an operator or a site; pass one of them.",
    "federate enroll Oslo": "'Oslo' is no name for a site; use small letters, digits",
    "federate enroll oslo": "pass --federation ID, the 12 digits that the operator's `trimtab",
    "federate enroll oslo --federation 12": "oslo belongs to no federation yet; pass --federation",
    f"federate enroll oslo --rotate --federation {'0' * 12}": "oslo has no key yet; drop --rotate.",
    f"{SERVER} scafold --eta-l 1 --K 1 -R 1": "'scafold' is not an algorithm (did you mean",
    f"{SERVER} scaffold --K 1 -R 1": "scaffold needs a step size; pass --eta-l",
    f"{SERVER} scaffold --eta-l 1 --K 1 -R 0": "R=0; pass a number of rounds R >= 1.",
    f"{SERVER} sgd --eta 1 -R 1 --min-sites 3": "--min-sites 3: the federation has 2 sites; pass 1",
    f"{SERVER} sgd --eta 1 -R 1 --round-timeout 0": "--round-timeout 0; pass a number of seconds.",
    "federate server nosuch --algorithm sgd --eta 1 -R 1": "nosuch holds no federation.json; pass",
    "federate resume made": "made holds no experiment; begin one with `trimtab federate server`.",
    f"{SERVER} sgd --eta 1 -R 1 --experiment a/b": "'a/b' is no name for an experiment; use small",
    "federate audit made": "made holds no experiment; begin one with `trimtab federate server`.",
    "federate model made out.safetensors": "made has no model yet; no round was committed.",
    "federate site made --data .": "made holds no site.json; pass the folder of `trimtab federate",
    "federate join made a": "there is a site a already; give the new one another name.",
    "federate leave made z": "there is no site 'z'; the sites are a, b.",
    "federate frobnicate": "No such command 'frobnicate'; `trimtab federate --help` shows",
}


@pytest.fixture
def made(capsys):
    trimtab(capsys, "federate", "init", "made", "--sites", "a,b", "--problem", "good.py")
    return Federation.read(Path("made"))


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, made, command):
    code, out, err = trimtab(capsys, *command.split())
    assert code == 2
    assert BAD[command] in err
    assert err.count("\n") == 1
    assert out == ""


def test_without_flower_one_sentence_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr("trimtab.cli.federate.find_spec", lambda name: None)
    code, out, err = trimtab(capsys, "federate", "status", "made")
    assert (code, out) == (2, "")
    assert "`trimtab federate` needs Flower; run `pip install 'trimtab[federation]'`." in err


@pytest.mark.parametrize(
    ("audit", "code", "says"),
    [
        (AuditDone(1e-17, 0.5, {}, True, 1e-9), 0, "|c - sum p_i c_i| = 1e-17, max |c_i| = 0.5: r"),
        (AuditDone(9e5, 0.5, {}, False, 1e-9), 1, "that is not rounding (no site stands out)."),
        (
            AuditDone(9e5, 9e5, {}, False, 1e-9, {"b": "array 0 has norm 9e+05"}),
            1,
            "that is not rounding (site b: array 0 has norm 9e+05).",
        ),
        (
            AuditDone(None, 0.5, {"a": "its state is not here"}, False),
            1,
            "no audit without a (its s",
        ),
    ],
)
def test_an_audit_judges(capsys, made, monkeypatch, audit, code, says):
    start_job(made, Scaffold(eta_l=0.1, K=2), R=9)
    monkeypatch.setattr(
        "trimtab.cli.federate.operator._serve", lambda *_: SimpleNamespace(audit=audit)
    )
    got, out, err = trimtab(capsys, "federate", "audit", "made")
    assert (got, err) == (code, "")
    assert says in out
    got, out, _ = trimtab(capsys, "federate", "audit", "made", "--json")
    found = json.loads(out)
    assert (got, found["ok"], found["missing"]) == (code, audit.ok, audit.missing)


# -- the problem file


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("badsilo.py", "silo in badsilo.py returned a Tensor; return (train, test), each (X, y)"),
        (
            "silofails.py",
            "silo in silofails.py failed (silofails.py, line 11 in silo: AttributeErr",
        ),
        ("empty.py", "client 0 has no samples; leave it out, or give it data."),
        ("features.py", "7"),
    ],
)
def test_bad_data_are_one_sentence(name, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        ProblemFile(Path(name)).site_problem(Path(), None)


def test_data_that_are_not_there_are_one_sentence():
    with pytest.raises(ValueError, match=r"^nosuch: there is no such file or folder; pass data"):
        ProblemFile(Path("good.py")).site_problem(Path("nosuch"), None)


def test_server_and_site_start_from_the_same_model_in_the_modules_precision():
    file = ProblemFile(Path("good.py"))
    server, site = file.server_problem(), file.site_problem(Path(), batch=2)
    assert torch.equal(server.x0(3), site.x0(3))
    assert not torch.equal(server.x0(3), server.x0(4))
    assert server.x0(0).dtype == site.oracle(7, 0, 1)(site.x0(0), 0).dtype == torch.float32
    assert (site.clients.size(0), len(site.test)) == (4, 2)


def test_the_file_of_the_documentation_works():
    page = (Path(__file__).parents[2] / "docs" / "federation.md").read_text()
    (block,) = re.findall(r"```python\n# heart.py\n(.*?)```", page, re.S)
    Path("heart.py").write_text(block)
    row = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,?,6.0,{}\n"
    Path("processed.cleveland.data").write_text("".join(row.format(i % 3) for i in range(20)))
    problem = ProblemFile(Path("heart.py")).site_problem(Path("processed.cleveland.data"), 8)
    assert (problem.clients.size(0), len(problem.test)) == (16, 4)


def test_a_site_without_its_data_ends_with_one_sentence_and_no_process(capsys, made):
    site = unpack(made.archive("a"), Path("there"))
    code, _, err = trimtab(capsys, "federate", "site", site, "--data", "nosuch")
    assert (code, err.count("trimtab: ")) == (2, 1)  # after the policy that is written and shown
    assert "nosuch: there is no such file or folder; pass --data PATH." in err
    code, _, err = trimtab(capsys, "federate", "site", site, "--data", "nosuch")  # not locked
    assert "there is no such file" in err


# -- what an experiment leaves


def test_the_model_is_a_state_dict_and_the_status_tells_of_it(capsys, made):
    algorithm = Scaffold(eta_l=0.1, K=2)
    x = made.problem.server_problem().x0(0)
    members = (Member("a", 0, 1.0), Member("b", 1, 1.0))
    job = start_job(made, algorithm, R=9, min_sites=1)
    (made.folder / "state").mkdir()
    standing = Standing("e", algorithm, 0, "uniform", algorithm.init_server(x), members, r=4)
    facts = {"cohort": ["a"], "metrics": {"accuracy": 0.5}, "bytes_up": 32}
    Ledger(made.folder / "state").commit(standing, "round", **facts)
    code, out, _ = trimtab(capsys, "federate", "model", "made", "out.safetensors")
    assert (code, out) == (0, "Model of round 4: out.safetensors\n")
    module = nn.Linear(3, 2)
    module.load_state_dict(load_file("out.safetensors"))
    assert torch.equal(torch.cat([module.weight.reshape(-1), module.bias]), x)
    code, out, _ = trimtab(capsys, "federate", "status", "made")
    assert "round 4 of 9" in out
    assert "a: weight 0.5, last in round 4" in out
    assert "b: weight 0.5, in no round yet" in out
    code, _, err = trimtab(capsys, "federate", "model", "made", "out.safetensors")
    assert (code, err) == (2, "trimtab: out.safetensors exists; pass another name.\n")
    with pytest.raises(ValueError, match=r"holds an experiment at round 4 already; go on with"):
        start_job(made, algorithm, R=9)
    assert resume_job(made, R=12) == replace(job, R=12)
    old = read_sealed(made.folder / "run.json")
    write_json(made.folder / "run.json", old | {"trimtab": "0.1.9", "results": RESULTS - 1})
    with pytest.raises(
        ValueError, match=r"begun with trimtab 0.1.9 .*, this is .*; go on with that"
    ):
        resume_job(made)
    write_json(made.folder / "run.json", old | {"trimtab": "0.1.9", "results": RESULTS})
    resume_job(made)  # another version that gives the same numbers
