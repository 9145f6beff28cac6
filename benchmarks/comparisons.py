"""What a comparison costs: CPU seconds of `compare`, of all threads, without the imports.

    python benchmarks/comparisons.py    # minutes; a table, and results/bench/comparisons.json

Each case runs in a process of its own. The record is written after each; a rerun goes on with what
is missing.
"""

import json
import subprocess
import sys
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from trimtab import compare
from trimtab._files import read_json, write_json
from trimtab.algorithms.registry import build, kind
from trimtab.core import Vector
from trimtab.problems.problem import Problem
from trimtab.simulation import Rounds
from trimtab.studies.compare import DEFAULT
from trimtab.studies.fragility import moved, repeat
from trimtab.studies.goal import goal_of
from trimtab.studies.record import Record, RoundDone
from trimtab_papers.bench import WORKLOADS, check_same_machine, machine, problem_of
from trimtab_papers.race import RacedTrial, race, ranked


@dataclass(frozen=True)
class Case:
    """A comparison of five algorithms, and the CPU seconds that it may take."""

    name: str
    shows: str
    goal: float
    problem: str  # a workload of `trimtab bench`, or a problem of `trimtab compare`
    R: int
    seeds: int | None  # None: the search of 0.1.0


CASES = (
    Case("W8 as in 0.1.0", "W8, the search of 0.1.0 (one seed)", 5, "W8", R=60, seeds=None),
    Case("W8", "W8, the default search and three seeds", 20, "W8", R=200, seeds=3),
    Case("digits", "digits, the default search and three seeds", 10, "digits", R=200, seeds=3),
)


def rounds_of(case: Case) -> Iterator[Any]:
    """Go through the events of a comparison."""
    problem: Any = case.problem
    if case.problem in WORKLOADS:
        work = WORKLOADS[case.problem]
        problem = problem_of(work, work.clients())
    if case.seeds is None:
        return searched_as_before(problem, WORKLOADS[case.problem].K, case.R)
    return iter(compare.start(problem, R=case.R, seeds=case.seeds))


def searched_as_before(problem: Problem, K: int, R: int) -> Generator[RoundDone, None, None]:
    """Race the step sizes of each algorithm at one K; run the winner again from a moved start."""
    goal = goal_of(problem, None)
    for name in DEFAULT:
        of = kind(name)

        def start(eta: float, x: Vector | None = None, of: Any = of) -> RacedTrial:
            algorithm = build(of, **{of.step: eta}, **({"K": K} if of.has_K else {}))
            return RacedTrial(algorithm, problem, Record(None, {}), Rounds(x=x), keep_best=True)

        trials = yield from race(start, goal, R)
        winner = ranked(trials, goal)[0]
        (eta,) = (eta for eta, trial in trials.items() if trial is winner)
        yield from repeat(start(eta, moved(problem.x0(), seed=0)), winner, goal)


def measure(case: Case) -> dict[str, Any]:
    """Run a case in this process."""
    began, started = process_time(), perf_counter()
    rounds = sum(isinstance(event, RoundDone) for event in rounds_of(case))
    seconds = {"cpu": process_time() - began, "wall": perf_counter() - started}
    return asdict(case) | seconds | {"rounds": rounds, "met": seconds["cpu"] <= case.goal}


def table(rows: list[dict[str, Any]]) -> Table:
    """Return the results for a terminal."""
    made = Table("comparison", "CPU seconds", "goal", "seconds", "rounds")
    for row in rows:
        goal = f"{row['goal']:g}{'' if row['met'] else ', missed'}"
        seconds = (f"{row['cpu']:.1f}", goal, f"{row['wall']:.1f}")
        made.add_row(row["shows"], *seconds, f"{row['rounds']:,}")
    return made


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default="results/bench/comparisons.json")
@click.option("--again", is_flag=True, help="Measure again what the record holds already.")
@click.option("--case", type=click.Choice([c.name for c in CASES]), help="Measure one, print it.")
def main(out: Path, again: bool, case: str | None) -> None:
    """Measure the CPU seconds of comparisons."""
    if case is not None:
        (chosen,) = (each for each in CASES if each.name == case)
        print(json.dumps(measure(chosen)))
        return
    record: dict[str, Any] = {"machine": machine(), "cases": []}
    if out.exists() and not again:
        before = read_json(out)
        check_same_machine(out, before["machine"], record["machine"])
        record["cases"] = before["cases"]
    out.parent.mkdir(parents=True, exist_ok=True)
    for each in CASES:
        if any(row["name"] == each.name for row in record["cases"]):
            continue
        command = [sys.executable, __file__, "--case", each.name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        record["cases"].append(json.loads(done.stdout))
        write_json(out, record)
    Console(width=None if sys.stdout.isatty() else 100).print(table(record["cases"]))


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"Error: {error}")
