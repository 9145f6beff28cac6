"""The demonstration of a federation: stopped with Ctrl-C it goes on, and no process is left."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.federation.processes.demo import R, demonstrate
from trimtab.federation.setup.job import read_job
from trimtab.federation.setup.operator import Federation

pytestmark = pytest.mark.federation

COMMAND = (sys.executable, "-m", "trimtab", "federate", "demo", "--json", "--seed", "3")


def start(*words):
    return subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def left_over(folder):
    """Return the processes that have to do with a folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in words and "pytest" not in words:
            found.append(words)
    return found


def stop_after(sentence, *words):
    """Send Ctrl-C when a sentence is told; return all that was."""
    process = start(*words)
    told = []
    try:
        for line in process.stderr:
            told.append(line)
            if line.startswith(sentence):
                process.send_signal(signal.SIGINT)
                break
        out, rest = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, told
    assert out == ""
    assert "Traceback" not in rest
    return rest


def test_a_demonstration_that_is_stopped_twice_goes_on_to_its_end(tmp_path):
    home = tmp_path / "demo"
    said = stop_after("Scaffold round 2", "--out", str(home))
    assert f"stopped; all committed rounds are in {home}: repeat the command." in said
    assert left_over(home) == []
    said = stop_after("FedAvg round 1", "--out", str(home))
    assert "repeat the command." in said
    assert left_over(home) == []
    done = start("--out", str(home))
    out, told = done.communicate(timeout=300)
    assert done.returncode == 0, told
    assert "Scaffold round" not in told
    assert "FedAvg round 1 " not in told
    assert f"FedAvg round {R} of {R}" in told
    found = json.loads(out)
    assert found["rounds"] == found["fedavg"]["rounds"] == R
    assert found["audit"]["deviation"] < 1e-6
    assert read_job(Federation.read(home / "operator")).seed == 3
    page = (home / "report.html").read_text()
    assert "How does Scaffold do on four sites on this machine?" in page
    assert "(SCAFFOLD)" not in page
    assert left_over(home) == []
    with pytest.raises(ValueError, match="has a demonstration of seed 3; pass seed=3, or another"):
        demonstrate(out=home, seed=4)


def test_a_demonstration_without_a_folder_says_that_nothing_is_kept():
    said = stop_after("Scaffold round 1")
    assert "stopped; nothing is saved without --out: start again." in said
