"""What is advised rests on runs on the problem, and says nothing that they do not."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from tests.helpers.losses import quadratics
from trimtab import Quadratic, diagnose
from trimtab.core.task import Task
from trimtab.diagnosis.advise import best_K, confidence, decide, in_question
from trimtab.diagnosis.budget import Budget
from trimtab.diagnosis.case import begin
from trimtab.diagnosis.confirm import Confirmed, affordable, confirm
from trimtab.diagnosis.panel import choose_panel
from trimtab.diagnosis.rules import RULES
from trimtab.diagnosis.sections import headline, rounds_of
from trimtab.problems.metrics import LOSS
from trimtab.studies.advice import MATERIAL
from trimtab.studies.entry import Entry, SeedRun
from trimtab.studies.goal import Cost, Goal
from trimtab.studies.record import RoundLine
from trimtab.studies.space import Expected

SIMPLEST = ("sgd", "fedavg", "scaffold")


def case_of(problem, eps=1e-3):
    """Return the case of a problem whose optimum is known, with much time."""
    budget = Budget(600.0)
    case = begin(problem, choose_panel(problem, 0, budget), budget, problem.x0(), problem.N, 0)
    case.best, case.least, case.optimum = problem.x_star, problem.loss(problem.x_star), True
    case.eps = eps * (case.f0 - case.least)
    return case


def confirmed(problem, *expected):
    case = case_of(problem)
    found = Task(confirm(case, expected, 0.5, 1.0)).result()
    return case, found


def easy():
    """Return quadratics that SGD solves in few rounds, with clients that hardly differ."""
    A = torch.linspace(0.6, 1.0, 8).double().expand(5, 8)
    b = torch.ones(5, 8).double() + 0.01 * torch.arange(5).double()[:, None]
    return Quadratic(A, b)


# -- the defects of the old trial


def test_a_step_17_times_too_small_is_not_held_against_an_algorithm():
    case, found = confirmed(easy(), Expected("scaffold", 8, 0.2), Expected("sgd", 1, 1.25 / 17))
    by_name = {entry.name: entry for entry in found.entries}
    assert by_name["sgd"].settings["eta"] > 0.9
    advice = decide(found, case.least, case.eps)
    fewest = min(entry.rounds for entry in found.entries)
    assert advice.choice.rounds <= MATERIAL * fewest
    if by_name["sgd"].rounds <= MATERIAL * fewest:
        assert advice.choice.algorithm == "sgd"


@pytest.mark.parametrize("rounds", [*product((5, 6, 8, 30, None), repeat=3)])
def test_the_headline_never_contradicts_the_rounds_beside_it(rounds):
    """One was Scaffold with 8 rounds beside Sgd with 5; one denied 10 against 30 rounds."""
    found = confirmed_as(dict(zip(SIMPLEST, rounds, strict=True)))
    advice = decide(found, 0.0, 1.0)
    said = headline(advice, 1.0)
    there = {name: count for name, count in zip(SIMPLEST, rounds, strict=True) if count}
    if not there:
        assert advice.verdict == "nearest"
        assert not said.startswith("Use ")
        return
    fewest = min(there.values())
    assert there[advice.choice.algorithm] <= MATERIAL * fewest
    alike = len(there) == 3 and max(there.values()) <= MATERIAL * fewest
    assert (advice.verdict == "no difference") == alike
    assert said.startswith("No difference found" if alike else "Use ")
    others = [there[name] for name in there if name != advice.choice.algorithm]
    if others:
        assert advice.gain.factor.value == min(others) / there[advice.choice.algorithm]
    for name, count in there.items():
        assert f"needed {count} rounds" in rounds_of(found), name


def test_the_simplest_of_those_without_a_difference_is_named():
    advice = decide(confirmed_as({"scaffold": 10, "fedavg": 11, "sgd": 11}), 0.0, 1.0)
    assert advice.choice.algorithm == "sgd"
    assert set(advice.alike) == {"scaffold", "fedavg"}


def test_an_algorithm_with_fewer_rounds_is_not_passed_over_in_silence():
    advice = decide(confirmed_as({"scaffold": 10, "fedavg": 30, "sgd": 11}), 0.0, 1.0)
    assert headline(advice, 1.0) == "Use Sgd with eta = 0.1; no difference to Scaffold was found."


# -- decisions


def entry_of(name, rounds, K=4, ran=40, least=None, **facts):
    """Return an entry with three seeds; without rounds, it ran so far and came down to least."""
    words = {"eta": 0.1} if name == "sgd" else {"eta_l": 0.1, "K": K}
    low = 5.0 if least is None else least
    curve = [RoundLine(r, metrics={"loss": 10 - (10 - low) * r / ran}) for r in range(1, ran + 1)]
    costs = [None if rounds is None else Cost(rounds, rounds, 0, 0, 0.0)] * 3
    return replace(
        Entry(name, name, words, rounds, stateful=name == "scaffold"),
        runs=[SeedRun(19 + j, cost, low, 1, {}) for j, cost in enumerate(costs)],
        reached=0 if rounds is None else 3,
        step="eta" if name == "sgd" else "eta_l",
        shown=name.title(),
        curve=curve,
        **facts,
    )


def confirmed_as(rounds, **facts):
    entries = tuple(entry_of(name, count, **facts) for name, count in rounds.items())
    expected = tuple(Expected(entry.name, 4, 0.1, 9) for entry in entries)
    return Confirmed(entries, expected, Goal(LOSS, 1.0), (100,) * len(entries), f_start=10.0)


def test_without_two_algorithms_that_ran_there_is_no_advice():
    advice = decide(confirmed_as({"sgd": None, "scaffold": None}, ran=RULES.least - 1), 0.0, 1.0)
    assert advice.choice is None
    assert headline(advice, 1.0).startswith("No advice: there was no time for ")
    assert decide(Confirmed(), 0.0, 1.0).choice is None


def test_runs_that_hardly_lowered_f_advise_nothing():
    found = confirmed_as({"sgd": None, "scaffold": None}, least=9.5)
    assert "tenth of the way" in headline(decide(found, 0.0, 1.0), 1.0)
    further = confirmed_as({"sgd": None, "scaffold": None}, least=8.0)
    assert decide(further, 0.0, 1.0).verdict == "nearest"


def test_a_search_that_was_cut_short_or_ended_at_the_largest_K_is_doubted():
    whole = decide(confirmed_as({"sgd": 30, "scaffold": 9}), 0.0, 1.0)
    cut = decide(confirmed_as({"sgd": 30, "scaffold": 9}, complete=False), 0.0, 1.0)
    large = decide(confirmed_as({"sgd": 30, "scaffold": 9}, K=8), 0.0, 1.0)
    sure = [confidence(a, exact=True, measured=True).split(";")[0] for a in (whole, cut, large)]
    assert sure == ["sure", "not very sure", "fairly sure"]
    assert any("time ended" in doubt for doubt in cut.doubts)
    assert any("K = 8 is the largest" in doubt for doubt in large.doubts)


@pytest.mark.parametrize(
    ("exact", "measured", "sure"),
    [(True, True, "sure"), (False, True, "fairly sure"), (True, False, "not very sure")],
)
def test_sure_is_for_quadratics_without_chance(exact, measured, sure):
    advice = decide(confirmed_as({"sgd": 30, "scaffold": 9}), 0.0, 1.0)
    assert confidence(advice, exact=exact, measured=measured).startswith(f"{sure};")


# -- what is tried


def expect(*rounds_by_name):
    return [Expected(name, K, 0.1, rounds) for name, K, rounds in rounds_by_name]


def test_far_slower_algorithms_are_not_in_question_but_two_always_are():
    some = expect(("scaffold", 8, 10), ("fedavg", 8, 18), ("sgd", 1, 90))
    names = [one.algorithm for one in in_question(some, SIMPLEST, 1.0, trusted=True)]
    assert names == ["scaffold", "fedavg"]
    assert len(in_question(some, SIMPLEST, 1.0, trusted=False)) == 3
    far = expect(("scaffold", 8, 10), ("fedavg", 8, None), ("sgd", 1, 90))
    assert [one.algorithm for one in in_question(far, SIMPLEST, 1.0, trusted=True)] == [
        "scaffold",
        "sgd",
    ]


def test_one_algorithm_is_not_advised_because_no_other_ran_on_the_model_in_time():
    found = in_question(expect(("scaffold", 64, 9)), ["scaffold", "fedavg"], 10.0, trusted=True)
    assert [one.algorithm for one in found] == ["scaffold", "fedavg"]
    assert found[1].eta == pytest.approx(0.1)


def test_without_a_model_every_algorithm_is_in_question_with_the_step_of_the_curvature():
    found = in_question([], SIMPLEST, 4.0, trusted=True)
    assert [one.algorithm for one in found] == list(SIMPLEST)
    assert {one.eta for one in found} == {0.25}


def test_the_smallest_K_that_is_about_as_good_and_not_one_beside_sgd():
    some = expect(*(("scaffold", K, r) for K, r in ((1, 9), (2, 40), (8, 11), (16, 10), (64, 10))))
    assert best_K(some, "scaffold").K == 8
    assert best_K(expect(("sgd", 1, 9)), "sgd").K == 1
    assert best_K(some, "fedavg") is None


def test_only_K_half_and_twice_of_it_run_and_three_seeds_report():
    _, found = confirmed(quadratics(G=3.0, delta=0.1), Expected("scaffold", 8, 0.5))
    (entry,) = found.entries
    assert {one.K for one in entry.searched} == {4, 8, 16}
    assert len(entry.runs) == RULES.seeds
    assert entry.complete


def test_a_slow_rival_is_given_up_at_twice_the_rounds_of_the_first():
    _, found = confirmed(
        quadratics(G=3.0, delta=0.1), Expected("scaffold", 8, 0.8), Expected("fedavg", 8, 0.1)
    )
    first, rival = found.entries
    assert (RULES.rounds, max(2 * RULES.least, 2 * first.rounds)) == found.R
    assert rival.failed
    assert len(rival.curve) <= found.R[1]


def test_without_an_optimum_the_runs_tell_how_far_f_falls():
    case = case_of(easy())
    case.best, case.least, case.optimum = case.x0, case.f0, False
    expected = [Expected("sgd", 1, 0.5), Expected("scaffold", 4, 0.2)]
    found = Task(confirm(case, expected, 0.5, 1.0)).result()
    assert case.least < case.f0
    assert found.goal.target == pytest.approx(case.least + 0.01 * (case.f0 - case.least))
    assert decide(found, case.least, case.eps).choice is not None


def test_local_steps_for_which_there_is_no_time_are_not_tried():
    case = case_of(easy())
    case.pass_seconds = 600 / (2 * 3 * RULES.least * 4.5)
    assert affordable(case, 1.0) == 4
    case.pass_seconds = 600.0
    assert affordable(case, 1.0) == 0


# -- whole diagnoses


@pytest.mark.parametrize("delta", [0.02, 0.3])
@pytest.mark.parametrize("G", [1e-3, 0.3, 3.0])
def test_whole_diagnoses_keep_to_their_own_rounds(G, delta):
    found = diagnose(quadratics(G=G, delta=delta))
    there = {one.algorithm: one.rounds for one in found.confirmed if one.rounds}
    assert there[found.algorithm] <= MATERIAL * min(there.values())
    assert (found.K, found.eta_l) == next(
        (one.K, one.eta) for one in found.confirmed if one.algorithm == found.algorithm
    )
    if found.verdict == "no difference":
        assert max(there.values()) <= MATERIAL * min(there.values())
    for name, rounds in there.items():
        assert f"needed {rounds} round" in found.saving, name
