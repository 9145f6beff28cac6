"""Edges of a federation's processes: a pipe that has closed, a request that kills, odd clocks."""

import contextlib
import io
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from trimtab._processes import Child
from trimtab.core import Steps, StepSize, validate
from trimtab.federation.events import Traffic
from trimtab.federation.log import attached
from trimtab.federation.processes.operator import OperatorProcess
from trimtab.federation.processes.site import SiteProcess
from trimtab.federation.processes.superlink import SuperLinkProcess
from trimtab.federation.processes.worker import WorkerGone
from trimtab.federation.protocol.rehearsal import plan
from trimtab.federation.storage import keys
from trimtab.federation.transport.flower.superlink import Settings


@pytest.fixture
def superlink(tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        settings = Settings([], [], "", "", str(tmp_path), {})
        yield SuperLinkProcess([listener], settings, {}, tmp_path / "superlink.log")


def closed_pipe():
    pipe = io.BytesIO()
    pipe.close()
    return SimpleNamespace(poll=lambda: None, stdin=pipe, pid=0)


def test_who_asks_a_superlink_that_ends_meanwhile_gets_what_is_known(superlink):
    """Another thread may reap it between two lines: its pipe is closed, or it is gone."""
    superlink.process = closed_pipe()
    assert superlink.traffic() == Traffic()
    superlink.admit({"va": "a key"})
    superlink.bound(5)
    assert superlink.settings.sites == {"va": "a key"}
    assert superlink.settings.limit == 5
    superlink.process = None
    assert superlink.traffic() == Traffic()


def test_a_request_that_kills_every_worker_is_answered_with_that(tmp_path):
    asked = []

    class Dying:
        def answer(self, request, folder):
            asked.append(request)
            raise WorkerGone("killed by SIGKILL")

    site = object.__new__(SiteProcess)
    site.stop, site.folder, site.worker = Event(), tmp_path, Dying()
    site._revive = lambda: None
    said = site._answer("the request")
    assert said == f"its worker died {len(asked)} times at this request"
    assert 2 <= len(asked) <= 5
    site.stop.set()
    assert site._answer("the request") == "the site is stopping"


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (None, "the run has ended."),
        (ValueError("no sites."), "the run has ended: no sites."),
        (RuntimeError("the rounds died"), "the run has ended: the rounds died."),
        (KeyError(), "the run has ended: KeyError."),
        (KeyboardInterrupt(), "the run has ended: it was interrupted."),
    ],
)
def test_every_end_of_a_run_is_in_the_log(end, said):
    def events(job):
        yield "an event"
        if end is not None:
            raise end

    process, lines = object.__new__(OperatorProcess), []
    process._events_of, process.interrupted = events, False
    seen = []
    with attached(follow=lines.append), contextlib.suppress(type(end or ValueError())):
        for event in process.events(None):
            seen.append(event)
    assert seen == ["an event"]
    assert [line.removeprefix("warning: ") for line in lines] == [said]


def test_a_superlink_that_dies_while_it_starts_is_started_once_more_and_its_signal_named(tmp_path):
    process, lines, started = object.__new__(OperatorProcess), [], []

    class Dying:
        process = SimpleNamespace(poll=lambda: -9)
        last_words = Child("it", "a:b", [], environment={}).last_words

        def start(self):
            started.append(self)

        def stop(self):
            pass

    process.superlink, process.federation = Dying(), SimpleNamespace(folder=tmp_path)
    with attached(follow=lines.append), pytest.raises(ValueError, match="killed by SIGKILL"):
        process.start()
    assert len(started) == 2
    assert lines == [
        "warning: the SuperLink ended (killed by SIGKILL). It is started once more.",
        "warning: the run has ended: the SuperLink ended (killed by SIGKILL).",
    ]


def test_a_signal_and_a_code_are_named_with_what_this_process_said(tmp_path):
    log = tmp_path / "log"
    log.write_text("an earlier process's last line\n")
    child = Child("it", "a:b", [], environment={}, output=log)
    child._written = log.stat().st_size
    assert child.last_words(-9) == "killed by SIGKILL"
    assert child.last_words(-63) == "killed by signal 63"
    assert child.last_words(3) == "exit code 3"
    with open(log, "a") as file:
        file.write("INFO: fine\nno memory\n")
    assert child.last_words(3) == "exit code 3: no memory"


# -- clocks and certificates


def test_a_certificate_of_tomorrow_is_not_called_expired(refused, tmp_path, monkeypatch):
    keys.make_authority(tmp_path)
    keys.make_server_certificate(tmp_path, ["127.0.0.1"])

    class Yesterday(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(UTC) - timedelta(days=1)

    monkeypatch.setattr(keys, "datetime", Yesterday)
    with refused("server.crt is valid from", "clock"):
        keys.check_certificate(tmp_path / "server.crt")


# -- a rehearsal


class Server(NamedTuple):
    x: Any


STEPS = []


@dataclass(frozen=True, kw_only=True)
class Counting:
    eta_l: StepSize
    K: Steps

    def __post_init__(self):
        validate(self)

    def init_server(self, x):
        return Server(x)

    def init_client(self, x):
        return ()

    def local(self, g, _, x):
        for k in range(g.steps(self.K)):
            STEPS.append(k)
        return (g(x),), ()

    def round(self, server, clients):
        (dx,) = clients.run(self.local, server.x).mean()
        return Server(server.x + dx)


def test_a_rehearsal_takes_one_step_however_many_a_round_has():
    found = plan(Counting(eta_l=0.1, K=5000), 7, torch.float32)
    assert [exchange.upload[0].shape for exchange in found.exchanges] == [(7,)]
    assert STEPS == [0, 0]  # in each of two rehearsals


# -- signs of life


def test_a_pipe_is_not_closed_while_another_thread_reads_it(tmp_path):
    """The descriptor of a closed pipe may be another file's, whose bytes would be taken."""
    reading, done = Event(), []

    class Slow:
        def read(self):
            reading.set()
            done.append("begin")
            time.sleep(0.1)
            done.append("end")
            return True

        def close(self):
            done.append("close")

    child = Child("it", "a:b", [], environment={}, output=tmp_path / "log")
    child._pipe = Slow()
    looks = Thread(target=lambda: child.seconds_since_heartbeat)
    looks.start()
    reading.wait()
    child._close_pipe()
    looks.join()
    assert done == ["begin", "end", "close"]
