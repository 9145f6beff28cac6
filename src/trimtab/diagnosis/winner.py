"""Which of the lanes of a trial is advised, and with which step size."""

from collections.abc import Generator, Sequence
from math import inf

from trimtab.core.task import Progress
from trimtab.diagnosis.candidates import FEDAVG, SCAFFOLD, SIMPLEST_FIRST
from trimtab.diagnosis.case import SHARE
from trimtab.diagnosis.choice import LIKE
from trimtab.diagnosis.model_rounds import NEAR
from trimtab.diagnosis.trial import CLEARLY, DOUBLINGS, LEAST, LONG, Lane, Trial

AS_GOOD = 0.8  # a candidate is about as good if it got >= 0.8 x the best's way down
SLOW = 0.3  # half a step is very slow if it gets <= 0.3 x the way down of the whole step
LITTLE = 0.1  # who came < 0.1 x the way to the least f says nothing of who is there first
NOT_BAD = 0.5  # SCAFFOLD, whose controls pay later, stands if it got >= 0.5 x FedAvg's way down


def winner(
    trial: Trial, lanes: Sequence[Lane], favourite: Lane | None, *, alike: bool
) -> Lane | None:
    """Return the lane to advise; None if what was tried hardly lowered f.

    The first to reach the goal wins, or one that is simpler and hardly later. If there was no time
    to reach it, the favourite (the model's choice) stands unless another got much further down.
    Without one, the first to come near the least f of all wins; but FedAvg, which is often ahead
    early, gives way to SCAFFOLD unless the clients are alike, so that it does not stop early.
    """
    tried = [lane for lane in lanes if lane.tried and not lane.dropped]
    if any(lane.reached(trial.goal) < inf for lane in tried):
        return _first(tried, trial.goal)
    r = min((len(lane.losses) for lane in tried), default=0)

    def down(lane: Lane) -> float:
        return trial.f_start - lane.losses[r - 1]

    furthest = max(map(down, tried), default=0.0)
    if not furthest > 0:
        return None
    if favourite in tried and down(favourite) >= AS_GOOD * furthest:
        return favourite
    if furthest < LITTLE * (trial.f_start - trial.case.least):
        return None
    low = min(min(lane.losses[:r]) for lane in tried)
    best = _first(tried, low + SHARE * (trial.f_start - low))
    if best.algorithm == FEDAVG and not alike:
        for lane in tried:
            same = (lane.algorithm, lane.K) == (SCAFFOLD, best.K)
            if same and down(lane) >= NOT_BAD * down(best):
                return lane
    return best


def _first(tried: Sequence[Lane], goal: float) -> Lane:
    """Return the simplest that is about as early as the first, with the fewest local steps."""
    fewest = min(lane.reached(goal) for lane in tried)
    for name in SIMPLEST_FIRST:
        mine = [lane for lane in tried if lane.algorithm == name]
        first = min((lane.reached(goal) for lane in mine), default=inf)
        if first <= LIKE * fewest:
            break
    good = [lane for lane in mine if lane.reached(goal) <= NEAR * first]
    return min(good, key=lambda lane: (lane.K, lane.reached(goal), lane.eta))


def better_step(trial: Trial, lane: Lane) -> Generator[Progress, None, tuple[Lane, list[Lane]]]:
    """Find a better step size for a lane; return the lane to advise, and what was tried for it.

    Of thinned data f is smoother or rougher than of all: there a step that arrived soon runs on, to
    see whether f rises later, and is halved while it does.
    """
    lane, tried = yield from _stepped(trial, lane)
    if trial.case.panel.halves is None or not lane.there or len(lane.losses) >= LONG:
        return lane, tried
    longer = Lane(lane.algorithm, lane.K, lane.eta)
    yield from trial.run_on(longer, LONG)
    if longer.tried and longer.eta < lane.eta:
        return longer, [*tried, longer]
    return lane, tried


def _stepped(trial: Trial, lane: Lane) -> Generator[Progress, None, tuple[Lane, list[Lane]]]:
    """Try half and twice the step size for as many rounds; return the best, and what was tried.

    A lane that found its step size on the way is only asked, where the model cannot be trusted and
    it did not run for long, whether half of it would do.
    """
    tried: list[Lane] = []
    found = len(lane.losses) > LEAST
    if found and (lane.there or not trial.careful or len(lane.losses) >= LONG):
        return lane, tried
    for factor in (0.5,) if found else (0.5, *[2.0] * DOUBLINGS):
        other = Lane(lane.algorithm, lane.K, factor * lane.eta, tries=1)
        rounds = len(lane.losses) if lane.there else min(len(lane.losses), LONG)
        yield from trial.race([other], rounds, trial.until, lane.losses if lane.there else ())
        tried.append(other)
        better = other.tried and _better(trial, other, lane)
        lane = other if better else lane
        if better == (factor < 1):
            break
    return lane, tried


def _better(trial: Trial, lane: Lane, other: Lane) -> bool:
    """Tell whether a lane needs fewer rounds; if neither arrives, the smaller step has the benefit.

    A step at the edge of stability does well for some rounds, and then no longer: after few rounds,
    and where the model cannot be trusted, half of it is preferred unless it is very slow.
    """
    there, then = lane.reached(trial.goal), other.reached(trial.goal)
    if there != then or there < inf:
        return there < then
    r = min(len(lane.losses), len(other.losses))
    ends = [each.losses[r - 1] for each in (lane, other)]
    if not trial.careful or r >= LONG:
        low = min(trial.case.least, *ends)
        return ends[0] - low < CLEARLY * (ends[1] - low)
    down = [trial.f_start - end for end in ends]
    return lane.eta < other.eta and down[0] > SLOW * down[1]
