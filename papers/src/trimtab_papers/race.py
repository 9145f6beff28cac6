"""Step sizes by racing: candidates advance together, the losers stop early."""

from collections.abc import Callable, Generator, Iterator
from math import ceil, inf

from trimtab.studies.goal import Goal
from trimtab.studies.record import RoundDone
from trimtab.studies.trial import Trial

Rounds = Iterator[RoundDone]


class RacedTrial(Trial):
    """A trial that ends at the first round that meets the target, as the papers count rounds.

    dropped: the round at which the race gave it up.
    """

    dropped: int | None = None

    def advance(self, to: int, goal: Goal, patience: int | None = None) -> Rounds:
        """Run until round `to`, the first round that meets the target, or divergence."""
        met = goal.first(self.rounds) is not None
        while len(self.rounds) < to and not self.diverged and not met:
            yield from self.step(goal)
            met = bool(self.rounds) and goal.reached(self.rounds[-1].metrics)

    def standing(self, goal: Goal, r: int | None = None) -> tuple[float, float, float]:
        """Return what trials are ranked by, looking at the first r rounds only.

        The cost to the target; without it, the cost so far and the mean of the last quarter.
        """
        rounds = self.rounds[: self.dropped if r is None else r]
        if self.diverged or not rounds:
            return (-inf, -inf, -inf)
        met = goal.first(rounds)
        if met:
            return (-goal.cost(rounds[: met.r]), 0.0, 0.0)
        last = [goal.score(line.metrics) for line in rounds[-ceil(len(rounds) / 4) :]]
        return (-inf, goal.cost(rounds), sum(last) / len(last))


Start = Callable[[float], RacedTrial]
"""Make the trial of a step size."""

Trials = dict[float, RacedTrial]
"""Trials by their step size."""

_FACTOR = 10**0.5
_FIRST = 16  # rounds before a candidate is dropped
_FURTHEST = 12  # factors beyond a grid
AS_GOOD = 1.05  # a smaller step wins if it needs <= 1.05 x the fewest rounds


def race(
    start: Start,
    goal: Goal,
    R: int,
    grid: list[float] | None = None,
    factor: float = _FACTOR,
    refine: bool = True,
) -> Generator[RoundDone, None, Trials]:
    """Find the step size that reaches the goal in the fewest rounds, at most R.

    Yield each round; return all trials.
    All candidates of a coarse grid run 16, 32, 64, ... rounds; after each stretch the worse half
    stops. The grid, in steps of `factor`, is widened while its best lies at an edge; and since
    steps that look bad early may yet win, large ones and small ones, the neighbours of the best run
    as far as it did; so do the smallest, always the slowest at first, and smaller ones while they
    get better. To refine, the two steps between the best and its neighbours are tried too. Last,
    smaller steps get the rounds in which they would be as good. `ranked` tells who won.
    """
    trials: Trials = {}
    etas = sorted(grid or [factor**e for e in range(-4, 3)])  # 0.01 … 10
    yield from _heat(start, etas, trials, goal, R)
    yield from settle(start, trials, goal, R, factor, refine)
    return trials


def settle(
    start: Start,
    trials: Trials,
    goal: Goal,
    R: int,
    factor: float = _FACTOR,
    refine: bool = True,
    furthest: int = _FURTHEST,
) -> Rounds:
    """Give step sizes beside, below and between those of a heat the rounds that they deserve.

    furthest: how many factors down steps that are as good are looked for. Where a metric does not
    see the scale of x, as auc does not, all small steps are.
    """
    yield from _widen(start, trials, goal, R, factor, furthest)
    yield from _descend(start, trials, goal, R, factor)
    yield from _widen(start, trials, goal, R, factor, furthest)
    if refine:
        best = _best(trials, goal)
        between = [best / factor**0.5, best * factor**0.5]
        yield from _heat(start, between, trials, goal, _limit(trials, goal, R))
    yield from calm_down(start, trials, goal, R, factor, furthest)


def ranked(trials: Trials, goal: Goal) -> list[RacedTrial]:
    """Return the trials, best first.

    The smallest step wins among those that need at most 5 % more rounds than the fewest: large ones
    win by a round or two at the edge of stability, where rounding decides. The others follow as
    they stand.
    """
    order = sorted(trials, key=lambda eta: trials[eta].standing(goal), reverse=True)
    winner = _winner(trials, goal)
    return [trials[winner], *(trials[eta] for eta in order if eta != winner)]


def calm_down(
    start: Start,
    trials: Trials,
    goal: Goal,
    R: int,
    factor: float = _FACTOR,
    furthest: int = _FURTHEST,
) -> Rounds:
    """Let the step below the winner run 5 % longer than the fewest rounds, and so on down.

    A step below is the next smaller one that was tried, or a new one where there is none.
    """
    for _ in range(furthest):
        fewest = goal.first(trials[_best(trials, goal)].rounds)
        if fewest is None or trials[_best(trials, goal)].diverged:
            return
        winner = _winner(trials, goal)
        below = max((eta for eta in trials if eta < winner), default=winner / factor)
        if below not in trials:
            trials[below] = start(below)
        trials[below].dropped = None
        yield from trials[below].advance(min(R, ceil(AS_GOOD * fewest.r)), goal)
        if _winner(trials, goal) == winner:
            return


def _heat(start: Start, etas: list[float], trials: Trials, goal: Goal, R: int) -> Rounds:
    """Race new candidates until one is there, or R rounds are over."""
    alive = {eta: start(eta) for eta in etas}
    trials |= alive
    r = _FIRST
    while alive:
        r = min(r, R)
        for trial in alive.values():  # The best so far is first: the others stop once it is there.
            yield from trial.advance(_soonest(alive, goal, r), goal)
        if r == R or any(goal.first(t.rounds[:r]) for t in alive.values()):
            return
        running = [eta for eta, trial in alive.items() if not trial.diverged]
        standing = {eta: alive[eta].standing(goal, r) for eta in running}
        running.sort(key=lambda eta: standing[eta], reverse=True)
        stay = max(3, ceil(len(running) / 2))
        for eta in running[stay:]:
            alive[eta].dropped = r
        alive = {eta: alive[eta] for eta in running[:stay]}
        r *= 2


def _widen(
    start: Start, trials: Trials, goal: Goal, R: int, factor: float, furthest: int = _FURTHEST
) -> Rounds:
    """Follow each edge that wins outwards, until the best has neighbours that ran as far."""
    for _ in range(_FURTHEST):
        best = _best(trials, goal)
        limit = _limit(trials, goal, R)
        if furthest < _FURTHEST and best == min(trials) and _is_tie(best, trials, goal):
            return
        if best == max(trials) and not trials[best].diverged:
            yield from _heat(start, [best * factor], trials, goal, limit)
        elif best == min(trials):
            yield from _heat(start, [best / factor, best / factor**2], trials, goal, limit)
        elif dropped := [t for t in _beside(best, trials) if t.dropped]:
            for trial in dropped:
                trial.dropped = None
                yield from trial.advance(limit, goal)
        else:
            return


def _descend(start: Start, trials: Trials, goal: Goal, R: int, factor: float) -> Rounds:
    """Let the smallest step run as far as the best, then ever smaller ones while that is better.

    With few clients a round large steps can be quick and noisy, small ones slow and sure, and
    those between worse than both, so that following the best does not lead to the small ones.
    """
    for _ in range(_FURTHEST):
        low = min(trials)
        below, trials[low].dropped = low / factor, None
        yield from trials[low].advance(_limit(trials, goal, R), goal)
        r = _limit(trials, goal, R)
        trials[below] = start(below)
        yield from trials[below].advance(r, goal)
        if trials[below].standing(goal, r) <= trials[low].standing(goal, r):
            return


def _soonest(trials: Trials, goal: Goal, r: int) -> int:
    """Return the round at which the first of them is there, at most r."""
    there = [goal.first(trial.rounds[:r]) for trial in trials.values()]
    return min([r, *(line.r for line in there if line)])


def _beside(eta: float, trials: Trials) -> list[RacedTrial]:
    etas = sorted(trials)
    j = etas.index(eta)
    return [trials[other] for other in etas[max(0, j - 1) : j + 2] if other != eta]


def _is_tie(best: float, trials: Trials, goal: Goal) -> bool:
    """Return whether a step that did not diverge is no better than those beside it."""
    own = trials[best].standing(goal)
    beside = [trial.standing(goal) for trial in _beside(best, trials)]
    return not trials[best].diverged and bool(beside) and own == max(beside)


def _best(trials: Trials, goal: Goal) -> float:
    """Return the step size that stands best; on a tie the smaller one."""
    return max(sorted(trials), key=lambda eta: trials[eta].standing(goal))


def _winner(trials: Trials, goal: Goal) -> float:
    """Return the smallest step size that is as good as the best."""
    best = _best(trials, goal)
    fewest, *_ = trials[best].standing(goal)
    as_good = (eta for eta, t in trials.items() if t.standing(goal)[0] >= AS_GOOD * fewest)
    return best if fewest == -inf else min(as_good)


def _limit(trials: Trials, goal: Goal, R: int) -> int:
    """Return how far newcomers need to run to be compared with the best."""
    met = goal.first(trials[_best(trials, goal)].rounds)
    return met.r if met else R
