"""Does the winner of a race win again? It runs again from a start moved by a millionth.

A large step wins races at the edge of stability, where a run amplifies whatever it is given: the
last digit of a sum, and so the processor, decides how many rounds it takes. A run whose rounds
change when its start moves by a millionth is marked as fragile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

import torch

from trimtab.core import Vector
from trimtab.core.streams import MOVED, stream
from trimtab.studies.goal import Goal
from trimtab.studies.record import RoundDone, RoundLine
from trimtab.studies.trial import Trial

MOVE = 1e-6  # |x - x0| <= 1e-6 x max(1, |x0|)
ROUNDS = 0.1  # a run is fragile unless its rounds to the target change by <= 10 %, or by one
BEST = 0.01  # and unless its best changes by <= 1 % of the metric's range, or of its way

Lines = Sequence[RoundLine]


@dataclass(frozen=True)
class Again:
    """What became of a run when it was repeated from a start that is hardly another."""

    rounds: int | None  # to the target; None if it was not met in as many rounds
    best: float | None
    fragile: bool


def moved(x0: Vector, seed: int) -> Vector:
    """Return x0 + 1e-6 max(1, |x0|) u for a random unit vector u.

    >>> round(1e6 * float(moved(torch.zeros(3), seed=0).norm()), 3)
    1.0
    """
    u = torch.randn(len(x0), generator=stream(seed, MOVED), dtype=torch.float64)
    size = MOVE * max(1.0, float(x0.norm()))
    return x0 + (size / float(u.norm()) * u).to(x0)


def repeat(again: Trial, winner: Trial, goal: Goal) -> Iterator[RoundDone]:
    """Run the repetition as long as it takes to judge the winner."""
    met = goal.first(winner.rounds)
    latest = met.r + _allowed(met.r) if met else 0
    yield from again.advance(max(len(winner.rounds), int(latest)), goal.without_target())


def judge(winner: Lines, again: Lines, goal: Goal, diverged: bool = False) -> Again:
    """Compare the rounds of a run with those of its repetition.

    >>> from trimtab.problems.metrics import ACCURACY
    >>> lines = [RoundLine(r, metrics={"accuracy": r / 100}) for r in range(1, 41)]
    >>> later = [RoundLine(r, metrics={"accuracy": (r - 4) / 100}) for r in range(1, 45)]
    >>> judge(lines, lines, Goal(ACCURACY, 0.3)).fragile
    False
    >>> judge(lines, later, Goal(ACCURACY, 0.3))
    Again(rounds=34, best=0.36, fragile=True)
    """
    n = len(winner)
    met, met_again = goal.first(winner), goal.first(again)
    r, r_again = (line.r if line else n + 1 for line in (met, met_again))
    best, best_again = goal.best(winner), goal.best(again[:n])
    start = winner[0].metrics.get(goal.name) if winner else None
    if diverged or best is None or best_again is None:
        return Again(met_again.r if met_again else None, best_again, True)
    way = max(abs((best if start is None else start) - best), abs(best))
    span = goal.metric.high - goal.metric.low
    room = BEST * span if isfinite(span) else BEST * way + 1e-9
    fragile = abs(r_again - r) > _allowed(r) or abs(best_again - best) > room
    return Again(met_again.r if met_again else None, best_again, fragile)


def _allowed(r: int) -> float:
    """Return by how many rounds a run that took r of them may differ."""
    return max(1.0, ROUNDS * r)
