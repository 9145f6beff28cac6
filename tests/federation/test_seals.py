"""Checksums: what has changed in a durable file is noticed when it is read, and not used."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.federation_in_process import Federation, quadratic, unsynced  # noqa: F401
from trimtab import Scaffold
from trimtab.commit import States
from trimtab.federation.message import Message
from trimtab.federation.storage import journal, ledger
from trimtab.federation.storage.files import Damaged, read_sealed, write_sealed
from trimtab.federation.storage.journal import read_summary
from trimtab.federation.storage.ledger import read_standing

SCAFFOLD = Scaffold(eta_l=0.1, K=3)
QUICK = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path, SCAFFOLD, quadratic(), R=4)
    made.run()
    yield made
    made.close()


def flipped(data, where):
    """Return bytes with one bit changed, at a share of their length."""
    changed = bytearray(data)
    bit = int(where * 8 * len(changed))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


where = st.floats(0, 1, exclude_max=True)


@QUICK
@given(where=where)
def test_a_bit_that_flips_in_a_message_on_disk_is_noticed(tmp_path, where):
    path, x = tmp_path / "a.safetensors", torch.arange(40, dtype=torch.float64)
    ledger.write(path, Message({"r": 7, "text": "ä"}, {"0": x}), "test:file")
    path.write_bytes(flipped(path.read_bytes(), where))
    try:
        got = ledger.read(path)
    except ValueError:
        return
    assert (got.header, set(got.arrays)) == ({"r": 7, "text": "ä"}, {"0"})  # it was in the seal
    assert torch.equal(got.arrays["0"], x)


@QUICK
@given(where=where)
def test_a_bit_that_flips_in_json_is_noticed(tmp_path, where):
    path, content = tmp_path / "run.json", {"R": 5, "name": "ä", "none": None, "list": [1.5, "b"]}
    write_sealed(path, content)
    assert read_sealed(path) == content
    path.write_bytes(flipped(path.read_bytes(), where))
    try:
        got = read_sealed(path)
    except ValueError:
        return
    assert {name: got[name] for name in content if name in got} == content
    assert len(got) == 5  # only the name of the seal may have changed: an entry that nobody knows


@QUICK
@given(where=where, many=st.integers(1, 6))
def test_a_bit_that_flips_in_the_journal_is_noticed(tmp_path, where, many):
    lines = [{"commit": n, "kind": "round", "r": n, "text": "x" * n} for n in range(1, many + 1)]
    (tmp_path / journal.JOURNAL).unlink(missing_ok=True)
    path, head = tmp_path / journal.JOURNAL, ""
    for line in lines:
        head = journal.append(path, line, head).digest
    path.write_bytes(flipped(path.read_bytes(), where))
    try:
        got = journal.read_lines(tmp_path, head)
    except Damaged:
        return
    found = [{k: line.get(k) for k in lines[0]} for line in got]
    assert found in (lines, lines[1:])  # the ledger warns of a first line that is missing


def test_one_flipped_bit_of_x_stops_the_server_and_the_status(federation, refused):
    path = federation.folder / "server" / "checkpoint.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    for read in (read_standing, read_summary):
        with refused("checkpoint.safetensors is damaged", "its checksum", "restore it"):
            read(path.parent)
    with refused("is damaged"):
        federation.restart_server()
    path.write_bytes(whole)
    federation.restart_server()


def test_one_flipped_bit_of_a_control_is_a_lost_state_and_the_log_says_so(federation, caplog):
    accepted = federation.server.standing.member("site1").accepted.tag
    folder = federation.folder / "site1" / federation.server.standing.experiment
    (path,) = folder.glob(f"*-{accepted}-*")
    data = path.read_bytes()
    path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    assert States(folder).load(accepted) is None
    assert f"{path} is damaged (its checksum is not that of its content)" in caplog.text
    audit = federation.server.audit(federation.ask)
    assert not audit.ok
    assert set(audit.missing) == {"site1"}
    federation.restart_server(R=6)
    federation.run()
    assert federation.server.audit(federation.ask).ok


def test_a_journal_that_was_changed_stops_the_server_and_says_what_to_do(federation, refused):
    path = federation.folder / "server" / journal.JOURNAL
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"r": 2', b'"r": 3', 1))
    with refused("is damaged", "line 3 is not what was written", "move it away"):
        federation.restart_server()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    with refused("is damaged", "the line of the last commit is missing or was altered"):
        federation.restart_server()
    path.unlink()
    federation.restart_server(R=5)
    assert [done.r for done in federation.run()] == [5]


def test_a_file_that_was_changed_by_hand_says_what_to_do(tmp_path, refused):
    path = tmp_path / "run.json"
    write_sealed(path, {"R": 3})
    path.write_text(path.read_text().replace("3", "4", 1))
    with refused("run.json is damaged", 'remove its last entry, "sha256"'):
        read_sealed(path)
    path.write_text('{"R": 4}')
    assert read_sealed(path) == {"R": 4}
    path.write_text("[]")
    with refused("holds no JSON object"):
        read_sealed(path)
