"""A site and its worker, without a server: what happens when the worker is busy, or dies."""

import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from tests.helpers.operator_folder import operator_folder
from trimtab import FedAvg
from trimtab.algorithms.registry import encode
from trimtab.commit import START
from trimtab.federation.log import attached
from trimtab.federation.message import (
    Message,
    decode_header,
    encode_arrays,
    encode_header,
    this_trimtab,
)
from trimtab.federation.processes.site import SiteProcess
from trimtab.federation.processes.worker import Ready
from trimtab.federation.setup.site import unpack
from trimtab.federation.storage.policy import digest_of
from trimtab.federation.transport.flower.objects import HEADER_UP, Parcel

PROBLEM = """
import time
from contextlib import closing
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F


class Linear(nn.Linear):
    def forward(self, X):
        Path("{flags}/busy").touch()
        while Path("{flags}/slow").exists():
            time.sleep(0.05)
        return super().forward(X)


def model():
    return Linear(3, 2), F.cross_entropy


def silo(data):
    X, y = torch.ones(8, 3), torch.arange(8) % 2
    return (X, y), (X, y)
"""


@pytest.fixture
def site(tmp_path):
    problem = PROBLEM.format(flags=tmp_path)
    made = operator_folder(tmp_path / "operator", ["rome"], problem)
    lines = []
    folder = unpack(made.archive("rome"), tmp_path)
    process = SiteProcess(folder, tmp_path)
    process.lines = lines
    assert process.start() == Ready(n=8, tested=8)
    with attached(follow=lines.append):
        yield process
    (tmp_path / "slow").unlink(missing_ok=True)
    process.close()


def evaluate(folder):
    header = this_trimtab() | {"kind": "evaluate", "site": "rome", "experiment": "e"}
    header |= {"problem": digest_of((folder / "problem.py").read_bytes())}
    header |= {"algorithm": encode(FedAvg(eta_l=0.1, K=1))}
    header |= {"tag": "t", "accepted": START, "digest": "", "index": 0}
    header |= {"branch": 1, "commit": 0, "head": "", "keep": 10}
    return Message(header, {"0": torch.zeros(8)})


def ask(site):
    asked = evaluate(site.site_folder.folder)
    request = Parcel(site.folder, encode_header(asked.header))
    with closing(request.fill([encode_arrays(asked.arrays)])):
        reply = site._answer(request)
    if isinstance(reply, str):
        return reply
    with closing(reply):
        return decode_header(reply.header, HEADER_UP)


def make_busy(site, folder):
    """Ask, in a thread, a question that the worker does not get done with."""
    (folder / "busy").unlink()
    (folder / "slow").touch()
    found = []
    thread = threading.Thread(target=lambda: found.append(ask(site)))
    thread.start()
    until = time.monotonic() + 30
    while not (folder / "busy").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    return thread, found


def test_a_site_that_is_stopped_does_not_wait_for_its_worker(site, tmp_path):
    thread, found = make_busy(site, tmp_path)
    below = site.worker.child.pid
    site.stop.set()
    site._tend()
    thread.join(10)
    assert not thread.is_alive()
    assert found == ["the site is stopping"]
    site.close()
    assert not Path(f"/proc/{below}").exists()


def test_a_worker_that_dies_is_replaced_and_asked_once_more(site, tmp_path):
    thread, found = make_busy(site, tmp_path)
    os.kill(site.worker.child.pid, signal.SIGKILL)
    (tmp_path / "slow").unlink()
    thread.join(60)
    assert found[0]["status"] == "done"
    assert found[0]["metrics"]["loss"] == pytest.approx(0.693)  # three digits leave the site
    said = "warning: the worker died (killed by SIGKILL); it is started again and asked once more."
    assert said in site.lines


DIES = """
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F


def model():
    return nn.Linear(3, 2), F.cross_entropy


def silo(data):
    deaths = list(Path("{flags}").glob("death*"))
    if len(deaths) < {times}:
        Path("{flags}/death" + str(len(deaths))).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    X, y = torch.ones(8, 3), torch.arange(8) % 2
    if {times}:
        return (X, y), (X, y)
"""


def test_a_worker_that_dies_while_it_starts_is_started_again_and_its_signal_named(tmp_path):
    made = operator_folder(tmp_path / "operator", ["rome"], DIES.format(flags=tmp_path, times=2))
    process, lines = SiteProcess(unpack(made.archive("rome"), tmp_path), tmp_path), []
    try:
        with attached(follow=lines.append):
            assert process.start() == Ready(n=8, tested=8)
    finally:
        process.close()
    said = "warning: the worker ended while it started (killed by SIGKILL); it is started again."
    assert lines.count(said) == 2
    assert process.worker.child.starts == 3


def test_a_worker_that_reports_a_reason_is_not_started_again(tmp_path):
    broken = DIES.format(flags=tmp_path, times=0).replace(
        "    X, y = torch", '    raise ValueError("no")\n    X, y = torch'
    )
    made = operator_folder(tmp_path / "operator", ["rome"], broken)
    process = SiteProcess(unpack(made.archive("rome"), tmp_path), tmp_path)
    try:
        with pytest.raises(ValueError, match="no"):
            process.start()
        assert process.worker.child.starts == 1
    finally:
        process.close()


def test_a_site_that_is_stopped_while_its_worker_dies_ends(tmp_path):
    made = operator_folder(tmp_path / "operator", ["rome"], DIES.format(flags=tmp_path, times=99))
    process = SiteProcess(unpack(made.archive("rome"), tmp_path), tmp_path)

    class Follow(list):
        def append(self, line):
            super().append(line)
            process.stop.set()

    lines = Follow()
    try:
        with attached(follow=lines.append):
            assert process.start() is None
        assert len(lines) >= 1
    finally:
        process.close()
