"""A reproduction: cells to compute, sentences to judge by them, and how to show it all.

A cell is one entry of a table, or one panel of a figure, and has a record of its own: a compressed
JSON file that is written whole when the cell is done. A reproduction that is interrupted goes on
with the cells that have none; what a long cell has done by then waits in a folder of its own.
"""

import gzip
import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trimtab._files import Lock, plain, write_whole
from trimtab._version import environment
from trimtab.cluster.tasks import tasks
from trimtab.core.task import Progress, Task, task
from trimtab.errors import InUse
from trimtab.studies.events import CellDone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]
"""What the file of a cell holds; its module reads it into types of its own."""

Records = Mapping[str, Record]
"""The records of a reproduction by the names of their cells; those not computed are not there."""

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


# -- sentences of a paper, checks of our own, and what our records say of them


@dataclass(frozen=True)
class Verdict:
    """Whether a sentence holds in our records (None: open), and the numbers that decide it.

    mixed: some seeds say yes and some no, whatever held says.
    """

    held: bool | None
    numbers: str
    mixed: bool = False


class MissingRecordError(Exception):
    """A cell that a sentence is judged by has no record yet, so the sentence is open."""


Judge = Callable[[Records], Verdict]


@dataclass(frozen=True)
class Claim:
    """A sentence; whether it holds in our records (None: they do not tell).

    numbers: what decided it, or why nothing here can. own: it is ours and no paper's.
    """

    sentence: str
    held: bool | None
    numbers: str = ""
    mixed: bool = False
    own: bool = False
    judgeable: bool = True

    @property
    def verdict(self) -> str:
        """Held, mixed, not held, open, or not judged."""
        if not self.judgeable:
            return "not judged"
        return "mixed" if self.mixed else {True: "held", False: "not held", None: "open"}[self.held]


@dataclass(frozen=True)
class Sentence:
    """What a paper says, where it says it, and the function that judges it.

    own: it is a check of ours. judge is None if nothing here can judge it; reason says why.
    """

    text: str
    where: str
    judge: Judge | None
    own: bool = False
    reason: str = ""

    def judged(self, records: Records) -> Claim:
        """Return what the records say of it."""
        if self.judge is None:
            return Claim(self.text, None, self.reason, own=self.own, judgeable=False)
        try:
            verdict = self.judge(records)
        except MissingRecordError:
            return Claim(self.text, None, own=self.own)
        return Claim(self.text, verdict.held, verdict.numbers, verdict.mixed, self.own)


def sentence(text: str, where: str) -> Callable[[Judge], Sentence]:
    """Make a sentence of the function below that judges it.

    >>> @sentence("SCAFFOLD arrives.", "section 1")
    ... def arrives(records: Records) -> Verdict:
    ...     return Verdict(records["cell"]["rounds"] < 10, f"{records['cell']['rounds']} rounds")
    >>> claim = arrives.judged({"cell": {"rounds": 7}})
    >>> claim.verdict, claim.numbers
    ('held', '7 rounds')
    """
    return lambda judge: Sentence(text, where, judge)


def check(text: str, where: str) -> Callable[[Judge], Sentence]:
    """Make a check of our own, which no paper states, of the function below; it counts apart."""
    return lambda judge: Sentence(text, where, judge, own=True)


def not_judged(text: str, where: str, reason: str) -> Sentence:
    """Return a sentence of a source that nothing here can judge, and why."""
    return Sentence(text, where, None, reason=reason)


Held = dict[int | str, bool]
"""Whether a sentence holds, by seed, or by the name of a run that stands for one."""


def over_seeds(held: Held, numbers: str) -> Verdict:
    """Return held if every seed says so, not held if none does, and mixed if they disagree.

    >>> over_seeds({0: True, 1: False}, "7 and 12 rounds")
    Verdict(held=None, numbers='7 and 12 rounds; seed 0: yes, seed 1: no', mixed=True)
    >>> over_seeds({0: True}, "7 rounds").numbers
    '7 rounds; one seed'
    """
    if not held:
        raise MissingRecordError
    said = set(held.values())
    mixed = len(said) > 1
    if mixed:
        names = (f"seed {seed}" if isinstance(seed, int) else seed for seed in held)
        answers = ("yes" if yes else "no" for yes in held.values())
        each = ", ".join(f"{name}: {answer}" for name, answer in zip(names, answers, strict=True))
    else:
        each = "one seed" if len(held) == 1 else f"all {len(held)} seeds"
    return Verdict(None if mixed else said.pop(), f"{numbers}; {each}", mixed)


VERDICTS = ("held", "mixed", "not held", "open", "not judged")


def counted(verdicts: Iterable[str]) -> str:
    """Return how many there are of each verdict.

    >>> counted(["not held", "held", "held"])
    '2 held, 1 not held'
    """
    known = list(verdicts)
    return ", ".join(f"{known.count(v)} {v}" for v in VERDICTS if v in known)


# -- a reproduction


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


# -- records on disk


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
    content = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    write_whole(path, gzip.compress(content.encode(), mtime=0))


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
