"""What a program may do: send nothing, draw a single number, fail in a thread."""

import threading
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from trimtab import Diverged, FedAvg, Quadratic, Rounding, Scaffold, Through, simulate
from trimtab.core import StepSize, validate
from trimtab.simulation.checkpoint import reading, write_tensors
from trimtab.simulation.client_states import ClientStates
from trimtab.simulation.executors import EXECUTORS
from trimtab.simulation.executors.threads import Threads
from trimtab.testing import _trials, accepts_chunks


class Server(NamedTuple):
    x: Any
    c: Any


@dataclass(frozen=True)
class TwoTalks:
    """A second exchange in which nothing is sent: each client tells what it remembers."""

    eta_l: StepSize

    def __post_init__(self):
        validate(self)

    def init_server(self, x):
        return Server(x, torch.zeros_like(x))

    def init_client(self, x):
        return torch.zeros_like(x)

    def local(self, g, c_i, x):
        return (-self.eta_l * g(x, 0),), c_i + g(x, 0)

    def tell(self, g, c_i):
        return (c_i,), 0.5 * c_i

    def round(self, server, clients):
        (dx,) = clients.run(self.local, server.x).mean()
        (c,) = clients.run(self.tell).mean()
        return Server(server.x + dx, c)


@dataclass(frozen=True)
class OneNumber:
    """Each client draws one number, and moves by it in all directions alike."""

    eta_l: StepSize

    def __post_init__(self):
        validate(self)

    def init_server(self, x):
        return Server(x, torch.zeros_like(x))

    def init_client(self, x):
        return ()

    def local(self, g, _, x):
        one = g.uniform(torch.zeros(1, dtype=x.dtype))
        return (self.eta_l * (one - g(x, 0)),), ()

    def round(self, server, clients):
        (dx,) = clients.run(self.local, server.x).mean()
        return Server(server.x + dx, server.c)


@pytest.mark.parametrize("kind", [Quadratic, _trials.TracedQuadratic])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_exchange_may_have_nothing_to_send(executor, kind):
    def after(executor, kind):
        sim = simulate(TwoTalks(0.1), _trials.quadratic(kind), S=4, executor=executor)
        return _trials.all_states(_trials.advance(sim, 3))

    assert _trials.close(after(executor, kind), after("loop", Quadratic))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_client_that_draws_one_number_draws_one_in_every_executor(executor):
    def after(executor):
        sim = simulate(OneNumber(0.1), _trials.quadratic(), S=4, executor=executor)
        return _trials.advance(sim, 2).server

    assert _trials.close(after(executor), after("loop"))


@dataclass(frozen=True)
class OneNumberOfX(OneNumber):
    """The same, with a number that looks like the first one of x."""

    def local(self, g, _, x):
        return (self.eta_l * (g.uniform(x[..., :1]) - g(x, 0)),), ()


def test_the_contract_accepts_one_number_for_each_client():
    accepts_chunks(OneNumberOfX(0.1))


@dataclass(frozen=True)
class BreaksThenForgets(TwoTalks):
    """States that are not finite after the first exchange, and a second one without states."""

    def local(self, g, c_i, x):
        return (-self.eta_l * g(x, 0),), c_i + float("inf")

    def tell(self, g, c_i):
        return (torch.zeros_like(c_i),), ()


def test_states_that_are_not_finite_are_found_whatever_the_last_exchange_returns():
    sim = simulate(BreaksThenForgets(0.1), _trials.quadratic(), S=4, executor="loop")
    with pytest.raises(Diverged):
        next(sim)
    assert not list(sim.states)


ASKED = []


@dataclass(frozen=True)
class Stateless(OneNumber):
    def init_client(self, x):
        ASKED.append(x)
        return ()


def test_clients_without_states_are_not_looked_at_one_by_one_after_a_round():
    sim = simulate(Stateless(0.1), _trials.quadratic(), executor="loop")
    next(sim)
    ASKED.clear()
    next(sim)
    assert len(ASKED) == _trials.N + 1


class Slow(Quadratic):
    """Client 0 fails at once; the others take their time, and are counted while they do."""

    lock, running = threading.Lock(), 0

    def oracle(self, i, seed, r):
        inner = super().oracle(i, seed, r)

        def g(y, k=None):
            if i == 0:
                raise RuntimeError("this client fails")
            with Slow.lock:
                Slow.running += 1
            time.sleep(0.05)
            with Slow.lock:
                Slow.running -= 1
            return inner(y, k)

        return g


def test_nothing_goes_on_in_threads_after_a_client_has_failed():
    slow = _trials.quadratic(Slow)
    sim = simulate(FedAvg(eta_l=0.1, K=3), slow, executor=Threads(3))
    with pytest.raises(RuntimeError, match="this client fails"):
        next(sim)
    assert Slow.running == 0


@pytest.mark.parametrize("cohort", [[0.5, 1], ["1"], [None], [True, 2]])
def test_a_cohort_is_of_whole_numbers(refused, cohort):
    with refused("cohort", "distinct clients from 0 to 5"):
        simulate(Scaffold(eta_l=0.1, K=2), _trials.quadratic(), cohorts=[cohort])


def test_a_file_of_states_that_is_cut_off_is_not_read_as_whatever_memory_holds(refused, tmp_path):
    path = tmp_path / "states"
    write_tensors(path, lambda: iter([("client.3.0", torch.ones(1000))]), {})
    path.write_bytes(path.read_bytes()[:-8])
    with refused("states is damaged", "ends too early"), reading(path) as file:
        file.state("client.3", torch.zeros(1000))


def test_a_file_of_states_without_a_head_is_damaged(refused, tmp_path):
    path = tmp_path / "states"
    path.write_bytes(b"\x20\0\0\0\0\0\0\0{no json")
    with refused("states is damaged"), reading(path):
        pass


def test_a_temporary_file_that_is_cut_off_is_an_error_and_not_waited_for():
    states = ClientStates(limit=0)
    states[3] = torch.ones(1000)
    (rows,) = states._files.values()
    rows._file.truncate(100)
    with pytest.raises(OSError, match="has been cut off"):
        states[3]


@dataclass(frozen=True)
class SendsTwice(TwoTalks):
    def local(self, g, c_i, x):
        (dx,) = g.sent((-self.eta_l * g(x, 0),))
        (dc,) = g.sent((g(x, 0) - c_i,))
        return (dx,), c_i + dc


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_sent_twice_through_a_stage_is_refused(refused, executor):
    sim = simulate(
        Through(SendsTwice(0.1), (Rounding(0.1),)), _trials.quadratic(), executor=executor
    )
    with refused("called g.sent twice"):
        next(sim)
