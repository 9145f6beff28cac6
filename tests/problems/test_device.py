"""device=…: one value that reaches module, data, mini-batches, oracles and every executor."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.helpers.learning import clients, net
from trimtab import Supervised

EXECUTORS = ("loop", "batched", "threads", "auto")
PROBLEMS = ("named", "on batch", "linear", "weighted", "collated", "numbers")


@pytest.fixture(scope="module")
def on_the_device():
    """Return what the script found on a device written in Python, which has no float64."""
    command = [sys.executable, "-m", "tests.helpers.fake_device"]
    folder = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nothing_meets_a_tensor_of_the_cpu_on_a_device_written_in_python(on_the_device):
    """As on a GPU, an operation on tensors of two devices fails there."""
    found = on_the_device["trained"]
    assert set(found) == {f"{problem}, {each}" for problem in PROBLEMS for each in EXECUTORS}
    for name, result in found.items():
        assert result["device"] == "fake:0", name
        assert result["apart"] < 1e-4, name


def test_a_diagnosis_needs_no_float64_on_the_device(on_the_device):
    here, there = (on_the_device["diagnosed"][place] for place in ("here", "there"))
    for what, numbers in there.items():
        assert numbers == pytest.approx(here[what], rel=0.02), what


def test_the_device_is_where_module_and_data_are():
    problem = Supervised(net(), F.cross_entropy, clients(5, 6), device="cpu")
    assert problem.model.device == problem.clients[0].X.device == torch.device("cpu")
    assert problem.replace(batch=2).model.device == torch.device("cpu")


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("meta", ["device='meta'", "no numbers"]),
        ("nowhere", ["device='nowhere'", "such as 'cpu'"]),
        (3.5, ["device=3.5", "such as 'cpu'"]),
        ("cuda:99", ["device='cuda:99'", "such as 'cpu'"]),
    ],
)
def test_a_device_that_cannot_compute_is_refused(refused, device, words):
    with refused(*words):
        Supervised(net(), F.cross_entropy, clients(5), device=device)
