"""docs/federation-operations.md: every block runs as it is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.federation.test_federate_cli import GOOD, trimtab
from trimtab import Scaffold
from trimtab.federation.setup.approval import approve, policy_of, propose
from trimtab.federation.setup.job import resume_job, start_job
from trimtab.federation.setup.operator import Federation, create, register
from trimtab.federation.setup.site import SiteFolder, read_request, request_key
from trimtab.federation.storage import keys
from trimtab.federation.storage.ledger import Ledger, Member, Standing

PAGE = (Path(__file__).parents[2] / "docs" / "federation-operations.md").read_text()
BLOCKS = {
    re.search(r"^## (.*)$", part, re.M)[1]: re.findall(r"```sh\n(.*?)```", part, re.S)
    for part in re.split(r"(?m)^(?=## )", PAGE)[1:]
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The operator's folder `heart` with an experiment at round 4, and the site `cleveland`."""
    monkeypatch.chdir(tmp_path)
    Path("heart.py").write_text(GOOD)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "trimtab").write_text(f'#!/bin/sh\nexec {sys.executable} -m trimtab "$@"\n')
    (tmp_path / "bin" / "trimtab").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    hosts = {"hosts": ["fed.example.org"], "port": 9443}
    heart = create(Path("heart"), [], Path("heart.py"), weights="uniform", batch=None, **hosts)
    request_key(Path("cleveland"), "cleveland", heart.id)
    heart = register(heart, read_request(Path("cleveland/request.json")))
    approve(propose(Path("cleveland"), heart.archive("cleveland")))
    algorithm = Scaffold(eta_l=0.1, K=2)
    start_job(heart, algorithm, R=9)
    server, members = algorithm.init_server(torch.zeros(8)), (Member("cleveland", 0, 1.0),)
    standing = Standing("e", algorithm, 0, "uniform", server, members, r=4)
    facts = {"cohort": ["cleveland"], "metrics": {}, "bytes_up": 32}
    (heart.folder / "state").mkdir()
    Ledger(heart.folder / "state").commit(standing, "round", **facts)
    return SiteFolder.read(Path("cleveland"))


def run(section, number=0):
    """Run a block of the page; return what it printed."""
    done = subprocess.run(
        ["sh", "-ec", BLOCKS[section][number]], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def own_key(folder="cleveland"):
    return keys.fingerprint(keys.public_half(Path(folder, "site.key").read_bytes()))


def test_every_block_has_a_test():
    assert {name: len(blocks) for name, blocks in BLOCKS.items() if blocks} == {
        "Upgrade": 1,
        "Back up": 1,
        "Restore": 1,
        "Rotate": 3,
        "Move a server": 2,
    }


def test_a_policy_of_0_2_is_upgraded_by_hand(site, refused):
    path = Path("cleveland/policy.toml")
    path.write_text(f'problem = "{"0" * 64}"\nK = [1, 7]\n')
    path.chmod(0o644)
    Path("cleveland/approved.sha256").unlink()
    run("Upgrade")
    assert policy_of(site).K == (1, 7)


def test_a_backup_is_restored_to_the_same_round(site, capsys):
    for folder in ("run", "logs", "flower"):
        Path("heart", folder).mkdir()
    Path("heart/superlink.db").touch()
    run("Back up")
    for name in ("heart", "cleveland"):
        assert Path(f"{name}-backup.tar.gz").stat().st_mode & 0o077 == 0
    Path("heart/state/checkpoint.safetensors").unlink()
    assert "round 4 of 9" in run("Restore")
    assert resume_job(Federation.read(Path("heart")), R=12).R == 12
    kept = {path.name for path in Path("heart").iterdir()}
    assert kept & {"run", "logs", "flower", "superlink.db"} == set()
    Path("heart/keys/server.key").chmod(0o600)
    Federation.read(Path("heart")).check_keys()
    subprocess.run(["sh", "-ec", "rm -r cleveland; tar xzf cleveland-backup.tar.gz"], check=True)
    policy_of(SiteFolder.read(Path("cleveland")))


def test_keys_and_certificates_are_rotated(site):
    before = own_key()
    run("Rotate", 0)
    assert own_key() != before
    assert Federation.read(Path("heart")).roster.fingerprints == {"cleveland": own_key()}
    policy_of(SiteFolder.read(Path("cleveland")))
    certificate = Path("heart/keys/server.crt").read_bytes()
    run("Rotate", 1)
    assert Path("heart/keys/server.crt").read_bytes() != certificate


def test_the_next_key_has_a_passphrase(site, monkeypatch):
    run("Rotate", 2)
    assert b"ENCRYPTED" in Path("cleveland/site.key").read_bytes()
    monkeypatch.setenv("TRIMTAB_PASSPHRASE_FILE", "passphrase")
    policy_of(SiteFolder.read(Path("cleveland")))


def test_a_server_moves_to_another_name(site, capsys):
    run("Move a server", 0)
    keys.check_certificate(Path("moved/keys/server.crt"), "fed2.example.org")
    assert "server: fed.example.org:9443 -> fed2.example.org:9443" in run("Move a server", 1)
    moved = SiteFolder.read(Path("cleveland"))
    assert (moved.server, own_key()) == ("fed2.example.org:9443", moved.key)
    policy_of(moved)
    code, out, _ = trimtab(capsys, "federate", "status", "moved")
    assert (code, "round 4 of 9" in out) == (0, True)
