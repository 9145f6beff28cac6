"""A process that dies at any durable write, before, within or after it, costs a round at most."""

import subprocess
import sys
from pathlib import Path

from trimtab.federation.storage.faults import POINTS

SCRIPT = Path(__file__).with_name("killed_at.py")


def test_a_kill_at_every_durable_write_is_survived(tmp_path):
    command = [sys.executable, SCRIPT, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(POINTS) == 11
