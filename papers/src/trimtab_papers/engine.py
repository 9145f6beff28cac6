"""A reproduction: cells to compute, sentences to judge by them, and how to show it all.

A cell is one entry of a table, or one panel of a figure, and has a record of its own, which is
written whole when the cell is done. A reproduction that is interrupted goes on with the cells that
have none; what a long cell has done by then waits in a folder of its own.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
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
from trimtab.algorithms import Adam, Base, Momentum, registry
from trimtab.cluster import engine
from trimtab.core import Algorithm, Epochs
from trimtab.core.task import Progress, Task, task
from trimtab.errors import BadArgument, InUse
from trimtab_papers.verdicts import Claim, Record, Records, Sentence, path_of, read, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BASES: dict[str, Base] = {"none": Momentum(beta=0.0), "momentum": Momentum(), "adam": Adam()}
OF_ITS_OWN = {"alpha": 0.1}  # FedDyn's; ours, not tuned, as is the a = 0.1 of ScaffoldM and MVR
TITLES = {name: registry.kind(name).title for name in registry.NAMES} | {
    "fedopt": "FedAvg",  # Its base optimiser works at the server.
}


def build(
    name: str,
    eta: float,
    K: int | Epochs,
    *,
    base: str = "none",
    eta_g: float = 1.0,
    a: float = 0.1,
) -> Algorithm:
    """Return an algorithm with a step size; it takes of the rest what it knows.

    >>> build("scaffold", 0.1, 5)
    Scaffold(eta_l=0.1, K=5, eta_g=1.0, option='II', lean=False)
    >>> build("serveronly", 0.1, 5, base="momentum")
    ServerOnly(eta=0.1, base=Momentum(beta=0.9))
    """
    arguments = {"eta": eta, "eta_l": eta, "K": K, "base": BASES[base], "eta_g": eta_g, "a": a}
    arguments |= OF_ITS_OWN
    taken = {word: value for word, value in arguments.items() if _has(name, word)}
    algorithm: Algorithm = registry.build(name, **taken)
    return algorithm


def takes_base(name: str) -> bool:
    return _has(name, "base")


def takes_local_steps(name: str) -> bool:
    """Return whether clients take K steps; if not, they send one gradient per round."""
    return registry.kind(name).has_K


def takes_server_step(name: str) -> bool:
    return _has(name, "eta_g")


def colour(name: str) -> str:
    return registry.kind(name).colour


def _has(name: str, word: str) -> bool:
    return any(parameter.name == word for parameter in registry.kind(name).parameters)


# -- tasks of a cluster


RETRIES = 3  # a task whose machine is lost is run again <= 3 times


def tasks(
    address: str | None, functions: Mapping[str, Callable[[], Any]]
) -> Iterator[tuple[str, Any]]:
    """Run functions on the machines of a cluster; go through names and results as they come.

    What one raises is raised here when all others have ended, so that none of them is lost.
    """
    if not functions:
        return
    ray = engine.connect(address)
    run = ray.remote(_run).options(num_cpus=1, max_retries=RETRIES, scheduling_strategy="SPREAD")
    waiting = {run.remote(function): name for name, function in functions.items()}
    failed: list[str] = []
    try:
        while waiting:
            (done, *_), _ = ray.wait(list(waiting))
            name = waiting.pop(done)
            try:
                status, result = ray.get(done)
            except ray.exceptions.RayError as error:
                status, result = "failed", (str(error).strip().splitlines() or [repr(error)])[-1]
            if status == "failed":
                failed.append(f"{name}: {result}")
            else:
                yield name, result
    finally:
        for task in waiting:
            ray.cancel(task, force=True)
    if failed:
        raise ValueError(failed[0])


def _run(function: Callable[[], Any]) -> tuple[str, Any]:
    """Return a result, or the sentence of an error with the machine it came from."""
    import os

    from trimtab._importing import describe_error
    from trimtab.cluster.actor import node_name

    os.environ["TRIMTAB_CORES"] = "1"
    try:
        return "done", function()
    except Exception as error:
        sentence = (
            str(error) if isinstance(error, ValueError | OSError) else f"{describe_error(error)}."
        )
        return "failed", f"{node_name()}: {sentence}"


# -- reproductions


Computing = Generator[Progress, None, Record]
"""A running cell: it yields its progress, and returns its record."""


@dataclass(frozen=True)
class CellDone:
    """The record of a cell is complete."""

    name: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name}: {self.seconds:.1f} s"


Events = Generator[Progress | CellDone, None, None]


@dataclass(frozen=True)
class Cell:
    """A name, such as scaffold-5-0, and what computes the record.

    compute(data, scratch): the folder of the data, and one for what an interrupted cell has done,
    which goes when the record is written.
    """

    name: str
    compute: Callable[[Path | None, Path], Computing]


def cell_of(
    name: str, compute: Callable[..., Computing], *arguments: Any, seed: int | None = None
) -> Cell:
    """Return a cell that needs neither data nor a folder.

    seed: the last argument of compute; the name of a later seed than 0 ends in it.
    """
    if seed is None:
        return Cell(name, lambda data, scratch: compute(*arguments))
    full_name = f"{name}-seed{seed}" if seed else name
    return Cell(full_name, lambda data, scratch: compute(*arguments, seed))


@dataclass(frozen=True)
class Reproduction:
    """What `trimtab reproduce NAME` does.

    shows: what, in one line. source: where it is published. minutes: on two cores.
    cells(quick, seeds): what is computed. repeats(records, seeds): what further seeds compute where
    that follows from the first; more(records): the other cells that follow from others.
    table(records), figure(records): of one record at least; discussion: Markdown, as the table is,
    which has the published numbers beside ours.
    """

    name: str
    shows: str
    source: str
    minutes: float
    cells: Callable[[bool, int], Sequence[Cell]]
    sentences: Sequence[Sentence]
    table: Callable[[Records], str]
    figure: Callable[[Records], "Figure"]
    discussion: str = ""
    more: Callable[[Records], Sequence[Cell]] = lambda records: ()
    repeats: Callable[[Records, int], Sequence[Cell]] = lambda records, seeds: ()

    def claims(self, records: Records) -> list[Claim]:
        return [sentence.judged(records) for sentence in self.sentences]


@dataclass(frozen=True)
class Request:
    """Which cells of a reproduction to compute; some of them follow from the records of others.

    seed: only the cells of this one, of those that are counted from 0. pick: patterns of names.
    """

    reproduction: Reproduction
    folder: Path
    quick: bool = False
    seeds: int = 1
    seed: int | None = None
    pick: Sequence[str] = ("*",)

    def check(self) -> None:
        """Refuse what cannot be computed, before anything is."""
        if self.seeds < 1:
            raise BadArgument("seeds", "{seeds:{given}} is none; pass 1 or more.", given=self.seeds)
        if self.seed is not None and self.seed < 0:
            raise BadArgument("seed", "seeds are counted from 0; pass {seed:0} or more.")
        self._check_folder()
        known = [cell.name for cells in self.stages for cell in cells()]
        if not known:
            raise BadArgument(
                "seed",
                "{name} has no cells of seed {number}; take seed 0, or compute that first if "
                "others follow from it.",
                name=self.reproduction.name,
                number=self.seed,
            )
        for pattern in self.pick:
            if not any(fnmatch(name, pattern) for name in known):
                names = ", ".join(known)
                raise ValueError(
                    f"{self.reproduction.name} has no cell {pattern!r}; it has {names}."
                )

    def _check_folder(self) -> None:
        """Refuse records of the other size, since cells of both sizes may have the same name."""
        for name, record in read(self.folder).items():
            if record.get("quick", False) != self.quick:
                made = "was not made with" if self.quick else "was made with"
                raise BadArgument(
                    "out",
                    "{path} {made} {quick:True}; pass another {out}, or remove it.",
                    path=path_of(self.folder, name),
                    made=made,
                )

    @property
    def stages(self) -> tuple[Callable[[], Sequence[Cell]], ...]:
        """The cells in three parts; each is listed when the part before has its records."""
        return self._first, self._repeats, self._more

    def _first(self) -> Sequence[Cell]:
        return self._of_seed(partial(self.reproduction.cells, self.quick))

    def _repeats(self) -> Sequence[Cell]:
        return self._of_seed(partial(self.reproduction.repeats, read(self.folder)))

    def _more(self) -> Sequence[Cell]:
        return [] if self.quick or self.seed else self.reproduction.more(read(self.folder))

    def _of_seed(self, cells: Callable[[int], Sequence[Cell]]) -> Sequence[Cell]:
        """Return the cells of so many seeds; or those of one alone, beyond those before it."""
        if self.seed is None:
            return cells(self.seeds)
        before = {cell.name for cell in cells(self.seed)} if self.seed else set()
        return [cell for cell in cells(self.seed + 1) if cell.name not in before]

    def picked(self, cells: Sequence[Cell]) -> list[Cell]:
        return [cell for cell in cells if any(fnmatch(cell.name, each) for each in self.pick)]


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
    request = Request(reproduction, folder, quick, seeds, seed, pick)
    request.check()
    for stage in request.stages:
        cells = request.picked(stage())
        if cluster:
            yield from _remotely(cells, request, data, None if cluster is True else cluster)
        else:
            yield from _in_turn(cells, request, data)
    return read(folder)


def _in_turn(cells: Sequence[Cell], request: Request, data: Path | None) -> Events:
    """Compute cells one after another; progress is the share of these cells."""
    for number, cell in enumerate(cells):
        try:
            lock = _claim(cell.name, request.folder)
        except InUse:
            yield Progress(f"{cell.name}: another process is at it")
            continue
        if lock is None:
            continue
        with lock:
            scratch = _scratch(request.folder, cell.name)
            record = yield from _record(cell, data, scratch, (number, len(cells)))
            _keep(record, cell.name, request)
        yield CellDone(cell.name, record["seconds"])


def _remotely(
    cells: Sequence[Cell], request: Request, data: Path | None, address: str | None
) -> Events:
    """Compute cells as tasks of a cluster; their records are written here as they come.

    A task that its machine takes with it is run by another one.
    """
    where = None if data is None else data.resolve()
    with ExitStack() as at_end:
        functions: dict[str, Callable[[], Record]] = {}
        for cell in cells:
            try:
                lock = _claim(cell.name, request.folder)
            except InUse:
                yield Progress(f"{cell.name}: another process is at it")
                continue
            if lock is not None:
                at_end.enter_context(lock)
                functions[cell.name] = partial(_computed, cell, where)
        for name, record in tasks(address, functions):
            _keep(record, name, request)
            yield CellDone(name, record["seconds"])


def _scratch(folder: Path, name: str) -> Path:
    return folder / ".unfinished" / name


def _claim(name: str, folder: Path) -> Lock | None:
    """Hold a cell for this process; None if it has its record."""
    path, scratch = path_of(folder, name), _scratch(folder, name)
    if not path.exists():
        try:
            lock = Lock(scratch)
        except FileNotFoundError:  # Another process wrote the record and removed the folder.
            if not path.exists():
                raise
            return None
        if not path.exists():
            return lock
        lock.release()
    rmtree(scratch, ignore_errors=True)  # A process that was killed may have left it.
    return None


def _keep(record: Record, name: str, request: Request) -> None:
    """Write the record of a cell; what it had done so far goes."""
    write(path_of(request.folder, name), record | ({"quick": True} if request.quick else {}))
    rmtree(_scratch(request.folder, name), ignore_errors=True)


def _record(cell: Cell, data: Path | None, scratch: Path, place: tuple[int, int]) -> Computing:
    """Compute a cell; its progress is reported with its name and its place among all cells."""
    number, count = place
    started = perf_counter()
    with closing(Task(cell.compute(data, scratch))) as work:
        for at in work:
            share = (number + (at.share or 0.0)) / count
            yield Progress(f"{cell.name} ({number + 1} of {count}): {at.what}", share)
        record: Record = plain(work.result())
    seconds = round(perf_counter() - started, 2)
    return record | {"seconds": seconds, "versions": environment()}


def _computed(cell: Cell, data: Path | None) -> Record:
    with TemporaryDirectory(prefix="trimtab-cell-") as scratch:
        return Task(_record(cell, data, Path(scratch), place=(0, 1))).result()


def summary(reproduction: Reproduction, folder: Path) -> dict[str, Any]:
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
