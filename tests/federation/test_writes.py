"""Disks that are full or read-only: nothing is lost, it is said, and the run goes on after."""

import errno
import os
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.helpers.federation_in_process import Federation, quadratic
from trimtab import Scaffold, simulate
from trimtab.federation.protocol import coordinator
from trimtab.federation.storage.ledger import read_standing

SCAFFOLD = Scaffold(eta_l=0.1, K=3)
FULL, READ_ONLY = errno.ENOSPC, errno.EROFS


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path, SCAFFOLD, quadratic(), R=6)
    yield made
    made.close()


class Disk:
    """Let what is done to files below a folder fail, from the n-th time on, for some times."""

    def __init__(self, monkeypatch, folder, what, error, after=0, times=2):
        self.folder, self.error, self.after, self.left = str(folder), error, after, times
        self.failed = 0
        if what == "open":
            real = open

            def opened(path, mode="r", *rest, **more):
                return self.do(real, path, writes=mode not in ("r", "rb"))(
                    path, mode, *rest, **more
                )

            monkeypatch.setattr("builtins.open", opened)
            monkeypatch.setattr("io.open", opened)  # the name by which pathlib calls it
        elif what == "fsync":
            real = os.fsync
            monkeypatch.setattr(
                os, "fsync", lambda fd: self.do(real, os.readlink(f"/proc/self/fd/{fd}"))(fd)
            )
        else:
            real = os.replace
            monkeypatch.setattr(os, "replace", lambda old, new: self.do(real, new)(old, new))

    def do(self, real, path, writes=True):
        if not writes or not str(path).startswith(self.folder) or str(path).endswith("lock"):
            return real
        self.after -= 1
        if self.after >= 0 or self.left == 0:
            return real
        self.left -= 1
        self.failed += 1

        def fail(*_, **__):
            raise OSError(self.error, os.strerror(self.error), str(path))

        return fail


def assert_nothing_lost(federation):
    audit = federation.server.audit(federation.ask)
    assert not audit.missing
    assert audit.deviation <= 1e-13 * audit.largest
    cohorts = federation.cohorts()
    assert len(cohorts) == 6
    *_, last = simulate(SCAFFOLD, federation.problem, seed=3, cohorts=cohorts, executor="loop")
    assert torch.equal(last.x, federation.server.standing.server.x)


@pytest.mark.parametrize("error", [FULL, READ_ONLY], ids=["full", "read-only"])
@pytest.mark.parametrize("what", ["open", "fsync", "replace"])
@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_a_server_that_cannot_write_repeats_the_round(
    federation, monkeypatch, caplog, what, error, after
):
    next(federation.server.run(federation.ask))
    disk = Disk(monkeypatch, federation.folder / "server", what, error, after)
    rounds = federation.run()
    assert disk.failed == 2
    assert [done.r for done in rounds] == [2, 3, 4, 5, 6]
    said = [line for line in caplog.messages if "cannot be written" in line]
    uncertain = what == "fsync"  # of the folder, after the checkpoint is in place
    assert len(said) == 2 or (uncertain and said)
    assert all(os.strerror(error) in line and "nothing is lost" in line for line in said)
    assert_nothing_lost(federation)


@pytest.mark.parametrize("error", [FULL, READ_ONLY], ids=["full", "read-only"])
@pytest.mark.parametrize("what", ["open", "fsync", "replace"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_site_that_cannot_write_sits_out_and_comes_back(
    federation, monkeypatch, caplog, what, error, after
):
    next(federation.server.run(federation.ask))
    disk = Disk(monkeypatch, federation.folder / "site1", what, error, after)
    rounds = federation.run()
    assert disk.failed == 2
    out = [done for done in rounds if "site1" not in done.cohort]
    assert 1 <= len(out) <= 2
    assert len(rounds[-1].cohort) == 3
    for done in out:
        assert os.strerror(error) in done.absent["site1"]
        assert "nothing is lost" in done.absent["site1"]
    assert_nothing_lost(federation)


def test_an_experiment_that_cannot_begin_for_want_of_space_begins_later(tmp_path, monkeypatch):
    federation = Federation(tmp_path, SCAFFOLD, quadratic(), R=6)
    disk = Disk(monkeypatch, federation.folder / "server", "open", FULL, times=3)
    assert len(federation.run()) == 6
    assert disk.failed == 3
    assert_nothing_lost(federation)
    federation.close()


@contextmanager
def files_of_at_most(size):
    """Let the kernel itself refuse to write longer files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [100, 300])  # too small for a state, and for the journal
def test_a_write_that_the_kernel_cuts_off_leaves_nothing_behind(
    tmp_path, caplog, monkeypatch, size
):
    federation = Federation(tmp_path, SCAFFOLD, quadratic(), R=6)
    next(federation.server.run(federation.ask))
    before = federation.server.standing
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            assert not list(Path(tmp_path).rglob("*.part"))
            limit.__exit__(None, None, None)

    monkeypatch.setattr(coordinator, "sleep", sleep)
    limit = files_of_at_most(size)
    limit.__enter__()
    rounds = federation.server.run(federation.ask)
    (done,) = (next(rounds),)
    assert done.r == 2
    assert before.commit + 1 == federation.server.standing.commit
    assert "File too large" in caplog.text
    federation.run()
    assert_nothing_lost(federation)
    federation.close()


def test_a_checkpoint_that_is_in_place_counts_whatever_the_system_says(federation, monkeypatch):
    next(federation.server.run(federation.ask))
    folder, real, failed = federation.folder / "server", os.fsync, []

    def fsync(descriptor):
        if not failed and os.readlink(f"/proc/self/fd/{descriptor}") == str(folder):
            failed.append(descriptor)
            raise OSError(FULL, os.strerror(FULL))
        real(descriptor)

    def ask(requests, timeout):
        assert federation.server.standing.members == read_standing(folder).members
        return federation.ask(requests, timeout)

    monkeypatch.setattr(os, "fsync", fsync)
    assert [done.r for done in federation.run(ask)] == [2, 3, 4, 5, 6]
    assert failed
    assert_nothing_lost(federation)


def test_a_line_torn_by_a_crash_is_passed_over(federation):
    for done in federation.server.run(federation.ask):
        if done.r == 3:
            break
    with open(federation.folder / "server" / "journal.jsonl", "a") as file:
        file.write('{"commit": 5, "kind": "rou')
    federation.restart_server()
    federation.run()
    assert_nothing_lost(federation)
    federation.restart_server()
    assert_nothing_lost(federation)


def test_join_and_leave_say_when_they_cannot_write(federation, monkeypatch, refused):
    next(federation.server.run(federation.ask))
    disk = Disk(monkeypatch, federation.folder / "server", "open", FULL, times=1)
    with refused("cannot be written", "No space left"):
        federation.server.leave(federation.ask, "site1")
    assert disk.failed == 1
    federation.run()
    assert_nothing_lost(federation)
