"""How fast a round is: ours, its bare matrix products, and a plain PyTorch loop, in alternation.

Ratios within one run are what counts; the minimum of the repetitions, since others use the machine.
"""

import os
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trimtab._version import environment
from trimtab.algorithms import FedAvg, Scaffold
from trimtab.compute import kernel
from trimtab.core import Algorithm
from trimtab.problems.models import logistic, mlp, resnet18
from trimtab.problems.supervised.problem import Supervised
from trimtab.simulation import Simulation, simulate

ETA = 0.1
SLOW = 10.0  # seconds, from which on one measurement is enough


@dataclass(frozen=True)
class Workload:
    """N clients of n samples, S of them a round, mini-batches of b, so many epochs."""

    name: str
    shows: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    N: int
    S: int
    n: int
    b: int
    epochs: int
    goals: dict[str, float]  # what the ratios should be at most; for 'plain / …' at least
    repeats: int = 9
    products: tuple[tuple[int, int, int], ...] = ()  # (rows, inner, columns) of one local step
    test: int = 0  # samples of an evaluation, measured too
    autocast: bool = False  # whether a round in bfloat16 is measured too

    @property
    def K(self) -> int:
        """Local steps of a round."""
        return self.epochs * self.n // self.b

    def clients(self) -> list[tuple[Tensor, Tensor]]:
        """Return made-up data, four fifths of the inputs zero as in EMNIST."""
        draw = torch.Generator().manual_seed(0)
        made = []
        for _ in range(self.N):
            X = torch.rand(self.n, *self.shape, generator=draw)
            X *= torch.rand(self.n, *self.shape, generator=draw) < 0.2
            made.append((X, torch.randint(self.classes, (self.n,), generator=draw)))
        return made


class _Wrapped(nn.Module):
    """A module as people write them: nothing here tells that it is a logistic regression."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, classes)

    def forward(self, X: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.inner(X)
        return logits


def _linear(b: int, classes: int) -> tuple[tuple[int, int, int], ...]:
    wide = -(-classes // 16) * 16
    return (b, 784, wide), (wide, b, 784)


def _goals(bare: float, plain: float, fedavg: float, **others: float) -> dict[str, float]:
    return {"scaffold / bare": bare, "plain / scaffold": plain, "scaffold / fedavg": fedavg} | {
        name.replace("_", " / "): value for name, value in others.items()
    }


_W1 = Workload(
    name="W1",
    shows="logistic regression 784-47, 20 of 100 clients, batch 225, 1 epoch",
    build=partial(logistic, 784, 47),
    shape=(784,),
    classes=47,
    N=100,
    S=20,
    n=1125,
    b=225,
    epochs=1,
    goals=_goals(bare=1.6, plain=6, fedavg=1.1, evaluation_scaffold=0.3),
    repeats=100,
    products=_linear(225, 47),
    test=9400,
)
_W1X10 = replace(
    _W1,
    name="W1x10",
    shows="the same, 10 epochs",
    epochs=10,
    goals=_goals(bare=1.6, plain=6, fedavg=1.1),
    repeats=3,
    test=0,
)
_ANY = replace(
    _W1,
    name="any",
    shows="a module of the size of W1 that nothing is known of, through autograd",
    build=partial(_Wrapped, 784, 47),
    goals={"plain / scaffold": 3},
    repeats=25,
    test=0,
)
_W2 = replace(
    _W1,
    name="W2",
    shows="MLP 784-200-47, 20 of 100 clients, batch 225, 5 epochs",
    build=partial(mlp, 784, 200, 47),
    epochs=5,
    goals=_goals(bare=1.3, plain=2.5, fedavg=1.1),
    repeats=3,
    products=((225, 784, 200), (225, 200, 48), (225, 48, 200), (48, 225, 200), (200, 225, 784)),
    test=0,
)
_W3 = Workload(
    name="W3",
    shows="ResNet-18 with GroupNorm, 3 x 32 x 32, batch 64, one step of one client",
    build=resnet18,
    shape=(3, 32, 32),
    classes=10,
    N=1,
    S=1,
    n=64,
    b=64,
    epochs=1,
    goals=_goals(bare=1.05, plain=0.97, fedavg=1.1, autocast_scaffold=1 / 1.7),
    repeats=30,
    autocast=True,
)
_W4 = Workload(
    name="W4",
    shows="logistic regression 784-62, 100 of 3,400 clients, batch 20, 1 epoch",
    build=partial(logistic, 784, 62),
    shape=(784,),
    classes=62,
    N=3400,
    S=100,
    n=100,
    b=20,
    epochs=1,
    goals=_goals(bare=3.5, plain=6, fedavg=1.35),
    repeats=40,
    products=_linear(20, 62),
)
_W4X5 = replace(_W4, name="W4x5", shows="the same, 5 epochs", epochs=5, repeats=5)
WORKLOADS = {work.name: work for work in (_W1, _W1X10, _ANY, _W2, _W3, _W4, _W4X5)}


def measure(work: Workload) -> Iterator[dict[str, Any]]:
    """Yield the best times so far, in milliseconds, after each repetition.

    Every client has taken part before the clock runs, as it has in most rounds of a long run.
    """
    clients = work.clients()
    problem = Supervised(
        work.build(), F.cross_entropy, clients, test=_test(work), batch=work.b
    )  # fmt: skip
    sims = {
        "fedavg": _simulated(FedAvg(eta_l=ETA, K=work.K), problem, work),
        "scaffold": _simulated(Scaffold(eta_l=ETA, K=work.K), problem, work),
    }
    plain = _Plain(work, clients)
    runs: dict[str, Callable[[], Any]] = {
        "bare": (lambda: _bare(work)) if work.products else plain.step,
        "fedavg": lambda: next(sims["fedavg"]),
        "scaffold": lambda: next(sims["scaffold"]),
    }
    if work.test:
        runs["evaluation"] = lambda: problem.evaluate(sims["scaffold"].server.x)
    runs["plain"] = plain.round
    if work.autocast:
        half = problem.replace(autocast=torch.bfloat16)
        sims["autocast"] = _simulated(Scaffold(eta_l=ETA, K=work.K), half, work)
        runs["autocast"] = lambda: next(sims["autocast"])
    best: dict[str, float] = {}
    for repeat in range(work.repeats + 1):
        for name, run in runs.items():
            if best.get(name, 0.0) > SLOW:
                continue
            started = perf_counter()
            seconds = run()
            seconds = seconds if isinstance(seconds, float) else perf_counter() - started
            if repeat:  # the first time warms up
                best[name] = min(best.get(name, seconds), seconds)
        if repeat:
            facts = {name: 1000 * seconds for name, seconds in best.items()}
            ratios = {ratio: _ratio(facts, ratio) for ratio in work.goals}
            yield {
                "workload": work.name,
                "shows": work.shows,
                "executor": sims["scaffold"].executor,
                "milliseconds": facts,
                "ratios": ratios,
                "goals": work.goals,
                "met": {name: met(name, value, work.goals[name]) for name, value in ratios.items()},
            }


def _ratio(facts: dict[str, float], ratio: str) -> float:
    above, below = ratio.split(" / ")
    return facts[above] / facts[below]


def met(ratio: str, value: float, goal: float) -> bool:
    """Tell whether a ratio is as it should be: the plain loop is to be slower, others are not.

    >>> met("plain / scaffold", 7.0, 6.0), met("scaffold / bare", 1.7, 1.6)
    (True, False)
    """
    return value >= goal if ratio.startswith("plain") else value <= goal


def _simulated(algorithm: Algorithm, problem: Supervised, work: Workload) -> Simulation:
    first = [list(range(j, j + work.S)) for j in range(0, work.N, work.S)]
    draw = torch.Generator().manual_seed(1)
    rounds = range(work.repeats + 1)
    then = [torch.randperm(work.N, generator=draw)[: work.S].tolist() for _ in rounds]
    sim = simulate(algorithm, problem, cohorts=first + then)
    for _ in first if work.N > 1 else ():
        next(sim)
    return sim


def _test(work: Workload) -> tuple[Tensor, Tensor] | None:
    if not work.test:
        return None
    draw = torch.Generator().manual_seed(2)
    X = torch.rand(work.test, *work.shape, generator=draw)
    return X, torch.randint(work.classes, (work.test,), generator=draw)


def _bare(work: Workload) -> float:
    """Return the seconds of a round's products on warm operands, one thread on each core."""
    count = kernel.cores()
    steps = work.S * work.K // count

    def run(_: int) -> float:
        torch.set_num_threads(1)
        operands = [
            (torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)) for m, k, n in work.products
        ]
        for a, b, out in operands:
            torch.mm(a, b, out=out)
        started = perf_counter()
        for _ in range(steps):
            for a, b, out in operands:
                torch.mm(a, b, out=out)
        return perf_counter() - started

    before = torch.get_num_threads()
    with ThreadPoolExecutor(count) as pool:
        seconds = max(pool.map(run, range(count)))
    torch.set_num_threads(before)
    return seconds


class _Plain:
    """SCAFFOLD as one writes it in PyTorch: a copy of the model, a DataLoader and an optimizer."""

    def __init__(self, work: Workload, clients: list[tuple[Tensor, Tensor]]) -> None:
        self.work, self.model = work, work.build()
        self.loaders = [DataLoader(TensorDataset(X, y), work.b, shuffle=True) for X, y in clients]
        self.c = [torch.zeros_like(p) for p in self.model.parameters()]
        zeros = [torch.zeros_like(p) for p in self.c]
        self.c_i = [[z.clone() for z in zeros] for _ in clients]

    def step(self) -> None:
        """Take one training step, without anything federated."""
        X, y = next(iter(self.loaders[0]))
        torch.autograd.backward(F.cross_entropy(self.model(X), y))
        with torch.no_grad():
            for p in self.model.parameters():
                assert p.grad is not None
                p.sub_(p.grad, alpha=ETA)
                p.grad = None

    def round(self) -> None:
        """Run one round."""
        work, x = self.work, [p.detach().clone() for p in self.model.parameters()]
        zeros = [torch.zeros_like(p) for p in x]
        dx, dc = [p.clone() for p in zeros], [p.clone() for p in zeros]
        for i in torch.randperm(work.N)[: work.S].tolist():
            c_i = self.c_i[i]
            model = deepcopy(self.model)
            optimizer = torch.optim.SGD(model.parameters(), ETA)
            for _ in range(work.epochs):
                for X, y in self.loaders[i]:
                    optimizer.zero_grad()
                    torch.autograd.backward(F.cross_entropy(model(X), y))
                    for p, a, b in zip(model.parameters(), c_i, self.c, strict=True):
                        assert p.grad is not None
                        p.grad += b - a
                    optimizer.step()
            with torch.no_grad():
                y_i = [p.detach() for p in model.parameters()]
                steps = work.K * ETA
                new = [
                    a - b + (p - q) / steps for a, b, p, q in zip(c_i, self.c, x, y_i, strict=True)
                ]
                for j in range(len(x)):
                    dx[j] += (y_i[j] - x[j]) / work.S
                    dc[j] += (new[j] - c_i[j]) / work.N
                self.c_i[i] = new
        with torch.no_grad():
            for p, d in zip(self.model.parameters(), dx, strict=True):
                p.add_(d)
            self.c = [a + d for a, d in zip(self.c, dc, strict=True)]


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
