"""Asynchronous rounds: no client waits for a slower one.

A client fetches the server's broadcast, computes, and its reply arrives when the server has moved
on. Every `buffer` arrivals are one round of the unchanged algorithm: its `round` is called once
when clients fetch, to learn program and broadcast, and once when their replies arrive.

The mean of the replies is sum p_i u_i over the clients that arrived, and their share is 1. So N
arrivals from one fetched x add up to a synchronous round, and c = sum p_i c_i stays exact.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from math import isfinite, log
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from trimtab._files import atomic_write
from trimtab.core import Algorithm, Program, State, leaves, map_leaves, plain_number
from trimtab.core.hyper import at
from trimtab.core.oracle import ServerDraws, server_random
from trimtab.core.replies import Tally
from trimtab.core.streams import SPEED, stream
from trimtab.errors import BadArgument
from trimtab.simulation.cohort import SimulatedCohort

if TYPE_CHECKING:
    from trimtab.simulation.simulate import Simulation

DELAYS = ("exponential", "fixed", "pareto")
PARETO = 1.5  # the exponent of heavy tails: the mean is finite, the variance without a limit is not
LONGEST = 100.0  # of a heavy tail, in multiples of its shortest delay
COLUMNS = ["client", "seconds"]


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """How long the clients of an asynchronous simulation take from a fetch to the arrival.

    spread: mean delays of clients are log-uniform in [1, spread] seconds; default 1.
    seed: seeds the delays, which are functions of (seed, client, number of the job); default 0.
    delays: how the delays of one client vary about its mean: "exponential" (default), "fixed", or
        "pareto" (exponent 1.5, truncated at 100 times the shortest).
    seconds: measured delays in place of drawn ones: N numbers, or the path of a CSV with columns
        client and seconds, whose j-th row of a client is its j-th job; the rows of a client begin
        again when they are used up. `Simulation.save_delays` writes such a file.
    buffer: how many arrivals make a round, from 1 (default) to N. A client whose reply is in the
        buffer waits for that round; with N the rounds are synchronous.
    """

    spread: float = 1.0
    seed: int = 0
    delays: Literal["exponential", "fixed", "pareto"] = "exponential"
    seconds: Sequence[float] | Sequence[Sequence[float]] | str | Path | None = None
    buffer: int = 1

    def __post_init__(self) -> None:
        spread = plain_number(self.spread)
        if isinstance(spread, bool) or not isinstance(spread, int | float) or not spread >= 1:
            raise ValueError(f"Speeds: spread={self.spread!r}; pass a number that is at least 1.")
        if not isfinite(spread):
            raise ValueError(f"Speeds: spread={self.spread!r}; pass a finite number.")
        for name, least in (("seed", None), ("buffer", 1)):
            value = getattr(self, name)
            whole = hasattr(value, "__index__") and not isinstance(value, bool)
            if not whole or (least is not None and value < least):
                more = "" if least is None else f" that is at least {least}"
                raise ValueError(f"Speeds: {name}={value!r}; pass a whole number{more}.")
        if self.delays not in DELAYS:
            raise ValueError(f"Speeds: delays={self.delays!r}; pass one of {', '.join(DELAYS)}.")
        if self.seconds is not None:
            object.__setattr__(self, "seconds", _measured(self.seconds))

    def delay(self, client: int, job: int) -> float:
        """Return the seconds of a client's job; jobs count from 0."""
        measured: Any = self.seconds
        if measured is not None:
            own = measured[client]
            return float(own[job % len(own)])
        u = torch.rand(1, generator=stream(self.seed, SPEED, client), dtype=torch.float64).item()
        mean = float(self.spread) ** u
        if self.delays == "fixed":
            return mean
        v = torch.rand(1, generator=stream(self.seed, SPEED, client, job), dtype=torch.float64)
        if self.delays == "exponential":
            return -mean * log(1 - v.item())
        tail = LONGEST**-PARETO
        of_tail = PARETO / (PARETO - 1) * (1 - LONGEST ** (1 - PARETO)) / (1 - tail)  # its mean
        return float(mean / of_tail * (1 - v.item() * (1 - tail)) ** (-1 / PARETO))

    def check(self, N: int) -> None:
        """Raise ValueError unless there is a delay for each of N clients, and the buffer fills."""
        if self.buffer > N:
            raise ValueError(
                f"Speeds: buffer={self.buffer}, but the problem has N={N}; a client is in the "
                f"buffer once, so pass at most {N}."
            )
        measured: Any = self.seconds
        if measured is not None and len(measured) != N:
            raise ValueError(
                f"Speeds: seconds has delays of {len(measured)} clients, but the problem has "
                f"N={N}; pass delays of every client."
            )


def _measured(seconds: Any) -> tuple[tuple[float, ...], ...]:
    """Return the delays of each client. Raise ValueError unless all have one, and it is finite."""
    rows: list[Sequence[Any]]
    if isinstance(seconds, str | Path):
        rows = list(_rows(Path(seconds)))
    elif isinstance(seconds, Sequence | Tensor):
        given = seconds.tolist() if isinstance(seconds, Tensor) else seconds
        rows = [own if isinstance(own, Sequence) else (own,) for own in given]
    else:
        rows = []
    found = tuple(tuple(plain_number(value) for value in own) for own in rows)
    for client, own in enumerate(found):
        for value in own:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not isfinite(value) or value < 0:
                raise ValueError(
                    f"Speeds: client {client} has a delay of {value!r} seconds; pass a finite "
                    "number that is not negative."
                )
    if not found or not all(found):
        empty = f"no delay of client {found.index(())}" if found else "no delays"
        raise ValueError(
            f"Speeds: seconds has {empty}; pass a number per client, or the path of a CSV with the "
            f"columns {','.join(COLUMNS)}."
        )
    return found


def _rows(path: Path) -> Iterator[list[float]]:
    """Yield the delays of client 0, 1, … in a CSV."""
    try:
        lines = [*csv.reader(path.read_text(encoding="utf-8-sig").splitlines())]
    except (OSError, ValueError, csv.Error) as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise ValueError(f"Speeds: {path} cannot be read ({why}); pass another file.") from None
    if not lines or [name.strip() for name in lines[0]] != COLUMNS:
        raise ValueError(f"Speeds: {path} must begin with the header {','.join(COLUMNS)}.")
    found: dict[int, list[float]] = {}
    for number, line in enumerate(lines[1:], 2):
        try:
            client, seconds = line
            found.setdefault(int(client), []).append(float(seconds))
        except ValueError:
            raise ValueError(
                f"Speeds: line {number} of {path} is {','.join(line)!r}; write a client's number "
                "and its seconds."
            ) from None
    for i in range(max(found, default=-1) + 1):
        yield found.pop(i, [])
    if found:
        raise ValueError(f"Speeds: {path} has client {min(found)}; clients count from 0.")


# -- rounds


@dataclass(frozen=True)
class Job:
    """What a client fetched, and when its reply arrives."""

    number: int  # of the client's jobs, from 0
    r: int  # the round for which it fetched; its random numbers are those of (client, r)
    arrives: float  # on the simulated clock, in seconds


@dataclass(frozen=True)
class Fetched:
    """What the server sent to the clients that fetched for one round."""

    program: Program
    broadcast: tuple[Any, ...]


class Arrivals:
    """The simulated clock, and the job that every client works on."""

    def __init__(self, sim: "Simulation", speeds: Speeds) -> None:
        speeds.check(sim.problem.N)
        self.speeds, self.clock = speeds, 0.0
        self.jobs: dict[int, Job] = {}
        self._fetched: dict[int, Fetched] = {}
        self._fetch(sim, range(sim.problem.N), 1)

    def due(self) -> list[int]:
        """Return the clients whose replies arrive next, in the order of their numbers."""
        first = nsmallest(self.speeds.buffer, self.jobs, key=lambda i: (self.jobs[i].arrives, i))
        return sorted(first)

    def job_of(self, i: int) -> tuple[Job, Fetched]:
        """Return what client i works on."""
        job = self.jobs[i]
        return job, self._fetched[job.r]

    def commit(self, sim: "Simulation", clients: Sequence[int]) -> None:
        """Advance the clock to the last of these arrivals; the clients fetch the new state."""
        self.clock = max(self.jobs[i].arrives for i in clients)
        self._fetch(sim, clients, sim.r + 1)
        needed = {job.r for job in self.jobs.values()}
        self._fetched = {r: sent for r, sent in self._fetched.items() if r in needed}

    def _fetch(self, sim: "Simulation", clients: Sequence[int], r: int) -> None:
        for i in clients:
            number = self.jobs[i].number + 1 if i in self.jobs else 0
            self.jobs[i] = Job(number, r, self.clock + self.speeds.delay(i, number))
        self._fetched[r] = fetched(sim.algorithm, sim.server, sim.seed, r)

    def save_delays(self, path: Path) -> None:
        """Write the delays of all jobs so far as a CSV for `Speeds(seconds=path)`."""
        lines = [
            f"{i},{self.speeds.delay(i, j)!r}"
            for i in sorted(self.jobs)
            for j in range(self.jobs[i].number + 1)
        ]
        with atomic_write(path) as part:
            part.write_text("\n".join([",".join(COLUMNS), *lines, ""]), "utf-8")

    # -- checkpoints

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint holds, except for the tensors that were fetched."""
        jobs = {str(i): [job.number, job.r, job.arrives] for i, job in self.jobs.items()}
        return {"speeds": asdict(self.speeds), "clock": self.clock, "jobs": jobs}

    def fetched_tensors(self) -> Iterator[tuple[str, State]]:
        """Yield the broadcasts that clients still work on, with their names in a checkpoint."""
        for r, sent in sorted(self._fetched.items()):
            yield f"fetched.{r}", sent.broadcast

    def restore(self, sim: "Simulation", facts: dict[str, Any], file: Any) -> None:
        """Continue from a checkpoint; `file` reads states by their names."""
        self.clock = facts["clock"]
        self.jobs = {int(i): Job(*job) for i, job in facts["jobs"].items()}
        self._fetched = {}
        for r in {job.r for job in self.jobs.values()}:
            # The program is a method of the algorithm; only the broadcast depends on the state.
            now = fetched(sim.algorithm, sim.server, sim.seed, r)
            self._fetched[r] = Fetched(now.program, file.state(f"fetched.{r}", now.broadcast))


class _ProgramIsKnown(Exception):
    def __init__(self, fetched: Fetched) -> None:
        self.fetched = fetched


class _Fetching(ServerDraws):
    """Clients that fetch: they end the round once program and broadcast are known."""

    def __init__(self, seed: int, r: int) -> None:
        self.draws = server_random(seed, r)

    def run(self, program: Program, *broadcast: Any) -> Any:
        raise _ProgramIsKnown(Fetched(program, broadcast))


def fetched(algorithm: Algorithm, server: State, seed: int, r: int) -> Fetched:
    """Return what a client fetches for round r: the program and the broadcast of its algorithm."""
    try:
        at(algorithm, r).round(server, _Fetching(seed, r))
    except _ProgramIsKnown as known:
        return known.fetched
    raise ValueError(f"{algorithm} reaches no clients; it cannot run with arrivals.")


class ArrivedReplies(Tally):
    """The replies that arrived: `mean` is the sum of p_i u_i and `share` is 1."""

    @property
    def share(self) -> float:
        """1: the sum below holds the weights of the clients already."""
        return 1.0

    def mean(self) -> Any:
        """Return the sum of the uploads, weighted by p_i."""
        return map_leaves(self.vector, self._uploads)


class ArrivedCohort(SimulatedCohort):
    """The clients whose replies arrive in one round; each runs what it fetched earlier."""

    def run(self, program: Program, *broadcast: Any) -> Tally:
        """Return the replies to what the clients fetched, not to what the server sends now."""
        if self.exchanges:
            raise ValueError(
                f"{at(self.sim.algorithm, self.r)} has two exchanges per round, but a client that "
                "works asynchronously fetches once; drop arrivals, or use an algorithm with one "
                "exchange, such as Scaffold."
            )
        arrivals = self.sim.arrivals
        assert arrivals is not None
        self.exchanges, replies = 1, ArrivedReplies()
        for i in self.responding:
            job, sent = arrivals.job_of(i)
            replies.merge(self.exchange(sent.program, sent.broadcast, [i], job.r))
        self.last = replies
        return replies

    def check_sum(self, server: State, new: State) -> None:
        """Raise ValueError unless arrivals add up: half of the replies twice must give `new`.

        An algorithm whose server computes more than a sum of the replies, such as c from the mean,
        would do that once per arrival, which leads to another point than its synchronous rounds.
        """
        halved = _Halved(self)
        algorithm = at(self.sim.algorithm, self.r)
        twice = algorithm.round(algorithm.round(server, halved), halved)
        moved = sum(float((b - a).norm()) for a, b in zip(leaves(server), leaves(new), strict=True))
        apart = sum(float((b - a).norm()) for a, b in zip(leaves(twice), leaves(new), strict=True))
        if apart > 1e-3 * moved:  # rounding in float16 is 1e-3; a wrong sum is apart by 0.1 or more
            raise ValueError(
                f"{algorithm} computes more at the server than the sum of what clients send, so "
                "single arrivals do not add up to its rounds; drop arrivals, or use FedAvg or "
                "Scaffold without lean."
            )


class _Halved(ServerDraws):
    """The clients of a cohort that replied, with half of each reply."""

    def __init__(self, cohort: ArrivedCohort) -> None:
        self.cohort, self.draws = cohort, server_random(cohort.sim.seed, cohort.r)

    def run(self, program: Program, *broadcast: Any) -> Any:
        assert self.cohort.last is not None
        return self.cohort.last.map_sums(lambda sums: map_leaves(lambda leaf: leaf / 2, sums))


def check_settings(arrivals: Any, others: dict[str, Any]) -> None:
    """Raise ValueError for arrivals of another type, or beside a setting that it excludes.

    others: the settings that select clients or drop replies, None or 0 where they are not given.
    """
    if not isinstance(arrivals, Speeds):
        raise BadArgument(
            "arrivals",
            "{arrivals:{_given}}; pass speeds of the clients, as Speeds(spread=10, seed=0).",
            _given=repr(arrivals),
        )
    reasons = {
        "S": "the clients that arrive make the round",
        "cohorts": "the delays decide which clients arrive",
        "lost": "a client fetches again only after its reply has arrived",
        "available": "a client works all the time; a long delay is a client that is away",
    }
    for name, reason in reasons.items():
        if others[name]:
            sentence = f"{{arrivals}} and {{{name}}} exclude each other: {reason}; drop {{{name}}}."
            raise BadArgument(name, sentence)
