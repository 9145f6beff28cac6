"""What a page shows: results, and the files of their folders."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trimtab._files import read_json, read_lines
from trimtab.algorithms.registry import NAMES, kind
from trimtab.problems.clients import ClientSummary
from trimtab.report.clients import SiteFacts
from trimtab.studies.comparison import About, Comparison
from trimtab.studies.entry import Entry, describe, rounds_in_words, settings_of_text
from trimtab.studies.goal import Goal, cost_of
from trimtab.studies.record import RoundLine

FEDERATION = "federation.json"  # the file that only the folder of a federation's operator has


@dataclass(frozen=True)
class Source:
    """A result with its name on the page.

    record: the JSON file of its folder, without the outcome.
    diagnosis: the contents of `diagnosis.json`, if it is in the folder.
    sites: those of a federation.
    """

    name: str
    result: Comparison
    record: dict[str, Any] = field(default_factory=dict)
    diagnosis: dict[str, Any] | None = None
    sites: tuple[SiteFacts, ...] = ()

    def seeds(self, entry: Entry) -> dict[int, list[RoundLine]]:
        """Return the rounds of an entry by seed, of those that the folder has."""
        folder = self.result.folder
        if folder is None or len(entry.runs) < 2:
            return {}
        own = folder / entry.label
        paths = {r.seed: own / (r.folder or f"seed={r.seed}") / "rounds.jsonl" for r in entry.runs}
        return {seed: _rounds(path) for seed, path in paths.items() if path.exists()}


def source_of(result: Comparison) -> Source:
    """Return a result with the files of its folder."""
    folder = result.folder
    if folder is None:
        return Source(result.problem, result)
    name = "run.json" if (folder / "run.json").exists() else "compare.json"
    record = {k: v for k, v in (_json(folder / name) or {}).items() if k != "outcome"}
    return Source(folder.name, result, record, read_diagnosis(folder))


def read_source(folder: Path) -> Source:
    """Return the comparison or the run that a folder holds; also a run that diverged."""
    record = _json(folder / "run.json") or {}
    if "diverged" not in record or "outcome" in record:
        return source_of(Comparison.load(folder))
    result, diverged = run_so_far(folder), record["diverged"]
    assert result is not None
    result.about = replace(result.about, finished=True)
    algorithm = record["settings"]["algorithm"]
    result.advice = f"{algorithm} diverged at round {diverged['r']}; {diverged['why']}."
    return source_of(result)


def read_any(folder: Path) -> Source:
    """Return the result that a folder holds: of a comparison, a run, or a federation."""
    if not (folder / FEDERATION).exists():
        return read_source(folder)
    from trimtab.report.federation import read_federation  # It needs the federation's packages.

    return read_federation(folder)


def read_diagnosis(folder: Path) -> dict[str, Any] | None:
    """Return the diagnosis in a folder, if there is one."""
    return _json(folder / "diagnosis.json")


def result_so_far(folder: Path, population: ClientSummary) -> Comparison | None:
    """Return the current result of a comparison or a run that goes on; None before the first.

    population: its clients, which a record has at the end only.
    """
    if (folder / "run.json").exists():
        result = run_so_far(folder)
    else:
        saved = "outcome" in (_json(folder / "compare.json") or {})
        result = Comparison.load(folder) if saved else None
    if result is not None and result.population is None:
        result.population = population
    return result


def run_so_far(folder: Path) -> Comparison | None:
    """Return a run as far as its rounds are written; None before the first."""
    record = read_json(folder / "run.json")
    lines = _rounds(folder / "rounds.jsonl") if (folder / "rounds.jsonl").exists() else []
    if "goal" not in record or not lines:
        return None
    goal, settings = Goal.from_json(record["goal"]), record["settings"]
    entry = entry_of_rounds(settings["algorithm"], lines, goal)
    if "diverged" in record:
        entry.diverged_at = record["diverged"]["r"]
    best = "not known yet" if entry.best is None else f"{goal.name} {entry.best:.4g}"
    advice = f"{describe(entry)} has run {rounds_in_words(len(lines))}; the best so far is {best}."
    split = settings.get("split", "none")
    about = About(split=split, seeds=(settings["seed"],), finished=False)
    return Comparison(settings["problem"], goal, [entry], advice, folder, about=about)


def entry_of_rounds(algorithm: str, lines: list[RoundLine], goal: Goal) -> Entry:
    """Return an entry for the rounds of a single run, with the cost of all without a target.

    algorithm: as Python prints it, such as FedAvg(eta_l=0.1, K=5, eta_g=1.0).
    """
    title = algorithm.partition("(")[0]
    name = title.lower()
    known = kind(name) if name in NAMES else None
    cost = cost_of(lines) if goal.target is None else goal.cost_to_target(lines)
    return Entry(
        name=name,
        label=name,
        settings=settings_of_text(algorithm),
        **({} if cost is None else asdict(cost)),
        best=goal.best(lines),
        shown=known.shown if known else title,
        colour=known.colour if known else "",
        step=known.step if known else "",
        curve=lines,
    )


def distinct_sources(sources: Sequence[Source]) -> list[Source]:
    """Return the sources; those whose folders have one name are named by their paths."""
    names = [source.name for source in sources]
    return [
        replace(source, name=str(source.result.folder)) if names.count(source.name) > 1 else source
        for source in sources
    ]


def _rounds(path: Path) -> list[RoundLine]:
    return [RoundLine.from_json(line) for line in read_lines(path)]


def _json(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.exists() else None
