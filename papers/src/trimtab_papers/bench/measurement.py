"""A workload measured: ours, its bare calls, and a plain PyTorch loop, in alternation.

Ratios within one run are what counts; the minimum of the repetitions, since others use the machine.
"""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from trimtab._files import read_json, write_json
from trimtab._version import environment, processor
from trimtab.algorithms import FedAvg, Scaffold
from trimtab.compute import kernel
from trimtab.core import Algorithm
from trimtab.core.task import Progress, task
from trimtab.problems.supervised.batches import batch_size
from trimtab.problems.supervised.problem import Supervised
from trimtab.simulation import Simulation, simulate
from trimtab_papers.bench.workloads import Workload

_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
HEAVY = {  # what a faster framework could not leave out
    *("mm", "addmm", "bmm", "baddbmm", "convolution", "mkldnn_rnn_layer", _ATTENTION),
    *("convolution_backward", "mkldnn_rnn_layer_backward", f"{_ATTENTION}_backward"),
}


class Call(NamedTuple):
    """A call of an operator, with its operands."""

    operator: Any
    operands: Sequence[Any]
    options: Mapping[str, Any]

    def with_own_operands(self) -> "Call":
        """Return the same call on copies of its tensors, so that threads share no memory."""
        options = {name: _copied(value) for name, value in self.options.items()}
        return Call(self.operator, [_copied(value) for value in self.operands], options)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


class _Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes down the heavy operators that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.split("::")[1] in HEAVY:
            self.calls.append(Call(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def heavy_calls(work: Workload) -> list[Call]:
    """Return the products, convolutions, RNN and attention calls of one local step."""
    X, y = work.clients()[0]
    b = batch_size(work.b, len(X))
    module = work.module()
    listener = _Listener()
    with listener:
        torch.autograd.backward(work.loss(module(X[:b]), y[:b]))
    return listener.calls


def _products(work: Workload) -> list[Call]:
    return [
        Call(torch.mm, (torch.randn(m, k), torch.randn(k, n)), {"out": torch.empty(m, n)})
        for m, k, n in work.products
    ]


def bare_round(work: Workload) -> Callable[[], float]:
    """Return what runs the bare calls of a round, one thread on each core, and takes the time."""
    calls = _products(work) if work.products else heavy_calls(work)
    count = kernel.cores()
    steps = max(1, work.S * work.K // count)

    def one_thread(_: int) -> float:
        torch.set_num_threads(1)
        own = [call.with_own_operands() for call in calls]
        with torch.no_grad():
            for operator, operands, options in own:
                operator(*operands, **options)
            started = perf_counter()
            for _ in range(steps):
                for operator, operands, options in own:
                    operator(*operands, **options)
            return perf_counter() - started

    def seconds() -> float:
        before = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(count) as pool:
                return max(pool.map(one_thread, range(count)))
        finally:
            torch.set_num_threads(before)

    return seconds


# -- a plain loop


class PlainLoop:
    """Each client has a copy of the model, a DataLoader and an optimiser."""

    def __init__(self, work: Workload, clients: list[tuple[Tensor, Tensor]]) -> None:
        self.work, self.model = work, work.module()
        self.loaders = [
            DataLoader(TensorDataset(X, y), batch_size(work.b, len(X)), shuffle=True)
            for X, y in clients
        ]
        self.c = [torch.zeros_like(p) for p in self.model.parameters()]
        zeros = [torch.zeros_like(p) for p in self.c]
        self.c_i = [[z.clone() for z in zeros] for _ in clients]

    def step(self) -> None:
        """Take one training step, without anything federated."""
        work, (X, y) = self.work, next(iter(self.loaders[0]))
        torch.autograd.backward(work.loss(self.model(X), y))
        with torch.no_grad():
            for p in self.model.parameters():
                assert p.grad is not None
                p.sub_(p.grad, alpha=work.eta)
                p.grad = None

    def round(self) -> None:
        work, x = self.work, [p.detach().clone() for p in self.model.parameters()]
        zeros = [torch.zeros_like(p) for p in x]
        dx, dc = [p.clone() for p in zeros], [p.clone() for p in zeros]
        for i in torch.randperm(work.N)[: work.S].tolist():
            c_i = self.c_i[i]
            model = deepcopy(self.model)
            optimizer = torch.optim.SGD(model.parameters(), work.eta)
            epochs = chain.from_iterable(repeat(self.loaders[i]))
            for X, y in islice(epochs, work.K):
                optimizer.zero_grad()
                torch.autograd.backward(work.loss(model(X), y))
                for p, a, b in zip(model.parameters(), c_i, self.c, strict=True):
                    assert p.grad is not None
                    p.grad += b - a
                optimizer.step()
            with torch.no_grad():
                y_i = [p.detach() for p in model.parameters()]
                steps = work.K * work.eta
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


# -- times


SLOW = 10.0  # what takes > 10 seconds is measured once


@dataclass(frozen=True)
class Row:
    """The best times of a workload, in milliseconds, and their ratios beside the goals.

    spread: the quartiles of each ratio over the repetitions, in which its two parts alternate.
    """

    workload: str
    shows: str
    executor: str
    milliseconds: dict[str, float]
    ratios: dict[str, float]
    goals: dict[str, float]
    met: dict[str, bool]
    spread: dict[str, tuple[float, float]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@task
def measure(work: Workload) -> Generator[Progress, None, Row]:
    """Return the best times of all repetitions.

    Every client has taken part before the clock runs, as it has in most rounds of a long run.
    """
    runs, executor = _runs(work)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for count in range(work.repeats + 1):
        for name, run in runs.items():
            if min(taken[name], default=0.0) > SLOW:
                continue
            seconds = run()
            if count > 0:  # The first time warms up.
                taken[name].append(seconds)
        if count > 0:
            yield Progress(f"{work.name}: {count} of {work.repeats}", count / work.repeats)
    return _row(work, taken, executor)


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
    return Supervised(work.module(), work.loss, clients, test=work.test_set(), batch=work.b)


def _timed(run: Callable[[], object]) -> Callable[[], float]:
    """Return a function that does the same and returns its seconds."""

    def seconds() -> float:
        started = perf_counter()
        run()
        return perf_counter() - started

    return seconds


def _row(work: Workload, taken: dict[str, list[float]], executor: str) -> Row:
    milliseconds = {name: 1000 * min(times) for name, times in taken.items()}
    ratios, spread = {}, {}
    for ratio in work.goals:
        above, below = ratio.split(" / ")
        if above in milliseconds and below in milliseconds:
            ratios[ratio] = milliseconds[above] / milliseconds[below]
            both = zip(taken[above], taken[below], strict=False)  # What is slow has one time.
            each = sorted(one / other for one, other in both)
            spread[ratio] = each[len(each) // 4], each[3 * len(each) // 4]
    return Row(
        workload=work.name,
        shows=work.shows,
        executor=executor,
        milliseconds=milliseconds,
        ratios=ratios,
        goals=work.goals,
        met={ratio: met(ratio, value, work.goals[ratio]) for ratio, value in ratios.items()},
        spread=spread,
    )


def met(ratio: str, value: float, goal: float) -> bool:
    """Return whether a ratio meets its goal: the plain loop is to be slower, others are not.

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
        "processor": processor(),
        "cores": kernel.cores(),
        "kernel": kernel.simd_level(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "versions": environment(),
    }


# -- the record


class BenchRecord:
    """Rows by workload. With a file they are written as they come; `resume` continues it."""

    def __init__(self, path: Path | None = None, *, resume: bool = False) -> None:
        self.path, self.machine = path, machine()
        self._rows: dict[str, dict[str, Any]] = {}
        if resume and path is not None and path.exists():
            before = read_json(path)
            check_same_machine(path, before["machine"], self.machine)
            self._rows = {row["workload"]: row for row in before["rows"]}

    def __contains__(self, workload: str) -> bool:
        return workload in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: Row) -> None:
        """Take up a row, in place of an older one, and write all of them."""
        self._rows[row.workload] = row.to_json()
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        return {"machine": self.machine, "rows": list(self._rows.values())}


def check_same_machine(path: Path, then: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to mix times of two machines, or of two kernels, in one record."""
    for fact in ("processor", "cores", "kernel"):
        if then[fact] != now[fact]:
            raise ValueError(
                f"{path} was measured on another machine ({fact} {then[fact]!r}, here "
                f"{now[fact]!r}); write to another file."
            )
