"""Asynchronous rounds: exact sums, the optimum, the clock, checkpoints, and what is refused."""

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from tests.helpers.small_runs import linear
from trimtab import (
    FedAvg,
    FedDyn,
    FedNova,
    FedOpt,
    Mime,
    Momentum,
    Quadratic,
    RichardsonRomberg,
    Rounding,
    Scaffold,
    ScaffoldOpt,
    Scallion,
    Sgd,
    Simulation,
    Speeds,
    Through,
    simulate,
)
from trimtab.core import leaves
from trimtab.simulation.arrivals import ArrivedReplies

N, d = 6, 4
SCAFFOLD = Scaffold(eta_l=0.05, K=5)
UNEQUAL = [1.0, 2.0, 3.0, 1.0, 2.0, 1.0]


def quadratic(weights=None):
    draw = torch.Generator().manual_seed(0)
    A = 0.3 + 1.7 * torch.rand(N, d, generator=draw, dtype=torch.float64)
    b = 2 * torch.randn(N, d, generator=draw, dtype=torch.float64)
    return Quadratic(A=A, b=b, weights=weights)


def run(algorithm, R, problem=None, **settings):
    settings.setdefault("arrivals", Speeds(spread=10))
    sim = simulate(algorithm, problem or quadratic(), **settings)
    return sim, list(islice(sim, R))


# -- exact


@pytest.mark.parametrize("weights", [None, UNEQUAL], ids=["equal", "weighted"])
@pytest.mark.parametrize("buffer", [1, 3])
@pytest.mark.parametrize(
    "speeds",
    [Speeds(spread=10), Speeds(spread=10, delays="fixed"), Speeds(spread=10, delays="pareto")],
    ids=lambda s: s.delays,
)
def test_scaffold_reaches_the_optimum_and_c_is_the_mean_after_every_arrival(
    weights, buffer, speeds
):
    problem = quadratic(weights)
    sim = simulate(SCAFFOLD, problem, arrivals=replace(speeds, buffer=buffer))
    for _ in islice(sim, 200):
        assert sim.audit() < 1e-14
    *_, last = islice(sim, 4000 // buffer)
    assert (last.x - problem.x_star).norm() < 1e-12
    assert sim.audit() < 1e-13


def test_fedavg_ends_away_from_the_optimum():
    problem = quadratic()
    _, rounds = run(FedAvg(eta_l=0.05, K=5), 2000, problem)
    assert (rounds[-1].x - problem.x_star).norm() > 0.01


@pytest.mark.parametrize("weights", [None, UNEQUAL], ids=["equal", "weighted"])
@pytest.mark.parametrize(
    "algorithm",
    [SCAFFOLD, FedAvg(eta_l=0.05, K=5), Sgd(eta=0.1), RichardsonRomberg(FedAvg(eta_l=0.05, K=4))],
    ids=lambda a: type(a).__name__,
)
def test_arrivals_of_all_clients_from_one_x_are_the_synchronous_round(algorithm, weights):
    problem = quadratic(weights)
    # Without a delay between the clients, all N arrive before one of them arrives again.
    _, arrived = run(algorithm, N, problem, arrivals=Speeds(seconds=[1.0] * N))
    (first,) = islice(simulate(algorithm, problem), 1)
    fetched_once = simulate(algorithm, problem, arrivals=Speeds(seconds=[1.0] * N, buffer=N))
    for a, b in zip(leaves(next(fetched_once).server), leaves(first.server), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-15)
    if isinstance(algorithm, Scaffold | FedAvg):
        # Each fetched x and c of the start, so the sum of the arrivals is that round too.
        for a, b in zip(leaves(arrived[-1].server), leaves(first.server), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-15)


def test_a_full_buffer_gives_synchronous_rounds_that_last_as_long_as_the_slowest():
    speeds = Speeds(spread=10, delays="fixed", buffer=N)
    _, rounds = run(SCAFFOLD, 20, linear(), arrivals=speeds)
    slowest = max(speeds.delay(i, 0) for i in range(N))
    for r, (ours, theirs) in enumerate(zip(rounds, simulate(SCAFFOLD, linear()), strict=False), 1):
        torch.testing.assert_close(ours.x, theirs.x, rtol=1e-5, atol=1e-6)
        assert ours.time == pytest.approx(r * slowest)
        assert ours.cohort == theirs.cohort == tuple(range(N))
    assert len(rounds) == 20


def test_a_client_without_delay_is_a_cohort_of_one_with_a_divided_step():
    problem = quadratic()
    # Only client 0 arrives in 60 seconds, so what it fetched is never old.
    _, ours = run(SCAFFOLD, 60, problem, arrivals=Speeds(seconds=[1.0, *[1e6] * (N - 1)]))
    theirs = list(simulate(replace(SCAFFOLD, eta_g=1 / N), problem, cohorts=[[0]] * 60))
    assert [r.cohort for r in ours] == [(0,)] * 60
    torch.testing.assert_close(ours[-1].x, theirs[-1].x, rtol=0, atol=1e-13)


def test_the_drift_of_an_arrival_is_the_length_of_its_move_whatever_its_weight():
    problem = quadratic(UNEQUAL)
    sim = simulate(FedAvg(eta_l=0.05, K=5), problem, arrivals=Speeds(spread=10))
    before = sim.server.x
    for done in islice(sim, 12):
        p_i = float(problem.weights[done.cohort[0]])
        assert done.drift == pytest.approx(float((done.x - before).norm()) / p_i)
        before = done.x


def test_the_random_numbers_of_a_job_are_those_of_the_round_it_was_fetched_for():
    class Seen(Quadratic):
        def oracle(self, i, seed, r):
            seen.append((i, r))
            return super().oracle(i, seed, r)

    seen, inner = [], quadratic()
    problem = Seen(A=inner.A, b=inner.b)
    _, rounds = run(SCAFFOLD, 30, problem, executor="loop")
    assert len(set(seen)) == len(seen) == 30
    last = {}
    for (i, r), done in zip(seen, rounds, strict=True):
        assert done.cohort == (i,)
        assert r == last.get(i, 1)
        last[i] = done.r + 1


# -- mistakes that the tests above must notice


class ShareOfOne(ArrivedReplies):
    """p_i for the mean and p_i for the share: what happens if Tally is used as it is."""

    @property
    def share(self):
        return sum(self._weights)


@pytest.mark.parametrize("kind", [ShareOfOne], ids=lambda k: k.__name__)
def test_a_wrong_share_breaks_the_audit(kind, monkeypatch):
    monkeypatch.setattr("trimtab.simulation.arrivals.ArrivedReplies", kind)
    monkeypatch.setattr(
        "trimtab.simulation.arrivals.ArrivedCohort.check_sum", lambda *arguments: None
    )
    sim, _ = run(SCAFFOLD, 20)
    assert sim.audit() > 1e-3


@pytest.mark.parametrize(
    ("algorithm", "what"),
    [
        (replace(SCAFFOLD, lean=True), "do not add up"),
        (FedDyn(eta_l=0.05, K=5), "do not add up"),
        (FedNova(eta_l=0.05, K=5), "do not add up"),
        (Scallion(eta_l=0.05, K=5), "do not add up"),
        (FedOpt(eta_l=0.05, K=5, base=Momentum(0.9)), "do not add up"),
        (Mime(eta=0.05, K=5, base=Momentum(0.0)), "two exchanges per round"),
    ],
    ids=lambda a: type(a).__name__,
)
def test_algorithms_that_arrivals_would_change_are_refused(algorithm, what):
    sim = simulate(algorithm, quadratic(), arrivals=Speeds())
    with pytest.raises(ValueError, match=what):
        next(sim)
    assert sim.r == 0
    assert len(sim.states) == 0


@pytest.mark.parametrize(
    "algorithm",
    [
        ScaffoldOpt(eta_l=0.05, K=5, base=Momentum(0.5)),
        replace(SCAFFOLD, option="I"),
        Through(SCAFFOLD, (Rounding(0.01),)),
    ],
    ids=lambda a: type(a).__name__,
)
def test_other_members_of_the_family_keep_c_exact(algorithm):
    sim, _ = run(algorithm, 60)
    assert sim.audit() < 1e-13


# -- the clock


def test_a_fast_client_arrives_more_often():
    seconds = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    _, rounds = run(SCAFFOLD, 126, arrivals=Speeds(seconds=seconds))
    counts = [sum(r.cohort == (i,) for r in rounds) for i in range(N)]
    assert counts == [64, 32, 16, 8, 4, 2]
    assert rounds[-1].time == 64
    assert [r.time for r in rounds] == sorted(r.time for r in rounds)


def test_delays_are_functions_of_seed_client_and_job():
    one, other = Speeds(spread=100), Speeds(spread=100, seed=1)
    assert [one.delay(3, j) for j in range(5)] == [one.delay(3, j) for j in range(5)]
    assert one.delay(3, 0) != other.delay(3, 0)
    assert len({one.delay(i, j) for i in range(5) for j in range(5)}) == 25


@pytest.mark.parametrize("delays", ["exponential", "pareto"])
def test_the_mean_delay_of_a_client_is_that_of_fixed_delays(delays):
    fixed = Speeds(spread=10, delays="fixed").delay(2, 0)
    drawn = Speeds(spread=10, delays=delays)
    values = torch.tensor([drawn.delay(2, j) for j in range(20_000)])
    # The standard deviation of a mean: 1 / sqrt(20,000) for exponential delays, 3 times that for
    # the truncated Pareto distribution.
    assert values.mean() / fixed == pytest.approx(1, abs=0.1)
    assert (values > 0).all()
    if delays == "pareto":
        assert values.max() / values.min() <= 100.001


def test_equal_seeds_give_equal_bits_and_slow_clients_still_make_fewer_steps():
    _, one = run(SCAFFOLD, 40, linear(), slow=0.5)
    _, two = run(SCAFFOLD, 40, linear(), slow=0.5)
    _, without = run(SCAFFOLD, 40, linear())
    assert torch.equal(one[-1].x, two[-1].x)
    assert [r.time for r in one] == [r.time for r in two]
    assert not torch.equal(one[-1].x, without[-1].x)


def test_saved_delays_replay_the_same_rounds_with_any_algorithm(tmp_path):
    sim, rounds = run(SCAFFOLD, 50)
    sim.save_delays(tmp_path / "delays.csv")
    again = Speeds(seconds=tmp_path / "delays.csv")
    _, replayed = run(SCAFFOLD, 50, arrivals=again)
    assert torch.equal(rounds[-1].x, replayed[-1].x)
    assert [r.time for r in rounds] == [r.time for r in replayed]
    _, other = run(FedAvg(eta_l=0.1, K=2), 50, arrivals=again)
    assert [r.cohort for r in other] == [r.cohort for r in rounds]


@pytest.mark.parametrize("buffer", [1, 4])
@pytest.mark.parametrize("problem", [quadratic, linear], ids=lambda p: p.__name__)
def test_a_loaded_simulation_continues_bit_for_bit(tmp_path, buffer, problem):
    speeds = Speeds(spread=10, buffer=buffer)
    sim, _ = run(SCAFFOLD, 17, problem(), arrivals=speeds, slow=0.3)
    sim.save(tmp_path / "a.safetensors")
    rest = list(islice(sim, 20))
    again = Simulation.load(tmp_path / "a.safetensors", SCAFFOLD, problem())
    for one, other in zip(rest, islice(again, 20), strict=True):
        assert torch.equal(one.x, other.x)
        assert (one.time, one.cohort) == (other.time, other.cohort)


# -- what is refused


@pytest.mark.parametrize(
    "settings",
    [{"S": 3}, {"cohorts": [[0]]}, {"lost": 0.1}, {"available": lambda r: [0]}],
    ids=lambda s: next(iter(s)),
)
def test_settings_that_select_clients_are_refused(settings):
    with pytest.raises(ValueError, match=f"arrivals and {next(iter(settings))} exclude each other"):
        simulate(SCAFFOLD, quadratic(), arrivals=Speeds(), **settings)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"spread": 0.5}, "spread=0.5; pass a number that is at least 1"),
        ({"spread": float("inf")}, "spread=inf; pass a finite number"),
        ({"spread": float("nan")}, "spread=nan"),
        ({"spread": "10"}, "spread='10'"),
        ({"buffer": 0}, "buffer=0; pass a whole number that is at least 1"),
        ({"buffer": 1.5}, "buffer=1.5"),
        ({"seed": None}, "seed=None; pass a whole number"),
        ({"delays": "normal"}, "pass one of exponential, fixed, pareto"),
        ({"seconds": []}, "has no delays"),
        ({"seconds": 3.0}, "has no delays"),
        ({"seconds": [1.0, -2.0]}, "client 1 has a delay of -2.0 seconds"),
        ({"seconds": [1.0, float("nan")]}, "client 1 has a delay of nan"),
        ({"seconds": [[1.0], []]}, "no delay of client 1"),
        ({"seconds": "nowhere.csv"}, "there is no such file"),
    ],
)
def test_wrong_speeds_are_refused_in_one_sentence(settings, what):
    with pytest.raises(ValueError, match="Speeds: ") as error:
        Speeds(**settings)
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "must begin with the header client,seconds"),
        ("a,b\n0,1\n", "must begin with the header client,seconds"),
        ("client,seconds\n0,1\nx,2\n", "line 3"),
        ("client,seconds\n-1,1\n", "has client -1"),
        ("client,seconds\n1,1\n", "no delay of client 0"),
    ],
)
def test_a_wrong_file_of_delays_is_refused_with_its_place(tmp_path, text, what):
    (tmp_path / "delays.csv").write_text(text)
    with pytest.raises(ValueError, match="Speeds: ") as error:
        Speeds(seconds=tmp_path / "delays.csv")
    assert what in str(error.value)


def test_speeds_that_do_not_fit_the_problem_are_refused():
    with pytest.raises(ValueError, match="buffer=7, but the problem has N=6"):
        simulate(SCAFFOLD, quadratic(), arrivals=Speeds(buffer=7))
    with pytest.raises(ValueError, match="delays of 2 clients, but the problem has N=6"):
        simulate(SCAFFOLD, quadratic(), arrivals=Speeds(seconds=[1.0, 2.0]))
    with pytest.raises(ValueError, match="pass speeds of the clients"):
        simulate(SCAFFOLD, quadratic(), arrivals=10)
    with pytest.raises(ValueError, match="has no delays"):
        simulate(SCAFFOLD, quadratic()).save_delays("delays.csv")


def test_the_algorithm_cannot_be_replaced_while_clients_work_with_it():
    sim, _ = run(SCAFFOLD, 3)
    with pytest.raises(ValueError, match="clients still work with"):
        sim.algorithm = replace(SCAFFOLD, eta_l=0.01)


def test_the_example_of_the_page_runs(capsys):
    page = (Path(__file__).parents[2] / "docs" / "asynchronous.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(block, {})
    arrivals, *_ = capsys.readouterr().out.split()
    assert int(arrivals) > 10
