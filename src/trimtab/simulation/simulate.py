"""Rounds of an algorithm on a problem, in this process."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite, nan
from operator import index
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from trimtab.compute.lazy import LazyVector, NotLazyError, eager, lazy
from trimtab.compute.tape import Tapes
from trimtab.core import (
    Algorithm,
    State,
    Vector,
    leaves,
    map_leaves,
    plain_number,
)
from trimtab.core.human import html_facts, human_bytes
from trimtab.core.hyper import at
from trimtab.core.threads import one_thread
from trimtab.core.tree import control
from trimtab.errors import BadArgument, Diverged
from trimtab.problems.capabilities import capabilities
from trimtab.problems.paths import path_of
from trimtab.problems.problem import Problem
from trimtab.simulation import checkpoint
from trimtab.simulation.cohort import Cohort, NobodyAnsweredError, all_finite
from trimtab.simulation.divergence import Moves, explain
from trimtab.simulation.executors import Executor, executor_of, known
from trimtab.simulation.sampling import (
    Availability,
    Available,
    availability,
    checked_cohort,
    cohort_size,
    sampled,
)


@dataclass(frozen=True)
class Round:
    """What a round left behind."""

    r: int  # counts from 1
    x: Vector
    server: State
    cohort: tuple[int, ...]  # those that answered
    bytes_down: int  # to all that were asked
    bytes_up: int  # from those that answered
    seconds: float
    drift: float  # mean |dx_i|
    spread: float  # of the client states
    cosine: float  # agreement of the moves
    exchanges: int  # in which clients were reached
    work: int  # sample gradients at those that computed

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self._facts().items())
        return f"<Round {self.r}: {facts}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return html_facts(f"Round {self.r}", self._facts())

    def _facts(self) -> dict[str, str]:
        """Return what is shown of it; x and the server's state are too long."""
        facts = {"d": f"{self.x.numel():,}", "clients": str(len(self.cohort))}
        facts |= {"up": human_bytes(self.bytes_up), "down": human_bytes(self.bytes_down)}
        facts |= {name: f"{getattr(self, name):.4g}" for name in ("drift", "spread", "cosine")}
        return facts | {"seconds": f"{self.seconds:.3g}"}


class Simulation(Iterator[Round]):
    """An iterator of rounds; made by `simulate` or `Simulation.load`."""

    def __init__(self, algorithm: Algorithm, problem: Problem, settings: "_Settings") -> None:
        self.problem, self.seed = problem, settings.seed
        self.lost, self.slow, self.available = settings.lost, settings.slow, settings.available
        self.S, self.cohorts, self.runs_on = settings.S, settings.cohorts, settings.runs_on
        self.r = 0
        self.server = algorithm.init_server(settings.start)
        leaves((self.server, algorithm.init_client(settings.start)))  # refuses what is no state
        self.states = self.runs_on.states(settings.memory)
        self.changes: list[tuple[int, str]] = []
        self.tapes = Tapes()
        self._moves: deque[Moves] = deque(maxlen=2)  # of the last rounds, should one diverge
        self._algorithm = algorithm

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self._facts().items())
        return f"<Simulation after round {self.r}: {facts}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return html_facts(f"Simulation after round {self.r}", self._facts())

    def _facts(self) -> dict[str, str]:
        """Return what is shown of it."""
        problem = f"{type(self.problem).__name__}, N = {self.problem.N}, d = {self.problem.d}"
        facts = {"algorithm": repr(self._algorithm), "problem": problem, "S": str(self.S)}
        return facts | {"seed": str(self.seed), "executor": self.executor}

    @property
    def executor(self) -> str:
        """The name of the executor."""
        return self.runs_on.name

    @property
    def path(self) -> str:
        """How gradients are computed: the path of `auto`, or the executor that was asked for."""
        path = path_of(self.problem, self.S)
        return path.name if path.executor == self.executor else self.executor

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the next round; may be replaced by one with the same states."""
        return self._algorithm

    @algorithm.setter
    def algorithm(self, new: Algorithm) -> None:
        x = self.server.x
        old_client = self._algorithm.init_client(x)
        if _shape(new.init_server(x)) != _shape(self.server) or _shape(
            new.init_client(x)
        ) != _shape(old_client):
            raise ValueError(
                f"{new} keeps other states than {self._algorithm}; start a new simulation from "
                "its x instead: simulate(…, x=sim.server.x)."
            )
        self._algorithm = new
        self.changes.append((self.r, repr(new)))

    def __next__(self) -> Round:
        if self.cohorts is not None and self.r >= len(self.cohorts):
            raise StopIteration
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)  # as torch.no_grad() does, in half its time
        try:
            with one_thread(when=self.runs_on.threads == "one"):
                return self._round()
        finally:
            torch.set_grad_enabled(before)

    def _round(self) -> Round:
        started, r = perf_counter(), self.r + 1
        asked = self._asked(r)
        clients = Cohort(self, r, asked)
        try:
            if not asked:
                raise NobodyAnsweredError
            server = self._next_server(clients)
            spread = clients.spread
            if not (all_finite(server) and clients.finite(spread)):
                raise Diverged(at(self._algorithm, r), r, self._why(clients.alive))
            self.states.commit(clients.alive)
        except NobodyAnsweredError:
            server, spread = self.server, clients.spread
        finally:
            self.states.discard()
        self.server, self.r = server, r
        last = clients.last
        drift, movers = (last.drift, last.movers) if last else (nan, nan)
        if last is not None and isfinite(drift) and isfinite(movers):
            self._moves.append(Moves(drift, movers, len(last)))
        return Round(
            r=r,
            x=server.x,
            server=server,
            cohort=tuple(clients.alive),
            bytes_down=clients.bytes_down,
            bytes_up=clients.bytes_up,
            seconds=perf_counter() - started,
            drift=drift,
            spread=spread,
            cosine=last.cosine if last else nan,
            exchanges=clients.exchanges,
            work=clients.work,
        )

    def _asked(self, r: int) -> list[int]:
        """Return the clients of a round: given ones, or S of those who are there."""
        if self.cohorts is not None:
            return self.cohorts[r - 1]
        if self.available is not None:
            return self.available.sampled(self.problem.N, self.S, self.seed, r)
        return sampled(self.problem.N, self.S, self.seed, r)

    def _next_server(self, clients: Cohort) -> State:
        """Run the round; its vectors at the server are lazy where those of the clients are."""
        algorithm = at(self._algorithm, clients.r)
        if self.runs_on.lazy_server:
            clients.vector = LazyVector.of
            with suppress(NotLazyError):
                return eager(algorithm.round(lazy(self.server), clients))
            self.states.discard()
            clients.start_again()
        return algorithm.round(self.server, clients)

    def _why(self, cohort: list[int]) -> str:
        def worst() -> int:
            """Return the client with the largest gradient at the last x that was finite."""
            x = self.server.x  # so large that squares may overflow
            gradient = capabilities(self.problem).client_gradient
            sizes = {i: float(gradient(i, x).abs().max()) for i in cohort}
            return max(cohort, key=lambda i: sizes[i] if isfinite(sizes[i]) else inf)

        return explain(at(self._algorithm, self.r + 1), self._moves, worst)

    def audit(self) -> float:
        """Return |c - sum_i p_i c_i| over all N clients; zero up to rounding when all is well."""
        c = getattr(self.server, "c", None)
        c_new = control(self._algorithm.init_client(self.server.x))
        if c is None or not isinstance(c_new, torch.Tensor) or c_new.shape != c.shape:
            raise ValueError(f"{self._algorithm} keeps no control variates; there is no audit.")
        p = self.problem.weights
        total = torch.zeros(c.shape, dtype=torch.float64)  # Not every device has float64.
        seen = 0.0
        for i, state in self.states.items():
            total += float(p[i]) * control(state).cpu().double()
            seen += float(p[i])
        total += max(0.0, 1 - seen) * c_new.cpu().double()
        return float((c.cpu().double() - total).norm())

    def save(self, path: str | Path) -> None:
        """Write everything that `load` needs to go on bit for bit; the file appears whole."""
        checkpoint.save(self, Path(path))

    @classmethod
    def load(
        cls,
        path: str | Path,
        algorithm: Algorithm,
        problem: Problem,
        *,
        executor: str | Executor | None = None,
        memory: int | None = None,
        available: Available = None,
    ) -> "Simulation":
        """Continue a saved simulation; refuse one of another algorithm or problem.

        With the executor it had, it goes on bit for bit. Who is `available` is no part of the file:
        what the simulation was started with is passed again.
        """
        settings = checkpoint.settings(Path(path), algorithm, problem)
        if executor is None and not known(settings["executor"]):
            raise BadArgument(
                "executor",
                "{_path} was run by the executor {_name!r}, which does not come with trimtab; pass "
                "it as {executor}.",
                _path=path,
                _name=settings["executor"],
            )
        sim = simulate(
            algorithm,
            problem,
            S=settings["S"],
            seed=settings["seed"],
            cohorts=settings["cohorts"],
            lost=settings["lost"],
            slow=settings.get("slow", 0.0),  # files of version 0.1.0 have none
            executor=executor or settings["executor"],
            memory=memory,
            available=available,
        )
        checkpoint.check_availability(sim, Path(path), settings)
        checkpoint.restore(sim, Path(path), settings)
        return sim


def simulate(
    algorithm: Algorithm,
    problem: Problem,
    *,
    S: int | float | None = None,
    seed: int = 0,
    x: Vector | None = None,
    cohorts: Iterable[Sequence[int]] | None = None,
    lost: float = 0.0,
    slow: float = 0.0,
    executor: str | Executor = "auto",
    memory: int | None = None,
    available: Available = None,
) -> Simulation:
    """Return an iterator of rounds; endless, or as long as `cohorts`.

    S clients a round (a number, or a fraction of N; None: all), sampled without replacement from
    (seed, round), or `cohorts`, explicit lists of clients. `lost` is the share of replies that get
    lost at random; a round in which nobody answers leaves the server as it was. `slow` is the share
    of clients that make only K_i of their K local steps, uniform in 1 … K, drawn from (seed,
    client, round), as in the experiments of FedProx. `memory` is the number of bytes client states
    may take in RAM; beyond it they live in a temporary file. `executor`: auto, loop, fused, batched
    or threads, or one of your own. `available` says who is there: a function of the round that
    returns clients, or the path of a CSV with the columns client,from,to (rounds, both included; no
    `to`: for ever; several rows a client). S of those are sampled, or all of them if they are
    fewer; a round in which nobody is there leaves the server as it was.

    >>> import torch, trimtab
    >>> problem = trimtab.Quadratic(A=torch.tensor([2.0, 0.0]), b=torch.tensor([-1.0, 1.0]))
    >>> sim = trimtab.simulate(trimtab.Scaffold(eta_l=0.1, K=5), problem, x=torch.ones(1))
    >>> for round in sim:
    ...     if abs(round.x) < 1e-3:
    ...         break
    >>> round.r
    12
    """
    _check_kinds(algorithm, problem)
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise ValueError(f"seed={seed!r}; pass a whole number.")
    seed, lost, size = index(seed), plain_number(lost), cohort_size(S, problem.N)
    if not isinstance(lost, int | float) or not 0 <= lost < 1:
        raise ValueError(f"lost={lost}; pass a share of replies that is at least 0, below 1.")
    slow = plain_number(slow)
    if isinstance(slow, bool) or not isinstance(slow, int | float) or not 0 <= slow <= 1:
        raise ValueError(f"slow={slow!r}; pass a share of clients, a number from 0 to 1.")
    if cohorts is not None and available is not None:
        raise ValueError("cohorts and available both say who takes part; pass one of them.")
    settings = _Settings(
        S=size,
        seed=seed,
        start=_start(problem, seed, x),
        cohorts=None if cohorts is None else [checked_cohort(c, problem.N) for c in cohorts],
        lost=float(lost),
        slow=float(slow),
        runs_on=executor_of(executor, problem, size),
        memory=memory,
        available=availability(available, problem.N),
    )
    return Simulation(algorithm, problem, settings)


@dataclass(frozen=True)
class _Settings:
    """The arguments of `simulate`, checked."""

    S: int
    seed: int
    start: Vector
    cohorts: list[list[int]] | None
    lost: float
    slow: float
    runs_on: Executor
    memory: int | None
    available: Availability | None


def _check_kinds(algorithm: Any, problem: Any) -> None:
    """Refuse a name or a class in the place of an algorithm or a problem."""
    if isinstance(algorithm, type | str) or not hasattr(algorithm, "init_server"):
        shown = algorithm.__name__ if isinstance(algorithm, type) else repr(algorithm)
        raise ValueError(f"{shown} is no algorithm; pass an instance, as Scaffold(eta_l=0.1, K=5).")
    missing = [name for name in ("N", "d", "weights", "x0", "oracle") if not hasattr(problem, name)]
    if missing or isinstance(problem, type):
        shown = repr(problem) if isinstance(problem, str) else f"a {type(problem).__name__}"
        raise ValueError(
            f"{shown} is no problem; pass one that has N, d, weights, x0 and oracle, such as "
            "trimtab.Supervised(…)."
        )


def _start(problem: Problem, seed: int, x: Vector | None) -> Vector:
    if x is not None and not isinstance(x, torch.Tensor):
        raise ValueError(f"x is a {type(x).__name__}; pass a tensor of length d={problem.d}.")
    x0 = problem.x0(seed) if x is None else x.detach().clone()
    if x0.shape != (problem.d,):
        raise ValueError(f"x has shape {tuple(x0.shape)}; pass a vector of length d={problem.d}.")
    if not x0.is_floating_point() or not bool(torch.isfinite(x0).all()):
        raise ValueError("x must hold finite floating-point numbers.")
    return x0


def _shape(state: State) -> Any:
    shapes = map_leaves(lambda leaf: (tuple(leaf.shape), leaf.dtype), state)
    return type(state), shapes, len(leaves(state))
