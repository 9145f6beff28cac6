"""Client states in memory and in mapped files: the same states, and no more memory than allowed."""

import gc
import os
import tempfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import SCAFFOLD, D, history, quadratic, run, same, same_simulation

from trimtab.simulation import memory
from trimtab.simulation.memory import ClientStates

ROW = 8 * D  # bytes of a state of the quadratic


def folders():
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("trimtab-states")}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize("limit", [0, ROW, 2 * ROW + 5, 100 * ROW])
def test_the_limit_changes_no_bit_of_a_simulation(limit):
    settings = {"S": 4, "lost": 0.2}
    free, rounds = run(SCAFFOLD, quadratic(), 8, **settings)
    tight, others = run(SCAFFOLD, quadratic(), 8, memory=limit, **settings)
    assert same_simulation(free, tight)
    assert history(rounds) == history(others)
    assert free.audit() == tight.audit() < 1e-12
    assert tight.states.in_memory <= limit
    assert free.states.in_memory == len(free.states) * ROW


@pytest.mark.parametrize("limit", [0, ROW, None])
def test_a_state_that_was_read_does_not_change_when_a_newer_one_is_stored(limit):
    states = ClientStates(limit)
    for client in (1, 2):
        states[client] = torch.zeros(D, dtype=torch.float64)
    before = states[2]
    states[2] = torch.ones(D, dtype=torch.float64)
    assert torch.equal(before, torch.zeros(D, dtype=torch.float64))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(-99, 99)), max_size=40),
    st.one_of(st.none(), st.integers(0, 200)),
)
def test_states_are_a_mapping_that_stays_within_its_limit(writes, limit):
    states, expected = ClientStates(limit), {}
    for client, value in writes:
        state = (torch.full((2,), float(value)), (torch.tensor([value]), ()))
        states[client] = expected[client] = state
        assert limit is None or states.in_memory <= limit
    assert list(states) == sorted(expected)
    assert len(states) == len(expected)
    assert all(client in states for client in expected)
    assert all(same(states[client], expected[client]) for client in expected)
    assert 10 not in states
    with pytest.raises(KeyError):
        states[10]


def test_many_states_fill_several_files(monkeypatch):
    monkeypatch.setattr(memory, "_ROWS", 4)
    states = ClientStates(limit=0)
    for turn in (1, 2):
        for client in range(18, 0, -1):
            states[client] = torch.full((3,), float(turn * client))
    (folder,) = folders()
    assert len(os.listdir(os.path.join(tempfile.gettempdir(), folder))) == 5
    for client in range(1, 19):
        assert states[client].tolist() == [2.0 * client] * 3


def test_named_states_keep_their_kind():
    from trimtab.algorithms.bases import Moments

    states = ClientStates(limit=0)
    states[0] = Moments(torch.zeros(2), torch.ones(2, 3))
    assert isinstance(states[0], Moments)
    assert states[0].v.shape == (2, 3)


def test_nothing_to_remember_takes_no_room():
    for limit in (0, None):
        states = ClientStates(limit)
        states[1] = ()
        assert len(states) == 0
        assert 1 not in states
    assert folders() == set()


def test_temporary_files_vanish_with_the_simulation():
    sim, _ = run(SCAFFOLD, quadratic(), 3, memory=0)
    assert len(folders()) == 1
    del sim
    gc.collect()
    assert folders() == set()


def test_without_a_limit_there_are_no_files():
    sim, _ = run(SCAFFOLD, quadratic(), 3)
    assert len(sim.states) == 6
    assert folders() == set()


@pytest.mark.parametrize("limit", [-1, True])
def test_a_bad_limit_is_refused(refused, limit):
    with refused(f"memory={limit}", "bytes"):
        run(SCAFFOLD, quadratic(), 0, memory=limit)
