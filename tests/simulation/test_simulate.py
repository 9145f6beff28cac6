"""Rounds: who is asked, who answers, what is sent, what is kept, and what is refused."""

import pickle
import tracemalloc
from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations, islice
from math import isfinite, isnan, nan

import numpy
import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.helpers.small_runs import (
    ALGORITHMS,
    FEDAVG,
    SCAFFOLD,
    D,
    N,
    Resting,
    Watched,
    history,
    quadratic,
    run,
    same,
    same_simulation,
    whole,
)
from trimtab import (
    Adam,
    Diverged,
    FedAvg,
    FedOpt,
    FedProx,
    Mime,
    Momentum,
    Quadratic,
    RichardsonRomberg,
    Scaffold,
    Sgd,
    Simulation,
    Yogi,
    simulate,
)
from trimtab.algorithms.fedavg import Server
from trimtab.simulation.executors import EXECUTORS

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
QUICK = Sgd(eta=0.1)
MIME = Mime(eta=0.01, K=2, base=Momentum())

# -- rounds


def test_a_simulation_is_an_endless_iterator_whose_first_round_is_1():
    sim = simulate(FEDAVG, quadratic())
    assert iter(sim) is sim
    assert sim.r == 0
    rounds = list(islice(sim, 3))
    assert [round.r for round in rounds] == [1, 2, 3]
    assert sim.r == 3
    assert rounds[-1].x is sim.server.x
    assert rounds[-1].server is sim.server
    assert all(round.seconds > 0 for round in rounds)


@every_algorithm
@pytest.mark.usefixtures("same_global_rng")
def test_one_seed_is_one_run_and_another_seed_another(algorithm):
    settings = {"S": 3, "lost": 0.2}
    first, again, other = (
        run(algorithm, quadratic(), 5, seed=seed, **settings)[1] for seed in (1, 1, 2)
    )
    assert history(first) == history(again)
    assert [round.cohort for round in first] != [round.cohort for round in other]


def test_with_one_cohort_seeds_still_differ_in_their_noise():
    a, b = (run(FEDAVG, quadratic(), 1, seed=seed)[1][0] for seed in (0, 1))
    assert not torch.equal(a.x, b.x)


def test_x_is_where_the_run_starts_and_is_left_alone():
    x = torch.ones(D, dtype=torch.float64)
    problem = quadratic(sigma=0)
    sim = simulate(QUICK, problem, x=x)
    assert torch.equal(sim.server.x, x)
    expected = x - 0.1 * problem.gradient(x)
    x += 7  # the caller's own business
    torch.testing.assert_close(next(sim).x, expected)
    assert torch.equal(x, torch.full((D,), 8.0).double())
    assert torch.equal(simulate(QUICK, problem).server.x, problem.x0())


# -- sampling


def test_clients_are_sampled_without_replacement_and_come_sorted():
    _, rounds = run(QUICK, Resting(20), 50, S=7)
    for round in rounds:
        assert len(set(round.cohort)) == 7
        assert list(round.cohort) == sorted(round.cohort)
        assert set(round.cohort) <= set(range(20))


def test_cohorts_depend_on_seed_and_round_only():
    settings = {"S": 2, "seed": 3}
    _, rounds = run(QUICK, Resting(N), 6, **settings)
    for algorithm in (SCAFFOLD, MIME):
        _, others = run(algorithm, quadratic(), 6, **settings)
        assert [r.cohort for r in others] == [r.cohort for r in rounds]
    assert len({r.cohort for r in rounds}) > 1
    _, others = run(QUICK, Resting(N), 6, S=2, seed=4)
    assert [r.cohort for r in others] != [r.cohort for r in rounds]


def test_clients_and_pairs_of_clients_are_sampled_equally_often():
    n, S, R = 12, 4, 1500
    _, rounds = run(QUICK, Resting(n), R, S=S)
    singles = Counter(i for round in rounds for i in round.cohort)
    p = S / n
    chi2 = sum((singles[i] - R * p) ** 2 for i in range(n)) / (R * p * (1 - p)) * (n - 1) / n
    assert chi2 < 31.3  # 11 degrees of freedom, 0.1 %
    pairs = Counter(pair for round in rounds for pair in combinations(round.cohort, 2))
    p = S * (S - 1) / (n * (n - 1))
    for pair in combinations(range(n), 2):
        assert abs(pairs[pair] - R * p) < 4.5 * (R * p * (1 - p)) ** 0.5


@pytest.mark.parametrize(
    ("S", "expected"), [(None, 6), (1, 1), (6, 6), (0.5, 3), (1.0, 6), (0.01, 1)]
)
def test_S_is_a_number_or_a_fraction_of_the_clients(S, expected):
    _, rounds = run(FEDAVG, quadratic(), 2, S=S)
    assert {len(round.cohort) for round in rounds} == {expected}


def test_a_million_clients_cost_what_the_sampled_ones_cost():
    """Nothing in a round is as long as the number of clients, neither a tensor nor a list."""
    lengths = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor):
                lengths.append(made.untyped_storage().size() // made.itemsize)
            return made

    sim = simulate(SCAFFOLD, Resting(10**6), S=10)
    with Watch():
        tracemalloc.start()
        rounds = list(islice(sim, 200))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert 0 < max(lengths) < 1e5
    assert peak < 4e6  # bytes; a list of all clients has 8e6
    assert all(len(set(round.cohort)) == 10 for round in rounds)
    assert max(i for round in rounds for i in round.cohort) > 900_000
    assert len(sim.states) <= 2000


def test_explicit_cohorts_are_followed_to_their_end():
    given = [[4, 1], [0], (5, 2, 3)]
    sim, rounds = run(SCAFFOLD, quadratic(), 9, cohorts=given)
    assert [round.cohort for round in rounds] == [(1, 4), (0,), (2, 3, 5)]
    with pytest.raises(StopIteration):
        next(sim)
    assert sim.r == 3


def test_cohorts_may_come_from_a_generator():
    _, rounds = run(FEDAVG, quadratic(), 9, cohorts=([i] for i in range(3)))
    assert [round.cohort for round in rounds] == [(0,), (1,), (2,)]


# -- replies that get lost


def test_the_given_share_of_replies_is_lost_and_who_is_lost_is_reproducible():
    first, again, other = (
        run(QUICK, Resting(20), 200, lost=0.3, seed=seed)[1] for seed in (0, 0, 1)
    )
    answered = [len(round.cohort) for round in first]
    assert sum(answered) / (200 * 20) == pytest.approx(0.7, abs=0.03)
    assert len(set(answered)) > 3
    assert [r.cohort for r in first] == [r.cohort for r in again]
    assert [r.cohort for r in first] != [r.cohort for r in other]


def test_losing_replies_does_not_change_who_is_asked():
    _, all_of_them = run(FEDAVG, quadratic(), 20, S=4)
    _, some = run(FEDAVG, quadratic(), 20, S=4, lost=0.4)
    assert all(set(b.cohort) <= set(a.cohort) for a, b in zip(all_of_them, some, strict=True))
    assert any(set(b.cohort) < set(a.cohort) for a, b in zip(all_of_them, some, strict=True))


def test_a_round_with_losses_is_the_round_of_those_that_answered():
    sim, rounds = run(SCAFFOLD, quadratic(), 15, lost=0.4)
    cohorts = [round.cohort for round in rounds]
    assert all(cohorts), "pick a seed for which somebody answers"
    twin, _ = run(SCAFFOLD, quadratic(), 15, cohorts=cohorts)
    assert same_simulation(sim, twin)


def test_lost_clients_keep_their_states():
    sim = simulate(SCAFFOLD, quadratic(), lost=0.5)
    for _ in range(15):
        _, _, before = whole(sim)
        round = next(sim)
        _, _, after = whole(sim)
        assert set(after) == set(before) | set(round.cohort)
        for i in after:
            assert (i in round.cohort) != (i in before and same(before[i], after[i]))


@every_algorithm
def test_a_round_in_which_nobody_answers_leaves_all_as_it_was_and_counts(algorithm):
    sim = simulate(algorithm, quadratic(), S=2, lost=0.8)
    empty = 0
    for r in range(1, 16):
        _, server, states = whole(sim)
        round = next(sim)
        assert round.r == sim.r == r
        if round.cohort:
            assert not same(server, sim.server)
            continue
        empty += 1
        assert same(server, sim.server)
        assert set(sim.states) == set(states)
        assert all(same(sim.states[i], states[i]) for i in states)
        assert round.bytes_down > 0
    assert 0 < empty < 15


def test_a_round_in_which_nobody_answers_has_no_upload_and_no_telemetry():
    _, rounds = run(SCAFFOLD, quadratic(), 15, S=1, lost=0.5)
    for round in rounds:
        assert (round.bytes_up == 0) == (not round.cohort)
        assert isnan(round.drift) == isnan(round.spread) == (not round.cohort)


def test_a_client_lost_in_the_first_exchange_is_not_asked_in_the_second():
    problem = quadratic(kind=Watched)
    _, rounds = run(MIME, problem, 30, lost=0.3)
    for round in rounds:
        computed = problem.computed.get(round.r, [])
        first = computed[0] if computed else []
        second = computed[1] if len(computed) > 1 else []
        assert set(second) <= set(first)
        assert round.cohort == tuple(second)
        # x to all, then x, m and c to those that answered
        assert round.bytes_down == (N + 3 * len(first)) * 8 * D
        assert round.bytes_up == (len(first) + len(second)) * 8 * D


def test_a_reply_may_be_lost_in_either_exchange():
    problem = quadratic(kind=Watched)
    run(MIME, problem, 30, S=1, lost=0.5)
    exchanges = [len(problem.computed.get(r, [])) for r in range(1, 31)]
    assert set(exchanges) == {0, 1, 2}


@dataclass(frozen=True)
class Remembering:
    """A user's algorithm with two exchanges, both of which change the client's state."""

    eta: float = 0.1

    def init_server(self, x):
        return FEDAVG.init_server(x)

    def init_client(self, x):
        return torch.zeros_like(x)

    def local(self, g, state, x):
        return (g(x),), state + 1

    def round(self, server, clients):
        (first,) = clients.run(self.local, server.x).mean()
        (second,) = clients.run(self.local, server.x).mean()
        return type(server)(server.x - self.eta * (first + second) / 2)


def test_states_pass_from_exchange_to_exchange_and_count_for_those_that_answered_both():
    sim, rounds = run(Remembering(), quadratic(), 30, S=2, lost=0.4)
    assert not all(round.cohort for round in rounds)
    finished = Counter(i for round in rounds for i in round.cohort)
    assert {i: float(sim.states[i][0]) for i in sim.states} == {
        i: 2 * finished[i] for i in finished
    }


# -- bytes


@every_algorithm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("S", [2, None])
def test_bytes_are_those_of_the_vectors_that_an_engine_would_send(algorithm, dtype, S):
    vector = D * (4 if dtype == torch.float32 else 8)
    down, up = ALGORITHMS[algorithm]
    _, rounds = run(algorithm, quadratic(dtype), 3, S=S)
    for round in rounds:
        assert round.bytes_down == sum(down) * vector * (S or N)
        assert round.bytes_up == sum(up) * vector * (S or N)


@every_algorithm
def test_with_losses_the_download_counts_who_was_asked_and_the_upload_who_answered(algorithm):
    problem = quadratic(kind=Watched)
    down, up = ALGORITHMS[algorithm]
    _, rounds = run(algorithm, problem, 12, S=5, lost=0.3)
    for round in rounds:
        answered = [len(clients) for clients in problem.computed.get(round.r, [])]
        answered += [0] * (len(up) - len(answered))
        asked = [5, *answered][: len(down)]
        expected = sum(n * v for n, v in zip(asked, down, strict=True)) * 8 * D
        assert round.bytes_down == expected
        assert round.bytes_up == sum(n * v for n, v in zip(answered, up, strict=True)) * 8 * D


# -- client states


@every_algorithm
def test_states_exist_only_for_clients_that_were_sampled_and_only_where_there_are_any(algorithm):
    sim, rounds = run(algorithm, quadratic(), 2, S=2)
    seen = {i for round in rounds for i in round.cohort}
    assert set(sim.states) == (seen if isinstance(algorithm, Scaffold) else set())
    assert len(sim.states) == len(set(sim.states))


def test_audit_finds_no_gap_between_c_and_the_mean_of_the_controls():
    sim, _ = run(SCAFFOLD, quadratic(), 20, S=2, lost=0.3)
    assert sim.audit() < 1e-12
    sim.server = sim.server._replace(c=sim.server.c + 1)
    assert sim.audit() == pytest.approx(D**0.5)


def test_there_is_no_audit_without_controls(refused):
    sim, _ = run(FEDAVG, quadratic(), 1)
    with refused("FedAvg", "no control variates"):
        sim.audit()


# -- divergence


def diverge(sim):
    with pytest.raises(Diverged) as caught:
        list(islice(sim, 2000))
    return caught.value


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        (Sgd(eta=70.0), "eta"),
        (FedAvg(eta_l=70.0, K=3), "eta_l"),
        (Scaffold(eta_l=70.0, K=3), "eta_l"),
        (RichardsonRomberg(FedAvg(eta_l=70.0, K=3)), "eta_l"),
        (Mime(eta=70.0, K=3, base=Momentum()), "eta"),
    ],
    ids=["sgd", "fedavg", "scaffold", "richardsonromberg", "mime"],
)
def test_divergence_names_the_round_and_the_step_size(algorithm, name):
    sim = simulate(algorithm, quadratic(torch.float32), S=3)
    error = diverge(sim)
    assert isinstance(error, ArithmeticError)
    assert f"round {error.r}:" in str(error)
    advice = str(error).split(";")[-1]
    assert f" {name} " in advice
    assert "70." in advice
    assert "\n" not in str(error)
    assert error.algorithm is algorithm


@pytest.mark.parametrize("algorithm", [FedAvg(eta_l=70.0, K=3), Scaffold(eta_l=70.0, K=3)])
def test_a_diverged_simulation_stays_at_its_last_finite_round(algorithm, tmp_path):
    sim = simulate(algorithm, quadratic(torch.float32), S=3)
    error = diverge(sim)
    assert sim.r == error.r - 1 > 0
    assert torch.isfinite(sim.server.x).all()
    twin, _ = run(algorithm, quadratic(torch.float32), sim.r, S=3)
    assert same_simulation(sim, twin)
    sim.save(tmp_path / "sim")
    loaded = Simulation.load(tmp_path / "sim", algorithm, quadratic(torch.float32))
    assert diverge(loaded).r == error.r


def test_after_divergence_one_can_go_on_with_a_smaller_step():
    sim = simulate(FedAvg(eta_l=70.0, K=3), quadratic(torch.float32, sigma=0))
    diverge(sim)
    sim.algorithm = replace(sim.algorithm, eta_l=0.1)
    before = float(sim.server.x.abs().max())
    assert float(next(sim).x.abs().max()) < before


def test_the_last_finite_round_is_finite_in_all_its_states():
    stiff = Quadratic(torch.tensor([1e4, 2e4]), torch.tensor([1.0, -1.0]))
    sim = simulate(
        Scaffold(eta_l=1e-3, K=1), stiff, x=torch.ones(1)
    )  # here c is 10^4 times larger than x
    diverge(sim)
    for tensor in (*sim.server, *(sim.states[i] for i in sim.states)):
        assert torch.isfinite(tensor).all()


class Overflowing(Remembering):
    """A user's algorithm whose second client ends with a state that is not finite."""

    def local(self, g, state, x):
        step = torch.inf if g(x)[0] == quadratic().client_gradient(1, x)[0] else 1
        return (g(x),), state + step


def test_a_client_state_that_is_not_finite_is_divergence_too():
    sim = simulate(Overflowing(), quadratic(sigma=0), cohorts=[[0, 2], [0, 1, 2]])
    next(sim)
    assert diverge(sim).r == 2
    assert torch.isfinite(sim.states[0]).all()
    assert 1 not in sim.states


# -- schedules


def test_a_replaced_algorithm_runs_from_the_next_round_on_and_is_recorded():
    problem = quadratic(sigma=0)
    sim, rounds = run(FEDAVG, problem, 2)
    assert sim.changes == []
    sim.algorithm = replace(sim.algorithm, eta_l=0.01)
    assert sim.changes == [(2, "FedAvg(eta_l=0.01, K=3, eta_g=1.0)")]
    assert sim.algorithm == FedAvg(eta_l=0.01, K=3)
    twin = simulate(FedAvg(eta_l=0.01, K=3), problem, x=rounds[-1].x)
    assert torch.equal(next(sim).x, next(twin).x)


def test_the_warm_up_of_figure_3_sets_the_controls_and_leaves_x():
    problem = quadratic(sigma=0)
    x = torch.ones(D, dtype=torch.float64)
    sim = simulate(Scaffold(eta_l=0.1, K=1, eta_g=0.0, option="I"), problem, x=x)
    assert torch.equal(next(sim).x, x)
    sim.algorithm = SCAFFOLD
    for i in range(N):
        assert torch.equal(sim.states[i], problem.client_gradient(i, x))
    assert isfinite(next(sim).spread)
    assert sim.r == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (FEDAVG, SCAFFOLD),
        (SCAFFOLD, FEDAVG),
        (FEDAVG, RichardsonRomberg(FEDAVG)),
        (FEDAVG, FedOpt(eta_l=0.1, K=3, base=Momentum())),
        (
            FedOpt(eta_l=0.1, K=3, base=Momentum()),
            FedOpt(eta_l=0.1, K=3, base=Adam()),
        ),
    ],
    ids=lambda a: type(a).__name__,
)
def test_an_algorithm_with_other_states_is_refused_and_changes_nothing(refused, old, new):
    sim, _ = run(old, quadratic(), 1)
    with refused(repr(new), repr(old), "other states", "start a new simulation"):
        sim.algorithm = new
    assert sim.algorithm is old
    assert sim.changes == []
    next(sim)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Scaffold(eta_l=0.1, K=3, option="I"), Scaffold(eta_l=0.2, K=5, lean=True)),
        (
            FedOpt(eta_l=0.1, K=3, base=Adam(), eta_g=0.1),
            FedOpt(eta_l=0.1, K=3, base=Yogi(), eta_g=0.1),
        ),
    ],
)
def test_an_algorithm_with_the_same_states_is_accepted(old, new):
    sim, _ = run(old, quadratic(), 2, S=3)
    sim.algorithm = new
    assert next(sim).r == 3


# -- bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"S": 7}, ["S=7 clients asked for", "N=6", "S <= 6"]),
        ({"S": 0}, ["S=0", "S >= 1"]),
        ({"S": -1}, ["S=-1", "S >= 1"]),
        ({"S": True}, ["S=True"]),
        ({"S": "all"}, ["S='all'"]),
        *(({"S": S}, [f"S={S}", "fraction"]) for S in (0.0, 1.5, nan)),
        *(({"lost": lost}, [f"lost={lost}", "below 1"]) for lost in (-0.1, 1, 1.5, nan)),
        ({"lost": None}, ["lost=None"]),
        ({"executor": "gpu"}, ["executor='gpu'", "auto", "loop"]),
        ({"x": torch.zeros(4)}, ["x", "shape (4,)", "d=3"]),
        ({"x": torch.zeros(1, 3)}, ["x", "shape (1, 3)", "d=3"]),
        ({"x": torch.tensor([0.0, nan, 0.0])}, ["x", "finite"]),
        ({"x": torch.zeros(3, dtype=torch.long)}, ["x", "floating-point"]),
        ({"x": [0.0]}, ["x is a list"]),
        *(
            ({"cohorts": [[0], cohort]}, ["cohort", str(cohort), "distinct clients from 0 to 5"])
            for cohort in ([], [0, 0], [6], [-1])
        ),
        ({"memory": "1GB"}, ["'1GB'"]),
        *(({"seed": s}, [f"seed={s!r}; pass a whole number"]) for s in (0.5, None, "1", True)),
    ],
    ids=str,
)
def test_a_bad_argument_is_refused(refused, options, words):
    with refused(*words):
        simulate(FEDAVG, quadratic(), **options)


@pytest.mark.parametrize("executor", ["auto", "loop"])
def test_the_loop_is_an_executor(executor):
    _, rounds = run(FEDAVG, quadratic(), 2, executor=executor)
    assert history(rounds) == history(run(FEDAVG, quadratic(), 2)[1])


class Counting(FedAvg):
    """A user's algorithm that uploads a number."""

    def local(self, g, state, x):
        return (x, self.K), ()


def test_an_upload_that_has_no_mean_is_refused(refused):
    with refused("upload", "3", "tensors"):
        next(simulate(Counting(eta_l=0.1, K=3), quadratic()))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("nothing", [None, [], {}, 0.5, "x"], ids=repr)
def test_a_state_that_is_no_tree_is_refused(refused, executor, nothing):
    class Stateful(FedAvg):
        def init_client(self, x):
            return nothing

    class Forgets(FedAvg):
        def local(self, g, state, x):
            return super().local(g, state, x)[0], nothing

    class Says(FedAvg):
        def round(self, server, clients):
            return Server(clients.run(self.local, (server.x, nothing)).mean().dx)

    class Keeps(FedAvg):
        def round(self, server, clients):
            return Server((super().round(server, clients).x, nothing))

    for kind in (Stateful, Forgets, Says, Keeps):
        with refused("holds", repr(nothing), "tensors", "()"):
            next(simulate(kind(eta_l=0.1, K=1), quadratic(), executor=executor))
        with pytest.raises(TypeError, match="holds"):
            next(simulate(kind(eta_l=0.1, K=1), quadratic(), executor=executor))


def test_a_problem_needs_no_more_than_the_protocol():
    sim, rounds = run(FedProx(eta_l=0.1, K=2), Resting(4), 3, S=2)
    assert rounds[-1].bytes_up == 2 * 4
    assert sim.server.x == 0


def test_clients_that_all_weigh_the_same_need_no_memory_for_their_weights():
    problem = Quadratic(torch.ones(1000, 1), torch.zeros(1000, 1))
    assert problem.weights.untyped_storage().nbytes() == 8


def test_diverged_can_be_pickled():
    error = pickle.loads(pickle.dumps(Diverged(FEDAVG, 3)))
    assert (error.r, error.algorithm, str(error)) == (3, FEDAVG, str(Diverged(FEDAVG, 3)))


@pytest.mark.parametrize("algorithm", [FedAvg, "scaffold", None, 3])
def test_what_is_no_algorithm_is_refused(refused, algorithm):
    with refused("is not an algorithm; pass an instance, as Scaffold"):
        simulate(algorithm, quadratic())


@pytest.mark.parametrize("problem", ["digits", torch.nn.Linear(2, 2), None, Quadratic])
def test_what_is_no_problem_is_refused(refused, problem):
    with refused("is not a problem; pass "):
        simulate(FedAvg(eta_l=0.1, K=2), problem)


def test_numbers_of_numpy_are_numbers():
    algorithm = FedAvg(eta_l=0.1, K=2)
    one = simulate(algorithm, quadratic(), S=0.5, seed=3, lost=0.25)
    other = simulate(
        algorithm, quadratic(), S=numpy.float32(0.5), seed=numpy.int64(3), lost=numpy.float32(0.25)
    )
    for _ in range(5):
        assert torch.equal(next(one).x, next(other).x)
    with pytest.raises(ValueError, match=r"S=2\.5"):
        simulate(algorithm, quadratic(), S=numpy.float64(2.5))
