"""The runs of a result, one by one: what every tool is told."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

from trimtab.report.sources import Source
from trimtab.studies.record import RoundLine


@dataclass(frozen=True)
class ExportedRun:
    """One run with one seed: its name among the others, its settings, and its rounds."""

    name: str  # such as scaffold/seed=1
    algorithm: str
    seed: int | None
    settings: dict[str, Any]
    rounds: list[RoundLine]


def runs_of(source: Source) -> Iterator[ExportedRun]:
    """Go through all runs of a result; where the folder has no seeds of its own, its curves."""
    only = source.record.get("settings", {}).get("seed")
    for entry in source.result.entries:
        seeds = source.seeds(entry)
        for seed, rounds in (seeds or {only: entry.curve}).items():
            name = f"{entry.label}/seed={seed}" if seeds else entry.label
            yield ExportedRun(name, entry.name, seed, entry.settings, rounds)


def scalars(line: RoundLine) -> dict[str, float]:
    """Return the finite numbers of a round by name."""
    own = {
        **{name: getattr(line, name) for name in ("drift", "spread", "cosine")},
        **{name: getattr(line, name) for name in ("bytes_down", "bytes_up", "seconds")},
        **{name: getattr(line, name) for name in ("clients", "exchanges", "work")},
    }
    known = {name: value for name, value in (line.metrics | own).items() if value is not None}
    return {name: value for name, value in known.items() if isfinite(value)}


def file_name(source: Source) -> str:
    """Return what a result is called, with letters that a file's name may have."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in source.name).strip("-")
