"""Where the time of a round of W1 goes, how it grows with S, K and d, and the floor of a round.

    python benchmarks/details.py [--out results/bench/details.json]

The first two on the workload W1 with SCAFFOLD; the minimum of several rounds, since others use the
machine. The floor is a round of one client whose program does nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import click
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Quadratic, Scaffold, Supervised, simulate
from trimtab._files import write_json
from trimtab.compute import kernel as native
from trimtab.compute.tape import Tapes
from trimtab.problems.models import logistic
from trimtab.problems.supervised import oracles
from trimtab.simulation import Simulation
from trimtab_papers.bench import WORKLOADS, Workload, bare_round, machine, problem_of, simulated
from trimtab_papers.bench.workloads import images

REPEATS = 7
ROUNDS = 300  # of the floor, in each repetition


class Server(NamedTuple):
    """What the server of `Idle` keeps."""

    x: Any


class Clock:
    """Adds up the seconds spent in a function while it stands in for it."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name, self.original = owner, name, getattr(owner, name)
        self.seconds = 0.0

    def __enter__(self) -> "Clock":
        clock = self

        def timed(*arguments: Any, **options: Any) -> Any:
            started = perf_counter()
            try:
                return clock.original(*arguments, **options)
            finally:
                clock.seconds += perf_counter() - started

        setattr(self.owner, self.name, timed)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self.owner, self.name, self.original)


def _simulation(work: Workload) -> Simulation:
    algorithm = Scaffold(eta_l=work.eta, K=work.K)
    return simulated(algorithm, problem_of(work, work.clients()), work)


def profile(work: Workload) -> dict[str, float]:
    """Return the milliseconds of a round's parts."""
    sim = _simulation(work)
    best: dict[str, float] = {}
    calls: list[tuple[Any, ...]] = []
    run = native.run

    def remembered(*arguments: Any, **options: Any) -> Any:
        calls.append((arguments, options))
        return run(*arguments, **options)

    native.run = remembered  # type: ignore[assignment]
    for _ in range(REPEATS):
        calls.clear()
        with (
            Clock(native, "run") as kernel,
            Clock(Tapes, "trace") as trace,
            Clock(oracles, "drawn") as rows,
        ):
            started = perf_counter()
            next(sim)
            whole = perf_counter() - started
        (layers, l2, code, *rest), options = calls[-1]
        steps = [step for step in code.steps if len(step) == 3]
        alone = replace(code, steps=[(code.inputs, 1, batch) for _, _, batch in steps])
        started = perf_counter()
        run(layers, l2, alone, *rest[:-1], **{**options, "weights": None} if options else {})
        gradients = perf_counter() - started
        if not best or whole < best["whole round"] / 1000:
            best = {
                "whole round": 1000 * whole,
                "gradients": 1000 * gradients,
                "steps, sums and norms of the vectors": 1000 * (kernel.seconds - gradients),
                "drawing mini-batches": 1000 * rows.seconds,
                "tracing the program": 1000 * trace.seconds,
            }
    native.run = run
    known = sum(best.values()) - best["whole round"]
    best["server step, states, the rest of Python"] = best["whole round"] - known
    bare = bare_round(work)
    return best | {"bare products, for comparison": 1000 * min(bare() for _ in range(REPEATS))}


def growth(work: Workload) -> dict[str, list[tuple[float, float]]]:
    """Return (value, milliseconds a round) for several S, K and d, all else as in the workload."""
    varied: dict[str, list[tuple[float, Workload]]] = {
        "S": [(S, replace(work, S=S, N=max(100, S))) for S in (5, 10, 20, 50, 100)],
        "K": [(K, replace(work, K=K)) for K in (5, 10, 20, 40, 80)],
        "d": [
            (C * 785, replace(work, data=images(784, classes=C), build=partial(logistic, 784, C)))
            for C in (16, 32, 64, 128, 256)
        ],
    }
    return {
        name: [(value, 1000 * _round(each)) for value, each in works]
        for name, works in varied.items()
    }


@dataclass(frozen=True)
class Idle:
    """An algorithm whose clients send back what they get."""

    def init_server(self, x: Any) -> Any:
        """Keep x."""
        return Server(x)

    def init_client(self, x: Any) -> Any:
        """Keep nothing."""
        return ()

    def round(self, server: Any, clients: Any) -> Any:
        """Send x, and take the mean of what comes back."""
        (x,) = clients.run(self.local, server.x).mean()
        return Server(x)

    def local(self, g: Any, state: Any, x: Any) -> Any:
        """Send x back."""
        return (x,), ()


def floor() -> dict[str, float]:
    """Return the microseconds of a round in which nothing is computed."""
    X, y = torch.randn(30, 9), torch.randint(2, (30, 1)).float()
    problems = {
        "kernel": Supervised(nn.Linear(9, 1), F.binary_cross_entropy_with_logits, [(X, y)]),
        "quadratic": Quadratic(A=torch.tensor([2.0]), b=torch.tensor([-1.0])),
    }
    found = {}
    for name, problem in problems.items():
        sim = simulate(Idle(), problem)
        next(sim)
        some = partial(_some_rounds, sim, ROUNDS)
        found[name] = 1e6 * min(_seconds(some) for _ in range(REPEATS)) / ROUNDS
    return found


def _some_rounds(sim: Simulation, count: int) -> None:
    for _ in range(count):
        next(sim)


def _round(work: Workload) -> float:
    sim = _simulation(work)
    return min(_seconds(lambda: next(sim)) for _ in range(REPEATS))


def _seconds(run: Callable[[], Any]) -> float:
    started = perf_counter()
    run()
    return perf_counter() - started


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default="results/bench/details.json")
def main(out: Path) -> None:
    """Measure, print and write the record."""
    work = WORKLOADS["W1"]
    record = {
        **{"machine": machine(), "profile": profile(work), "growth": growth(work)},
        "floor": floor(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, record)
    for name, milliseconds in record["profile"].items():
        click.echo(f"{name:45} {milliseconds:8.2f} ms")
    for name, points in record["growth"].items():
        click.echo(f"{name}: " + ", ".join(f"{value:g}: {ms:.1f} ms" for value, ms in points))
    for name, microseconds in record["floor"].items():
        click.echo(f"a round in which nothing is computed, {name}: {microseconds:.0f} us")


if __name__ == "__main__":
    main()
