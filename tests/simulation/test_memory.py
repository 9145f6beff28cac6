"""Client states in memory and on disk: the same states, and no more memory than allowed."""

import errno
import tempfile

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.helpers.small_runs import (
    SCAFFOLD,
    D,
    N,
    Watched,
    history,
    quadratic,
    run,
    same,
    same_simulation,
    whole,
)
from trimtab import Diverged, Scaffold, simulate
from trimtab.algorithms.bases import Moments
from trimtab.simulation.client_states import ClientStates
from trimtab.simulation.executors import EXECUTORS

ROW = 8 * D  # bytes of a state of the quadratic


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Count the temporary files, which are to be in TMPDIR."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = []

    def open_file(**options):
        opened.append(tempfile.TemporaryFile(**options))  # noqa: SIM115
        return opened[-1]

    monkeypatch.setattr("trimtab.simulation.state_rows.TemporaryFile", open_file)
    return opened


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
    for client in (2, 3):  # the second takes the place that the first has left
        states[client] = torch.ones(D, dtype=torch.float64)
    assert torch.equal(before, torch.zeros(D, dtype=torch.float64))


def state_of(value):
    return Moments(torch.full((2,), float(value)), (torch.tensor([[value]]), ()))


CLIENTS, VALUES = st.integers(0, 7), st.integers(-99, 99)
SIZE = 4 * 2 + 8  # bytes of such a state


class AgainstTwoDicts(RuleBasedStateMachine):
    """A mapping, and beside it what is staged; whatever the limit."""

    @initialize(limit=st.sampled_from([None, 0, SIZE, 3 * SIZE + 1, 99 * SIZE]))
    def start(self, limit):
        self.states = ClientStates(limit)
        self.committed, self.staged, self.most = {}, {}, 0

    @rule(client=CLIENTS, value=VALUES)
    def assign(self, client, value):
        self.states[client] = self.committed[client] = state_of(value)
        self.most = max(self.most, 1 + len(self.committed) + len(self.staged))

    @rule(clients=st.lists(CLIENTS, unique=True), value=VALUES)
    def stage(self, clients, value):
        for client in clients:
            state = state_of(value + client)
            self.states.stage(client, state)
            self.staged[client] = state_of(value + client)
            for leaf in (state.m, state.v[0]):
                leaf.zero_()  # it was copied
            self.most = max(self.most, 1 + len(self.committed) + len(self.staged))

    @rule(client=CLIENTS)
    def stage_what_is_there(self, client):
        state = self.states.latest(client)
        if state is not None:
            self.states.stage(client, state)
            self.staged[client] = {**self.committed, **self.staged}[client]
            self.most = max(self.most, 1 + len(self.committed) + len(self.staged))

    @rule(clients=st.lists(CLIENTS, unique=True))
    def commit(self, clients):
        self.states.commit(clients)
        self.committed |= {i: state for i, state in self.staged.items() if i in clients}
        self.staged = {}

    @rule()
    def discard(self):
        self.states.discard()
        self.staged = {}

    @invariant()
    def the_same_states(self):
        assert list(self.states) == sorted(self.committed)
        assert len(self.states) == len(self.committed)
        for i in range(8):
            assert (i in self.states) == (i in self.committed)
            latest = self.staged.get(i, self.committed.get(i))
            found = self.states.latest(i)
            assert (found is None) == (latest is None)
            assert latest is None or (same(found, latest) and isinstance(found, Moments))
            if i in self.committed:
                assert same(self.states[i], self.committed[i])
            else:
                with pytest.raises(KeyError):
                    self.states[i]

    @invariant()
    def no_more_room_than_needed(self):
        states, kept = self.states, len(self.committed) + len(self.staged)
        assert 0 <= states.in_memory <= (kept * SIZE if states.limit is None else states.limit)
        rows = [file.rows - len(file.spare) for file in states._files.values()]
        assert sum(rows) * SIZE + states.in_memory == kept * SIZE  # each in one place
        assert sum(file.rows for file in states._files.values()) <= self.most
        assert states.limit != 99 * SIZE or not states.on_disk


TestAgainstTwoDicts = AgainstTwoDicts.TestCase


@pytest.mark.parametrize("limit", [0, None])
def test_a_thousand_rounds_of_five_clients_use_the_rows_of_ten(files, limit):
    states, rows = ClientStates(limit), set()
    for value in range(1000):
        for client in range(5):
            states.stage(client, torch.full((3,), float(value)))
            rows.add(states.latest(client).data_ptr())
        (states.discard if value % 3 else lambda: states.commit(range(5)))()
    assert all(states[client].tolist() == [999.0] * 3 for client in range(5))
    if limit is None:
        assert len(rows) == 10
    else:
        assert states.on_disk == 10 * 64  # a row is a multiple of 64 bytes
        assert len(files) == 1


def test_states_of_several_forms_do_not_mix():
    states = ClientStates(limit=0)
    forms = [
        torch.arange(3.0),
        torch.arange(3),
        torch.ones(4, dtype=torch.bfloat16),
        (torch.ones(2), torch.zeros(0)),
        Moments(torch.ones(2), torch.zeros(0)),
        torch.tensor(True),
        torch.eye(3).T[1],
    ]
    for client, state in enumerate(forms):
        states[client] = state
    for client, state in enumerate(forms):
        assert same(states[client], state)
        assert type(states[client]) is type(state)


def test_nothing_to_remember_takes_no_room(files):
    for limit in (0, None):
        states = ClientStates(limit)
        states[1] = ()
        states.stage(1, ())
        assert states.latest(1) is None
        assert len(states) == 0
        assert 1 not in states
    assert files == []


# -- rounds


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("limit", [0, 3 * ROW, None])
def test_a_cohort_is_kept_within_the_limit_while_it_runs(monkeypatch, executor, limit):
    most, stage = [], ClientStates.stage

    def watched(self, client, state):
        stage(self, client, state)
        most.append(self.in_memory)

    monkeypatch.setattr(ClientStates, "stage", watched)
    run(SCAFFOLD, quadratic(), 3, memory=limit, executor=executor)
    assert len(most) == 3 * N
    assert max(most) == (2 * N * ROW if limit is None else limit)


@pytest.mark.parametrize("limit", [0, 2 * ROW, None])
def test_a_round_that_fails_leaves_the_states_as_they_were(limit):
    class Failing(Watched):
        def oracle(self, i, seed, r):
            if r == 3 and i == 4:
                raise KeyboardInterrupt
            return super().oracle(i, seed, r)

    problem = quadratic(kind=Failing)
    sim, _ = run(SCAFFOLD, problem, 2, memory=limit)
    before, used = whole(sim), sim.states.in_memory
    with pytest.raises(KeyboardInterrupt):
        next(sim)
    r, server, states = whole(sim)
    assert r == 2
    assert same(server, before[1])
    assert all(same(states[i], before[2][i]) for i in range(N))
    assert sim.states.in_memory == used
    assert not sim.states._staged


@pytest.mark.parametrize("limit", [0, 2 * ROW, None])
def test_a_round_that_diverges_leaves_the_states_as_they_were(limit):
    sim = simulate(Scaffold(eta_l=1e30, K=3), quadratic(), memory=limit)
    diverged = False
    while not diverged:
        before = whole(sim)
        try:
            next(sim)
        except Diverged:
            diverged = True
    assert list(sim.states) == list(before[2])
    assert all(same(sim.states[i], before[2][i]) for i in sim.states)


# -- the file


def test_the_file_vanishes_with_the_simulation(files, tmp_path):
    sim, _ = run(SCAFFOLD, quadratic(), 3, memory=0)
    (file,) = files
    assert not file.closed
    assert list(tmp_path.iterdir()) == []  # it has no name, so a killed process leaves none
    del sim
    assert file.closed


def test_without_a_limit_there_is_no_file(files):
    sim, _ = run(SCAFFOLD, quadratic(), 3)
    assert len(sim.states) == 6
    assert sim.states.on_disk == 0
    assert files == []


class Full:
    """A disk that takes so many bytes more, in small pieces."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        some = self.file.write(data[: min(self.room, 40)])
        self.room -= some
        return some


def test_a_full_disk_is_one_sentence_and_leaves_all_as_it_was(files, tmp_path):
    sim, _ = run(SCAFFOLD, quadratic(), 2, memory=0)
    (file,) = sim.states._files.values()
    file._file = Full(files[0], room=300)
    before, spare = whole(sim), sorted(file.spare)
    with pytest.raises(OSError, match="No space left") as caught:
        next(sim)
    text = str(caught.value)
    assert str(tmp_path) in text
    assert "TMPDIR" in text
    assert text.endswith(".")
    assert "\n" not in text
    assert whole(sim)[0] == before[0]
    assert all(same(sim.states[i], before[2][i]) for i in before[2])
    assert sorted(file.spare) == spare
    file._file.room = 10**6
    straight, _ = run(SCAFFOLD, quadratic(), 3)
    next(sim)
    assert same_simulation(sim, straight)


def test_reading_goes_on_after_an_interruption_of_the_system(files):
    states = ClientStates(limit=0)
    states[0] = torch.arange(100.0)
    (file,) = states._files.values()

    class InPieces(Full):
        def readinto(self, data):
            return self.file.readinto(data[:7])

    file._file = InPieces(files[0], room=0)
    assert states[0].tolist() == list(range(100))


@pytest.mark.parametrize("limit", [-1, True])
def test_a_bad_limit_is_refused(refused, limit):
    with refused(f"memory={limit}", "bytes"):
        run(SCAFFOLD, quadratic(), 0, memory=limit)


def test_what_is_written_into_lent_room_is_staged_without_a_copy():
    states = ClientStates()
    allocated = states.allocate_state(torch.zeros(3))
    allocated.copy_(torch.arange(3.0))
    states.stage(7, allocated)
    assert 7 not in states
    assert states.latest(7).data_ptr() == allocated.data_ptr()
    states.commit([7])
    assert states[7].tolist() == [0, 1, 2]
    assert states.in_memory == 12


@pytest.mark.parametrize(("limit", "most"), [(None, 5), (36, 3), (35, 2), (0, 0)])
def test_rooms_are_as_many_as_the_limit_allows(limit, most):
    states = ClientStates(limit)
    allocated = states.allocate_states(torch.zeros(3), 5)
    assert len({state.data_ptr() for state in allocated}) == len(allocated) == most
    assert states.in_memory == 12 * most
    states.discard()
    assert states.in_memory == 0


def test_room_that_is_not_staged_is_taken_back():
    states = ClientStates(limit=24)
    first = states.allocate_state(torch.zeros(3))
    assert states.allocate_state(torch.zeros(3)) is not None
    assert states.allocate_state(torch.zeros(3)) is None  # the limit
    states.stage(0, first)
    states.commit([0])
    assert states.in_memory == 12
    again = states.allocate_state(torch.zeros(3))
    assert again.data_ptr() != states.latest(0).data_ptr()
    states.discard()
    assert states.in_memory == 12


def test_memory_that_is_allocated_together_and_not_staged_is_given_back():
    states = ClientStates(limit=48)
    assert states.allocate_rows(torch.zeros(3), 5) is None  # 60 bytes
    assert len(states.allocate_rows(torch.zeros(3), 4)) == 4
    assert len(states.allocate_rows(torch.zeros(3), 3)) == 3  # nobody has staged the four
    assert states.in_memory == 36
    states.discard()
    assert states.in_memory == 0


def test_states_are_found_where_they_were_written():
    states, new = ClientStates(), torch.zeros(3)
    states[5] = torch.ones(3)
    assert states.addresses([5, 9], new)[1] == (new.data_ptr(),)
    for value in (2.0, 3.0):  # two exchanges of one round
        places = states.allocate_rows(new, 2)
        for j in range(2):
            states.allocated_row(j).fill_(value + j)
            assert places[j] == (states.allocated_row(j).data_ptr(),)
        states.stage_allocated([5, 9])
        assert states.addresses([5, 9], new) == places
    assert states[5].tolist() == [1.0] * 3
    assert 9 not in states
    states.commit([9, 5])
    assert (states[5][0], states[9][0]) == (3.0, 4.0)
    assert states.in_memory == 24  # those that were replaced are given back
    assert states.addresses([5, 9], new) == places
    assert states.addresses([5], torch.zeros(4)) is None  # of another form
    on_disk = ClientStates(limit=0)
    on_disk[5] = torch.ones(3)
    assert on_disk.addresses([5], new) is None
