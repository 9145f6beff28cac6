"""A lane on another machine: the folder it works in is removed, and no error leaves us waiting."""

from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from trimtab.studies.remote import LaneActor, RemoteHelper


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
    """As much of Ray as a helper asks for."""

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


def helper(tmp_path):
    ray, inbox = FakeRay(), SimpleQueue()
    return RemoteHelper(ray, {}, inbox, tmp_path), ray, inbox


def test_the_folder_of_a_lane_is_removed_at_the_end(tmp_path):
    made, ray, _ = helper(tmp_path)
    folder = made.actor.actor.folder
    assert isinstance(made.actor.actor, LaneActor)
    assert folder.is_dir()
    made.ask_to_end()
    made.wait()
    made.end()
    assert not folder.exists()
    assert len(ray.waited) == len(ray.killed) == 1


def test_a_helper_that_was_lost_is_not_waited_for(tmp_path):
    made, ray, _ = helper(tmp_path)
    made.wait()
    assert not ray.waited
    made.actor.actor.close()


@pytest.mark.parametrize("error", [RayError("gone"), OSError("the disk is full")])
def test_whatever_fails_while_it_is_listened_to_is_told(tmp_path, error):
    made, _, inbox = helper(tmp_path)

    def told():
        yield {"note": "first"}
        raise error

    made._listen(told(), "scaffold")
    assert [inbox.get_nowait()[1] for _ in range(2)] == [{"note": "first"}, None]
    made.actor.actor.close()


def test_files_of_a_lane_are_written_before_its_message(tmp_path):
    made, _, inbox = helper(tmp_path)
    made._listen(iter([{"done": [], "files": {"step=1/run.json": b"{}"}}]), "scaffold")
    assert inbox.get_nowait()[1] == {"done": []}
    assert (Path(tmp_path) / "scaffold" / "step=1" / "run.json").read_bytes() == b"{}"
    made.actor.actor.close()
