"""Schedules: the algorithm of each round, in the simulator and in what travels; and tuning."""

import json
from dataclasses import replace
from itertools import islice
from math import isclose

import pytest
import torch

from trimtab import (
    Cosine,
    Decay,
    FedAvg,
    Piecewise,
    Quadratic,
    RichardsonRomberg,
    Rounding,
    Scaffold,
    Scheduled,
    Simulation,
    Through,
    Warmup,
    compare,
    simulate,
)
from trimtab.algorithms.registry import decode, encode
from trimtab.core.hyper import at, step_size, with_step
from trimtab.problems.catalogue import quadratic_problem
from trimtab.testing import check_algorithm

SCAFFOLDS = [
    Scaffold(eta_l=0.2, K=6),
    Scaffold(eta_l=0.2, K=6, option="I"),
    Scaffold(eta_l=0.2, K=6, lean=True),
]


@pytest.mark.parametrize("algorithm", SCAFFOLDS, ids=repr)
def test_a_round_is_that_of_the_rounds_algorithm(algorithm):
    scheduled = simulate(Scheduled(algorithm, eta_l=Decay(0.8), K=Decay(0.5)), quadratic_problem())
    by_hand = simulate(algorithm, quadratic_problem())
    for r in range(1, 6):
        K = max(1, round(6 * 0.5 ** (r - 1)))
        by_hand.algorithm = replace(algorithm, eta_l=0.2 * 0.8 ** (r - 1), K=K)
        ours, theirs = next(scheduled), next(by_hand)
        torch.testing.assert_close(ours.x, theirs.x, rtol=1e-12, atol=1e-12)
    assert scheduled.audit() < 1e-12


def test_a_run_goes_on_at_its_place_in_the_schedule(tmp_path):
    algorithm = Scheduled(SCAFFOLDS[0], eta_l=Cosine(R=10))
    sim = simulate(algorithm, quadratic_problem(), S=4)
    list(islice(sim, 4))
    sim.save(tmp_path / "s")
    again = Simulation.load(tmp_path / "s", algorithm, quadratic_problem())
    for ours, theirs in zip(islice(sim, 4), islice(again, 4), strict=True):
        assert torch.equal(ours.x, theirs.x)


def test_a_decaying_step_removes_the_noise_that_a_constant_one_leaves():
    problem = quadratic_problem(sigma=1.0)

    def end(algorithm):
        *_, last = islice(simulate(algorithm, problem), 300)
        return problem.evaluate(last.x)["distance"]

    assert end(Scheduled(SCAFFOLDS[0], eta_l=Cosine(R=300))) < end(SCAFFOLDS[0]) / 3


def test_tuning_the_field_tunes_the_schedule():
    algorithm = Scheduled(FedAvg(eta_l=0.1, K=2), eta_l=Decay(0.5))
    assert step_size(algorithm) == ("eta_l", 0.1)
    assert isclose(at(with_step(algorithm, 0.4), 2).eta_l, 0.2)
    entries = compare(quadratic_problem(), [algorithm], R=5).entries
    assert entries[0].settings["eta_l"] == 0.1
    assert entries[0].shown == "FedAvg (Scheduled)"
    assert entries[0].label == "fedavg-scheduled-K2"


def test_wrappers_are_looked_into():
    inner = Scheduled(FedAvg(eta_l=0.4, K=2), eta_l=Decay(0.5))
    assert at(Through(inner, (Rounding(0.1),)), 2).algorithm == FedAvg(eta_l=0.2, K=2)
    plain = RichardsonRomberg(FedAvg(eta_l=0.4, K=2))
    assert at(plain, 7) is plain


def test_it_reads_back_and_travels():
    algorithm = Scheduled(Scaffold(eta_l=0.1, K=4), eta_l=Cosine(R=9), eta_g=Piecewise(((5, 0.5),)))
    assert decode(json.loads(json.dumps(encode(algorithm)))) == algorithm
    assert eval(repr(algorithm)) == algorithm
    check_algorithm(algorithm)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"eta": Decay(0.5)}, "Scheduled: eta=Decay(rate=0.5); schedule one of K, eta_g, eta_l"),
        ({"eta_l": 0.5}, "Scheduled: eta_l=0.5; schedule one of"),
        ({}, "there is no schedule"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(refused, words, sentence):
    with refused(sentence):
        Scheduled(FedAvg(eta_l=0.1, K=2), **words)


@pytest.mark.parametrize("steps", [(), ((5, 0.1), (5, 0.2)), ((5, 0.1), (3, 0.2)), ((5, 0.0),)])
def test_piecewise_wants_growing_rounds_and_positive_factors(refused, steps):
    with refused("Piecewise", "pass rounds that grow"):
        Piecewise(steps)


def test_a_cosine_is_half_of_one_between_its_ends():
    fall = Cosine(R=4)
    assert [round(fall(r), 6) for r in range(1, 7)] == [
        1.0,
        round(0.01 + 0.99 * (1 + 2**-0.5) / 2, 6),
        0.505,
        round(0.01 + 0.99 * (1 - 2**-0.5) / 2, 6),
        0.01,
        0.01,
    ]
    assert [Cosine(R=4, least=0.1)(r) for r in (1, 3, 5, 99)] == pytest.approx([1, 0.55, 0.1, 0.1])


def test_a_decay_begins_at_one():
    assert [Decay(0.5)(r) for r in (1, 2, 4)] == [1.0, 0.5, 0.125]


def test_pieces_begin_with_the_rounds_that_they_name():
    steps = Piecewise(((3, 0.1), (5, 0.01)))
    assert [steps(r) for r in (1, 2, 3, 4, 5, 6)] == [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]


def test_a_warm_up_rises_to_one_and_hands_over_to_the_next_schedule():
    assert [Warmup(4)(r) for r in (1, 2, 4, 5, 99)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    then = Warmup(2, then=Decay(0.5))
    assert [then(r) for r in range(1, 6)] == [0.5, 1.0, 1.0, 0.5, 0.25]
    scheduled = Scheduled(FedAvg(eta_l=0.4, K=2), eta_l=then)
    assert scheduled.at(1).eta_l == 0.2
    assert decode(encode(scheduled)) == scheduled


@pytest.mark.parametrize("algorithm", SCAFFOLDS, ids=repr)
def test_scaffold_reaches_the_optimum_with_a_warm_up(algorithm):
    problem = quadratic_problem()
    sim = simulate(Scheduled(algorithm, eta_l=Warmup(10, then=Cosine(R=400))), problem, S=4)
    for _ in islice(sim, 300):
        assert sim.audit() < 1e-12
    assert problem.evaluate(sim.server.x)["distance"] < 1e-6


@pytest.mark.parametrize("words", [{"R": 0}, {"R": 2, "then": 0.5}])
def test_a_warm_up_wants_rounds_and_a_schedule(refused, words):
    with refused("Warmup"):
        Warmup(**words)


def test_a_number_of_steps_is_rounded_and_never_below_one():
    halved = Scheduled(FedAvg(eta_l=0.1, K=5), K=Decay(0.5))
    assert [halved.at(r).K for r in (1, 2, 3, 4, 9)] == [5, 2, 1, 1, 1]
    assert halved.at(2).eta_l == 0.1


def test_who_does_not_ask_for_the_round_gets_the_first():
    problem = Quadratic(A=torch.tensor([2.0, 1.0]), b=torch.tensor([-1.0, 1.0]))
    scheduled = Scheduled(FedAvg(eta_l=0.1, K=2), eta_l=Decay(0.5))

    class Asked(FedAvg):
        def round(self, server, clients):
            return self.eta_l

    asked = Scheduled(Asked(eta_l=0.1, K=2), eta_l=Decay(0.5))
    assert asked.round(None, None) == 0.1
    sim = simulate(scheduled, problem, x=torch.ones(1))
    plain = simulate(FedAvg(eta_l=0.1, K=2), problem, x=torch.ones(1))
    assert torch.equal(next(sim).x, next(plain).x)
    assert not torch.equal(next(sim).x, next(plain).x)


def test_the_rounds_of_a_cosine_are_counted():
    with pytest.raises(ValueError, match="R"):
        Cosine(R=0)


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_a_decay_shrinks(refused, rate):
    with refused("Decay", f"rate={rate}"):
        Decay(rate)
