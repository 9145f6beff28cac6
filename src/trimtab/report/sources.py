"""What a page is made of: results, and what their folders say of them besides."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os.path import relpath
from pathlib import Path
from typing import Any

from trimtab._files import read_json, read_lines
from trimtab.report.curves import Curve, curves_of
from trimtab.studies.comparison import Comparison
from trimtab.studies.entry import Entry
from trimtab.studies.record import RoundLine
from trimtab.studies.underway import Underway

FEDERATION = "federation.json"  # what the folder of a federation's operator has
_FILES = {  # what may lie in a folder, or in one of an algorithm
    "model.safetensors": "model after the last round",
    "best.safetensors": "model after the best round",
    "rounds.jsonl": "rounds",
    "run.json": "record",
    "compare.json": "record",
    "diagnosis.json": "diagnosis",
}


@dataclass(frozen=True)
class SiteFacts:
    """What is known of a site at the end: its weight, and what it did."""

    name: str
    weight: float
    rounds: int  # in which it took part
    bytes_up: int
    seconds: float  # of its own work
    last: dict[str, float | None]  # its metrics when it was last asked
    absent: int  # rounds that it sat out
    why: str  # why it sat out the last of them


@dataclass(frozen=True)
class Source:
    """A result, what it is called on the page, and the JSON file of its folder without the outcome.

    diagnosis: what `diagnosis.json` holds, if it lies in the folder. underway: it goes on, and the
    result is what there is so far.
    """

    name: str
    result: Comparison
    record: dict[str, Any] = field(default_factory=dict)
    diagnosis: dict[str, Any] | None = None
    underway: bool = False
    sites: tuple[SiteFacts, ...] = ()  # of a federation

    def seeds(self, entry: Entry) -> dict[int, list[RoundLine]]:
        """Return the rounds of an entry by seed, of those that the folder has."""
        folder = self.result.folder
        if folder is None or len(entry.runs) < 2:
            return {}
        own = folder / entry.label
        paths = {r.seed: own / (r.folder or f"seed={r.seed}") / "rounds.jsonl" for r in entry.runs}
        return {
            seed: [RoundLine.from_json(line) for line in read_lines(path)]
            for seed, path in paths.items()
            if path.exists()
        }


def source_of(result: Comparison, underway: bool = False) -> Source:
    """Return a result with what its folder says."""
    folder = result.folder
    if folder is None:
        return Source(result.problem, result, underway=underway)
    name = "run.json" if (folder / "run.json").exists() else "compare.json"
    record = {k: v for k, v in (_json(folder / name) or {}).items() if k != "outcome"}
    return Source(folder.name, result, record, read_diagnosis(folder), underway)


def read_source(folder: Path) -> Source:
    """Return what the folder of a finished comparison or run holds; of a run that diverged, too."""
    record = _json(folder / "run.json") or {}
    if "diverged" not in record or "outcome" in record:
        return source_of(Comparison.load(folder, unfinished=False))
    result, where = Underway(folder).look(), record["diverged"]
    assert result is not None
    who = record["settings"]["algorithm"]
    result.advice = f"{who} diverged at round {where['r']}; {where['why']}."
    return source_of(result)


def read_any(folder: Path) -> Source:
    """Return the result that a folder holds: of a comparison, a run, or a federation."""
    if not (folder / FEDERATION).exists():
        return read_source(folder)
    from trimtab.report.federation import read_federation  # It needs what Flower brings along.

    return read_federation(folder)


def read_diagnosis(folder: Path) -> dict[str, Any] | None:
    """Return the diagnosis in a folder, if there is one."""
    return _json(folder / "diagnosis.json")


def _json(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.exists() else None


@dataclass(frozen=True)
class Page:
    """All that the panels of one page show, and where the page will lie.

    path is None for a page that is served, from where no file can be reached.
    """

    sources: Sequence[Source]
    path: Path | None
    diagnoses: dict[str, dict[str, Any]] = field(default_factory=dict)  # by folder

    @cached_property
    def curves(self) -> list[Curve]:
        """The curves of all sources, in their order."""
        several = len(self.sources) > 1
        return [
            curve
            for number, source in enumerate(self.sources)
            for curve in curves_of(
                source.result, source.seeds, number, source.name if several else ""
            )
        ]

    def files(self, source: Source) -> list[tuple[str, str]]:
        """Return the files beside a result: what each is, and where it lies from the page."""
        folder = source.result.folder
        if folder is None or self.path is None:
            return []
        home = self.path.parent
        places = [(folder, "")]
        places += [(folder / entry.label, f"{entry.shown}: ") for entry in source.result.entries]
        return [
            (whose + what, Path(relpath(place / name, home)).as_posix())
            for place, whose in places
            for name, what in _FILES.items()
            if (place / name).exists()
        ]
