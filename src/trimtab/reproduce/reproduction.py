"""A reproduction: cells to compute, sentences to judge by them, and how to show it all.

A cell is one entry of a table, or one panel of a figure, and has a record of its own, which is
written whole when the cell is done. A reproduction that is interrupted goes on with the cells that
have none; what a long cell has done by then waits in a folder of its own.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trimtab._files import Lock, plain
from trimtab._version import environment
from trimtab.cluster.tasks import tasks
from trimtab.core.task import Progress, Task, task
from trimtab.errors import InUse
from trimtab.reproduce.records import Record, Records, write
from trimtab.reproduce.records import read as read
from trimtab.reproduce.verdicts import Claim, Sentence
from trimtab.studies.events import CellDone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Computing = Generator[Progress, None, Record]
"""A cell at work: it tells how far it is, and returns its record."""


@dataclass(frozen=True)
class Cell:
    """A name, such as scaffold-5-0, and what computes the record.

    compute(data, scratch): the folder of the data, and one for what an interrupted cell has done,
    which goes when the record is written.
    """

    name: str
    compute: Callable[[Path | None, Path], Computing]


@dataclass(frozen=True)
class Reproduction:
    """What `trimtab reproduce NAME` does.

    shows: what, in one line. source: where it is published. minutes: on two cores.
    cells(quick, seeds): what is computed. repeats(records, seeds): what further seeds compute where
    that follows from the first; more(records): the other cells that follow from others.
    table(records), discussion: Markdown; the table has the published numbers beside ours.
    """

    name: str
    shows: str
    source: str
    minutes: float
    cells: Callable[[bool, int], Sequence[Cell]]
    sentences: tuple[Sentence, ...]
    table: Callable[[Records], str]
    figure: Callable[[Records], "Figure"]
    discussion: str = ""
    more: Callable[[Records], Sequence[Cell]] = lambda records: ()
    repeats: Callable[[Records, int], Sequence[Cell]] = lambda records, seeds: ()

    def claims(self, records: Records) -> list[Claim]:
        """Return the sentences as the records judge them."""
        return [sentence.judged(records) for sentence in self.sentences]


@task
def reproduce(
    reproduction: Reproduction,
    folder: Path,
    *,
    quick: bool = False,
    seeds: int = 1,
    pick: Sequence[str] = ("*",),
    data: Path | None = None,
    seed: int | None = None,
    cluster: str | bool = False,
) -> Generator[Progress | CellDone, None, dict[str, Record]]:
    """Compute the cells that were picked and have no record yet; return all records.

    seed: only the cells of this one, of those that are counted from 0. cluster: the address of a
    Ray cluster, or True for one on this machine, that computes them.
    """
    each = partial(_each, folder=folder, pick=pick, data=data)
    if cluster:
        address = None if cluster is True else cluster
        each = partial(each_remotely, folder=folder, pick=pick, data=data, address=address)
    cells = _of_seed(lambda count: reproduction.cells(quick, count), seeds, seed)

    def more() -> Sequence[Cell]:
        return [] if quick or seed else reproduction.more(read(folder))

    def repeats() -> Sequence[Cell]:
        records = read(folder)
        return _of_seed(lambda count: reproduction.repeats(records, count), seeds, seed)

    if seed and not cells and not repeats():
        raise ValueError(
            f"{reproduction.name} has no cells of seed {seed}; take seed 0, or compute it first."
        )

    known = [cell.name for cell in (*cells, *repeats(), *more())]
    for pattern in pick:
        if not any(fnmatch(name, pattern) for name in known):
            names = ", ".join(known)
            raise ValueError(f"{reproduction.name} has no cell {pattern!r}; it has {names}.")
    yield from each(cells)
    yield from each(repeats())
    yield from each(more())
    return read(folder)


def _of_seed(
    cells: Callable[[int], Sequence[Cell]], seeds: int, seed: int | None
) -> Sequence[Cell]:
    """Return the cells of so many seeds; or those of one alone, beyond those before it."""
    if seed is None:
        return cells(seeds)
    before = {cell.name for cell in cells(seed)} if seed else set()
    return [cell for cell in cells(seed + 1) if cell.name not in before]


def _each(
    cells: Sequence[Cell], folder: Path, pick: Sequence[str], data: Path | None
) -> Generator[Progress | CellDone, None, None]:
    """Compute cells one after another; the share that is told is that of these cells."""
    wanted = [cell for cell in cells if any(fnmatch(cell.name, pattern) for pattern in pick)]
    for number, cell in enumerate(wanted):
        path, scratch = folder / f"{cell.name}.json.gz", folder / ".unfinished" / cell.name
        if path.exists():
            continue
        try:
            with Lock(scratch):
                if path.exists():  # Another process was faster.
                    continue
                record = yield from _record(cell, data, scratch, (number, len(wanted)))
                write(path, record)
                rmtree(scratch, ignore_errors=True)
        except InUse:
            yield Progress(f"{cell.name}: another process is at it")
            continue
        yield CellDone(cell.name, record["seconds"])


def _record(cell: Cell, data: Path | None, scratch: Path, place: tuple[int, int]) -> Computing:
    """Compute a cell; what it tells is told with its name, and its place among so many."""
    number, count = place
    started = perf_counter()
    with closing(Task(cell.compute(data, scratch))) as work:
        for at in work:
            share = (number + (at.share or 0.0)) / count
            yield Progress(f"{cell.name} ({number + 1} of {count}): {at.what}", share)
        record: Record = plain(work.result())
    seconds = round(perf_counter() - started, 2)
    return record | {"seconds": seconds, "versions": environment()}


def each_remotely(
    cells: Sequence[Cell],
    folder: Path,
    pick: Sequence[str],
    data: Path | None,
    address: str | None,
) -> Generator[Progress | CellDone, None, None]:
    """Compute cells as tasks of a cluster; their records are written here as they come.

    A task that its machine takes with it is run by another one.
    """
    with ExitStack() as at_end:
        wanted: dict[str, Cell] = {}
        for cell in cells:
            path, scratch = folder / f"{cell.name}.json.gz", folder / ".unfinished" / cell.name
            if path.exists() or not any(fnmatch(cell.name, pattern) for pattern in pick):
                continue
            try:
                at_end.enter_context(Lock(scratch))
            except InUse:
                yield Progress(f"{cell.name}: another process is at it")
                continue
            wanted[cell.name] = cell
        where = None if data is None else data.resolve()
        questions = {name: partial(_computed, cell, where) for name, cell in wanted.items()}
        for name, record in tasks(address, questions):
            write(folder / f"{name}.json.gz", record)
            rmtree(folder / ".unfinished" / name, ignore_errors=True)
            yield CellDone(name, record["seconds"])


def _computed(cell: Cell, data: Path | None) -> Record:
    """Compute a cell on whatever machine this is."""
    with TemporaryDirectory(prefix="trimtab-cell-") as scratch:
        return Task(_record(cell, data, Path(scratch), place=(0, 1))).result()


def listed(reproduction: Reproduction, folder: Path) -> dict[str, Any]:
    """Return what is known of a reproduction, for people and machines."""
    own = folder / reproduction.name
    records = read(own)
    claims = reproduction.claims(records)
    return {
        "name": reproduction.name,
        "shows": reproduction.shows,
        "minutes": reproduction.minutes,
        "record": str(own) if records else None,
        "claims": {claim.sentence: claim.verdict for claim in claims if not claim.own},
        "checks": {claim.sentence: claim.verdict for claim in claims if claim.own},
    }
