"""A worker on another machine: its folder is removed, and each error is one of the worker."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from trimtab.studies.pool import Actor, RayWorker, WorkerError


class RayError(Exception):
    """What Ray raises."""


class Handle:
    """An actor here, whose methods are called as Ray calls them."""

    def __init__(self, actor):
        self.actor = actor

    def __getattr__(self, name):
        def remote(*words):
            getattr(self.actor, name)(*words)
            return object()

        return SimpleNamespace(remote=remote)


class FakeRay:
    """As much of Ray as a worker needs."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self):
        self.killed, self.waited = [], []

    def remote(self, cls):
        made = SimpleNamespace(remote=lambda setup: Handle(cls(setup)))
        return SimpleNamespace(options=lambda **words: made)

    def wait(self, references, timeout):
        self.waited += references

    def get(self, reference):
        return reference

    def kill(self, handle):
        self.killed.append(handle)


def worker(tmp_path):
    ray = FakeRay()
    return RayWorker(ray, {}, tmp_path), ray


def test_the_folder_of_an_entry_is_removed_at_the_end(tmp_path):
    made, ray = worker(tmp_path)
    folder = made.actor.actor.folder
    assert isinstance(made.actor.actor, Actor)
    assert folder.is_dir()
    made.request_stop()
    made.stop()
    assert not folder.exists()
    assert len(ray.waited) == len(ray.killed) == 1


def test_a_worker_that_was_not_asked_to_stop_is_not_waited_for(tmp_path):
    made, ray = worker(tmp_path)
    made.stop()
    assert not ray.waited
    made.actor.actor.close()


def answers(made, messages):
    """Let the actor of a worker answer a job with messages."""
    run = SimpleNamespace(remote=lambda job, files: messages)
    made.actor.actor.close()
    made.actor = SimpleNamespace(run=SimpleNamespace(options=lambda **words: run))
    return made.run({"label": "scaffold"})


def test_a_machine_that_is_lost_is_an_error_of_the_worker(tmp_path):
    def messages():
        yield {"note": "first"}
        raise RayError("gone")

    found = answers(worker(tmp_path)[0], messages())
    assert next(found) == {"note": "first"}
    with pytest.raises(WorkerError, match="a machine of the cluster was lost"):
        next(found)


def test_a_stage_that_failed_is_an_error_of_the_worker(tmp_path):
    with pytest.raises(WorkerError, match="KeyError"):
        list(answers(worker(tmp_path)[0], [{"failed": "KeyError: 'column'"}]))


def test_files_of_an_entry_are_written_before_its_message(tmp_path):
    found = answers(worker(tmp_path)[0], [{"done": True, "files": {"step=1/run.json": b"{}"}}])
    assert list(found) == []
    assert (Path(tmp_path) / "scaffold" / "step=1" / "run.json").read_bytes() == b"{}"
