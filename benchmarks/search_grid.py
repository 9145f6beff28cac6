"""The best settings of an algorithm on a problem, from a dense grid (search.py has the rest)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from inspect import getsource
from math import ceil, exp, fsum, inf, log
from typing import Any

from search_cases import Case

from trimtab import FedAvg, MimeLite, Momentum, Scaffold, Sgd, simulate
from trimtab.core import Algorithm
from trimtab.errors import Diverged
from trimtab.problems.problem import Problem, own_metric, with_target_metric
from trimtab.studies.goal import Goal, crossing

R = 200  # A run that has not reached the target by then has failed, and counts R.
NEARLY = 1.5  # A candidate of the grid runs to <= 1.5 x the fewest rounds, and two more.
# The grid is ranked with the first of PICKED, its best with all of them; regret is measured on
# FRESH. The search of `compare` has neither.
PICKED, FRESH = range(1000, 1012), range(2000, 2030)
KS = (4, 64, 16, 1, 32, 8, 2)  # Few rounds are found early and cheaply, and the others end soon.
STEPS = range(48, -137, -8)  # 2 ** (j / 8): factors of 2 from 64 down to 2 ** -17
FINER = (4, 2, 1)  # then factors of 1.41, 1.19 and 1.09 beside the best


@dataclass(frozen=True, order=True)
class Settings:
    """Settings of an algorithm; the step is 2 ** (j / 8)."""

    K: int
    eta_g: float
    beta: float
    j: int

    @property
    def family(self) -> str:
        """All but the step."""
        return f"K={self.K} eta_g={self.eta_g:g} beta={self.beta:g}"

    @property
    def eta(self) -> float:
        """The step."""
        return 2.0 ** (self.j / 8)

    @property
    def reach(self) -> float:
        """How far a round goes, as a multiple of a gradient, if gradients do not change."""
        return self.K * self.eta_g * self.eta / (1 - self.beta)


def _mimelite(s: Settings) -> Algorithm:
    return MimeLite(eta=s.eta, K=s.K, base=Momentum(beta=s.beta))


GLOBAL = ((1.0, 0.0), (2.0, 0.0), (4.0, 0.0))  # eta_g and beta
ALGORITHMS: dict[str, tuple[Callable[[Settings], Algorithm], Sequence[tuple[float, float]]]] = {
    "fedavg": (lambda s: FedAvg(eta_l=s.eta, K=s.K, eta_g=s.eta_g), GLOBAL),
    "scaffold": (lambda s: Scaffold(eta_l=s.eta, K=s.K, eta_g=s.eta_g), GLOBAL),
    "mimelite": (_mimelite, ((1.0, 0.0), (1.0, 0.9))),
    "sgd": (lambda s: Sgd(eta=s.eta), ()),
}


class Runs:
    """Runs a case until it holds its target."""

    def __init__(self, case: Case) -> None:
        self.case, self.problem = case, with_target_metric(case.make(), case.metric)
        metric = own_metric(self.problem)
        assert metric is not None
        self.goal = Goal(metric, case.target)
        given = self.problem.has_validation
        self.look = self.problem.validate if given else self.problem.evaluate

    def rounds(self, algorithm: Algorithm, seed: int, cap: int = R) -> float | None:
        """Return the rounds to the target, with a fraction; None if round `cap` does not hold it.

        The target counts from the first round that holds it, as in `compare`.
        """
        held, scores = self.goal.tracker(), list[float]()
        try:
            for done in simulate(algorithm, self.problem, S=self.case.S, seed=seed):
                scores.append(self.goal.score(self.look(done.x)))
                if held.add(scores).round or (len(scores) >= cap and not held.undecided(cap)):
                    break
        except Diverged:
            return None
        if held.round is None or held.round > cap:
            return None
        return round(crossing(scores, held.target, held.round), 3)


def mean(rounds: Iterable[float | None]) -> float:
    """Return the mean of rounds, by their logarithms; a failure counts R."""
    logs = [log(r or R) for r in rounds]
    return exp(fsum(logs) / len(logs))


def digest(make: Callable[[], Problem]) -> str:
    """Return what identifies the data of a case on every machine: its sizes and its source.

    The numbers themselves would not: torch rounds them by the instruction set of the processor.
    """
    own = ("N", "d", "batch", "sigma")
    parts = [part for part in make().fingerprint.split(" ") if part.partition("=")[0] in own]
    source = sha256(getsource(make).encode()).hexdigest()[:16]
    return " ".join([*parts, f"source={source}"])


class Grid:
    """The best settings of a dense grid; every candidate is in the record as soon as it has run."""

    def __init__(self, runs: Runs, record: dict[str, Any], save: Callable[[], None]) -> None:
        self.runs, self.record, self.save = runs, record, save
        self.make, self.variants = ALGORITHMS[record["algorithm"]]
        self.found: dict[Settings, float] = {}
        self.known = {family: unpacked(text) for family, text in record["grid"].items()}

    def best(self) -> Settings | None:
        """Return the best settings, None if none reach the target; no candidate runs twice."""
        for K in KS if self.variants else (1,):
            for eta_g, beta in self.variants if K > 1 else _without_local(self.variants):
                self._family(Settings(K, eta_g, beta, 0))
        if not self.found:
            return None
        for step in FINER:
            for near in sorted(self.found, key=self._rank)[:8]:
                self._look(replace(near, j=near.j - step))
                self._look(replace(near, j=near.j + step))
        few = self._shortlist()
        for seeds, count in ((PICKED[:4], 6), (PICKED, 1)):
            few = sorted(few, key=lambda s: (self._picked(s, seeds), s))[:count]
        return few[0]

    def _rank(self, settings: Settings) -> tuple[float, Settings]:
        return self.found[settings], settings

    def _cap(self, times: float) -> int:
        return min(R, ceil(times * min(self.found.values(), default=R)) + 2)

    def _family(self, first: Settings) -> None:
        """Try steps by factors of 2, down to 1/8 of the shortest reach of a good candidate.

        Steps that fail above and below a good one do not end it: they may be good again.
        """
        for each in (replace(first, j=j) for j in STEPS):
            if each.reach < min((good.reach for good in self.found), default=0.0) / 8:
                return
            self._look(each)

    def _look(self, settings: Settings) -> None:
        """Run a candidate, unless the record has it."""
        row = self.known.setdefault(settings.family, {})
        if settings.j not in row:
            row[settings.j] = self._rounds(settings)
            self.record["grid"][settings.family] = packed(row)
            self.save()
        rounds = row[settings.j]
        if rounds is not None:
            self.found[settings] = rounds

    def _rounds(self, settings: Settings) -> float | None:
        """Return the rounds of a candidate; if they are fewer than all, the median of 3 seeds."""
        cap, fewest = self._cap(NEARLY), min(self.found.values(), default=R)
        algorithm = self.make(settings)
        first = self.runs.rounds(algorithm, PICKED[0], cap)
        if first is None or first >= fewest:
            return first
        others = [self.runs.rounds(algorithm, seed, cap) for seed in PICKED[1:3]]
        middle = sorted(r or inf for r in (first, *others))[1]
        return None if middle == inf else middle

    def _shortlist(self) -> list[Settings]:
        """Return the best, at most four of a family, and half the step of the best of each.

        What is best with one seed may be at the edge of what is stable.
        """
        chosen: list[Settings] = []
        for each in sorted(self.found, key=self._rank):
            if len(chosen) < 16 and sum(s.family == each.family for s in chosen) < 4:
                chosen.append(each)
        halves = {s.family: replace(s, j=s.j - 8) for s in reversed(chosen)}
        return list(dict.fromkeys([*chosen, *halves.values()]))

    def _picked(self, settings: Settings, seeds: range) -> float:
        """Return the mean rounds of a candidate; beyond 3 x the fewest rounds it has failed."""
        name = f"{settings.family} j={settings.j}"
        rounds = unpacked(self.record["picked"].get(name, ""))
        for seed in seeds:
            if seed not in rounds:
                rounds[seed] = self.runs.rounds(self.make(settings), seed, self._cap(3))
                self.record["picked"][name] = packed(rounds)
                self.save()
        return mean(rounds[seed] for seed in seeds)


def _without_local(variants: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return the variants for K = 1, where eta_g is another name for the step."""
    return [(eta_g, beta) for eta_g, beta in variants if eta_g == 1] or [(1.0, 0.0)]


def packed(row: dict[int, float | None]) -> str:
    """Return the rounds of each step, or of each seed, in a line.

    >>> packed({-8: None, 0: 3.25}), unpacked("-8:- 0:3.25")
    ('-8:- 0:3.25', {-8: None, 0: 3.25})
    """
    return " ".join(f"{j}:{'-' if row[j] is None else row[j]}" for j in sorted(row))


def unpacked(text: str) -> dict[int, float | None]:
    """Return what `packed` wrote."""
    cells = (cell.split(":") for cell in text.split())
    return {int(j): None if rounds == "-" else float(rounds) for j, rounds in cells}


def measured(runs: Runs, algorithm: Algorithm) -> dict[str, Any]:
    """Return the rounds of an algorithm on fresh seeds."""
    rounds = {seed: runs.rounds(algorithm, seed) for seed in FRESH}
    failed = sum(r is None for r in rounds.values())
    return {"mean": round(mean(rounds.values()), 3), "failed": failed, "rounds": packed(rounds)}
