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
from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
from search_cases import CASES
from search_grid import ALGORITHMS, FRESH, Grid, R, Runs, digest, measured

from trimtab import compare
from trimtab._files import read_json, write_file, write_json
from trimtab._version import environment
from trimtab.algorithms.registry import build, encode
from trimtab.core import Algorithm
from trimtab.core.threads import one_thread

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "results" / "search"
PAGE = ROOT / "docs" / "studies.md"
BEGIN, END = "<!-- from the records: search -->\n", "<!-- end -->\n"
SHARES = (0.25, 1.0, 4.0)  # of the budget of a case
GOALS = {"median": 1.05, "90 %": 1.25, "worst": 1.5, "worst of the complete": 1.5}  # at share 1


def path_of(problem: str, algorithm: str) -> Path:
    """Return where the record of a case is."""
    return RECORDS / f"{problem}-{algorithm}.json"


def opened(problem: str, algorithm: str, runs: Runs) -> dict[str, Any]:
    """Return the record of a case, a new one if it has none; raise ValueError if it is another."""
    case = CASES[problem]
    said = {"problem": problem, "algorithm": algorithm, "metric": case.metric}
    said |= {"target": case.target, "S": case.S, "digest": digest(case.make)}
    path = path_of(problem, algorithm)
    if not path.exists():
        return said | {"versions": environment(), "grid": {}, "picked": {}, "best": None}
    record = read_json(path)
    if {name: record[name] for name in said} != said:
        raise ValueError(f"{path} is of another {problem}; remove it, so that it is made again.")
    return record


def find_best(problem: str, algorithm: str) -> None:
    """Find the best settings of a case, unless its record has them."""
    runs = Runs(CASES[problem])
    record, path = opened(problem, algorithm, runs), path_of(problem, algorithm)
    if record["best"] is not None or record.get("unreached"):
        return
    grid = Grid(runs, record, lambda: write_json(path, record))
    best = grid.best()
    if best is None:
        record["unreached"] = True
        write_json(path, record)
        click.echo(f"{problem} {algorithm}: no settings of the grid reach the target")
        return
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
    words = dict(entry.settings)
    if "base" in words:
        beta = words["base"].removeprefix("Momentum(beta=").removesuffix(")")
        words |= {"base": "momentum", "beta": float(beta)}
    made = build(entry.name, **words)
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
    whole = summaries[1.0]
    if whole is None:
        return "No case has a verdict yet.\n"
    goals = "; ".join(_goal(name, whole[name]) for name in GOALS)
    missing = _missing(found)
    about = (
        f"{len(CASES)} problems and {len(ALGORITHMS)} algorithms. Budget 1 is 20 seconds of an "
        f"algorithm; a seed that fails counts {R} rounds. A regret below 1 is that of a K above "
        "64, or of a grid whose best was lucky with the seeds that chose it."
    )
    said = f"At budget 1: {goals}.{missing}{_misses(found)}"
    return "\n".join([about, "", *lines, "", said, ""])


def _missing(found: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Say which cases have no verdict, and why."""
    cases = [(problem, name) for problem in CASES for name in ALGORITHMS]
    without = [path_of(*case) for case in cases if case not in found]
    never = sum(path.exists() and read_json(path).get("unreached", False) for path in without)
    judged = sum("1" in record.get("judged", {}) for record in found.values())
    left = len(cases) - never - judged
    never_reached = f" In {never} of {len(cases)} cases no settings of the grid reach the target."
    no_verdict = f" {left} cases have no verdict yet."
    return never_reached * (never > 0) + no_verdict * (left > 0)


def _misses(found: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Name the cases above the goal for 90 % of them."""
    verdicts = {case: record.get("judged", {}).get("1") for case, record in found.items()}
    above = [
        f"{problem} with {name} {_two(verdict['regret'])} ({verdict['failed']} seeds fail"
        + (")" if verdict["complete"] else ", not complete)")
        for (problem, name), verdict in verdicts.items()
        if verdict is not None and verdict["regret"] > GOALS["90 %"]
    ]
    return f" Above {GOALS['90 %']}: {'; '.join(above)}." if above else ""


def _two(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _goal(name: str, reached: float | None) -> str:
    if reached is None:
        return f"{name} not measured (goal {GOALS[name]})"
    if reached <= GOALS[name]:
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
