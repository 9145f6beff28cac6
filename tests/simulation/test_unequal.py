"""Clients that make different numbers of local steps: by epochs of their own data, or slow ones."""

from itertools import islice

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.learning import drawn_clients
from tests.helpers.small_runs import quadratic
from trimtab import (
    Epochs,
    FedAvg,
    FedNova,
    Mime,
    Momentum,
    RichardsonRomberg,
    Scaffnew,
    Scaffold,
    ScaffoldM,
    ScaffoldOpt,
    Scallion,
    Scheduled,
    Simulation,
    Supervised,
    simulate,
)
from trimtab.algorithms import Decay
from trimtab.algorithms.registry import decode, encode
from trimtab.core import leaves
from trimtab.core.oracle import LocalSteps
from trimtab.core.streams import SLOW, stream
from trimtab.simulation import executors

SIZES = (4, 12, 5, 9, 20, 6)
EVERYWHERE = sorted(executors.EXECUTORS)


def clients():
    return drawn_clients(SIZES)


def linear(**settings):
    return Supervised(lambda: nn.Linear(4, 3), F.cross_entropy, clients(), batch=4, **settings)


def tanh():
    def build():
        return nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 3))

    return Supervised(build, F.cross_entropy, clients(), batch=4)


class Watched:
    """A problem that notes the mini-batches of each client and round."""

    def __init__(self, problem):
        self.problem, self.seen = problem, {}

    def __getattr__(self, name):
        if name in ("kernel", "play", "chunk_oracle", "threads"):
            raise AttributeError(name)
        return getattr(self.problem, name)

    def oracle(self, i, seed, r):
        g, seen = self.problem.oracle(i, seed, r), self.seen.setdefault((r, i), [])

        def noted(y, k=None):
            seen.append(k)
            return g(y, k)

        return noted

    def steps(self, r, i):
        return len({k for k in self.seen[r, i] if k is not None})


def advanced(algorithm, problem, rounds=6, **settings):
    sim = simulate(algorithm, problem, seed=3, **settings)
    for _ in islice(sim, rounds):
        pass
    return sim


# -- epochs


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_each_client_makes_as_many_passes_over_its_own_data(epochs):
    problem = Watched(linear())
    advanced(Scaffold(eta_l=0.1, K=Epochs(epochs)), problem, rounds=2)
    for i, n in enumerate(SIZES):
        assert problem.steps(2, i) == epochs * -(-n // 4)


def test_less_than_a_pass_is_at_least_one_step():
    problem = Watched(linear())
    advanced(FedAvg(eta_l=0.1, K=Epochs(0.5)), problem, rounds=1)
    assert [problem.steps(1, i) for i in range(6)] == [1, 2, 1, 2, 2, 1]


def test_epochs_over_equal_clients_are_their_steps():
    data = [clients()[4]] * 3
    problem = Supervised(lambda: nn.Linear(4, 3), F.cross_entropy, data, batch=4)
    a, b = (advanced(Scaffold(eta_l=0.1, K=K), problem) for K in (Epochs(2), 10))
    assert torch.equal(a.server.x, b.server.x)


def test_a_problem_without_samples_has_no_epochs(refused):
    sim = simulate(FedAvg(eta_l=0.1, K=Epochs(5)), quadratic())
    with refused("Epochs(5)", "no samples", "K"):
        next(sim)


@pytest.mark.parametrize("count", [0, -1, float("nan"), "5", True])
def test_epochs_are_positive_numbers(count, refused):
    with refused("Epochs", "positive"):
        Epochs(count)


def test_epochs_can_be_written_down_and_read():
    algorithm = Scaffold(eta_l=0.1, K=Epochs(5))
    assert decode(encode(algorithm)) == algorithm
    assert eval(repr(algorithm)) == algorithm


def test_epochs_cannot_be_scheduled_but_the_step_size_can(refused):
    algorithm = FedAvg(eta_l=0.1, K=Epochs(1))
    with refused("K", "eta_l"):
        Scheduled(algorithm, K=Decay(0.5))
    advanced(Scheduled(algorithm, eta_l=Decay(0.5)), linear())


# -- slow clients


def test_slow_clients_make_some_of_the_steps_and_others_all():
    problem = Watched(quadratic())
    advanced(FedAvg(eta_l=0.01, K=10), problem, rounds=200, slow=0.4)
    steps = torch.tensor([problem.steps(r, i) for r in range(1, 201) for i in range(6)])
    fewer = steps[steps < 10].double()
    # 4 of 10 are slow, and 9 of 10 of these make fewer than 10 steps: 432 of 1,200 expected, with
    # a standard deviation of 16.6; their mean is 5 with a deviation of 2.6 / sqrt(432) = 0.12.
    assert abs(len(fewer) - 432) < 5 * 16.6
    assert abs(fewer.mean() - 5) < 5 * 0.13
    assert set(steps.tolist()) == set(range(1, 11))


def test_who_is_slow_depends_on_seed_client_and_round_alone():
    def steps(S, seed):
        problem = Watched(quadratic())
        sim = simulate(FedAvg(eta_l=0.01, K=10), problem, S=S, seed=seed, slow=0.5)
        for _ in islice(sim, 8):
            pass
        return {key: problem.steps(*key) for key in problem.seen}

    whole, some, other = steps(6, 0), steps(3, 0), steps(6, 1)
    assert some.items() <= whole.items()
    assert whole != other


def test_both_step_sizes_of_richardson_romberg_make_the_same_steps():
    """Else their difference would not be that of the step size."""
    problem = Watched(quadratic())
    advanced(RichardsonRomberg(FedAvg(eta_l=0.01, K=10)), problem, rounds=10, slow=0.5)
    for seen in problem.seen.values():
        assert seen == [*range(len(seen) // 2)] * 2


@pytest.mark.parametrize("share", [-0.1, 1.1, "half", True])
def test_the_share_of_slow_clients_is_a_share(share, refused):
    with refused("slow", "0 to 1"):
        simulate(FedAvg(eta_l=0.1, K=5), quadratic(), slow=share)


# -- all executors, and a resumed run

UNEQUAL = (
    FedAvg(eta_l=0.1, K=5),
    FedNova(eta_l=0.1, K=Epochs(2)),
    Scaffold(eta_l=0.1, K=Epochs(2)),
    Scaffold(eta_l=0.1, K=5, option="I"),
    ScaffoldOpt(eta_l=0.1, K=5, base=Momentum()),
    Mime(eta=0.05, K=Epochs(2), base=Momentum()),
)


@pytest.mark.parametrize("executor", [name for name in EVERYWHERE if name != "loop"])
@pytest.mark.parametrize("problem", [linear, tanh])
@pytest.mark.parametrize("algorithm", UNEQUAL, ids=repr)
def test_every_executor_gives_the_loops_result(algorithm, problem, executor):
    made = problem()
    how = {"S": 5, "lost": 0.1, "slow": 0.5, "rounds": 12}
    expected, found = (advanced(algorithm, made, executor=e, **how) for e in ("loop", executor))
    assert list(found.states) == list(expected.states)
    everything = [(sim.server, *(sim.states[i] for i in sim.states)) for sim in (expected, found)]
    for a, b in zip(*map(leaves, everything), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_the_kernel_plays_a_tape_for_each_number_of_steps(monkeypatch):
    problem = linear()
    played = []
    play = Supervised.play

    def noted(self, layers, tape, clients, *rest):
        played.append((len(tape.batches), tuple(clients)))
        return play(self, layers, tape, clients, *rest)

    monkeypatch.setattr(Supervised, "play", noted)
    sim = simulate(FedAvg(eta_l=0.1, K=Epochs(1)), problem, executor="batched")
    next(sim)
    if sim.problem.kernel is None:
        pytest.skip("needs the compiled kernel")
    assert sorted(played) == [(1, (0,)), (2, (2, 5)), (3, (1, 3)), (5, (4,))]
    played.clear()
    next(simulate(FedAvg(eta_l=0.1, K=3), problem, executor="batched"))
    assert played == [(3, (0, 1, 2, 3, 4, 5))]


def test_a_resumed_run_has_the_same_slow_clients(tmp_path):
    algorithm, problem = Scaffold(eta_l=0.1, K=5), linear()
    whole = advanced(algorithm, problem, rounds=8, slow=0.5)
    half = advanced(algorithm, problem, rounds=4, slow=0.5)
    half.save(tmp_path / "half.safetensors")
    rest = Simulation.load(tmp_path / "half.safetensors", algorithm, problem)
    for _ in islice(rest, 4):
        pass
    assert torch.equal(rest.server.x, whole.server.x)


# -- who cannot


@pytest.mark.parametrize(
    "algorithm",
    [
        Scaffold(eta_l=0.1, K=5, lean=True),
        ScaffoldM(eta_l=0.1, K=5),
        Scallion(eta_l=0.1, K=5),
        Scaffnew(eta_l=0.1, p=0.2),
    ],
    ids=repr,
)
@pytest.mark.parametrize("executor", EVERYWHERE)
def test_those_whose_server_knows_k_refuse_slow_clients(algorithm, executor, refused):
    sim = simulate(algorithm, linear(), slow=0.01, executor=executor)
    with refused("the same number of local steps", "slow=0"):
        next(sim)


@pytest.mark.parametrize("kind", [ScaffoldM, Scallion])
def test_those_whose_server_knows_k_refuse_epochs(kind, refused):
    with refused(kind.__name__, "Epochs(5)", "whole number"):
        kind(eta_l=0.1, K=Epochs(5))


def test_lean_refuses_epochs(refused):
    with refused("Epochs(5)", "whole number"):
        Scaffold(eta_l=0.1, K=Epochs(5), lean=True)


def test_the_pace_of_a_client_is_its_own():
    pace = LocalSteps(lambda: 3)
    assert (pace(7), pace(Epochs(2)), pace(Epochs(0.1))) == (7, 6, 1)


@pytest.mark.parametrize("K", [1, 2, 5])
def test_a_slow_client_makes_any_number_of_steps_up_to_k_itself(K, monkeypatch):
    """Of K intervals of equal length in [0, 1), numbers in the j-th give j steps."""
    slow = LocalSteps(slow=1.0)
    for j in range(1, K + 1):
        for within in (0.01, 0.5, 0.99):
            drawn = torch.tensor([0.0, (j - 1 + within) / K], dtype=torch.float64)
            monkeypatch.setattr(torch, "rand", lambda *_, drawn=drawn, **__: drawn)
            assert slow(K) == j


def test_how_slow_a_client_is_follows_from_its_own_numbers():
    for client in range(4):
        for r in range(1, 6):
            draw = stream(3, SLOW, client, r)
            chance, part = torch.rand(2, generator=draw, dtype=torch.float64).tolist()
            steps = LocalSteps(slow=0.5, key=(3, client, r))(7)
            assert (steps - 1) / 7 <= part < steps / 7 if chance < 0.5 else steps == 7
