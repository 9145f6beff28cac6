"""A few rounds on the problem itself, since only what was tried may be advised.

Every candidate runs from the same start, a round of each in turn; one whose f rises starts again
with a smaller step. They are compared after the same number of rounds. After ten of them, the best
of each algorithm finds its step size, and goes on alone until it is there.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from math import floor, inf, isfinite

from trimtab.core.task import Progress
from trimtab.diagnosis.candidates import FEDAVG, SCAFFOLD, make, named
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.model_rounds import NEAR
from trimtab.diagnosis.rows import TrialCurve
from trimtab.simulation import Diverged, Simulation, simulate

LEAST = 10  # a candidate counts as tried after >= 10 rounds, or when it reached the goal
FIRST = 3  # whether f rises is asked after >= 3 rounds, since cohorts differ
HOPELESS = 5  # a step size is given up after >= 5 rounds if it is behind the one it should beat
MOST = 100  # a candidate runs for <= 100 rounds
BEHIND = 2.0  # after LEAST rounds a candidate is dropped if f - f* is > 2 x that of the best
RACE = 0.65  # the race takes <= 0.65 x the time; the rest is for other step sizes of the winner
TRIES = 7  # <= 7 step sizes of a candidate: one that makes f rise is halved, or cut to an eighth
DOUBLINGS = 4  # a step size that did well is doubled <= 4 times, while that is better
ROOM = 0.6  # candidates are tried if they take <= 0.6 x the race, since some steps are halved
RISEN = 0.25  # f rises if it climbs back by > 0.25 x the way down
FAR = 3.0  # f exploded if it rose by > 3 x the start's f - f*
CLEARLY = 0.8  # a step is better than another if it leaves < 0.8 x the other's f - f*
LONG = 30  # a step that was tried for < 30 rounds may turn out too large later
LATE = (
    3.0  # a race ends early if f - f* would be > 3 eps at its end, at the pace of its last rounds
)


@dataclass
class Lane:
    """A candidate and what becomes of it while it runs."""

    algorithm: str
    K: int
    eta: float
    losses: list[float] = field(default_factory=list)  # f after each round with this step size
    tries: int = TRIES  # step sizes that may still be tried
    failed: bool = False  # whether f rose with every step size
    compared: bool = False  # whether it ran for >= LEAST rounds, or for the whole race
    there: bool = False  # whether it reached the goal
    dropped: bool = False  # whether it was far behind after LEAST rounds, and ran no further
    slowest: float = 0.0  # the seconds of its slowest round, with a look at f
    sim: Simulation | None = field(default=None, repr=False)

    @property
    def tried(self) -> bool:
        """Whether it ran for enough rounds without f rising."""
        return self.compared and (self.there or len(self.losses) >= LEAST)

    @property
    def curve(self) -> TrialCurve:
        """What it did with the last step size, as a diagnosis shows it."""
        return TrialCurve(self.algorithm, self.K, self.eta, tuple(self.losses))

    def reached(self, goal: float) -> float:
        """Return the first round with f <= goal, or infinity."""
        return next((r for r, f in enumerate(self.losses, start=1) if f <= goal), inf)


class Trial:
    """Rounds of several candidates on the clients that are measured."""

    def __init__(self, case: Case, until: float, careful: bool, share: float | None = None) -> None:
        self.case, self.until, self.careful, self.share = case, until, careful, share
        explored = case.best is not case.x0
        self.goal = case.least + case.eps if explored else -inf
        over = 1 - case.budget.seconds_until(1.0) / case.budget.seconds
        self.race_until = over + RACE * (until - over)
        self.f_start = case.f0 if case.start is case.x0 else case.panel.can.loss(case.start)
        self.slower: list[Lane] = []  # step sizes that were tried on the way and were no better

    def race(
        self, lanes: Sequence[Lane], most: int, until: float, pace: Sequence[float] = ()
    ) -> Generator[Progress, None, None]:
        """Run a round of each lane in turn until somebody reaches the goal, or the time is over.

        pace: f after each round of a run that should be beaten; who is behind it need not go on.
        """
        end, r = most, 0
        for r in range(1, most + 1):
            yield from self._up_to(r, lanes, until)
            if end == most and any(lane.reached(self.goal) <= r for lane in lanes):
                end = min(most, max(FIRST, floor(NEAR * r)))
            if r >= end or all(len(lane.losses) < r for lane in lanes):
                break
            if pace and r >= HOPELESS and all(lane.losses[r - 1] > pace[r - 1] for lane in lanes):
                break
            if r == LEAST and most > LEAST and not pace and end == most:
                yield from self._narrow(r, lanes, until)
            if r >= LEAST:
                self._drop(r, lanes)
            if r % LONG == 0 and end == most and not self._may_arrive(r, lanes, most):
                break
        if r < end:  # The time was over, and those that started again may catch up.
            yield from self._up_to(min(LEAST, most), lanes, self.until)
        whole = r if r == end else LEAST
        for lane in lanes:
            lane.sim = None
            lane.there = lane.reached(self.goal) < inf
            lane.compared = not lane.failed and len(lane.losses) >= min(whole, LEAST)
            for loss in lane.losses:
                self.case.saw(loss)

    def run_on(self, lane: Lane, rounds: int) -> Generator[Progress, None, None]:
        """Run a lane for so many rounds, whether or not it reaches the goal before."""
        yield from self._up_to(rounds, [lane], self.until)
        lane.sim, lane.there = None, lane.reached(self.goal) < inf
        lane.compared = not lane.failed and len(lane.losses) >= LEAST

    def _up_to(
        self, r: int, lanes: Sequence[Lane], until: float
    ) -> Generator[Progress, None, None]:
        """Let every lane run until round r, those with few local steps first."""
        for lane in sorted(lanes, key=lambda lane: lane.K):
            runs = not (lane.failed or lane.dropped)
            while runs and len(lane.losses) < r and self._fits(lane, until):
                what = f"{named(lane.algorithm)} with K = {lane.K}, round {len(lane.losses) + 1}"
                yield Progress(what, self.share)
                self._advance(lane)
                runs = not lane.failed

    def _narrow(
        self, r: int, lanes: Sequence[Lane], until: float
    ) -> Generator[Progress, None, None]:
        """Let the best lane of each algorithm find its step size; the others run no further."""
        best: list[Lane] = []
        for name in dict.fromkeys(lane.algorithm for lane in lanes):
            mine = [lane for lane in lanes if lane.algorithm == name and len(lane.losses) >= r]
            gaps = {id(lane): lane.losses[r - 1] - self.case.least for lane in mine}
            near = NEAR * min(gaps.values(), default=0.0) + self.case.eps
            kept = min((o for o in mine if gaps[id(o)] <= near), key=lambda o: o.K, default=None)
            for lane in mine:
                lane.dropped = lane.dropped or lane is not kept
            best += [] if kept is None else [kept]
        for lane in sorted(best, key=lambda lane: lane.losses[r - 1]):
            self._drop(r, best)
            if not lane.dropped:
                yield from self._tune(lane, r, until)

    def _tune(self, lane: Lane, r: int, until: float) -> Generator[Progress, None, None]:
        """Double the step size of a lane while that is better after r rounds; else halve it once.

        It then runs on: a step that is too large makes f rise, and is halved again.
        """
        doubled = 0
        while doubled < DOUBLINGS and (yield from self._replaced(lane, 2.0, r, until)):
            doubled += 1
        if not doubled:
            yield from self._replaced(lane, 0.5, r, until)

    def _replaced(
        self, lane: Lane, factor: float, r: int, until: float
    ) -> Generator[Progress, None, bool]:
        """Try another step size for r rounds; tell whether it was better, and is the lane's now."""
        other = Lane(lane.algorithm, lane.K, factor * lane.eta, tries=1)
        for j in range(1, r + 1):
            yield from self._up_to(j, [other], until)
            if len(other.losses) < j or (j >= HOPELESS and other.losses[-1] > lane.losses[j - 1]):
                break
        there = len(other.losses) == r
        low = min(self.case.least, lane.losses[r - 1], *other.losses)
        if better := there and other.losses[-1] - low < CLEARLY * (lane.losses[r - 1] - low):
            slower = Lane(lane.algorithm, lane.K, lane.eta, lane.losses)
            lane.eta, lane.losses, lane.sim = other.eta, other.losses, other.sim
        else:
            slower = other
        slower.compared, slower.dropped, slower.sim = len(slower.losses) >= r, True, None
        self.slower.append(slower)
        return better

    def _may_arrive(self, r: int, lanes: Sequence[Lane], most: int) -> bool:
        """Tell whether a lane that goes on as in its last rounds may reach the goal in time."""
        if self.goal == -inf:
            return True
        for lane in lanes:
            if lane.dropped or lane.failed or len(lane.losses) < r:
                continue
            before, now = (lane.losses[j - 1] - self.case.least for j in (r - LEAST, r))
            if before <= 0 or (now / before) ** ((most - r) / LEAST) * now <= LATE * self.case.eps:
                return True
        return False

    def _drop(self, r: int, lanes: Sequence[Lane]) -> None:
        """Drop who is far behind; not SCAFFOLD behind FedAvg, since its controls pay later."""
        running = [lane for lane in lanes if len(lane.losses) >= r]
        if not running:
            return
        best = min(running, key=lambda lane: lane.losses[r - 1])
        low = min(self.case.least, best.losses[r - 1])
        bound = low + BEHIND * (best.losses[r - 1] - low) + self.case.eps
        for lane in running:
            waits = best.algorithm == FEDAVG and lane.algorithm == SCAFFOLD
            lane.dropped = lane.dropped or (lane.losses[r - 1] > bound and not waits)

    def affords(self, steps: int) -> bool:
        """Tell whether there is time to try candidates with so many local steps in all."""
        left = self.case.budget.seconds_until(self.race_until)
        return LEAST * steps * self.case.step_seconds <= ROOM * left

    def _fits(self, lane: Lane, until: float) -> bool:
        """Tell whether there is time for another round of this lane."""
        expected = lane.slowest or lane.K * self.case.step_seconds
        return expected <= self.case.budget.seconds_until(until)

    def _advance(self, lane: Lane) -> None:
        """Run a round of this lane; if f rises, it starts again with a smaller step."""
        case, problem = self.case, self.case.panel.problem
        started = case.budget.spent
        if lane.sim is None:
            algorithm = make(lane.algorithm, lane.K, lane.eta)
            lane.sim = simulate(
                algorithm,
                problem,
                S=case.cohort,
                x=case.start,
                seed=case.seed,
                executor=case.panel.can.executor(case.cohort),
            )
        try:
            x = next(lane.sim).x
            case.step_seconds = min(case.step_seconds, (case.budget.spent - started) / lane.K)
            lane.losses.append(case.panel.can.loss(x))
        except Diverged:
            lane.losses.append(inf)
        lane.slowest = max(lane.slowest, case.budget.spent - started)
        far = self._far(lane.losses[-1])
        if far or self._rises(lane.losses):
            lane.losses, lane.sim = [], None
            lane.tries -= 1
            lane.failed = lane.tries == 0
            lane.eta = lane.eta / (8 if far else 2) if not lane.failed else lane.eta

    def _far(self, loss: float) -> bool:
        """Tell whether f exploded; before f* is known, f itself gives the scale."""
        known = self.f_start - self.case.least
        scale = known if self.goal > -inf else max(known, abs(self.f_start))
        return not isfinite(loss) or loss > self.f_start + FAR * max(scale, self.case.eps)

    def _rises(self, losses: list[float]) -> bool:
        """Tell whether f rises; only after a few rounds, since cohorts differ."""
        low = min(losses)
        bound = low + RISEN * max(0.0, self.f_start - low) + self.case.eps
        return len(losses) >= FIRST and losses[-1] > bound
