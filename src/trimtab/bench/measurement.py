"""A workload measured: ours, its bare calls, and a plain PyTorch loop, in alternation.

Ratios within one run are what counts; the minimum of the repetitions, since others use the machine.
"""

import os
import platform
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from trimtab._version import environment
from trimtab.algorithms import FedAvg, Scaffold
from trimtab.bench.bare import bare_round
from trimtab.bench.plain_loop import PlainLoop
from trimtab.bench.workload import Workload
from trimtab.compute import kernel
from trimtab.core import Algorithm
from trimtab.core.task import Progress, task
from trimtab.problems.supervised.problem import Supervised
from trimtab.simulation import Simulation, simulate

SLOW = 10.0  # what takes > 10 seconds is measured once


@dataclass(frozen=True)
class Row:
    """The best times of a workload, in milliseconds, and their ratios beside the goals."""

    workload: str
    shows: str
    executor: str
    milliseconds: dict[str, float]
    ratios: dict[str, float]
    goals: dict[str, float]
    met: dict[str, bool]

    def to_json(self) -> dict[str, Any]:
        """Return what the record and the command's JSON hold."""
        return asdict(self)


@task
def measure(work: Workload) -> Generator[Progress, None, Row]:
    """Return the best times of all repetitions.

    Every client has taken part before the clock runs, as it has in most rounds of a long run.
    """
    runs, executor = _runs(work)
    best: dict[str, float] = {}
    for repeat in range(work.repeats + 1):
        for name, run in runs.items():
            if best.get(name, 0.0) > SLOW:
                continue
            seconds = run()
            if repeat > 0:  # The first time warms up.
                best[name] = min(best.get(name, seconds), seconds)
        if repeat > 0:
            yield Progress(f"{work.name}: {repeat} of {work.repeats}", repeat / work.repeats)
    return _row(work, best, executor)


def _runs(work: Workload) -> tuple[dict[str, Callable[[], float]], str]:
    """Return what is measured by name, each returning its seconds, and the executor of ours."""
    clients = work.clients()
    problem = problem_of(work, clients)
    fedavg = simulated(FedAvg(eta_l=work.eta, K=work.K), problem, work, seed=1)
    scaffold = simulated(Scaffold(eta_l=work.eta, K=work.K), problem, work)
    plain = PlainLoop(work, clients)
    runs: dict[str, Callable[[], float]] = {
        "bare": _timed(plain.step) if work.bare == "step" else bare_round(work),
        "fedavg": _timed(lambda: next(fedavg)),
        "scaffold": _timed(lambda: next(scaffold)),
    }
    if work.test:
        runs["evaluation"] = _timed(lambda: problem.evaluate(scaffold.server.x))
    runs["plain"] = _timed(plain.round)
    if work.autocast:
        half_problem = problem.replace(autocast=torch.bfloat16)
        half = simulated(Scaffold(eta_l=work.eta, K=work.K), half_problem, work, seed=2)
        runs["autocast"] = _timed(lambda: next(half))
    if work.compiled:
        compiled_problem = problem.replace(module=torch.compile(work.module(), dynamic=False))
        compiled = simulated(Scaffold(eta_l=work.eta, K=work.K), compiled_problem, work, seed=3)
        runs["compiled"] = _timed(lambda: next(compiled))
    return runs, scaffold.executor


def problem_of(work: Workload, clients: list[tuple[Tensor, Tensor]]) -> Supervised:
    """Return the workload as we take it up."""
    return Supervised(work.module(), work.loss, clients, test=work.test_set(), batch=work.b)


def _timed(run: Callable[[], object]) -> Callable[[], float]:
    """Return a function that does the same and returns its seconds."""

    def seconds() -> float:
        started = perf_counter()
        run()
        return perf_counter() - started

    return seconds


def _row(work: Workload, best: dict[str, float], executor: str) -> Row:
    milliseconds = {name: 1000 * seconds for name, seconds in best.items()}
    ratios = {}
    for ratio in work.goals:
        above, below = ratio.split(" / ")
        if above in milliseconds and below in milliseconds:
            ratios[ratio] = milliseconds[above] / milliseconds[below]
    return Row(
        workload=work.name,
        shows=work.shows,
        executor=executor,
        milliseconds=milliseconds,
        ratios=ratios,
        goals=work.goals,
        met={ratio: met(ratio, value, work.goals[ratio]) for ratio, value in ratios.items()},
    )


def met(ratio: str, value: float, goal: float) -> bool:
    """Tell whether a ratio is as it should be: the plain loop is to be slower, others are not.

    >>> met("plain / scaffold", 7.0, 6.0), met("scaffold / bare", 1.7, 1.6)
    (True, False)
    """
    return value >= goal if ratio.startswith("plain") else value <= goal


def simulated(
    algorithm: Algorithm, problem: Supervised, work: Workload, seed: int = 0
) -> Simulation:
    """Return a simulation in which every client has taken part, with cohorts for all rounds.

    With a seed of its own it draws mini-batches of its own: the last ones drawn are kept.
    """
    first = [list(range(j, min(j + work.S, work.N))) for j in range(0, work.N, work.S)]
    draw = torch.Generator().manual_seed(1)
    rounds = range(work.repeats + 1)
    then = [torch.randperm(work.N, generator=draw)[: work.S].tolist() for _ in rounds]
    sim = simulate(algorithm, problem, seed=seed, cohorts=first + then)
    for _ in first if work.N > 1 else ():
        next(sim)
    return sim


def machine() -> dict[str, Any]:
    """Return the facts that a time depends on."""
    return {
        "processor": _processor(),
        "cores": kernel.cores(),
        "kernel": kernel.level(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "versions": environment(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("model name")]
        return lines[0].split(":", 1)[1].strip()
    except (OSError, IndexError):
        return platform.processor()
