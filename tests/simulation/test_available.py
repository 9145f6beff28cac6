"""Clients that are not always there: S are sampled of those who are."""

from itertools import islice

import pytest
import torch

from tests.helpers.small_runs import linear, quadratic, same_simulation
from trimtab import FedAvg, Mime, Momentum, Scaffold, Simulation, simulate

SCAFFOLD = Scaffold(eta_l=0.1, K=3)


def by_day(r):
    """Half of the clients by day, the other half at night, nobody in every fifth round."""
    return set() if r % 5 == 0 else {0, 2, 4} if r % 2 else {1, 3, 5}


def cohorts(R=20, algorithm=SCAFFOLD, **settings):
    return [r.cohort for r in islice(simulate(algorithm, quadratic(), **settings), R)]


def table(tmp_path, text):
    path = tmp_path / "there.csv"
    path.write_text(text)
    return path


def test_only_those_who_are_there_are_asked_and_all_of_them_if_fewer_than_S():
    for r, cohort in enumerate(cohorts(S=2, available=by_day), 1):
        assert set(cohort) <= by_day(r)
        assert len(cohort) == min(2, len(by_day(r)))
    assert cohorts(R=1, S=5, available=by_day) == [(0, 2, 4)]


def test_where_all_are_there_the_cohorts_are_those_without():
    assert cohorts(S=3, available=lambda r: range(6)) == cohorts(S=3)


def test_every_one_of_those_who_are_there_is_sampled_alike():
    counts = torch.zeros(6)
    for cohort in cohorts(R=600, S=2, available=lambda r: [1, 2, 4, 5]):
        counts[list(cohort)] += 1
    # Each of the four is in half of the 600 rounds: 300, with a standard deviation of 12.2.
    assert counts[[0, 3]].sum() == 0
    assert (counts[[1, 2, 4, 5]] - 300).abs().max() < 5 * 12.3


def test_who_is_asked_depends_on_seed_and_round_alone():
    assert cohorts(S=2, available=by_day) == cohorts(S=2, available=by_day)
    assert cohorts(S=2, available=by_day, seed=1) != cohorts(S=2, available=by_day)


@pytest.mark.parametrize("algorithm", [SCAFFOLD, Mime(eta=0.1, K=2, base=Momentum())], ids=str)
@pytest.mark.parametrize("executor", ["loop", "fused", "batched", "threads"])
def test_a_round_without_clients_leaves_the_server_as_it_was(algorithm, executor):
    sim = simulate(algorithm, linear(), S=2, available=by_day, executor=executor)
    rounds = list(islice(sim, 6))
    assert rounds[4].cohort == ()
    assert torch.equal(rounds[4].x, rounds[3].x)
    assert not torch.equal(rounds[5].x, rounds[4].x)
    empty = rounds[4]
    assert (empty.exchanges, empty.work, empty.bytes_down, empty.bytes_up) == (0, 0, 0, 0)


def test_scaffold_reaches_the_optimum_although_halves_never_meet():
    """c holds all clients, also those that are away; FedAvg goes to and fro between the halves."""
    problem = quadratic(sigma=0.0, weights=None)

    def error(algorithm, R):
        sim = simulate(algorithm, problem, available=lambda r: [0, 2, 4] if r % 2 else [1, 3, 5])
        return float(([*islice(sim, R)][-1].x - problem.x_star).norm())

    assert error(Scaffold(eta_l=0.1, K=3), 400) < 1e-8
    assert error(FedAvg(eta_l=0.1, K=3), 400) > 1e-2


# -- a table


def test_a_table_says_who_is_there_when(tmp_path):
    path = table(tmp_path, "client,from,to\n0,1,3\n0,6,6\n2,2,4\n5,4,\n")
    there = [{0}, {0, 2}, {0, 2}, {2, 5}, {5}, {0, 5}, {5}]
    for given in (path, str(path)):
        assert [set(c) for c in cohorts(R=7, available=given)] == there


def test_columns_may_stand_in_any_order_beside_others(tmp_path):
    path = table(tmp_path, "name,to,client,from\nSt Mary,2,4,1\n\nCity, 1 ,1, 1\n")
    assert cohorts(R=3, available=path) == [(1, 4), (4,), ()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("is empty", "client,from,to")),
        ("0,1,3\n", ("line 1", "client,from,to")),
        ("client,from\n0,1\n", ("line 1", "client,from,to")),
        ("client,from,to\n0,1,3\n6,1,3\n", ("line 3", "client 6", "0 to 5")),
        ("client,from,to\n-1,1,3\n", ("line 2", "client -1", "0 to 5")),
        ("client,from,to\nMary,1,3\n", ("line 2", "'Mary'", "whole number")),
        ("client,from,to\n0,1.5,3\n", ("line 2", "'1.5'", "whole number")),
        ("client,from,to\n0,,3\n", ("line 2", "''", "whole number")),
        ("client,from,to\n0,0,3\n", ("line 2", "from 0", "count from 1")),
        ("client,from,to\n0,4,3\n", ("line 2", "from 4 to 3")),
        ("client,from,to\n0,4\n", ("line 2", "2 columns")),
        ("client,from,to\n0,4,5,6\n", ("line 2", "4 columns")),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_with_its_line(tmp_path, text, words, refused):
    with refused("there.csv", *words):
        simulate(SCAFFOLD, quadratic(), available=table(tmp_path, text))


def test_a_table_that_is_not_there_is_refused(tmp_path, refused):
    with refused("nosuch.csv", "no such file"):
        simulate(SCAFFOLD, quadratic(), available=tmp_path / "nosuch.csv")
    (tmp_path / "binary.csv").write_bytes(b"client\xff\xfe")
    with refused("binary.csv", "cannot be read"):
        simulate(SCAFFOLD, quadratic(), available=tmp_path / "binary.csv")


# -- a function


@pytest.mark.parametrize("there", [[6], [-1], [0.5], ["a"], 3, None])
def test_what_a_function_returns_must_be_clients(there, refused):
    sim = simulate(SCAFFOLD, quadratic(), available=lambda r: there)
    with refused("available(1)", "0 to 5"):
        next(sim)


def test_availability_is_a_function_or_a_path(refused):
    with refused("available=3", "CSV"):
        simulate(SCAFFOLD, quadratic(), available=3)


def test_explicit_cohorts_leave_nothing_to_sample(refused):
    with refused("cohorts", "available"):
        simulate(SCAFFOLD, quadratic(), cohorts=[[0]], available=by_day)


# -- saved and continued


def continued(tmp_path, given, again, algorithm=SCAFFOLD):
    sim = simulate(algorithm, quadratic(), S=2, available=given)
    list(islice(sim, 7))
    sim.save(tmp_path / "half.safetensors")
    rest = Simulation.load(tmp_path / "half.safetensors", algorithm, quadratic(), available=again)
    return sim, rest


def test_a_loaded_run_goes_on_with_the_same_clients(tmp_path):
    path = table(tmp_path, "client,from,to\n" + "".join(f"{i},{1 + i},30\n" for i in range(6)))
    for given in (by_day, path):
        sim, rest = continued(tmp_path, given, given)
        for a, b in zip(islice(sim, 8), islice(rest, 8), strict=True):
            assert a.cohort == b.cohort
        assert same_simulation(sim, rest)


def test_a_loaded_run_needs_its_availability_again(tmp_path, refused):
    path = table(tmp_path, "client,from,to\n0,1,9\n")
    with refused("half.safetensors", "a function", "pass the same available"):
        continued(tmp_path, by_day, None)
    with refused("half.safetensors", "a table", "pass the same available"):
        continued(tmp_path, path, None)
    with refused("half.safetensors", "without", "available"):
        continued(tmp_path, None, by_day)
    other = tmp_path / "other.csv"
    other.write_text("client,from,to\n0,1,8\n")
    with refused("half.safetensors", "another table"):
        continued(tmp_path, path, other)
    with refused("half.safetensors", "another table"):
        continued(tmp_path, path, by_day)
    other.write_text(path.read_text() + "0,3,4\n")  # another text that says the same
    continued(tmp_path, path, other)
