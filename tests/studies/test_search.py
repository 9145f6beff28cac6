"""The search of compare: what it tries, what it drops, and that nothing but the budget decides."""

from math import inf

import pytest
import torch

from tests.helpers.quadratics_pair import pair
from trimtab import Quadratic, compare
from trimtab.algorithms.registry import kind
from trimtab.problems import digits_problem
from trimtab.problems.metrics import LOSS
from trimtab.studies.budget import two_digits
from trimtab.studies.goal import Goal, cost_of
from trimtab.studies.record import RoundLine
from trimtab.studies.search import FIRST, Search
from trimtab.studies.space import ETA_G, STEPS, Point, local_steps, space_of


class Made:
    """A trial that is made up: the loss after r rounds is `curve(r)`, a round costs `work`."""

    def __init__(self, curve, work=1, diverges=None):
        self.curve, self.work, self.diverges = curve, work, diverges
        self.rounds, self.dropped, self.diverged = [], None, None

    def advance(self, to, goal):
        while len(self.rounds) < to and not self.diverged and goal.first(self.rounds) is None:
            r = len(self.rounds) + 1
            if self.diverges == r:
                self.diverged = True
                return
            metrics = {"loss": self.curve(r)}
            self.rounds.append(
                RoundLine(r, bytes_up=1, exchanges=1, work=self.work, metrics=metrics)
            )
            yield r

    def standing(self, goal, r=None):
        from trimtab.studies.trial import Trial

        return Trial.standing(self, goal, r)


def searched(curves, goal, R=100, budget=inf, works=None, out_of_time=lambda: False):
    """Search among points whose trials are made up."""
    works = works or {}
    search = Search(lambda p: Made(curves(p), works.get(p.K, 1)), goal, R, budget, out_of_time)
    points = space_of(kind("scaffold"), Quadratic([1.0], [0.0]), None, {}).points
    for _ in search.run(points):
        pass
    return search, points


def rate(point):
    """Return a made-up speed: the best is K = 16, eta_g = 2 and a step of 0.1."""
    off = abs(torch.log10(torch.tensor(point.eta / 0.1)).item())
    return (
        0.3 / (1 + off) * {1: 0.5, 4: 0.8, 16: 1.0}[point.K] * {1: 0.8, 2: 1.0, 4: 0.7}[point.eta_g]
    )


def falling(point):
    return lambda r: (1 - rate(point)) ** r


def test_the_space_has_every_choice_and_the_likely_ones_first():
    points = space_of(kind("scaffold"), Quadratic([1.0], [0.0]), None, {}).points
    assert len(set(points)) == len(points) == len(STEPS) * 3 * len(ETA_G)
    assert points[0] == Point(10**-0.5, K=4, eta_g=1.0)


@pytest.mark.parametrize(
    ("name", "given", "count"),
    [
        ("scaffold", {"eta_g": 2.0}, 7 * 3),
        ("sgd", {}, 7),
        ("mime", {}, 7 * 3 * 2),
        ("mime", {"base": "adam"}, 7 * 3),
        ("dane", {}, 7 * 3),
    ],
)
def test_what_is_given_is_not_searched(name, given, count):
    space = space_of(kind(name), Quadratic([1.0], [0.0]), None, given)
    assert len(space.points) == count
    made = space.build(space.points[0])
    assert all(getattr(made, word) == value for word, value in given.items() if word != "base")


def test_local_steps_are_fractions_of_an_epoch_where_there_are_samples():
    assert local_steps(digits_problem()) == (5, 1, 20)
    assert local_steps(digits_problem().replace(batch=None)) == (4, 1, 16)


def test_it_finds_the_best_point():
    search, _ = searched(falling, Goal(LOSS, 1e-6))
    assert (search.winner.K, search.winner.eta_g) == (16, 2.0)
    assert search.winner.eta == pytest.approx(0.1)
    assert search.complete
    assert not search.not_run


def test_it_costs_far_less_than_running_all():
    goal = Goal(LOSS, 1e-6)
    search, points = searched(falling, goal)
    whole = sum(len(list(Made(falling(p)).advance(100, goal))) for p in points)
    assert search.spent < whole / 3


def test_neighbours_and_the_smallest_step_run_as_far_as_the_winner():
    search, _ = searched(falling, Goal(LOSS, 1e-6))
    trials = search.along(search.winner)
    etas = sorted(trials)
    at = etas.index(search.winner.eta)
    longest = len(trials[search.winner.eta].rounds)
    for eta in {etas[0], *etas[max(0, at - 1) : at + 2]}:
        assert len(trials[eta].rounds) >= longest


def test_a_small_budget_tries_the_likely_points_only_and_says_so():
    search, points = searched(falling, Goal(LOSS, 1e-6), budget=500)
    assert FIRST * 3 <= search.spent <= 500
    assert len(search.trials) < len(points)
    assert any("lack of budget" in what for what in search.not_run)


@pytest.mark.parametrize("budget", [40, 200, 1000, 5000])
def test_no_budget_is_exceeded_by_much(budget):
    """At least three candidates run the first rung, and one goes on to R."""
    search, _ = searched(falling, Goal(LOSS, 1e-6), budget=budget)
    assert search.spent <= max(budget, 3 * FIRST + 100)


def test_out_of_time_is_no_end_of_the_search():
    goal = Goal(LOSS, 1e-6)
    cut, _ = searched(falling, goal, out_of_time=lambda: True)
    whole, _ = searched(falling, goal)
    assert not cut.complete
    assert cut.spent < whole.spent
    assert all(len(t.rounds) <= len(whole.trials[p].rounds) for p, t in cut.trials.items())


def test_candidates_that_diverge_are_dropped():
    search = Search(
        lambda p: Made(falling(p), diverges=3 if p.eta > 0.2 else None), Goal(LOSS, 1e-6), 100
    )
    for _ in search.run(space_of(kind("scaffold"), Quadratic([1.0], [0.0]), None, {}).points):
        pass
    assert search.winner.eta <= 0.2


def test_what_is_preferred_decides_who_wins():
    """K = 16 needs the fewest rounds, and costs 16 times as many gradients a round as K = 1."""
    works = {1: 1, 4: 4, 16: 16}
    by_rounds, _ = searched(falling, Goal(LOSS, 1e-6), works=works)
    by_work, _ = searched(falling, Goal(LOSS, 1e-6, "work"), works=works, R=400)
    assert (by_rounds.winner.K, by_work.winner.K) == (16, 1)


def test_a_rung_compares_after_equal_cost():
    works = {1: 1, 4: 4, 16: 16}
    search, _ = searched(falling, Goal(LOSS, None, "work"), works=works, R=400)
    dropped = [(p, t) for p, t in search.trials.items() if t.dropped]
    first = min(cost_of(t.rounds[: t.dropped]).work for p, t in dropped if p.K == 4)
    for point, trial in dropped:
        if point.K == 1 and cost_of(trial.rounds[: trial.dropped]).work <= first:
            assert cost_of(trial.rounds[: trial.dropped]).work == pytest.approx(first, rel=0.1)


# -- through compare


def outcome(result):
    return [
        (e.label, e.settings, e.rounds, [r.cost and r.cost.rounds for r in e.runs])
        for e in result.entries
    ]


def noisy():
    problem = pair(G=3.0)
    return Quadratic(problem.A, problem.b, sigma=0.3)


HOW = {"R": 40, "target": -0.45, "seeds": 3}


def test_the_budget_alone_decides(tmp_path):
    a, b = (compare(noisy(), ["fedavg", "scaffold"], budget=3000, **HOW) for _ in range(2))
    assert outcome(a) == outcome(b)
    assert a.about.budget == 3000
    first = compare(noisy(), ["fedavg", "scaffold"], minutes=1, out=tmp_path / "c", **HOW)
    again = compare(noisy(), ["fedavg", "scaffold"], budget=first.about.budget, **HOW)
    assert outcome(again) == outcome(first)
    assert two_digits(first.about.budget) == first.about.budget


def test_a_resumed_comparison_keeps_its_budget(tmp_path, refused):
    words = {"out": tmp_path / "c"}
    first = compare(noisy(), ["scaffold"], minutes=1, **words, **HOW)
    again = compare(noisy(), ["scaffold"], minutes=20, resume=True, **words, **HOW)
    assert again.about.budget == first.about.budget
    with refused("budget"):
        compare(noisy(), ["scaffold"], budget=77, resume=True, **words, **HOW)


def test_a_comparison_that_ran_out_of_time_is_completed_to_the_same_bits(tmp_path, monkeypatch):
    from trimtab.studies.budget import Deadline

    words = {"budget": 1e6, "out": tmp_path / "c"}
    with monkeypatch.context() as patched:
        patched.setattr(Deadline, "passed", lambda self: True)
        cut = compare(noisy(), ["fedavg", "scaffold"], **words, **HOW)
    assert not cut.about.complete
    assert any("lack of time" in what for e in cut.entries for what in e.not_run)
    done = compare(noisy(), ["fedavg", "scaffold"], resume=True, **words, **HOW)
    whole = compare(noisy(), ["fedavg", "scaffold"], budget=1e6, **HOW)
    assert done.about.complete
    assert outcome(done) == outcome(whole)


def test_a_comparison_that_ran_out_of_time_may_find_another_winner(tmp_path, monkeypatch):
    from trimtab.studies.budget import Deadline

    flat = Quadratic([0.001, 0.002], [1.0, 2.0])  # steps beyond the grid are better
    words = {"budget": 1e6, "out": tmp_path / "c", "R": 30, "seeds": 2, "target": None}
    with monkeypatch.context() as patched:
        patched.setattr(Deadline, "passed", lambda self: True)
        cut = compare(flat, ["sgd"], **words)
    done = compare(flat, ["sgd"], resume=True, **words)
    assert done.entries[0].settings != cut.entries[0].settings
    assert outcome(done) == outcome(compare(flat, ["sgd"], **words | {"out": None}))


def test_the_search_and_the_report_have_different_seeds():
    found = compare(noisy(), ["scaffold"], budget=3000, seed=7, **HOW)
    assert found.about.seeds == (8, 9, 10)
    assert [run.seed for run in found.entries[0].runs] == [8, 9, 10]
    one = compare(noisy(), ["scaffold"], budget=3000, seed=7, **HOW | {"seeds": 1})
    assert one.about.seeds == (7,)


@pytest.mark.parametrize(
    "words", [{"seeds": 0}, {"prefer": "beauty"}, {"minutes": 0}, {"budget": -1}]
)
def test_wrong_words_get_one_sentence(words, refused):
    with refused(next(iter(words))):
        compare(noisy(), ["sgd"], **words)


def test_a_problem_without_samples_is_not_split():
    found = compare(noisy(), ["sgd"], R=5, budget=100, seeds=1)
    assert found.about.split == "none"
    assert not any("test data" in note for note in found.about.notes)


def test_where_a_metric_does_not_see_the_scale_of_x_steps_stay_what_they_are():
    """All steps are as good as each other, and the smaller one of a tie wins: but not for ever."""
    search, _ = searched(lambda point: lambda r: 0.5 if point.K == 4 else 0.9, Goal(LOSS, 0.6))
    assert search.winner.eta >= 1e-4


def test_where_all_diverge_it_goes_down_until_one_does_not():
    search = Search(
        lambda p: Made(falling(Point(0.1, p.K, p.eta_g)), diverges=12 if p.eta > 1e-5 else None),
        Goal(LOSS, 1e-6),
        100,
    )
    for _ in search.run(space_of(kind("scaffold"), Quadratic([1.0], [0.0]), None, {}).points):
        pass
    assert search.winner.eta <= 1e-5
    assert not search.trials[search.winner].diverged


@pytest.mark.parametrize("rounds", [5, 150, 400])
def test_a_budget_that_binds_is_spent_in_the_same_way_by_a_resumed_search(tmp_path, rounds):
    """What was run after the first rung must not count as spent in it."""
    words = {"budget": 1500} | HOW | {"target": None}
    whole = compare(noisy(), ["scaffold"], out=tmp_path / "whole", **words)
    assert any("lack of budget" in what for what in whole.entries[0].not_run)
    steps = compare.start(noisy(), ["scaffold"], out=tmp_path / "cut", **words)
    for _ in range(rounds):
        next(steps, None)
    steps.close()
    again = compare(noisy(), ["scaffold"], out=tmp_path / "cut", resume=True, **words)
    assert outcome(again) == outcome(whole)
    assert again.entries[0].not_run == whole.entries[0].not_run
    trials = [{p.name for p in (tmp_path / n / "scaffold").iterdir()} for n in ("whole", "cut")]
    assert trials[0] == trials[1]
