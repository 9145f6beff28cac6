"""A trial of many rounds: each round is judged once, and it stops where it always did."""

from dataclasses import dataclass
from math import nan

import pytest
import torch

from trimtab import Quadratic, Sgd
from trimtab.problems.metrics import LOSS
from trimtab.simulation import Rounds
from trimtab.studies.goal import Goal
from trimtab.studies.record import Record
from trimtab.studies.trial import Trial

PAIR = Quadratic([1.0, 3.0], [1.0, -2.0])
JUDGED = []


@dataclass(frozen=True)
class Counted(Goal):
    """A goal that notes each score that it computes."""

    def score(self, metrics):
        JUDGED.append(metrics)
        return super().score(metrics)


def trial(values):
    """Return a trial whose rounds measure these losses, whatever x is."""
    left = iter(values)
    measure = lambda x: {"loss": next(left)}  # noqa: E731
    return Trial(Sgd(eta=1e-3), PAIR, Record(None, {}), Rounds(), measure=measure)


def test_each_round_is_judged_a_fixed_number_of_times():
    """Once for the target, once for early stopping, and once for the target itself."""
    JUDGED.clear()
    made = trial([1.0] * 300)
    for _ in made.advance(300, Counted(LOSS, 0.0), patience=1000):
        pass
    assert len(made.rounds) == 300
    assert len(JUDGED) <= 2 * 300 + 1


def stop_by_definition(values, goal, patience):
    """Return the number of rounds of a run that looks at all of them each time."""
    made = trial(values)
    every = list(made.advance(len(values), goal.without_target()))
    lines = [done.line for done in every]
    for n in range(len(lines) + 1):
        best = goal.best_round(lines[:n])
        without_gain = n if best is None else n - best.r
        if goal.held(lines[:n]) or (patience is not None and without_gain >= patience):
            return n
    return len(lines)


@pytest.mark.parametrize("seed", range(12))
def test_it_stops_as_if_it_looked_at_all_rounds_each_time(seed):
    draw = torch.Generator().manual_seed(seed)
    steps = torch.randn(60, generator=draw).cumsum(0)
    values = [nan if j % 7 == seed % 7 else float(v) for j, v in enumerate(steps)]
    for target in (None, -2.0, -6.0):
        for patience in (None, 3, 8):
            goal, made = Goal(LOSS, target), trial(values)
            for _ in made.advance(20, goal, patience):
                pass
            for _ in made.advance(60, goal, patience):
                pass
            assert len(made.rounds) == stop_by_definition(values, goal, patience)
