"""A tape says what its program does, for every program that is linear in its vectors."""

import gc
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from tests.helpers.small_runs import ALGORITHMS
from trimtab import Epochs, FedAvg, Mime, Momentum, Scaffnew, Scaffold, simulate
from trimtab.algorithms import Adam, RichardsonRomberg
from trimtab.algorithms.fedavg import Upload
from trimtab.compute import tape
from trimtab.compute.lazy import NotLinearError
from trimtab.compute.tape import Tapes, fill, trace
from trimtab.core.oracle import ClientOracle, LocalSteps
from trimtab.testing import _trials

X = torch.zeros(3)


def play(tape, g, inputs):
    """Do what the code says, on tensors."""
    values = dict(enumerate(inputs))
    first, total = tape.code.inputs, tape.code.inputs + tape.code.registers
    for dest, what, *batch in tape.code.steps:
        assert first <= dest < total
        if batch:
            assert dest != what
            values[dest] = g(values[what], tape.batches[batch[0]])
        else:
            assert all(value != dest for _, value in what[1:])
            values[dest] = sum(a * values[value] for a, value in what)
    return [sum(a * values[value] for a, value in terms) for terms in tape.code.outputs]


def oracle(d):
    A = torch.randn(d, d, dtype=torch.float64)

    def g(y, k=None):
        return torch.sin(A @ y) + (100 if k is None else k)

    return g


class Recorded:
    """Clients that keep what was run."""

    def __init__(self, g):
        self.g, self.ran = g, []

    def run(self, program, *broadcast):
        self.ran.append((program, broadcast))
        state = torch.randn(5, dtype=torch.float64) if broadcast_has_control(program) else ()
        self.state = state
        self.upload, self.new = program(ClientOracle(self.g), state, *broadcast)
        return self

    share = 0.5

    def mean(self):
        return self.upload

    def __len__(self):
        return 1


def broadcast_has_control(program):
    return isinstance(program.__self__, Scaffold)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_it_does_what_the_program_does(algorithm):
    torch.manual_seed(0)
    x, g = torch.randn(5, dtype=torch.float64), oracle(5)
    clients = Recorded(g)
    algorithm.round(algorithm.init_server(x), clients)
    program, broadcast = clients.ran[-1]
    tape = trace(program, clients.state, broadcast, 5).tape
    adaptive = any(name in repr(algorithm) for name in ("Adam", "Yogi", "Adagrad"))
    if adaptive and tape is None:  # its steps on the client are not linear
        return
    assert tape is not None
    vectors = [*flat(clients.state), *flat(broadcast)]
    found = play(tape, g, vectors)
    upload, new = fill(tape.upload, found), fill(tape.state, found)
    for a, b in zip([*flat(upload), *flat(new)], [*flat(clients.upload), *flat(clients.new)],
                    strict=True):  # fmt: skip
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def flat(tree):
    return [leaf for part in tree for leaf in flat(part)] if isinstance(tree, tuple) else [tree]


def test_registers_do_not_grow_with_the_number_of_steps():
    x = torch.zeros(3)
    for algorithm, state, broadcast in (
        (Scaffold(eta_l=0.1, K=50), x, (x, x)),
        (FedAvg(eta_l=0.1, K=50), (), (x,)),
        (RichardsonRomberg(FedAvg(eta_l=0.1, K=50)), (), (x, x)),
        (Mime(eta=0.1, K=50, base=Momentum()), (), (x, x, x)),
    ):
        assert trace(algorithm.local, state, broadcast, 3).tape.code.registers <= 4


def test_what_cancels_is_not_read():
    def program(g, c_i, x):
        c_i_new = c_i - x + g(x)
        return (c_i_new - c_i, c_i - c_i), c_i_new

    tape = trace(program, torch.zeros(3), (torch.zeros(3),), 3).tape
    c_i, x, g = 0, 1, 2
    assert tape.code.outputs == [
        [(-1.0, x), (1.0, g)],
        [(0.0, c_i)],
        [(1.0, c_i), (-1.0, x), (1.0, g)],
    ]


def test_a_long_sum_takes_few_registers():
    def program(g, state, x):
        total = g(x, 0)
        for k in range(1, 40):
            total = total + g(x, k)
        return total / 40, ()

    x = torch.zeros(3)
    assert trace(program, (), (x,), 3).tape.code.registers <= 8


@pytest.mark.parametrize(
    "program",
    [
        lambda g, s, x: (x * x, ()),
        lambda g, s, x: (torch.sqrt(g(x)), ()),
        lambda g, s, x: (x + torch.ones(3), ()),
        lambda g, s, x: (x if x.norm() > 0 else g(x), ()),
        lambda g, s, x: (x.clone(), ()),
        lambda g, s, x: (torch.zeros(3), ()),
        lambda g, s, x: (g(torch.zeros(3)), ()),
        lambda g, s, x: (x + torch.randn_like(x), ()),
    ],
)
def test_what_is_not_linear_has_no_tape(program):
    assert trace(program, (), (torch.zeros(3),), 3).tape is None


def test_a_state_with_a_number_or_another_shape_has_no_tape():
    def program(g, s, x):
        return g(x), s

    x = torch.zeros(3)
    assert trace(program, x, (x,), 3).tape is not None
    assert trace(program, torch.zeros(3, dtype=torch.long), (x,), 3).tape is None
    assert trace(program, torch.zeros(()), (x,), 3).tape is None
    mime = Mime(eta=0.1, K=2, base=Adam())
    assert trace(mime.local, (), (x, mime.base.init(x), x), 3).tape is None


class Key(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __eq__(self, other):
        Key.compared += 1
        return int(self) == other

    def __hash__(self):
        return hash(int(self))


def test_tracing_takes_as_much_for_each_step_however_many_there_are(monkeypatch):
    """Things are looked up and not searched for; seconds would depend on the machine."""

    def comparisons(K):
        def program(g, c_i, x, c):
            y = x
            for k in range(K):
                y = y - 0.1 * (g(y, Key(k)) - c_i + c)
            return y - x, c_i

        Key.compared = 0
        assert len(trace(program, X, (X, X), 3).tape.batches) == K
        return Key.compared

    monkeypatch.setattr(tape, "id", lambda value: Key(id(value)), raising=False)
    assert comparisons(200) < 2.1 * comparisons(100)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("error", [None, NotLinearError, KeyError])
def test_the_collector_rests_while_a_program_is_traced(enabled, error):
    seen = []

    def program(g, state, x):
        seen.append(gc.isenabled())
        if error is not None:
            raise error
        return g(x), state

    try:
        (gc.enable if enabled else gc.disable)()
        with nullcontext() if error is not KeyError else pytest.raises(KeyError):
            trace(program, (), (X,), 3)
        assert (seen, gc.isenabled()) == ([False], enabled)
    finally:
        gc.enable()


@pytest.fixture
def traced(monkeypatch):
    """What was traced since."""
    programs = []

    def noting(program, *given):
        programs.append(program)
        return trace(program, *given)

    monkeypatch.setattr(tape, "trace", noting)
    return programs


def test_a_tape_is_kept_for_an_equal_program(traced):
    tapes = Tapes()
    for _ in range(3):
        program = Scaffold(eta_l=0.1, K=5).local
        assert tapes.trace(program, X, (X, X), 3) is tapes.trace(program, X + 1, (X, X), 3)
    assert len(traced) == 1


@dataclass(frozen=True)
class Scaled:
    scale: float
    inner: Any = None

    def local(self, g, state, x):
        return getattr(self, "slipped_in", self.scale) * g(x), state

    def other(self, g, state, x):
        return -self.scale * g(x), state


class Negated(Scaled):
    def local(self, g, state, x):
        return -self.scale * g(x), state


@pytest.mark.parametrize(
    ("program", "state", "broadcast"),
    [
        (Scaled(2.0).local, (), (X,)),
        (Scaled(1.0).other, (), (X,)),
        (Negated(1.0).local, (), (X,)),
        (Scaled(1.0, FedAvg(eta_l=0.1, K=1)).local, (), (X,)),
        (Scaled(1.0).local, X, (X,)),
        (Scaled(1.0).local, (X,), (X,)),
        (Scaled(1.0).local, Upload(X), (X,)),
        (Scaled(1.0).local, X[:1], (X,)),
        (Scaled(1.0).local, X.double(), (X,)),
    ],
)
def test_another_program_or_other_trees_have_another_tape(traced, program, state, broadcast):
    tapes = Tapes()
    first = tapes.trace(Scaled(1.0).local, (), (X,), 3)
    assert tapes.trace(program, state, broadcast, 3) is not first
    assert tapes.trace(Scaled(1.0).local, (), (X,), 3) is first
    assert len(traced) == 2


def test_what_was_slipped_into_a_frozen_algorithm_is_seen():
    tapes, algorithm = Tapes(), Scaled(1.0)
    tapes.trace(algorithm.local, (), (X,), 3)
    object.__setattr__(algorithm, "slipped_in", 5.0)
    assert tapes.trace(algorithm.local, (), (X,), 3).tape.code.outputs == [[(5.0, 1)]]


def test_what_may_remember_something_is_traced_again(traced):
    tapes, scale = Tapes(), [1.0]

    def closure(g, state, x):
        return scale[0] * g(x), state

    holds_a_function = Scaled(1.0, lambda: 0)
    for program in (closure, partial(Scaled(1.0).local), holds_a_function.local):
        tapes.trace(program, (), (X,), 3)
        scale[0] += 1
        tapes.trace(program, (), (X,), 3)
    assert len(traced) == 6
    assert tapes.trace(closure, (), (X,), 3).tape.code.outputs == [[(scale[0], 1)]]


SCALE = {0: 1.0}


def scaled(v):
    return SCALE[0] * v


class ReadsAVariable(Scaled):
    def local(self, g, state, x):
        return SCALE[0] * g(x), state


class CallsWhatReadsAVariable(Scaled):
    def local(self, g, state, x):
        return scaled(g(x)), state


class CallsItsOwn(Scaled):
    def local(self, g, state, x):
        return sum([self.own(g(x)) for _ in range(1)], start=0 * x), state

    def own(self, v):
        return SCALE[0] * v


@pytest.mark.parametrize("kind", [ReadsAVariable, CallsWhatReadsAVariable, CallsItsOwn])
def test_what_reads_a_variable_is_traced_again(monkeypatch, kind):
    tapes = Tapes()
    for number in (1.0, 2.0):
        monkeypatch.setitem(SCALE, 0, number)
        assert tapes.trace(kind(1.0).local, (), (X,), 3).tape.code.outputs == [[(number, 1)]]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_the_tapes_of_our_algorithms_are_kept(traced, algorithm):
    sim = simulate(algorithm, _trials.quadratic(_trials.TracedQuadratic), executor="batched")
    for _ in range(2):
        next(sim)
    programs = {program.__func__ for program in traced}
    assert len(traced) == len(programs)


def test_few_tapes_are_kept(traced):
    tapes = Tapes()
    for scale in range(3 * tapes.max_tapes):
        tapes.trace(Scaled(float(scale)).local, (), (X,), 3)
    assert len(tapes._traced) == len(tapes._programs) == tapes.max_tapes


def test_a_tape_that_is_dropped_takes_no_other_with_it(traced):
    tapes, program = Tapes(), Scaffold(eta_l=0.1, K=Epochs(1)).local
    numbers = range(1, tapes.max_tapes + 2)
    for steps in (*numbers, *numbers[1:]):
        tapes.trace(program, X, (X, X), 3, LocalSteps(lambda steps=steps: steps))
    assert len(traced) == len(numbers)


def test_a_program_has_a_tape_for_each_number_of_steps(traced):
    tapes, program = Tapes(), Scaffold(eta_l=0.1, K=Epochs(2)).local
    for _ in range(3):
        for steps in (3, 1, 3):
            found = tapes.trace(program, X, (X, X), 3, LocalSteps(lambda steps=steps: steps))
            assert (len(found.tape.batches), found.requested) == (2 * steps, (Epochs(2),))
    assert len(traced) == 2


def test_a_single_number_of_the_broadcast_decides_the_tape(traced):
    """Scaffnew's number of steps is such a number."""
    tapes, program = Tapes(), Scaffnew(eta_l=0.1, p=0.2).local
    for _ in range(2):
        for K in (3.0, 5.0):
            found = tapes.trace(program, X, (X, X, torch.tensor(K)), 3)
            assert len(found.tape.batches) == K
    assert len(traced) == 2


def test_a_simulation_traces_once_and_again_when_its_algorithm_is_replaced(traced):
    sim = simulate(
        Scaffold(eta_l=0.1, K=3), _trials.quadratic(_trials.TracedQuadratic), executor="batched"
    )
    loop = simulate(Scaffold(eta_l=0.1, K=3), _trials.quadratic(), executor="loop")
    for eta_l in (0.1, 0.05, 0.1):
        sim.algorithm = loop.algorithm = Scaffold(eta_l=eta_l, K=3)
        for _ in range(3):
            torch.testing.assert_close(next(sim).x, next(loop).x)
    assert len(traced) == 2
