"""How fast a round is: ours, its bare matrix products, and a plain PyTorch loop, in alternation.

Ratios within one run are what counts; the minimum of the repetitions, since others use the machine.
"""

import os
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trimtab import native
from trimtab.algorithms import FedAvg, Scaffold
from trimtab.problems.models import logistic, mlp, resnet18
from trimtab.problems.supervised import Supervised
from trimtab.record import versions
from trimtab.simulation import simulate

ETA = 0.1


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
    repeats: int = 7
    products: tuple[tuple[int, int, int], ...] = ()  # (rows, inner, columns) of one local step

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


def _linear(b: int, classes: int) -> tuple[tuple[int, int, int], ...]:
    wide = -(-classes // 16) * 16
    return (b, 784, wide), (wide, b, 784)


_MLP = ((225, 784, 200), (225, 200, 48), (225, 48, 200), (48, 225, 200), (200, 225, 784))


def _w1(epochs: int, name: str) -> Workload:
    shows = f"logistic regression 784-47, 20 of 100 clients, batch 225, {epochs} epochs"
    build = partial(logistic, 784, 47)
    products = _linear(225, 47)
    return Workload(name, shows, build, (784,), 47, 100, 20, 1125, 225, epochs, products=products)


def _w4(epochs: int, name: str) -> Workload:
    shows = f"logistic regression 784-62, 100 of 3,400 clients, batch 20, {epochs} epochs"
    build = partial(logistic, 784, 62)
    products = _linear(20, 62)
    return Workload(name, shows, build, (784,), 62, 3400, 100, 100, 20, epochs, products=products)


_W2 = Workload(
    name="W2",
    shows="MLP 784-200-47, 20 of 100 clients, batch 225, 5 epochs",
    build=partial(mlp, 784, 200, 47),
    shape=(784,),
    classes=47,
    N=100,
    S=20,
    n=1125,
    b=225,
    epochs=5,
    repeats=3,
    products=_MLP,
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
    repeats=3,
)
WORKLOADS = {
    work.name: work
    for work in (_w1(1, "W1"), _w1(10, "W1x10"), _W2, _W3, _w4(1, "W4"), _w4(5, "W4x5"))
}


def measure(work: Workload) -> Iterator[dict[str, Any]]:
    """Yield the best times so far, in milliseconds, after each repetition."""
    clients = work.clients()
    problem = Supervised(work.build(), F.cross_entropy, clients, batch=work.b)
    for i in range(problem.N):
        problem.clients[i]  # read and checked before the clock runs
    sims = {
        "fedavg": simulate(FedAvg(eta_l=ETA, K=work.K), problem, S=work.S),
        "scaffold": simulate(Scaffold(eta_l=ETA, K=work.K), problem, S=work.S),
    }
    plain = _Plain(work, clients)
    runs: dict[str, Callable[[], Any]] = {
        "bare": (lambda: _bare(work)) if work.products else plain.step,
        "fedavg": lambda: next(sims["fedavg"]),
        "scaffold": lambda: next(sims["scaffold"]),
        "plain": plain.round,
    }
    best: dict[str, float] = {}
    for repeat in range(work.repeats + 1):
        for name, run in runs.items():
            started = perf_counter()
            seconds = run()
            seconds = seconds if isinstance(seconds, float) else perf_counter() - started
            if repeat:  # the first time warms up
                best[name] = min(best.get(name, seconds), seconds)
        if repeat:
            facts = {name: 1000 * seconds for name, seconds in best.items()}
            yield {
                "workload": work.name,
                "shows": work.shows,
                "executor": sims["scaffold"].executor,
                "milliseconds": facts,
                "scaffold / bare": facts["scaffold"] / facts["bare"],
                "plain / scaffold": facts["plain"] / facts["scaffold"],
                "scaffold / fedavg": facts["scaffold"] / facts["fedavg"],
            }


def _bare(work: Workload) -> float:
    """Return the seconds of a round's products on warm operands, one thread on each core."""
    count = native.cores()
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
        self.c_i: dict[int, list[Tensor]] = {}

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
            c_i = self.c_i.get(i, zeros)
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
        "cores": native.cores(),
        "kernel": native.level(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "versions": versions(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("model name")]
        return lines[0].split(":", 1)[1].strip()
    except (OSError, IndexError):
        return platform.processor()
