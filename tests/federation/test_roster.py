"""Who is in: changed by several processes at one time, and no change is lost."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from trimtab._files import Lock
from trimtab.errors import InUse
from trimtab.federation.storage import roster
from trimtab.federation.storage.files import read_sealed
from trimtab.federation.storage.roster import REQUEST_DAYS, Roster, RosterFile


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
    changed = ("sites", "until", "requests", "removed")
    assert {k: v for k, v in after.items() if k not in changed} == {
        k: v for k, v in before.items() if k not in changed
    }
    assert after["sites"] == {**before["sites"], "cairo": "C"}


def test_what_is_refused_changes_nothing(folder):
    before = (folder / "federation.json").read_bytes()
    with pytest.raises(ValueError, match="there is a site rome already"):
        RosterFile(folder).admit("rome", "X")
    with pytest.raises(ValueError, match="there is no site 'cairo'; the sites are rome, oslo"):
        RosterFile(folder).remove_site("cairo")
    assert (folder / "federation.json").read_bytes() == before


def test_a_nonce_is_used_once_and_kept_as_long_as_its_request_is_valid(folder):
    now = datetime.now(UTC)
    old, new = (now - timedelta(days=days) for days in (REQUEST_DAYS + 1, REQUEST_DAYS - 1))
    file = RosterFile(folder)
    file.admit("cairo", "C", nonce="a", made=old.isoformat())
    file.replace_key("cairo", "D", nonce="b", made=new.isoformat())
    with pytest.raises(ValueError, match="the request of cairo was used before"):
        file.replace_key("cairo", "E", nonce="b", made=new.isoformat())
    assert list(file.read().requests) == ["b"]  # the other would be refused for its age


def test_a_site_that_was_removed_comes_back_only_when_the_operator_says_so(folder, refused):
    file = RosterFile(folder)
    file.remove_site("rome")
    file.forget("rome")
    with refused("rome was removed from the federation", "pass readmit"):
        file.admit("rome", "new")
    with refused("was admitted before (rome was removed)"):
        file.admit("rome", "R", readmit=True)
    file.admit("rome", "new", readmit=True)
    assert (list(file.read().sites), file.read().removed) == (["oslo", "lima", "rome"], ())


@pytest.mark.parametrize(("days", "words"), [(31, ""), (29, "expires on"), (-1, "expired on")])
def test_a_key_expires_with_a_warning_thirty_days_ahead(folder, days, words):
    file = RosterFile(folder)
    assert file.read().expiring() == []
    until = datetime.now(UTC) + timedelta(days=days, minutes=1)
    file.note(until={"rome": until.isoformat()})
    now = file.read()
    assert list(now.valid) == (["rome"] if days > 0 else []) + ["oslo", "lima"]
    if words:
        (said,) = now.expiring()
        assert said.startswith(f"the key of rome {words} {until:%Y-%m-%d}; let the site run")
    else:
        assert now.expiring() == []


def test_a_file_that_is_held_for_ever_is_not_waited_for_for_ever(folder, monkeypatch):
    monkeypatch.setattr(roster, "_PATIENCE", 0.1)
    with Lock(folder), pytest.raises(InUse, match="is in use by another process"):
        RosterFile(folder).admit("cairo", "C")


def test_who_comes_and_who_has_gone():
    now = Roster({"rome": "R", "oslo": "O", "lima": "L"}, leaving=("oslo", "lima"))
    assert now.joining(["oslo"]) == ["rome"]
    assert now.left(["oslo"]) == ["lima"]
    assert now.remaining == ["rome"]
