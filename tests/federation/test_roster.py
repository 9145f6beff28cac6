"""Who is in: changed by several processes at one time, and no change is lost."""

import subprocess
import sys

import pytest

from trimtab._files import Lock
from trimtab.errors import InUse
from trimtab.federation.storage import roster
from trimtab.federation.storage.roster import Roster, RosterFile
from trimtab.federation.storage.seal import read_sealed


@pytest.fixture
def folder(tmp_path):
    about = {"format": 1, "trimtab": "0.2.0", "id": "ab", "weights": "uniform", "port": 9443}
    RosterFile(tmp_path).create(about, {"rome": "R", "oslo": "O", "lima": "L"})
    return tmp_path


def test_a_site_that_joins_and_one_that_leaves_do_not_undo_each_other(folder):
    server, operator = RosterFile(folder), RosterFile(folder)
    operator.remove_site("rome")
    seen = server.read()  # as the server has it while it lets rome go
    operator.admit("cairo", "C")
    assert "rome" in seen.leaving
    server.forget("rome")
    assert list(operator.read().sites) == ["oslo", "lima", "cairo"]
    assert operator.read().leaving == ()


def test_two_processes_that_write_at_once_lose_nothing(folder):
    code = (
        "import sys; from pathlib import Path\n"
        "from trimtab.federation.storage.roster import RosterFile\n"
        "roster = RosterFile(Path(sys.argv[1]))\n"
        "for i in range(20): roster.admit(f'{sys.argv[2]}{i}', f'{sys.argv[2]}{i}')\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    processes = [subprocess.Popen([*command, name]) for name in "ab"]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    expected = {f"{name}{i}" for name in "ab" for i in range(20)} | {"rome", "oslo", "lima"}
    assert set(RosterFile(folder).read().sites) == expected


def test_all_else_in_the_file_stays_as_it_is(folder):
    before = read_sealed(folder / "federation.json")
    RosterFile(folder).admit("cairo", "C")
    after = read_sealed(folder / "federation.json")
    assert after == before | {"sites": {**before["sites"], "cairo": "C"}}


def test_what_is_refused_changes_nothing(folder):
    before = (folder / "federation.json").read_bytes()
    with pytest.raises(ValueError, match="there is a site rome already"):
        RosterFile(folder).admit("rome", "X")
    with pytest.raises(ValueError, match="there is no site 'cairo'; the sites are rome, oslo"):
        RosterFile(folder).remove_site("cairo")
    assert (folder / "federation.json").read_bytes() == before


def test_a_file_that_is_held_for_ever_is_not_waited_for_for_ever(folder, monkeypatch):
    monkeypatch.setattr(roster, "_PATIENCE", 0.1)
    with Lock(folder), pytest.raises(InUse, match="is in use by another process"):
        RosterFile(folder).admit("cairo", "C")


def test_who_comes_and_who_has_gone():
    now = Roster({"rome": "R", "oslo": "O", "lima": "L"}, leaving=("oslo", "lima"))
    assert now.joining(["oslo"]) == ["rome"]
    assert now.left(["oslo"]) == ["lima"]
    assert now.remaining == ["rome"]
