"""What may go wrong around actors: memory, room that is not there, states that are given, disks."""

import errno
from itertools import islice

import pytest
import torch

from tests.helpers import fake_ray
from trimtab import Ray, Scaffold, Simulation, Tree, load_problem, simulate
from trimtab.cluster.recovery import LoggedRound, RoundLog, SentExchange
from trimtab.core import leaves

SCAFFOLD = Scaffold(eta_l=0.1, K=3)
HOW = {"S": 11, "lost": 0.2, "seed": 3}


@pytest.fixture
def ray(monkeypatch):
    return fake_ray.installed(monkeypatch)


@pytest.fixture(scope="module")
def digits():
    return load_problem("digits", N=20, batch=16)


def started(digits, executor, **options):
    return simulate(SCAFFOLD, digits, executor=executor, **HOW | options)


def advanced(sim, rounds):
    for _ in islice(sim, rounds):
        pass
    return sim


def same(one, other):
    a, b = (
        [leaf for _, state in sim.states.items() for leaf in leaves((sim.server, state))]
        for sim in (one, other)
    )
    return list(one.states) == list(other.states) and all(map(torch.equal, a, b))


def test_an_actor_that_ran_out_of_memory_is_replaced(ray, digits):
    sim = advanced(started(digits, Ray(shards=4, actors=2)), 2)
    victim, usual = ray.alive()[0], ray.get

    def get(reference):
        if not victim.alive and reference.error is not None:
            raise fake_ray.OutOfMemoryError("killed by the memory monitor")
        return usual(reference)

    ray.get, victim.alive = get, False
    advanced(sim, 2)
    assert len(sim.runs_on.recoveries) == 1
    assert same(sim, advanced(started(digits, Tree(4)), 4))


def test_a_machine_that_is_lost_but_looks_free_is_not_waited_for(ray, digits, monkeypatch):
    """As for some seconds after its loss: no actor gets a place there."""
    sim = advanced(started(digits, Ray(shards=4, wait=0.0)), 2)
    place = ray.place

    def nowhere_if_full(handle):
        try:
            return place(handle)
        except AssertionError:
            return "nowhere"

    def wait(references, timeout):
        waiting = ray.handles[-1].node == "nowhere"
        return ([], references) if waiting else (references, [])

    monkeypatch.setattr("trimtab.cluster.engine.has_free_node", lambda ray, needs: True)
    ray.place, ray.wait = nowhere_if_full, wait
    ray.remove("n1")
    advanced(sim, 2)
    assert {handle.node for handle in ray.alive()} == {"n0", "n2"}
    assert same(sim, advanced(started(digits, Tree(4)), 4))


def test_an_actor_that_dies_whenever_it_is_asked_ends_the_run(ray, digits, tmp_path, refused):
    sim = advanced(started(digits, Ray(shards=4, actors=1, wait=0.0)), 2)

    def kill(handle, name, arguments):
        handle.alive = handle.alive and not (name == "invoke" and arguments[1] == "clients")

    ray.before = kill
    with refused("5 actors in a row died while shards 0 to 3 ran 'clients'"):
        list(sim.states)


def test_an_actor_that_dies_while_a_run_is_resumed_is_replaced(ray, digits, tmp_path):
    how = Ray(shards=4, actors=2, snapshots=tmp_path / "s")
    sim = advanced(started(digits, how), 3)
    sim.save(tmp_path / "sim")
    sim.runs_on.close()
    killed = []

    def kill(handle, name, arguments):
        if name == "invoke" and arguments[1] == "load" and not killed:
            killed.append(handle)
            handle.alive = False

    ray.before = kill
    again = Simulation.load(tmp_path / "sim", SCAFFOLD, digits, executor=how)
    assert killed
    assert same(advanced(again, 2), advanced(started(digits, Tree(4)), 5))


def test_what_was_ended_does_not_begin_anew_without_its_states(ray, digits, refused):
    sim = advanced(started(digits, Ray(shards=4)), 2)
    sim.runs_on.close()
    with refused("the actors of this simulation were ended"):
        next(sim)
    assert not ray.alive()


def test_a_start_that_fails_leaves_no_actors_behind(ray, digits):
    sim = started(digits, Ray(shards=4))

    def fail(handle, name, arguments):
        if name == "create_shard" and handle is ray.handles[0]:
            handle.alive = False

    ray.before = fail
    with pytest.raises(ValueError, match="died before its first round"):
        next(sim)
    assert not ray.alive()
    ray.before = lambda *_: None
    assert same(advanced(sim, 2), advanced(started(digits, Tree(4)), 2))


# -- states that are given


@pytest.mark.parametrize("saved", [False, True])
def test_a_state_that_is_given_between_rounds_counts_and_survives(ray, digits, tmp_path, saved):
    runs = [started(digits, Tree(4)), started(digits, Ray(shards=4, snapshots=tmp_path, every=2))]
    for sim in runs:
        advanced(sim, 4)
    if saved:  # A snapshot of round 4 does not have what is given after it.
        runs[1].save(tmp_path / "sim")
    for sim in runs:
        sim.states[0] = torch.full_like(sim.server.x, 0.25)
        advanced(sim, 1)
    ray.alive()[0].alive = False
    for sim in runs:
        advanced(sim, 2)
    assert runs[1].runs_on.recoveries
    assert same(*runs)


def test_a_run_that_is_saved_many_times_keeps_all_states(ray, digits, tmp_path):
    how = Ray(shards=2, snapshots=tmp_path / "s")
    sim = started(digits, how, S=2)
    for _ in range(5):
        advanced(sim, 1)
        sim.save(tmp_path / "sim")
    for _ in range(12):
        sim.save(tmp_path / "sim")
    sim.states[0] = torch.ones_like(sim.server.x)
    sim.save(tmp_path / "sim")
    expected = dict(sim.states.items())
    sim.runs_on.close()
    again = Simulation.load(tmp_path / "sim", SCAFFOLD, digits, executor=how)
    found = dict(again.states.items())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[i], state) for i, state in expected.items())
    assert torch.equal(found[0], torch.ones_like(sim.server.x))


# -- disks that are full


def test_a_snapshot_that_fails_leaves_no_files(ray, digits, tmp_path, monkeypatch):
    from trimtab.cluster import shard

    sim = advanced(started(digits, Ray(shards=4, actors=1, snapshots=tmp_path)), 2)
    usual, written = shard.write_tensors, []

    def write(path, tensors, metadata):
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        usual(path, tensors, metadata)

    monkeypatch.setattr(shard, "write_tensors", write)
    with pytest.raises(OSError, match="cannot take a snapshot"):
        sim.save(tmp_path / "sim")
    assert len(written) == 2
    assert not list(tmp_path.glob("shard-*"))


class Full:
    """A file on a disk that is full."""

    def seek(self, at):
        return at

    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_that_cannot_be_written_says_what_to_do():
    log = RoundLog()
    log._file = Full()
    with pytest.raises(OSError, match=r"cannot take more of the log of rounds \(No space .*TMPDIR"):
        log.append(LoggedRound(1, (SentExchange(b"abc", [0]),), [0]))
    assert len(log) == 0


def test_a_truncated_log_is_an_error_and_not_a_wrong_round():
    log = RoundLog()
    log.append(LoggedRound(1, (SentExchange(b"abc", [0]),), [0]))
    log._file.truncate(1)
    with pytest.raises(OSError, match=r"temporary file of the log in .* was truncated; resume"):
        list(log.since(0, lambda i: True))
