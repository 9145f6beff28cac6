"""How good are the settings that `compare` finds? Its regret on many problems (search_cases.py).

    python benchmarks/search.py                    # hours at low priority; goes on where it stopped
    python benchmarks/search.py --grid             # the best settings of each case, once
    python benchmarks/search.py --judge --again    # minutes: a changed search against these
    python benchmarks/search.py --page             # docs/studies.md from the records

Regret is the rounds with the settings that `compare` finds, over those with the best settings of a
dense grid: K = 1, 2, 4, ..., 64, each eta_g or momentum, steps by factors of 2 over six decades and
finer ones beside the best. Both are measured on 30 seeds that neither the search nor the grid had.
One record for each problem and algorithm in results/search.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, fsum, inf, log
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
from search_cases import CASES, Case

from trimtab import FedAvg, MimeLite, Momentum, Scaffold, Sgd, compare, simulate
from trimtab._files import read_json, write_file, write_json
from trimtab._version import environment
from trimtab.algorithms.registry import build, encode
from trimtab.core import Algorithm
from trimtab.core.threads import one_thread
from trimtab.errors import Diverged
from trimtab.problems.problem import Problem, own_metric, with_target_metric
from trimtab.studies.goal import Goal, crossing

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "results" / "search"
PAGE = ROOT / "docs" / "studies.md"
BEGIN, END = "<!-- from the records: search -->\n", "<!-- end -->\n"
SHARES = (0.25, 1.0, 4.0)  # of the budget of a case
GOALS = {"median": 1.05, "90 %": 1.25, "worst": 1.5, "worst of the complete": 1.5}  # at share 1
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


def digest(problem: Problem) -> str:
    """Return what tells the data of a problem from others, whatever Python's version."""
    parts = problem.fingerprint.split(" ")
    own = ("N", "d", "batch", "data", "validation", "weights", "A", "b", "sigma")
    return " ".join(part for part in parts if part.partition("=")[0] in own)


def path_of(problem: str, algorithm: str) -> Path:
    """Return where the record of a case is."""
    return RECORDS / f"{problem}-{algorithm}.json"


def opened(problem: str, algorithm: str, runs: Runs) -> dict[str, Any]:
    """Return the record of a case, a new one if it has none; raise ValueError if it is another."""
    case = CASES[problem]
    said = {"problem": problem, "algorithm": algorithm, "metric": case.metric}
    said |= {"target": case.target, "S": case.S, "digest": digest(runs.problem)}
    path = path_of(problem, algorithm)
    if not path.exists():
        return said | {"versions": environment(), "grid": {}, "picked": {}, "best": None}
    record = read_json(path)
    if {name: record[name] for name in said} != said:
        raise ValueError(f"{path} is of another {problem}; remove it, so that it is made again.")
    return record


class Grid:
    """The best settings of a dense grid; every candidate is in the record as soon as it has run."""

    def __init__(self, runs: Runs, record: dict[str, Any], save: Callable[[], None]) -> None:
        self.runs, self.record, self.save = runs, record, save
        self.make, self.variants = ALGORITHMS[record["algorithm"]]
        self.found: dict[Settings, float] = {}
        self.known = {family: unpacked(text) for family, text in record["grid"].items()}

    def best(self) -> Settings:
        """Return the best settings; what the record has is not run again."""
        for K in KS if self.variants else (1,):
            for eta_g, beta in self.variants if K > 1 else _without_local(self.variants):
                self._family(Settings(K, eta_g, beta, 0))
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
        """Try steps by factors of 2, until three below the last good one are too small.

        Those with 1/8 of the shortest reach of a good one are too small in any family.
        """
        below = None
        for j in STEPS:
            shortest = min((s.reach for s in self.found), default=0.0)
            if replace(first, j=j).reach < shortest / 8:
                return
            good = self._look(replace(first, j=j))
            below = 0 if good else None if below is None else below + 1
            if below == 3:
                return

    def _look(self, settings: Settings) -> bool:
        """Run a candidate with one seed; return whether it reached the target."""
        row = self.known.setdefault(settings.family, {})
        if settings.j not in row:
            row[settings.j] = self._rounds(settings)
            self.record["grid"][settings.family] = packed(row)
            self.save()
        rounds = row[settings.j]
        if rounds is not None:
            self.found[settings] = rounds
        return rounds is not None

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


def find_best(problem: str, algorithm: str) -> None:
    """Find the best settings of a case, unless its record has them."""
    runs = Runs(CASES[problem])
    record, path = opened(problem, algorithm, runs), path_of(problem, algorithm)
    if record["best"] is not None:
        return
    grid = Grid(runs, record, lambda: write_json(path, record))
    best = grid.best()
    own = {"K": best.K, "eta_g": best.eta_g, "beta": best.beta, "step": best.eta}
    record["best"] = own | measured(runs, grid.make(best))
    write_json(path, record)
    click.echo(f"{problem} {algorithm}: {own}, {record['best']['mean']} rounds")


# -- the search


class Choice(NamedTuple):
    """What a search chose, and what it says of itself."""

    algorithm: Algorithm
    complete: bool
    at_edge: list[str]
    spent: float  # of the budget


def searched(runs: Runs, name: str, share: float) -> Choice:
    """Let `compare` search for the settings of an algorithm, with a share of the case's budget."""
    case, budget = runs.case, share * runs.case.budget
    found = compare(
        runs.problem,
        [name],
        target=case.target,
        metric=case.metric,
        S=case.S,
        R=R,
        minutes=None,
        budget=budget,
        round_cost=case.round_cost,
    )
    (entry,) = found.entries
    assert entry.spent is not None
    made = build(entry.name, **entry.settings)
    return Choice(made, entry.complete, entry.at_edge, entry.spent / budget)


def judge(problem: str, name: str, shares: Iterable[float], again: bool) -> None:
    """Measure the regret of the search at each share of the budget that has no verdict yet."""
    path = path_of(problem, name)
    record = read_json(path) if path.exists() else {"best": None}
    verdicts = record.setdefault("judged", {})
    missing = [share for share in shares if again or f"{share:g}" not in verdicts]
    if record["best"] is None or not missing:
        return
    runs = Runs(CASES[problem])
    opened(problem, name, runs)
    for share in missing:
        choice = searched(runs, name, share)
        own = {"settings": encode(choice.algorithm), "complete": choice.complete}
        own |= {"at_edge": choice.at_edge, "spent": round(choice.spent, 3)}
        mine = measured(runs, choice.algorithm)
        own |= {"regret": round(mine["mean"] / record["best"]["mean"], 3), **mine}
        verdicts[f"{share:g}"] = own
        write_json(path, record)
        click.echo(f"{problem} {name}: {own}")


# -- the page


def records() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the records whose best settings are known, by problem and algorithm."""
    cases = [(problem, name) for problem in CASES for name in ALGORITHMS]
    found = {case: read_json(path_of(*case)) for case in cases if path_of(*case).exists()}
    return {case: record for case, record in found.items() if record["best"] is not None}


def summary(found: dict[tuple[str, str], dict[str, Any]], share: float) -> dict[str, Any] | None:
    """Return what the verdicts at a share of the budget say; None if there are none."""
    verdicts = [record.get("judged", {}).get(f"{share:g}") for record in found.values()]
    verdicts = sorted(filter(None, verdicts), key=lambda verdict: verdict["regret"])
    if not verdicts:
        return None
    regrets = [verdict["regret"] for verdict in verdicts]
    complete = [verdict["regret"] for verdict in verdicts if verdict["complete"]]
    return {
        "cases": len(regrets),
        "median": round(median(regrets), 3),
        "90 %": regrets[ceil(0.9 * len(regrets)) - 1],
        "worst": regrets[-1],
        "complete": len(complete),
        "worst of the complete": max(complete, default=None),
        "failed": sum(verdict["failed"] for verdict in verdicts),
        "spent": max(verdict["spent"] for verdict in verdicts),
    }


def page_part(found: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Return what docs/studies.md says of the regret."""
    summaries = {share: summary(found, share) for share in SHARES}
    head = "cases | median | 90 % | worst | complete | worst of the complete | failed | most spent"
    lines = [f"| budget | {head} |", "|---|" + 8 * "---|"]
    for share, row in summaries.items():
        if row is not None:
            cells = [row["cases"], *(_two(row[name]) for name in ("median", "90 %", "worst"))]
            cells += [row["complete"], _two(row["worst of the complete"])]
            failed = f"{row['failed']} of {len(FRESH) * row['cases']:,} seeds"
            cells += [failed, f"{row['spent']:.2f} of the budget"]
            lines.append(f"| {share:g} | {' | '.join(map(str, cells))} |")
    whole = summaries[1.0] or {"cases": 0}
    goals = [_goal(name, whole.get(name)) for name in GOALS]
    left = len(CASES) * len(ALGORITHMS) - whole["cases"]
    missing = f" {left} cases have no verdict yet." if left else ""
    return "\n".join([*lines, "", f"At budget 1: {'; '.join(goals)}.{missing}", ""])


def _two(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _goal(name: str, reached: float | None) -> str:
    if reached is None or reached <= GOALS[name]:
        return f"{name} {_two(reached)} (goal {GOALS[name]}, met)"
    return f"{name} {_two(reached)} (goal {GOALS[name]}, missed by {reached - GOALS[name]:.2f})"


def filled(text: str) -> str:
    """Return docs/studies.md with the numbers of the records in their place."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}{page_part(records())}{end}{after}"


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(CASES)), help="Some problems alone.")
@click.option("--algorithm", multiple=True, type=click.Choice(list(ALGORITHMS)))
@click.option("--share", multiple=True, type=float, help="Of the budget: 0.25, 1 and 4.")
@click.option("--grid", is_flag=True, help="Find the best settings alone.")
@click.option("--judge", "judging", is_flag=True, help="Judge the search alone.")
@click.option("--again", is_flag=True, help="Judge cases again that have a verdict.")
@click.option("--page", is_flag=True, help="Write docs/studies.md and the summary alone.")
def main(
    only: Sequence[str],
    algorithm: Sequence[str],
    share: Sequence[float],
    grid: bool,
    judging: bool,
    again: bool,
    page: bool,
) -> None:
    """Compute what has no record yet, then write the page."""
    os.nice(0 if page else 19)
    every = not (grid or judging or page)
    with one_thread():
        for problem in only or CASES:
            for name in algorithm or ALGORITHMS:
                if grid or every:
                    find_best(problem, name)
                if judging or every:
                    judge(problem, name, share or SHARES, again)
    if page or every:
        found = records()
        write_json(RECORDS / "summary.json", {f"{s:g}": summary(found, s) for s in SHARES})
        write_file(PAGE, filled(PAGE.read_text("utf-8")))


if __name__ == "__main__":
    main()
