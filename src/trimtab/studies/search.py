"""The search of one algorithm's hyper-parameters: successive halving, then guards along the steps.

All candidates have common random numbers: the same cohorts, mini-batches and start. What is run is
a function of the problem, the seed and the budget, never of how fast the machine is.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

from trimtab.studies.cost import spent
from trimtab.studies.entry import Candidate, candidate_of
from trimtab.studies.events import RoundDone
from trimtab.studies.goal import Goal
from trimtab.studies.race import Trials, ranked, settle
from trimtab.studies.space import Point
from trimtab.studies.trial import Trial

FIRST = 8  # rounds before anybody is dropped
LEAST = 3  # >= 3 candidates stay in a rung, if the budget allows it
FIRST_SHARE = 0.3  # the first rung costs <= 30 % of the budget,
SEARCH_SHARE = 0.7  # and the whole search <= 70 %; the rest is for further seeds
TIES = 1  # where smaller steps are just as good, <= 1 factor further down is tried
GUARDS = 8  # as many runs of the winner's length are set aside for its neighbours


@dataclass
class Search:
    """The candidates of one algorithm: those that ran, and what was not run, and why."""

    start: Callable[[Point], Trial]
    goal: Goal
    R: int
    budget: float = inf  # in sample gradients
    out_of_time: Callable[[], bool] = lambda: False
    trials: dict[Point, Trial] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)
    complete: bool = True  # False: it stopped for lack of time, and goes on when it is resumed

    def run(self, points: Sequence[Point]) -> Generator[RoundDone, None, None]:
        """Search all of the space."""
        yield from self.go_on((yield from self.begin(points)))

    def begin(self, points: Sequence[Point]) -> Generator[RoundDone, None, list[Point]]:
        """Run the first rung, after which there is something to tell; return who ran."""
        r = min(FIRST, self.R)
        alive = yield from self._first_rung(points, r)
        yield from self._rung(alive, r)  # some have more rounds in what the rung may cost
        return alive

    def go_on(self, alive: list[Point]) -> Generator[RoundDone, None, None]:
        """Halve the candidates until one is there or R rounds are over, then guard the winner."""
        r = min(FIRST, self.R)
        while alive and r < self.R and not self._there(alive, r):
            if self.out_of_time():
                self.complete = False
                self.not_run.append(f"rounds after {r}, for lack of time")
                return
            alive = self._halved(alive, r)
            r = min(2 * r, self.R)
            alive = self._affordable(alive, r)
            yield from self._rung(alive, r)
        if not any(trial.dropped is None and not trial.diverged for trial in self.trials.values()):
            yield from self._give_up()
        yield from self._guard()

    def _give_up(self) -> Iterator[RoundDone]:
        """Let the smallest steps run: where all others diverge, larger ones are no winners."""
        least = min(point.eta for point in self.trials)
        for point, trial in self.trials.items():
            trial.dropped = 0 if point.eta > least else None
            if point.eta == least:
                yield from trial.advance(self.R, self.goal)

    @property
    def spent(self) -> float:
        """The sample gradients so far."""
        return sum(spent(trial.rounds, "work") for trial in self.trials.values())

    @property
    def winner(self) -> Point:
        """The best point; among the step sizes that are as good, the smallest."""
        best = max(self.trials, key=lambda point: self.trials[point].standing(self.goal))
        trials = self.along(best)
        first = ranked(trials, self.goal)[0]
        return next(replace(best, eta=eta) for eta, trial in trials.items() if trial is first)

    def along(self, point: Point) -> Trials:
        """Return the trials that differ from a point in the step size alone, by step size."""
        same = (p for p in self.trials if replace(p, eta=point.eta) == point)
        return {p.eta: self.trials[p] for p in same}

    def candidates(self) -> list[Candidate]:
        """Return all that was tried, for the record."""
        return [
            candidate_of(trial, self.goal, K=point.K, eta_g=point.eta_g, beta=point.beta)
            for point, trial in self.trials.items()
        ]

    # -- rungs

    def _first_rung(
        self, points: Sequence[Point], r: int
    ) -> Generator[RoundDone, None, list[Point]]:
        """Run as many points as the first rung may cost, the likely ones first."""
        alive: list[Point] = []
        per_round: dict[int | None, float] = {}  # sample gradients, by K
        for point in points:
            expected = r * per_round.get(point.K, 0.0)
            if len(alive) >= LEAST and self.spent + expected > FIRST_SHARE * self.budget:
                continue
            trial = self.trials[point] = self.start(point)
            yield from trial.advance(r, self.goal)
            alive.append(point)
            if trial.rounds:
                per_round[point.K] = spent(trial.rounds[:1], "work")
        left_out = len(points) - len(alive)
        if left_out:
            self.not_run.append(f"{left_out} of {len(points)} candidates, for lack of budget")
        return alive

    def _rung(self, alive: Sequence[Point], r: int) -> Iterator[RoundDone]:
        """Let candidates run to the end of a rung; nobody need go on once the first is there."""
        for point in alive:
            yield from self.trials[point].advance(self._until(point, alive, r), self.goal)

    def _halved(self, alive: list[Point], r: int) -> list[Point]:
        """Drop the worse half of those that did not diverge."""
        running = [point for point in alive if not self.trials[point].diverged]
        ends = {point: self._length(point, r) for point in running}
        running.sort(key=lambda p: self.trials[p].standing(self.goal, ends[p]), reverse=True)
        stay = max(LEAST, ceil(len(running) / 2))
        for point in running[stay:]:
            self.trials[point].dropped = ends[point]
        return running[:stay]

    def _affordable(self, alive: list[Point], r: int) -> list[Point]:
        """Return as many of the best as the budget allows to run to round r; at least one."""
        left, chosen = SEARCH_SHARE * self.budget - self.spent, list[Point]()
        for point in alive:
            rounds = self.trials[point].rounds
            more = self._length(point, r) - len(rounds)
            left -= more * spent(rounds, "work") / max(1, len(rounds))
            if chosen and left < 0:
                break
            chosen.append(point)
        if len(chosen) < min(len(alive), LEAST):
            dropped = len(alive) - len(chosen)
            self.not_run.append(f"{dropped} candidates beyond round {r // 2}, for lack of budget")
        for point in alive[len(chosen) :]:
            self.trials[point].dropped = len(self.trials[point].rounds)
        return chosen

    def _length(self, point: Point, r: int) -> int:
        """Return the rounds of a rung: as many as cost what r rounds of the first candidate do.

        The first one that has rounds: one that diverged at once is no measure.
        """
        if self.goal.unit == "rounds":
            return r
        first = next((p for p, trial in self.trials.items() if trial.rounds), point)
        return max(1, min(self.R, round(r * self._per_round(first) / self._per_round(point))))

    def _until(self, point: Point, alive: Sequence[Point], r: int) -> int:
        """Return the last round of a rung, or that which costs what the first one there cost."""
        length = self._length(point, r)
        fewest = min(self._cost_to_target(other, r) for other in alive)
        return length if fewest == inf else min(length, ceil(fewest / self._per_round(point)))

    def _cost_to_target(self, point: Point, r: int) -> float:
        rounds = self.trials[point].rounds[: self._length(point, r)]
        met = self.goal.first(rounds)
        return self.goal.cost(rounds[: met.r]) if met else inf

    def _per_round(self, point: Point) -> float:
        rounds = self.trials[point].rounds
        return max(1e-9, self.goal.cost(rounds) / max(1, len(rounds)))

    def _there(self, alive: Sequence[Point], r: int) -> bool:
        return any(self._cost_to_target(point, r) < inf for point in alive)

    # -- guards

    def _guard(self) -> Iterator[RoundDone]:
        """Let steps beside and below the winner run as far as it did, and try some between."""
        best = self.winner
        rounds = self.trials[best].rounds
        cost = GUARDS * spent(rounds, "work")
        if self.spent + cost > self.budget:
            self.not_run.append("the neighbours of the best step size, for lack of budget")
            return
        if self.out_of_time():
            self.complete = False
            self.not_run.append("the neighbours of the best step size, for lack of time")
            return
        trials = self.along(best)

        def start(eta: float) -> Trial:
            point = replace(best, eta=eta)
            self.trials[point] = self.start(point)
            return self.trials[point]

        yield from settle(start, trials, self.goal, self.R, furthest=TIES)
