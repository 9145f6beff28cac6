"""The advice: what is claimed, which algorithm is recommended, and what the sentence says."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.made_entries import GOAL, made_entry
from trimtab import FedProx, Mime, MimeLite, Momentum, Rounding, Scaffold, Through
from trimtab.algorithms.registry import NAMES
from trimtab.problems.metrics import ACCURACY
from trimtab.studies.advice import advise, obstacle, verdict
from trimtab.studies.entry import describe, new_entry
from trimtab.studies.goal import Goal

SLACK = Goal(ACCURACY, 0.9, slack=0.05)
NOISY = [10, 20, 30, 12, 16]  # rounds of five seeds
SLOW = [4 * r for r in NOISY]


# -- what is claimed


def test_a_difference_that_every_seed_shows_is_claimed():
    fast, slow = made_entry("scaffold", NOISY), made_entry("fedavg", SLOW)
    assert verdict([fast, slow], GOAL).worse == (slow,)
    assert advise([fast, slow], GOAL) == (
        "Use Scaffold with K = 5 and eta_l = 0.1: it reaches accuracy 0.9 in 16 rounds (90 % "
        "interval 11 to 25, 5 seeds), where FedAvg needs 64."
    )


def test_a_difference_within_the_error_of_the_search_is_not_claimed():
    """Every seed shows it, and yet it is less than what better settings may change."""
    fast, slow = made_entry("scaffold", [100] * 5), made_entry("fedavg", [118] * 5)
    assert verdict([fast, slow], GOAL).worse == ()
    slow = made_entry("fedavg", [124] * 5)
    assert verdict([fast, slow], GOAL).worse == (slow,)


def test_one_round_more_or_less_is_not_claimed():
    fast, slow = made_entry("scaffold", [3] * 5), made_entry("fedavg", [4] * 5)
    assert verdict([fast, slow], GOAL).worse == ()


def test_an_algorithm_that_no_seed_brings_to_the_target_is_worse_if_its_search_is_complete():
    fast, never = made_entry("scaffold", NOISY), made_entry("fedavg", [None] * 5)
    assert verdict([fast, never], GOAL).worse == (never,)
    assert advise([fast, never], GOAL).endswith(", where FedAvg does not get there.")
    cut = replace(never, complete=False, not_run=["K = 64 stopped because the budget ran out"])
    assert verdict([fast, cut], GOAL).unknown == (cut,)
    assert "does not get there" not in advise([fast, cut], GOAL)
    assert advise([fast, cut], GOAL).endswith(
        "; it is not known whether FedAvg gets there, because its search is not complete (K = 64 "
        "stopped because the budget ran out)."
    )


def test_a_claim_that_is_not_made_has_its_reason():
    fast, slow = made_entry("scaffold", NOISY), made_entry("fedavg", SLOW)
    edge = replace(slow, at_edge=["step", "K"])
    assert advise([fast, edge], GOAL).endswith(
        ", where FedAvg needs 64; no difference to FedAvg is claimed, because the search of FedAvg "
        "has its best step and K at the edge."
    )
    cut = replace(fast, complete=False, not_run=["the finals stopped because the time ran out"])
    assert advise([cut, slow], GOAL).endswith(
        ", where FedAvg needs 64; no difference to FedAvg is claimed, because the search of "
        "Scaffold is not complete (the finals stopped because the time ran out)."
    )
    some = made_entry("fedavg", [40, None, 50, 60, 70])
    assert advise([fast, some], GOAL).endswith(
        ", where FedAvg gets there with 4 of 5 seeds; no difference to FedAvg is claimed, because "
        "not every seed gets there."
    )


@pytest.mark.parametrize(("count", "words"), [(1, "one seed is"), (3, "3 seeds are")])
def test_fewer_than_five_seeds_are_too_few(count, words):
    fast, slow = made_entry("scaffold", NOISY[:count]), made_entry("fedavg", SLOW[:count])
    said = advise([fast, slow], GOAL)
    assert said.startswith("Use Scaffold")
    assert said.endswith(f"; no difference to FedAvg is claimed, because {words} too few.")
    alike = made_entry("fedavg", NOISY[:count])
    said = advise([fast, alike], GOAL)
    assert said.startswith("No difference found; FedAvg keeps no client state. With")
    assert said.endswith(f"; {words} too few to claim a difference.")


def test_few_seeds_have_a_range_and_more_an_interval():
    few, many = made_entry("scaffold", NOISY[:3]), made_entry("scaffold", NOISY)
    assert (few.range, few.interval) == ((10, 30), None)
    assert many.range is None
    assert many.interval == pytest.approx((10.8, 24.6), abs=0.1)
    assert "(range 10 to 30, 3 seeds)" in advise([few], GOAL)
    assert "(90 % interval 11 to 25, 5 seeds)" in advise([many], GOAL)
    assert made_entry("scaffold", [1] * 5).interval[0] == 1.0  # no run has fewer rounds


def test_algorithms_are_compared_with_the_recommended_one_and_not_with_an_open_search():
    quick = made_entry("scaffold", [10] * 5, complete=False)
    chosen, like = made_entry("fedavg", [11] * 5), made_entry("sgd", [13] * 5)
    found = verdict([quick, chosen, like], GOAL)
    assert (found.chosen, found.alike, found.unknown) == (chosen, (quick, like), ())


def test_other_seeds_are_not_compared():
    fast, slow = made_entry("scaffold", NOISY), made_entry("fedavg", SLOW)
    later = replace(slow, runs=[replace(run, seed=run.seed + 3) for run in slow.runs])
    assert obstacle(later, fast) == "their seeds differ"
    assert verdict([fast, later], GOAL).unknown == (later,)


# -- properties

ROUNDS = st.lists(st.integers(1, 60), min_size=5, max_size=5)


@st.composite
def compared(draw, goal=SLACK):
    """Return entries with any rounds, searches and sizes."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=4, unique=True))
    count = draw(st.sampled_from([1, 3, 5, 6]))
    same = st.lists(st.one_of(st.none(), st.integers(1, 60)), min_size=count, max_size=count)
    return [
        made_entry(
            name,
            draw(same),
            nearly=draw(st.lists(st.integers(1, 60), min_size=count, max_size=count)),
            goal=goal,
            size=draw(st.sampled_from([50, 100, 200])),
            complete=draw(st.booleans()),
            at_edge=draw(st.sampled_from([[], [], ["K"]])),
        )
        for name in names
    ]


@given(compared())
def test_nothing_is_claimed_of_open_searches_or_of_seeds_that_fail(entries):
    found = verdict(entries, SLACK)
    for entry in found.worse:
        assert entry.complete
        assert not entry.at_edge
        assert len(entry.runs) >= 5
        assert entry.reached in (0, len(entry.runs))
    if all(not e.complete or e.at_edge for e in entries):
        assert found.worse == ()


@given(compared())
def test_every_entry_has_one_place_and_the_recommended_one_is_not_worse(entries):
    found = verdict(entries, SLACK)
    chosen = () if found.chosen is None else (found.chosen,)
    placed = [*chosen, *found.alike, *found.unsure, *found.worse, *found.unknown]
    assert sorted(entry.label for entry in placed) == sorted(entry.label for entry in entries)
    assert found.chosen is None or not found.chosen.failed
    assert advise(entries, SLACK).endswith(".")


@given(compared(), st.sampled_from([3, 1000]))
def test_the_unit_of_bytes_and_work_does_not_matter(entries, factor):
    def scaled(cost):
        larger = {"bytes": cost.bytes * factor, "work": cost.work * factor} if cost else {}
        return cost and replace(cost, **larger)

    other = [
        replace(
            entry,
            bytes=entry.bytes and entry.bytes * factor,
            work=entry.work and entry.work * factor,
            runs=[replace(r, cost=scaled(r.cost), nearly=scaled(r.nearly)) for r in entry.runs],
        )
        for entry in entries
    ]
    for unit in ("rounds", "bytes", "work"):
        goal = replace(SLACK, unit=unit)
        assert verdict(other, goal).labels == verdict(entries, goal).labels


@given(ROUNDS, st.permutations(range(5)))
def test_seeds_in_another_order_are_no_difference(rounds, order):
    entries = [made_entry("scaffold", rounds), made_entry("fedavg", [rounds[j] for j in order])]
    assert verdict(entries, GOAL).worse == ()


@given(compared())
def test_the_order_of_the_algorithms_does_not_matter(entries):
    assert set(verdict(entries, SLACK).labels) == set(verdict(entries[::-1], SLACK).labels)


# -- which of several without a difference


def recommended(*entries, goal=GOAL):
    found = verdict(entries, goal)
    return found.chosen.name, found.reasons


def test_no_client_state_comes_first_even_if_it_needs_more_bytes():
    state, none = made_entry("scaffold", NOISY, size=10), made_entry("mimelite", NOISY, size=90)
    assert recommended(state, none) == ("mimelite", ("keeps no client state",))


def test_then_come_fewer_bytes_per_round_and_not_in_all():
    """Rounds that did not differ must not decide by way of their bytes."""
    few, many = made_entry("mime", [9] * 5, size=100), made_entry("fedprox", [10] * 5, size=95)
    assert few.bytes < many.bytes
    assert recommended(few, many) == ("fedprox", ("sends the fewest bytes per round",))


def test_then_comes_the_simpler_one():
    entries = [made_entry(name, NOISY) for name in ("mine", "fednova", "fedavg")]
    assert recommended(*entries) == ("fedavg", ("is the simplest",))
    assert recommended(*entries[:2]) == ("fednova", ("is the simplest",))


def test_several_rules_may_decide_together():
    entries = [
        made_entry("scaffold", NOISY),
        made_entry("mime", NOISY, size=150),
        made_entry("fedavg", NOISY),
        made_entry("sgd", NOISY),
    ]
    assert advise(entries, GOAL) == (
        "No difference found; SGD keeps no client state, sends the fewest bytes per round and is "
        "the simplest. With K = 5 and eta_l = 0.1 it reaches accuracy 0.9 in 16 rounds (90 % "
        "interval 11 to 25, 5 seeds)."
    ).replace("SGD", "Sgd")


def test_the_same_algorithm_with_two_K_is_recommended_with_the_fewer_rounds():
    one = replace(made_entry("fedavg", [10] * 5), label="fedavg-K1")
    four = replace(made_entry("fedavg", [9] * 5), label="fedavg-K4")
    assert verdict([one, four], GOAL).labels == ["fedavg-K4", "fedavg-K1"]
    assert verdict([one, four], GOAL).reasons == ("needs the fewest rounds",)
    twin = replace(one, label="fedavg-K2")
    assert advise([one, twin], GOAL).startswith("No difference found; FedAvg comes first.")


def test_where_something_differs_the_rule_is_said_beside_the_claim():
    entries = [made_entry("scaffold", NOISY), made_entry("mime", NOISY), made_entry("sgd", SLOW)]
    said = advise(entries, GOAL)
    assert said.startswith("Use Mime with")
    assert "; no difference found to Scaffold, and it keeps no client state, where Sgd" in said


def test_what_is_preferred_decides():
    fast, frugal = (
        made_entry("scaffold", [10, 11, 12, 10, 11], size=900),
        made_entry("fedavg", [20, 22, 24, 20, 22]),
    )
    assert advise([fast, frugal], GOAL).startswith("Use Scaffold")
    said = advise([fast, frugal], replace(GOAL, unit="bytes"))
    assert said.startswith("Use FedAvg")
    assert "5 seeds; 2,200 bytes), where Scaffold needs 11 (9,900 bytes)" in said


def test_an_algorithm_of_ones_own_is_asked_for_its_state():
    """By what `init_client` returns, whatever wraps it."""
    plain = FedProx(eta_l=0.1, K=2)
    assert not new_entry("mine", "mine", plain, 3).stateful
    assert new_entry("mine", "mine", Scaffold(eta_l=0.1, K=2), 3).stateful

    @dataclass(frozen=True)
    class Keeps:
        needed: float  # The class alone cannot be asked: it has no default.

        def init_client(self, x):
            return (torch.zeros_like(x),)

    assert new_entry("keeps", "keeps", Keeps(2.0), 3).stateful
    stateless = new_entry("fedprox-through", "it", Through(plain, (Rounding(0.1),)), 3)
    assert not stateless.stateful


def test_costs_of_nothing_are_no_difference_and_no_error():
    """No client was there in the round that met the target, so nothing was sent."""
    entries = [made_entry(name, [1] * 5, size=0) for name in ("fedavg", "scaffold")]
    assert verdict(entries, replace(GOAL, unit="bytes")).labels == ["fedavg", "scaffold"]


# -- what the held-out rows can tell


def test_a_difference_that_is_gone_at_an_easier_target_does_not_count():
    fast = made_entry("scaffold", NOISY, nearly=[1] * 5, goal=SLACK)
    slow = made_entry("fedavg", SLOW, nearly=[1] * 5, goal=SLACK)
    found = verdict([fast, slow], SLACK)
    assert (found.chosen, found.unsure, found.worse) == (slow, (fast,), ())
    assert advise([fast, slow], SLACK).startswith(
        "No difference found, to Scaffold at 0.85, which the validation rows cannot tell from it; "
        "FedAvg keeps no client state. With K = 5"
    )
    assert verdict([fast, slow], GOAL).worse == (slow,)


def test_a_difference_that_stays_at_the_easier_target_counts():
    fast = made_entry("scaffold", NOISY, nearly=[6, 5, 7, 6, 5], goal=SLACK)
    slow = made_entry("fedavg", SLOW, nearly=[20, 19, 22, 20, 21], goal=SLACK)
    assert verdict([fast, slow], SLACK).worse == (slow,)


def test_an_algorithm_that_misses_the_target_by_less_than_the_rows_can_tell_is_not_worse():
    fast = made_entry("scaffold", NOISY, nearly=[2] * 5, goal=SLACK)
    near = made_entry("fedavg", [None] * 5, nearly=[2] * 5, goal=SLACK)
    found = verdict([fast, near], SLACK)
    assert (found.chosen, found.unsure) == (fast, (near,))  # only one is seen to get there
    assert "; no difference found to FedAvg at 0.85, which" in advise([fast, near], SLACK)


def test_an_algorithm_that_is_worse_than_any_other_at_both_targets_is_not_recommended():
    best = made_entry("scaffold", [16, 15, 17, 16, 16], nearly=[9, 2, 9, 9, 2], goal=SLACK)
    like = made_entry("mime", [17, 14, 17, 16, 17], nearly=[2] * 5, goal=SLACK)
    frugal = made_entry("fedavg", [54, 50, 58, 54, 52], nearly=[9] * 5, size=10, goal=SLACK)
    found = verdict([best, like, frugal], SLACK)
    assert found.chosen is like
    assert found.worse == (frugal,)


def test_a_target_that_all_miss_by_less_than_the_rows_can_tell_is_advised_about():
    fast = made_entry("scaffold", [None] * 5, nearly=[6, 5, 7, 6, 6], goal=SLACK)
    slow = made_entry("fedavg", [None, 9, 9, 9, 9], nearly=[30, 29, 31, 30, 30], goal=SLACK)
    said = advise([fast, slow], SLACK)
    assert said.startswith(
        "No algorithm reached accuracy 0.9 with every seed; for 0.85, which the validation rows "
        "cannot tell from it, use Scaffold with K = 5 and eta_l = 0.1: it reaches accuracy 0.85 in "
        "6 rounds"
    )
    assert said.endswith("where FedAvg needs 30.")


# -- what else is said


def test_where_no_algorithm_reaches_the_target():
    never = made_entry("scaffold", [None] * 5)
    assert advise([never], GOAL) == (
        "No algorithm reached accuracy 0.9; Scaffold with K = 5 and eta_l = 0.1 came closest with "
        "0.9: allow more rounds (R) or an easier target."
    )
    cut = replace(never, complete=False, not_run=["K = 64 stopped because the budget ran out"])
    assert (
        "0.9, and its search is not complete (K = 64 stopped because the budget ran out): allow"
        in advise([cut], GOAL)
    )
    some = made_entry("scaffold", [10, None, 30])
    assert "with every seed; Scaffold with K = 5 and eta_l = 0.1 did with 2 of 3" in advise(
        [some], GOAL
    )


def test_a_comparison_that_ended_before_its_report_says_so():
    """The search may have reached the target, so that an easier one is no advice."""
    why = "the report after 0 of 5 seeds stopped because the time ran out"
    cut = made_entry("scaffold", [], complete=False, not_run=["K = 64 stopped", why], best=0.95)
    assert advise([cut], GOAL) == (
        f"No algorithm is recommended, because {why}; in its search Scaffold with K = 5 and "
        "eta_l = 0.1 came to accuracy 0.95: resume it with more minutes or a larger budget."
    )


def test_an_open_search_of_the_recommended_algorithm_is_said_in_any_case():
    entry = made_entry("scaffold", NOISY, at_edge=["K"])
    assert advise([entry], GOAL).endswith("; the search of Scaffold has its best K at the edge.")
    few = made_entry("scaffold", NOISY[:1], at_edge=["K"])
    said = advise([few, made_entry("sgd", SLOW[:1])], GOAL)
    assert "because one seed is too few; the search of Scaffold has its best K at the edge." in said


def test_a_run_that_diverges_after_the_target_is_not_recommended():
    fast, slow = made_entry("mime", [2]), made_entry("sgd", [9])
    assert advise([replace(fast, diverged_at=5), slow], GOAL).startswith("Use Sgd")


def test_a_baseline_is_not_recommended_and_nothing_is_said_of_it():
    pooled = made_entry("pooled", [3] * 5, baseline=True)
    slow = made_entry("scaffold", SLOW)
    assert verdict([pooled, slow], GOAL).labels == ["scaffold"]
    assert "pooled" not in advise([pooled, slow], GOAL)


def test_two_exchanges_per_round_are_said():
    assert "; 32 exchanges)" in advise([made_entry("mime", NOISY, exchanges=2)], GOAL)


# -- the settings


def described(algorithm, name):
    return describe(new_entry(name, name, algorithm, 3))


@pytest.mark.parametrize(
    ("name", "algorithm", "said"),
    [
        ("fedprox", FedProx(eta_l=0.1, K=2), "FedProx with K = 2 and eta_l = 0.1"),
        (
            "fedprox",
            FedProx(eta_l=0.1, K=1024, mu=0.5),
            "FedProx with K = 1024, eta_l = 0.1 and mu = 0.5",
        ),
        (
            "scaffold",
            Scaffold(eta_l=0.1, K=2, eta_g=2.0, option="I"),
            "Scaffold with K = 2, eta_l = 0.1, eta_g = 2 and option = I",
        ),
        (
            "mimelite",
            MimeLite(eta=0.1, K=2, base=Momentum(beta=0.0)),
            "MimeLite with K = 2, eta = 0.1 and beta = 0",
        ),
        (
            "mime",
            Mime(eta=0.1, K=2, base=Momentum()),
            "Mime (Momentum) with K = 2, eta = 0.1 and beta = 0.9",
        ),
        # The defaults of a class that is not in the registry are not known from a record.
        ("mine", FedProx(eta_l=0.1, K=2), "FedProx with K = 2, eta_l = 0.1, mu = 1 and eta_g = 1"),
    ],
)
def test_a_sentence_has_every_setting_that_repeats_the_result(name, algorithm, said):
    assert described(algorithm, name) == said
