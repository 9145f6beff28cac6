"""A reproduction: cells to compute, claims to judge by them, and how to show it all.

A cell is one entry of a table, or one panel of a figure, and has a record of its own: a compressed
JSON file that is written whole when the cell is done. A reproduction that is interrupted goes on
with the cells that have none; what a long cell has done by then waits in a folder of its own.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from shutil import rmtree
from time import perf_counter
from typing import Any

from matplotlib.figure import Figure

from trimtab._files import Lock, plain, write_whole
from trimtab._version import environment
from trimtab.errors import InUse

Record = dict[str, Any]
Records = Mapping[str, Record]
"""The records of a reproduction by the names of their cells; those not computed are not there."""

Say = Callable[[str], None]
"""Shows how far a cell is."""


@dataclass(frozen=True)
class Cell:
    """A name, such as scaffold-5-0, and what computes the record.

    compute(data, say, scratch): the folder of the data, and one for what an interrupted cell has
    done, which goes when the record is written.
    """

    name: str
    compute: Callable[[Path | None, Say, Path], Record]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper; whether it holds in our records (None: they do not tell yet)."""

    sentence: str
    held: bool | None
    numbers: str = ""  # what decided it

    @property
    def verdict(self) -> str:
        """Held, not held or open."""
        return {True: "held", False: "not held", None: "open"}[self.held]


@dataclass(frozen=True)
class Reproduction:
    """What `trimtab reproduce NAME` does."""

    name: str
    shows: str  # in one line
    source: str  # where it is published
    minutes: float  # on two cores
    cells: Callable[[bool, int], Sequence[Cell]]  # (quick, seeds)
    claims: Callable[[Records], Sequence[Claim]]
    table: Callable[[Records], str]  # Markdown, the published numbers beside ours
    figure: Callable[[Records], Figure]
    discussion: str = ""  # Markdown
    more: Callable[[Records], Sequence[Cell]] = lambda records: ()  # cells that follow from others


def computing(
    reproduction: Reproduction,
    folder: Path,
    *,
    quick: bool = False,
    seeds: int = 1,
    pick: Sequence[str] = ("*",),
    data: Path | None = None,
    say: Say = lambda text: None,
) -> Iterator[tuple[str, Record]]:
    """Compute the cells that have no record yet, and yield each as it is done."""
    cells = reproduction.cells(quick, seeds)

    def more() -> Sequence[Cell]:
        return [] if quick else reproduction.more(read(folder))

    known = [cell.name for cell in (*cells, *more())]
    for pattern in pick:
        if not any(fnmatch(name, pattern) for name in known):
            names = ", ".join(known)
            raise ValueError(f"{reproduction.name} has no cell {pattern!r}; it has {names}.")
    yield from _each(cells, folder, pick, data, say)
    yield from _each(more(), folder, pick, data, say)


def _each(
    cells: Sequence[Cell], folder: Path, pick: Sequence[str], data: Path | None, say: Say
) -> Iterator[tuple[str, Record]]:
    for cell in cells:
        path, scratch = folder / f"{cell.name}.json.gz", folder / ".unfinished" / cell.name
        if path.exists() or not any(fnmatch(cell.name, pattern) for pattern in pick):
            continue
        started = perf_counter()

        def telling(text: str, name: str = cell.name) -> None:
            say(f"{name}: {text}")

        try:
            with Lock(scratch):
                if path.exists():  # another process was faster
                    continue
                record = plain(cell.compute(data, telling, scratch))
                record |= {"seconds": round(perf_counter() - started, 2), "versions": environment()}
                write(path, record)
                rmtree(scratch, ignore_errors=True)
        except InUse:
            telling("another process is at it")
            continue
        yield cell.name, record


def read(folder: Path) -> dict[str, Record]:
    """Return the records in a folder by the names of their cells."""
    records = {}
    for path in sorted(folder.glob("*.json.gz")):
        try:
            records[path.name.removesuffix(".json.gz")] = json.loads(
                gzip.decompress(path.read_bytes())
            )
        except (OSError, EOFError, ValueError) as error:
            raise ValueError(f"{path} cannot be read ({error}); remove it and run again.") from None
    return records


def write(path: Path, record: Record) -> None:
    """Write a record whole; equal records are equal files."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    write_whole(path, gzip.compress(text.encode(), mtime=0))


def listed(reproduction: Reproduction, folder: Path) -> dict[str, Any]:
    """Return what is known of a reproduction, for people and machines."""
    own = folder / reproduction.name
    records = read(own)
    return {
        "name": reproduction.name,
        "shows": reproduction.shows,
        "minutes": reproduction.minutes,
        "record": str(own) if records else None,
        "claims": {c.sentence: c.verdict for c in reproduction.claims(records)},
    }
