"""A comparison or a run that goes on: what its folder has so far, as a result that can be shown."""

import json
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from trimtab._files import read_json
from trimtab.algorithms.registry import NAMES, kind
from trimtab.problems.clients import ClientSummary
from trimtab.studies.advice import standing
from trimtab.studies.baselines import COLOURS, TITLES
from trimtab.studies.comparison import About, Comparison
from trimtab.studies.entry import (
    Candidate,
    Entry,
    SeedRun,
    aggregate_seeds,
    settings_of_text,
    shown,
)
from trimtab.studies.goal import Goal, cost_of
from trimtab.studies.record import RoundLine

AGAIN = "-again"  # how the folder of a run from a moved start ends
STEPS = ("eta_l", "eta")  # what a step size is called where the registry does not know


@dataclass
class RunFolder:
    """One run, as its folder tells: its settings, and its rounds as far as they are written."""

    folder: Path
    rounds: list[RoundLine] = field(default_factory=list)
    _read: int = 0  # bytes of rounds.jsonl

    def look(self) -> None:
        """Read the rounds that are new."""
        path = self.folder / "rounds.jsonl"
        if not path.exists():
            return
        with open(path, "rb") as file:
            file.seek(self._read)
            new, whole, _ = file.read().rpartition(b"\n")
        self.rounds += [RoundLine.from_json(json.loads(line)) for line in new.splitlines()]
        self._read += len(new) + len(whole)

    @property
    def record(self) -> dict[str, Any]:
        """What run.json says."""
        return read_json(self.folder / "run.json")


class Underway:
    """The folder of a comparison or a run at work, to be looked at again and again."""

    def __init__(self, folder: Path, population: ClientSummary | None = None) -> None:
        self.folder, self.population = folder, population
        self._runs: dict[Path, RunFolder] = {}

    def look(self) -> Comparison | None:
        """Return what there is so far; None if it has not begun."""
        name = "run.json" if (self.folder / "run.json").exists() else "compare.json"
        if not (self.folder / name).exists():
            return None
        about = read_json(self.folder / name)
        if "goal" not in about:
            return None
        goal, settings = Goal.from_json(about["goal"]), about["settings"]
        if name == "run.json":
            own = self._run(self.folder)
            entries = [entry_so_far(_name(own), _name(own), [own], goal)] if own.rounds else []
        else:
            found = ((label, self._lane(label)) for label in settings["algorithms"])
            entries = [
                entry_so_far(label, label, runs, goal, settings["seed"])
                for label, runs in found
                if any(run.rounds for run in runs)
            ]
        seeds = tuple(dict.fromkeys(run.seed for entry in entries for run in entry.runs))
        told = About(split=settings.get("split", "none"), seeds=seeds or (settings["seed"],))
        result = Comparison(settings["problem"], goal, entries, "", self.folder, about=told)
        result.advice, result.population = standing(entries, goal), self.population
        return result

    @property
    def rounds(self) -> int:
        """How many rounds all runs have had, when they were looked at."""
        return sum(len(run.rounds) for run in self._runs.values())

    @property
    def work(self) -> float:
        """How many sample gradients they have cost."""
        return sum(cost_of(run.rounds).work for run in self._runs.values())

    def _run(self, folder: Path) -> RunFolder:
        run = self._runs.setdefault(folder, RunFolder(folder))
        run.look()
        return run

    def _lane(self, label: str) -> list[RunFolder]:
        records = sorted((self.folder / label).glob("*/run.json"))
        return [self._run(path.parent) for path in records]


def entry_so_far(
    name: str, label: str, runs: list[RunFolder], goal: Goal, seed: int | None = None
) -> Entry:
    """Return what is known of an algorithm: the best that was tried, and its seeds.

    seed: that of the search; runs with another one repeat its winner.
    """
    known = [(run, run.record) for run in runs if run.rounds]
    tried = [
        (run, record)
        for run, record in known
        if seed in (None, record["settings"]["seed"]) and not run.folder.name.endswith(AGAIN)
    ]
    further = [(run, record) for run, record in known if record["settings"]["seed"] != seed]
    best, record = max(tried or known, key=lambda one: _rank(one[0], one[1], goal))
    if seed is not None and further:  # the winner is known by now
        record = further[0][1]
    settings = settings_of_text(record["settings"]["algorithm"])
    step = _step(label, settings)
    title, colour = _looks(label, record["settings"]["algorithm"])
    met = goal.first(best.rounds)
    cost = cost_of(best.rounds[: met.r]) if met else None
    entry = Entry(
        name=name,
        label=label,
        settings=settings,
        rounds=cost.rounds if cost else None,
        bytes=cost.bytes if cost else None,
        seconds=cost.seconds if cost else None,
        exchanges=cost.exchanges if cost else None,
        work=cost.work if cost else None,
        best=goal.best(best.rounds),
        shown=title,
        colour=colour,
        step=step,
        baseline=_base(label) in TITLES,
        searched=[_candidate(*one, step, goal) for one in tried],
        curve=best.rounds,
    )
    if seed is None or not further:
        return entry
    entry.curve = further[0][0].rounds
    return aggregate_seeds(entry, [_seed_run(*one, goal) for one in further], goal)


def _rank(run: RunFolder, record: dict[str, Any], goal: Goal) -> tuple[bool, float, float]:
    """Order runs: those that diverged last, the target at the least cost first, then the best."""
    met, best = goal.first(run.rounds), goal.best_round(run.rounds)
    cost = -goal.cost(run.rounds[: met.r]) if met else -inf
    return "diverged" not in record, cost, -inf if best is None else goal.score(best.metrics)


def _candidate(run: RunFolder, record: dict[str, Any], step: str, goal: Goal) -> Candidate:
    settings = settings_of_text(record["settings"]["algorithm"])
    base = settings_of_text(str(settings.get("base", "")))
    met = goal.first(run.rounds)
    return Candidate(
        step=_number(settings.get(step)),
        ran=len(run.rounds),
        rounds=met.r if met else None,
        best=goal.best(run.rounds),
        diverged_at=record["diverged"]["r"] if "diverged" in record else None,
        K=settings["K"] if isinstance(settings.get("K"), int) else None,
        eta_g=_number(settings.get("eta_g")),
        beta=_number(base.get("beta")),
    )


def _seed_run(run: RunFolder, record: dict[str, Any], goal: Goal) -> SeedRun:
    met, nearly = goal.first(run.rounds), goal.easier().first(run.rounds)
    return SeedRun(
        seed=record["settings"]["seed"],
        cost=cost_of(run.rounds[: met.r]) if met else None,
        nearly=cost_of(run.rounds[: nearly.r]) if nearly else None,
        best=goal.best(run.rounds),
        chosen=None,
        test={},
        diverged_at=record["diverged"]["r"] if "diverged" in record else None,
        folder=run.folder.name,
    )


def _name(run: RunFolder) -> str:
    """Return the algorithm of a single run, by its name in the registry if it has one."""
    return str(run.record["settings"]["algorithm"]).partition("(")[0].lower()


def _base(label: str) -> str:
    return label.partition("#")[0].partition("-")[0]


def _looks(label: str, text: str) -> tuple[str, str]:
    """Return how an algorithm is called and coloured."""
    base = _base(label)
    if base in TITLES:
        return TITLES[base], COLOURS[base]
    if base in NAMES:
        known = kind(base)
        return shown(known, label.partition("#")[2].partition("-")[0]), known.colour
    return text.partition("(")[0] or label, ""


def _step(label: str, settings: dict[str, Any]) -> str:
    base = _base(label)
    if base in NAMES and kind(base).step in settings:
        return kind(base).step
    return next((name for name in STEPS if name in settings), "")


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
