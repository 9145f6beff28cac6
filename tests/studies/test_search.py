"""The search of compare: what it finds on made-up surfaces, what it spends, and what it admits."""

from math import ceil, inf, log2
from random import Random
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Quadratic, Sgd, Supervised, compare
from trimtab.algorithms.registry import kind
from trimtab.core.task import Note
from trimtab.problems.metrics import ACCURACY
from trimtab.studies.budget import TIME, Ledger
from trimtab.studies.goal import Goal, HeldTarget
from trimtab.studies.record import RoundLine
from trimtab.studies.search import (
    CONFIRM_SEEDS,
    FINALS_SEEDS,
    FIRST_REPORT_SEED,
    SEARCH_SEED,
    Search,
)
from trimtab.studies.space import (
    Expected,
    Family,
    Point,
    Prior,
    confirming_space,
    space_of,
)
from trimtab.studies.trial import Run

GOAL = Goal(ACCURACY, 0.9)


class MadeUpTrial:
    """A trial whose accuracy after round r is `curve(r)`; a round costs `work` gradients."""

    def __init__(self, curve, work=1, diverges=inf):
        self.curve, self.work, self.diverges = curve, work, diverges
        self.rounds, self.diverged, self.recorded = [], None, False

    def step(self, goal):
        r = len(self.rounds) + 1
        if r >= self.diverges:
            self.diverged = SimpleNamespace(r=r)
            return
        metrics = {"accuracy": self.curve(r)}
        self.rounds.append(RoundLine(r, bytes_up=1, exchanges=1, work=self.work, metrics=metrics))
        yield r


class Surface:
    """A made-up problem: each family has a best step size, and needs more rounds beside it.

    The logarithm of the best step is a random walk in K, between 1/K and 1, as on real problems.
    """

    def __init__(self, seed, noise=0.0, scale=1.0):
        draw = Random(seed)
        self.noise, self.fewest = noise, draw.uniform(4, 20)
        self.scale = log2(scale) + draw.uniform(-8, 8)
        self.slope, self.best_K = draw.uniform(0, 1), draw.choice([1, 2, 8, 32, 64])
        self.width, self.stable = draw.uniform(1, 3), draw.uniform(0.5, 2)
        self.best_eta_g = draw.choice([1, 2, 4])

    def best_log_step(self, family):
        return self.scale - self.slope * log2(family.K or 1) - log2(family.eta_g)

    def rounds(self, point):
        """Return the rounds that a candidate needs, without noise; inf if it diverges."""
        family = point.family
        off = log2(point.eta) - self.best_log_step(family)
        if off > self.stable:
            return inf
        K = abs(log2((family.K or 1) / self.best_K))
        eta_g = abs(log2(family.eta_g / self.best_eta_g)) if (family.K or 1) > 1 else 1.0
        return self.fewest * (1 + (off / self.width) ** 2) * 1.25**K * 1.2**eta_g

    def trial(self, point, seed):
        rounds = self.rounds(point)
        if rounds == inf:
            return MadeUpTrial(lambda r: 0.0, point.family.K or 1, diverges=3)
        luck = Random(f"{point} {seed}").gauss(0, self.noise)
        needs = max(1.0, rounds * 2**luck)
        return MadeUpTrial(lambda r: min(0.99, 0.9 * r / needs), point.family.K or 1)

    def best(self, space):
        """Return the fewest rounds of all candidates on a fine grid."""
        families = [Family(2**k, g, b) for k in range(9) for g, b in space.variants]
        steps = range(-200, 200)
        return ceil(min(self.rounds(Point(f, j)) for f in families for j in steps))


def space(name="scaffold", prior=None, **given):
    return space_of(kind(name), None, given, prior)


def search_of(start, budget=inf, R=200, goal=GOAL, name="scaffold", prior=None):
    search = Search(space(name, prior), start, goal, R, Ledger(budget))
    for _ in search.find(goal):
        pass
    return search


def held(curve, r=40):
    return HeldTarget(0.9).add([curve(k) for k in range(1, r + 1)]).round


# -- what is searched


@pytest.mark.parametrize(
    ("name", "given", "Ks", "variants"),
    [
        ("scaffold", {}, (1, 4, 16, 64), [(1, 0), (2, 0), (4, 0)]),
        ("scaffold", {"eta_g": 2.0}, (1, 4, 16, 64), [(1, 0)]),
        ("sgd", {}, (None,), [(1, 0)]),
        ("mime", {}, (1, 4, 16, 64), [(1, 0), (1, 0.9)]),
        ("mime", {"base": "adam"}, (1, 4, 16, 64), [(1, 0)]),
    ],
)
def test_what_is_given_is_not_searched(name, given, Ks, variants):
    found = space(name, **given)
    assert (found.Ks, list(found.variants)) == (Ks, variants)
    made = found.build(Point(found.families[0], -8))
    assert getattr(made, found.kind.step) == 0.5
    assert all(getattr(made, word) == value for word, value in given.items() if word != "base")


def test_a_bracket_sees_distant_steps_that_become_better_with_more_rounds():
    def start(point, seed):
        x = log2(point.eta)

        def curve(r):
            doublings = log2(r / 8)
            if x < -0.5:  # overfits: the best of these steps falls as the rounds double
                return 0.5 - 0.01 * abs(x + 3 + doublings)
            return 0.48 + 0.03 * doublings * (x + 1)

        return MadeUpTrial(curve, diverges=3 if x > 3 else inf)

    found = search_of(start, name="sgd")
    assert found.runs[found.chosen, FINALS_SEEDS[0]].rounds < 100


def test_a_K_follows_the_best_step_of_the_K_before_it_when_the_rounds_double():
    """After 8 rounds large steps seem best; with more, small ones that K = 16 has not tried."""

    def start(point, seed):
        K, j = point.family.K, point.j

        def curve(r):
            if r <= 8:
                return 0.5 - 0.001 * abs(j - 40)
            if K == 16:
                return 0.9 * r / 12 if j <= 8 else 0.5 + 0.0001 * j
            return 0.6 - 0.001 * abs(j - 16)

        return MadeUpTrial(curve)

    found = search_of(start, R=60)
    assert found.run(found.chosen, FINALS_SEEDS[0]).rounds == 12


def test_a_given_K_has_one_bracket():
    found = space_of(kind("fedavg"), 7, {"eta_g": 1.0})
    assert found.families == [Family()]
    assert found.build(Point(Family(), 0)).K == 7


def test_every_K_begins_between_an_equal_step_and_an_equal_product():
    found, best = space(), Point(Family(4), 16)
    assert found.starts(best, Family(16)) == [0, 8, 16]
    assert found.starts(best, Family(4, eta_g=4.0)) == [0]
    momentum = space("mime").starts(best, Family(4, beta=0.9))
    assert momentum == [16 + 8 * round(log2(0.1))]


def test_a_prior_adds_its_K_and_begins_at_its_step():
    prior = Prior("scaffold", K=10, eta=0.01, expected=(Expected("scaffold", 4, 1e-6, 9),))
    found = space(prior=prior)
    assert found.Ks == (1, 4, 10, 16, 64)
    for K, eta in ((10, 0.01), (4, 1e-6)):
        starts = found.starts(Point(Family(1), 0), Family(K))
        assert min(abs(log2(eta) - j / 8) for j in starts) <= 0.5
    assert space("fedavg", prior=prior).Ks == (1, 4, 16, 64)


# -- what is found


@pytest.mark.parametrize("seed", range(60))
def test_a_complete_search_is_near_the_optimum(seed):
    surface = Surface(seed)
    search = search_of(surface.trial)
    assert search.complete
    chosen = ceil(surface.rounds(search.chosen))
    best = surface.best(search.space)
    assert chosen <= max(1.25 * best, best + 1)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("scale", [2.0**-30, 2.0**20])
def test_the_scale_of_the_problem_changes_the_step_alone(seed, scale):
    """The scale is a power of 16, so that both problems meet the same grid of steps."""
    one, other = (search_of(Surface(seed, scale=s).trial) for s in (1.0, scale))
    first, second = (
        Surface(seed, scale=s).rounds(search.chosen) for s, search in ((1.0, one), (scale, other))
    )
    assert second <= max(1.25 * first, first + 1)
    assert other.chosen.family.K in {one.chosen.family.K * f for f in (0.5, 1, 2)}


@pytest.mark.parametrize("seed", range(20))
def test_noise_between_seeds_costs_little(seed):
    surface = Surface(seed, noise=0.25)
    search = search_of(surface.trial)
    assert surface.rounds(search.chosen) <= 1.5 * surface.best(search.space)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("wrong", [1 / 17, 1, 17])
def test_a_confirmation_searches_K_half_and_twice_of_it_and_finds_their_step(seed, wrong):
    """Twice the K is left out only where half of it is better."""
    surface, home = Surface(seed), Family(8)
    three = [Family(K) for K in (4, 8, 16)]
    expected = confirming_space(kind("scaffold"), 8, wrong * 2 ** surface.best_log_step(home))
    search = Search(expected, surface.trial, GOAL, 200, Ledger())
    for _ in search.find(GOAL):
        pass
    assert search.complete
    half, one = (search._middle(search.best_of[family]).cost for family in three[:2])
    searched = {point.family for point, _ in search.runs}
    assert searched == set(three[:2] if half < one else three)
    best = min(
        ceil(surface.rounds(Point(f, j)))
        for f in three
        for j in range(-200, 200)
        if surface.rounds(Point(f, j)) < inf
    )
    assert ceil(surface.rounds(search.chosen)) <= max(1.1 * best, best + 1)


def test_a_confirmation_of_an_algorithm_without_K_has_one_bracket():
    expected = confirming_space(kind("sgd"), None, 0.01)
    assert (expected.Ks, expected.families) == ((None,), [Family()])
    assert expected.build(expected.expected).eta == pytest.approx(0.01, rel=0.05)


def test_where_all_diverge_it_goes_down_until_one_does_not():
    def start(point, seed):
        return MadeUpTrial(lambda r: 0.2 * r, diverges=2 if point.eta > 1e-5 else inf)

    search = search_of(start)
    assert search.chosen.eta <= 1e-5
    families = {point.family for point, _ in search.runs}
    for family in families:
        tried = [(p.j, run.diverged) for (p, _), run in search.runs.items() if p.family == family]
        assert not min(tried)[1], family


def test_where_a_metric_does_not_see_the_scale_of_x_steps_stay_what_they_are():
    search = search_of(lambda point, seed: MadeUpTrial(lambda r: 0.3 * r))
    assert 2.0**-12 <= search.chosen.eta <= 2.0**12


def test_a_K_above_all_of_the_start_is_tried_while_it_saves_rounds():
    def start(point, seed):
        K = point.family.K
        needs = 400 / min(K, 256) + abs(point.j / 8)
        return MadeUpTrial(lambda r: 0.9 * r / needs)

    search = search_of(start)
    assert search.chosen.family.K == 256
    assert not search.at_edge()


# -- luck


def test_one_lucky_round_does_not_win():
    def start(point, seed):
        if point.family.K == 4:  # It meets the target in round 2 and leaves it again.
            return MadeUpTrial(lambda r: 0.95 if r == 2 else 0.01 * r)
        return MadeUpTrial(lambda r: 0.09 * r - abs(point.j / 80))

    assert search_of(start).chosen.family.K != 4


def test_one_lucky_seed_neither_wins_nor_limits_the_others():
    def start(point, seed):
        if point.family.K == 4 and seed == SEARCH_SEED:
            return MadeUpTrial(lambda r: 0.95)
        needs = 30 if point.family.K == 4 else 12 + abs(point.j / 8)
        return MadeUpTrial(lambda r: 0.9 * r / needs)

    search = search_of(start)
    assert search.chosen.family.K != 4
    assert len(search.run(search.chosen).scores) >= 12


def test_one_unlucky_round_after_the_target_does_not_lose():
    def curve(r):
        return 0.5 if r == 22 else min(0.95, 0.0451 * r)

    assert held(curve) == held(lambda r: min(0.95, 0.0451 * r)) == 20

    def start(point, seed):
        slow = point.family.K != 16
        return MadeUpTrial((lambda r: 0.03 * r) if slow else curve)

    assert search_of(start).chosen.family.K == 16


@pytest.mark.parametrize("failing", [FINALS_SEEDS, FINALS_SEEDS[4::4]])
def test_a_family_that_fails_with_other_seeds_loses_to_one_that_needs_more_rounds(failing):
    """K = 16 is so fast with the seed of the search that it stops all others at first."""

    def start(point, seed):
        if point.family.K != 16:
            return MadeUpTrial(lambda r: 0.9 * r / (12 + abs(point.j / 80)))
        return MadeUpTrial(lambda r: 0.5 if seed in failing else 0.2 * r)

    search = search_of(start)
    assert search.chosen.family.K != 16
    assert search.complete


def test_where_the_finals_need_more_rounds_others_run_on():
    def start(point, seed):
        needs = 4 if seed in (SEARCH_SEED, *CONFIRM_SEEDS) else 24
        return MadeUpTrial(lambda r: 0.9 * r / (needs if point.family.K == 16 else 12))

    assert search_of(start).chosen.family.K != 16


def test_where_every_candidate_fails_the_fewest_rounds_win():
    def start(point, seed):
        fails = seed in FINALS_SEEDS[::2]
        needs = 5 if point.family.K == 16 else 6 + abs(point.j / 8)
        return MadeUpTrial(lambda r: 0.5 if fails else 0.9 * r / needs)

    search = search_of(start)
    assert search.chosen.family.K == 16
    assert search.complete


def test_a_seed_has_one_role():
    seeds = []

    def start(point, seed):
        seeds.append(seed)
        return Surface(3, noise=0.2).trial(point, seed)

    search_of(start)
    roles = [{SEARCH_SEED}, set(CONFIRM_SEEDS), set(FINALS_SEEDS)]
    assert set().union(*roles) >= set(seeds)
    assert sum(map(len, roles)) == len(set().union(*roles))
    assert all(seed < FIRST_REPORT_SEED for role in roles for seed in role)


# -- budgets


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("budget", [1, 10, 300, 3e3, 3e4])
def test_a_budget_is_exceeded_by_at_most_one_round(seed, budget):
    search = search_of(Surface(seed, noise=0.2).trial, budget=budget)
    largest = max(run.trial.work for run in search.runs.values())
    assert search.ledger.spent <= search.rules.finals_share * budget + largest
    assert search.chosen is not None
    spent = sum(len(run.trial.rounds) * run.trial.work for run in search.runs.values())
    assert search.ledger.spent >= spent


@pytest.mark.parametrize("seed", range(20))
def test_what_the_budget_cuts_short_is_said(seed):
    """A search that is far from the optimum says that it is not complete."""
    surface = Surface(seed)
    for budget in (100, 1e3, 1e4, 1e5):
        search = search_of(surface.trial, budget=budget)
        good = surface.rounds(search.chosen) <= 1.3 * surface.best(search.space) + 1
        assert good or not search.complete
        assert bool(search.not_run()) != search.complete


def test_the_largest_K_is_at_the_edge_if_the_budget_stopped_it():
    def start(point, seed):
        needs = 400 / point.family.K + abs(point.j / 8)
        return MadeUpTrial(lambda r: 0.9 * r / needs, point.family.K)

    found = [search_of(start, budget=budget) for budget in (1e3, 3e3, 1e4, 3e4, 1e5)]
    at_largest = [all(f.K <= s.chosen.family.K for f in s.finished) for s in found]
    assert any(at_largest)
    for search, largest in zip(found, at_largest, strict=True):
        assert ("K" in search.at_edge()) == (largest and not search.complete)


def test_a_round_cost_is_paid_for_every_round():
    ledger = Ledger(100, round_cost=9)
    run = Run(MadeUpTrial(lambda r: 0.1), GOAL, ledger)
    with pytest.raises(Exception, match="budget"):
        list(run.advance(50))
    assert len(run.scores) == 10
    assert ledger.spent == run.spent == 100


def test_a_round_on_record_takes_no_time():
    ledger = Ledger()
    ledger.charge(1)
    ledger.begin_stage(-1.0)
    ledger.ask(1, recorded=True)
    with pytest.raises(Exception, match="time"):
        ledger.ask(1)


# -- what is preferred


def test_what_is_preferred_decides_who_wins():
    """K = 16 needs half the rounds of K = 1, each of which costs 16 times as many gradients."""

    def start(point, seed):
        K = point.family.K
        return MadeUpTrial(lambda r: 0.9 * r / (24 / K**0.25 + abs(point.j / 8)), K)

    by_rounds = search_of(start, R=400)
    by_work = search_of(start, R=400, goal=Goal(ACCURACY, 0.9, "work"))
    assert by_rounds.chosen.family.K > 1
    assert by_work.chosen.family.K == 1


# -- without a target


def test_a_pilot_keeps_to_its_share_and_the_search_continues_its_runs():
    started = []

    def start(point, seed):
        started.append((point, seed))
        return Surface(5).trial(point, seed)

    search = Search(space(), start, Goal(ACCURACY), 200, Ledger(1e4))
    for _ in search.pilot(16):
        pass
    assert search.ledger.spent <= 0.2 * 1e4 + 64
    score, run = search.late_best(16)
    whole = [run for run in search.runs.values() if len(run.scores) == 16]
    assert score == max(run.scores[14] for run in whole)
    assert run in whole
    for _ in search.find(GOAL):
        pass
    assert len(started) == len(set(started))


def test_a_quadratic_is_searched_with_real_trials():
    problem = Quadratic([1.0, 2.0], [1.0, -1.0])
    found = compare(problem, ["scaffold"], target=problem.f_star + 1e-6, R=50, minutes=inf)
    (entry,) = found.entries
    assert entry.complete
    assert entry.reached == 5
    assert entry.rounds <= 5


def test_a_loss_times_1024_has_the_step_divided_by_1024():
    """1,024 is a power of 4, so that both searches try the same steps but for the factor."""
    A = torch.tensor([[3.0, 0.5], [1.0, 0.8], [0.2, 2.0]], dtype=torch.float64)
    b = torch.tensor([[1.0, -1.0], [0.3, 2.0], [-2.0, 0.5]], dtype=torch.float64)
    found = []
    for factor in (1, 1024):
        problem = Quadratic(factor * A, factor * b)
        target = problem.f_star + factor * 1e-4
        result = compare(problem, ["fedavg", "scaffold"], target=target, R=80, minutes=inf)
        found.append(result.entries)
    for one, other in zip(*found, strict=True):
        assert other.settings["K"] == one.settings["K"]
        assert other.settings["eta_l"] * 1024 == pytest.approx(one.settings["eta_l"])
        assert abs(other.rounds - one.rounds) <= 1


# -- the default target


def regression(seed=0, n=60):
    draw = torch.Generator().manual_seed(seed)
    w = torch.randn(4, 1, generator=draw)

    def rows(shift):
        X = torch.randn(n, 4, generator=draw) + shift
        return X, X @ w + 0.5 * torch.randn(n, 1, generator=draw)

    torch.manual_seed(0)
    clients = [rows(0.3 * i) for i in range(5)]
    return Supervised(nn.Linear(4, 1), F.mse_loss, clients, batch=10)


def test_the_default_target_hardly_depends_on_the_start():
    problem = regression()
    how = {"metric": "r2", "R": 60, "minutes": inf, "seeds": 1}
    near = compare(problem, ["scaffold"], **how)
    far = compare(problem, ["scaffold"], x=problem.x0() + 30, **how)
    assert "one standard error" in near.about.target_from
    assert abs(near.target - far.target) < 0.1
    assert near.target > 0.5


def test_a_target_that_is_held_at_once_means_too_few_rows():
    problem = regression(n=8)
    found = compare(problem, ["scaffold"], R=30, minutes=inf, seeds=1)
    early = found.entries[0].rounds is not None and found.entries[0].rounds < 4
    assert any("too few rows for a target" in note for note in found.about.notes) == early


# -- time


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock of budgets; the tests let a second pass with every round."""
    time = [0]
    monkeypatch.setattr("trimtab.studies.budget.monotonic", lambda: time[0])
    return time


def timed(events, clock):
    """Return the rounds of each algorithm among some events."""
    rounds = {}
    for event in events:
        if not isinstance(event, Note):
            clock[0] += 1
            label = getattr(event, "label", "")
            rounds[label] = rounds.get(label, 0) + 1
    return rounds


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("seconds", [2, 30, 200])
def test_a_search_that_ran_out_of_time_continues_to_the_same_choice(clock, seed, seconds):
    surface = Surface(seed)
    whole = search_of(surface.trial)
    search = Search(space(), surface.trial, GOAL, 200, Ledger())
    search.ledger.begin_stage(seconds)
    timed(search.find(GOAL), clock)
    assert TIME in search.undone
    assert not search.complete
    search.ledger.begin_stage(inf)
    timed(search.find(GOAL), clock)
    assert search.complete
    assert search.chosen == whole.chosen


def test_an_algorithm_that_runs_out_of_time_gets_what_the_others_leave(clock):
    problem = Quadratic([1.0, 2.0], [1.0, -1.0])
    how = {"target": problem.f_star + 1e-3, "R": 40, "seeds": 1, "budget": inf}
    names = ["scaffold", "sgd", Sgd(eta=0.1)]
    rounds = timed(compare.start(problem, names, **how, minutes=inf), clock)
    seconds = 2 * sum(rounds.values())
    assert rounds["scaffold"] > 1.3 * 0.8 * seconds / 3  # its share of the time of the search
    task = compare.start(problem, names, **how, minutes=seconds / 60)
    timed(task, clock)
    assert task.result().about.complete


@pytest.mark.parametrize("seconds", [1, 10, 40, 160])
def test_the_minutes_are_exceeded_by_at_most_one_round(clock, seconds):
    """No stage is longer than 1.1 times its share, and every algorithm runs one round."""
    names = ["scaffold", "fedavg"]
    how = {"target": 1e-9, "metric": "gap", "R": 200, "budget": inf, "minutes": seconds / 60}
    task = compare.start(Quadratic([1.0, 2.0], [1.0, -1.0], sigma=0.1), names, **how)
    timed(task, clock)
    assert seconds / 2 < clock[0] <= max(1.1 * seconds, len(names)) + 1
    assert not task.result().about.complete
    assert len(task.result().entries) == len(names)
