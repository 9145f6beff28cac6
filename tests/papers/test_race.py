"""The race for a step size: who wins, who stops early, and what each candidate costs."""

from functools import partial

import pytest
import torch

from tests.helpers.quadratics_pair import pair
from trimtab import FedAvg, Quadratic, Scaffold
from trimtab.problems.metrics import ACCURACY, LOSS
from trimtab.simulation import Rounds
from trimtab.studies.goal import Goal
from trimtab.studies.record import Record, RoundDone, RoundLine
from trimtab_papers.race import RacedTrial, race, ranked


def finish(steps):
    """Run a race to its end, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def trial_of(problem, algorithm, **settings):
    return RacedTrial(algorithm, problem, Record(None, {}), Rounds(**settings))


def test_the_race_finds_a_step_size_near_the_best_on_a_fine_grid():
    problem = pair(G=1.0)
    goal = Goal(LOSS, problem.f_star + 1e-6)

    def rounds(eta):
        trial = trial_of(problem, Scaffold(eta_l=eta, K=5), x=torch.ones(1, dtype=torch.float64))
        list(trial.advance(200, goal))
        met = goal.first(trial.rounds)
        return met.r if met else 10**6

    best = min(rounds(1.1**e) for e in range(-60, 10))

    def start(eta):
        x = torch.ones(1, dtype=torch.float64)
        return trial_of(problem, Scaffold(eta_l=eta, K=5), x=x)

    found = ranked(finish(race(start, goal, R=200)), goal)
    assert goal.first(found[0].rounds).r <= 1.5 * best


def test_losers_stop_early():
    problem = pair(G=1.0)
    goal = Goal(LOSS, problem.f_star + 1e-9)
    trials = finish(race(lambda eta: trial_of(problem, FedAvg(eta_l=eta, K=5)), goal, R=64))
    ran = sorted(len(trial.rounds) for trial in trials.values())
    assert ran[0] == 16
    assert ran[-1] == 64


def test_without_a_target_a_small_step_that_looked_slow_early_may_win():
    torch.manual_seed(0)
    problem = Quadratic(A=torch.ones(4, 20), b=torch.randn(4, 20), sigma=1.0)  # noise is the limit
    etas = [1.8**e for e in range(-5, 1)]
    goal, x = Goal(LOSS), torch.full((20,), 3.0)

    def at_the_end(eta):
        trial = trial_of(problem, FedAvg(eta_l=eta, K=2), x=x)
        list(trial.advance(100, goal))
        return trial.standing(goal)

    def start(eta):
        return trial_of(problem, FedAvg(eta_l=eta, K=2), x=x)

    best = max(etas, key=at_the_end)
    found = ranked(finish(race(start, goal, 100, etas, factor=1.8, refine=False)), goal)
    assert found[0].algorithm.eta_l == best


def line(r, **metrics):
    return RoundLine(r, metrics=metrics)


class Scripted(RacedTrial):
    """A trial whose accuracy is known beforehand."""

    def __init__(self, eta, accuracy):
        super().__init__(eta, None, Record(None, {}), Rounds())
        self.accuracy = accuracy

    def advance(self, to, goal):
        while len(self.rounds) < to and goal.first(self.rounds) is None:
            r = len(self.rounds) + 1
            self.record.append(line(r, accuracy=self.accuracy(r)))
            yield RoundDone("", self.algorithm, self.rounds[-1])


def scripted_race(accuracy, target, etas, R=200):
    """Race trials whose accuracy in round r is accuracy(eta, r), in factors of 2."""
    goal = Goal(ACCURACY, target)
    steps = race(lambda eta: Scripted(eta, partial(accuracy, eta)), goal, R, etas, 2.0, False)
    return {t.algorithm: len(t.rounds) for t in ranked(finish(steps), goal)}  # best first


def test_a_large_step_that_looked_bad_early_may_win():
    def accuracy(eta, r):  # at round 16 the largest two are the worst; 4 then takes off
        late = 0.02 if eta == 4 and r > 16 else 0.0
        return {1.0: 0.004, 2.0: 0.008, 4.0: late, 8.0: 0.0}.get(eta, 0.003 * eta) * r

    ran = scripted_race(accuracy, 0.5, [0.5, 1.0, 2.0, 4.0, 8.0])
    assert list(ran)[:2] == [4.0, 2.0]
    assert ran[4.0] == 25


@pytest.mark.parametrize("late", [150, 10**6])  # when the best large step is there, if ever
def test_small_steps_get_their_time(late):
    def accuracy(eta, r):
        if eta >= 1:  # quick and noisy, best at 4
            return 0.3 - 0.01 * abs(eta - 4) + 0.05 * (eta == 4 and r >= late)
        return min(0.4 - eta, r * eta / 8)  # slow and sure; between 1/8 and 1 worse than 4

    ran = scripted_race(accuracy, 0.35, [0.5, 1.0, 2.0, 4.0, 8.0])
    assert next(iter(ran)) == 1 / 32
    assert ran[1 / 32] == 90
    assert min(ran) == 1 / 64


def test_small_steps_are_compared_by_the_same_rounds():
    def accuracy(eta, r):  # 0.5 is dropped at 32; then 128 is there after 20
        speed = {64.0: 0.01, 32.0: 0.009, 16.0: 0.008, 0.5: 0.007, 128.0: 0.025}
        return (speed | {0.25: 0.02, 0.125: 0.05}).get(eta, 0.001) * r

    ran = scripted_race(accuracy, 0.5, [2.0**e for e in range(-1, 7)])
    assert (ran[0.5], ran[0.25], ran[0.125]) == (32, 20, 10)
    assert next(iter(ran)) == 0.125


def test_small_steps_that_bring_nothing_cost_two_runs():
    def accuracy(eta, r):
        return (0.3 - 0.01 * abs(eta - 4)) * min(1, r / 100)

    etas = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
    missed = scripted_race(accuracy, 0.35, etas)
    assert next(iter(missed)) == 4.0
    assert missed == {eta: 16 if eta == 0.5 else 200 for eta in [*etas, 1 / 8]}
    met = scripted_race(accuracy, 0.3, etas)
    ran = {0.5: 16, 2.0: 105}  # the step below the winner runs on for 5 % more
    assert met == {eta: ran.get(eta, 100) for eta in [*etas, 1 / 8]}


def test_nobody_runs_on_once_one_is_there():
    def accuracy(eta, r):
        return {2.0: 0.01, 4.0: 0.006}.get(eta, 0.004 * eta) * r

    ran = scripted_race(accuracy, 0.5, [1.0, 2.0, 4.0])
    assert ran == {2.0: 50, 4.0: 50, 1.0: 53, 0.5: 50}
    assert next(iter(ran)) == 2.0


@pytest.mark.parametrize(
    ("needs", "wins"),
    [
        ({4.0: 40, 2.0: 40}, 2.0),  # a tie
        ({4.0: 40, 2.0: 42}, 2.0),  # within 5 %
        ({4.0: 40, 2.0: 43}, 4.0),
        ({4.0: 40, 2.0: 41, 1.0: 42, 0.5: 43}, 1.0),  # 5 % of the fewest, not of the last
        ({4.0: 40, 2.0: 40, 1.0: 40, 0.5: 40, 0.25: 40, 0.125: 41}, 0.125),  # below the grid
        ({4.0: 8, 2.0: 9}, 4.0),  # one round is more than 5 % here
    ],
)
def test_a_smaller_step_wins_that_needs_at_most_5_per_cent_more_rounds(needs, wins):
    def accuracy(eta, r):
        return 0.5 if r >= needs.get(eta, 10**6) else min(0.4, 0.004 * eta * r)

    ran = scripted_race(accuracy, 0.5, [0.5, 1.0, 2.0, 4.0, 8.0])
    assert next(iter(ran)) == wins
