"""A process that dies at any durable write, before, within or after it, costs a round at most."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.killed_at import POINTS

pytestmark = pytest.mark.federation

ROOT = Path(__file__).parents[2]


def test_a_kill_at_every_durable_write_is_survived(tmp_path):
    command = [sys.executable, "-m", "tests.helpers.killed_at", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(POINTS) == 19
