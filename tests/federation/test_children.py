"""Children and what they show of themselves. Small processes, no Flower."""

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from trimtab._processes import Child, json_lines, tail
from trimtab.federation.log import attached
from trimtab.federation.processes.superlink import damage, delete_database
from trimtab.federation.transport.flower.site_keys import Clocks

CHILD = """
import json
import os
import signal
import subprocess
import sys
import time
from trimtab import _processes

def beats():
    _processes.start_heartbeat()
    time.sleep(600)

def fails():
    raise SystemExit(3)

def computes():
    print("busy", flush=True)
    while True:
        pass

def answers():
    for line in sys.stdin:
        print(line, end="", flush=True)

def has_a_child():
    own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    # Not print: the signal may come while the print below is under way, and print would raise.
    signal.signal(signal.SIGTERM, lambda *_: os.write(1, json.dumps(own.poll()).encode() + b"\\n"))
    print(json.dumps(own.pid), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    (tmp_path / "small.py").write_text(CHILD)
    made = []

    def make(function, **words):
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        environment = {"PYTHONPATH": path}
        target = f"small:{function}"
        words = {"output": tmp_path / "log"} | words
        made.append(Child(function, target, [], environment=environment, **words))
        return made[-1]

    yield make
    for one in made:
        one.stop(timeout=1.0)


def until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_child_that_beats_is_not_stuck_until_it_is_stopped(child):
    one = child("beats")
    one.start()
    until(lambda: one.seconds_since_heartbeat < 0.1)
    assert not one.is_hung(10)
    os.kill(one.pid, signal.SIGSTOP)
    until(lambda: one.is_hung(3))
    before = one.pid
    one.kill()
    assert one.supervise() == -signal.SIGKILL
    until(lambda: one.supervise() is None and one.alive)
    assert one.pid != before
    until(lambda: one.seconds_since_heartbeat < 0.1)


def test_a_child_that_computes_and_says_nothing_is_not_stuck(child):
    one = child("computes")
    one.start()
    until(lambda: "busy" in one.output.read_text())
    for _ in range(30):
        assert not one.is_hung(0.5)
        time.sleep(0.1)


def test_one_that_fails_is_started_for_ever_after_growing_pauses(child, monkeypatch):
    one, pauses = child("fails"), []
    one.start()
    for _ in range(4):
        until(lambda: not one.alive)
        assert one.supervise() == 3
        pauses.append(one._delay)
        one._restart_after = 0.0  # without the pause itself
        assert one.supervise() is None
    assert pauses == sorted(set(pauses))
    for _ in range(10):
        one.back_off()
    assert one._delay == 15.0


def test_a_child_without_a_log_is_sent_messages_until_it_has_ended(child):
    one = child("answers", output=None, piped=True)
    assert not one.send({"a": 0})
    one.start()
    answers = json_lines(one.stdout)
    for message in ({"a": 1}, {"b": [2.5]}):
        assert one.send(message)
        assert next(answers) == message
    one.request_stop()
    assert list(answers) == []
    assert not one.send({"a": 2})
    assert one.wait() in (0, -signal.SIGTERM)
    assert one.process is None
    assert not one.send({"a": 3})


def test_its_own_children_outlive_the_request_to_stop_and_end_with_it(child):
    """A round under way may need them, those of a DataLoader for one."""
    one = child("has_a_child", piped=True)
    one.start()
    pid = int(one.stdout.readline())
    one.terminate()
    assert one.stdout.readline() == b"null\n"  # its child runs
    os.kill(pid, 0)
    one.stop(timeout=0.1)
    until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid))


def _is_zombie(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_the_end_of_a_log_is_what_says_more_than_how_it_goes(tmp_path):
    path = tmp_path / "log"
    path.write_text("\x1b[91mERROR\x1b[0m: no way\n\x1b[92mINFO\x1b[0m: Finished\n\n")
    assert tail(path) == "ERROR: no way"
    path.write_text("INFO: Finished\n")
    assert tail(path) == "INFO: Finished"


def test_clocks_are_named_once_and_again_when_they_agree():
    lines = []
    with attached(follow=lines.append):
        clocks = Clocks("site rome's", "the server's")
        for ahead in (None, 0.4, 7.0, 7.0, 7.2, -0.5, 0.1, 5.5, 0.0):
            clocks.note(ahead)
    assert len(lines) == 2
    assert "7 seconds ahead of the server's" in lines[0]
    assert lines[1] == "site rome's clock agrees with the server's again."


def test_a_damaged_database_is_seen(tmp_path):
    path = tmp_path / "superlink.db"
    assert damage(path) == ""
    with closing(sqlite3.connect(path)) as link:
        link.execute("create table a (b)")
        link.executemany("insert into a values (?)", [("x" * 1000,)] * 100)
        link.commit()
    assert damage(path) == ""
    with open(path, "r+b") as file:
        file.seek(8192)
        file.write(os.urandom(20_000))
    assert damage(path)
    path.with_name(f"{path.name}-wal").touch()
    delete_database(path)
    assert not list(tmp_path.iterdir())
