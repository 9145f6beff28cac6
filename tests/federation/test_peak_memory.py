"""The server's memory does not grow with the number of sites."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytestmark = pytest.mark.federation

SHM = Path("/dev/shm")
ROOT = Path(__file__).parents[2]


def peak(N, folder):
    command = [sys.executable, "-m", "tests.helpers.made_up_uploads", str(N), folder / str(N)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    return int(done.stdout)


def test_the_peak_is_the_same_for_5_and_20_sites():
    with TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as folder:
        few, many = peak(5, Path(folder)), peak(20, Path(folder))
    assert few > 200_000, "kB, with several vectors of 45 MB"
    assert abs(many - few) <= 0.2 * few
