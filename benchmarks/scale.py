"""Memory and time against the number of clients N, and of those that take part in a round, S.

    python benchmarks/scale.py          # about two minutes; a table, and results/bench/scale.json

Each case runs in a process of its own, whose peak memory is its own. Clients are made from their
numbers when they are sampled; the model is a logistic regression of d = 37,000 or d = 1,000,000.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

from trimtab import FedAvg, MimeLite, Momentum, Scaffold, Supervised, simulate
from trimtab._files import write_json
from trimtab_papers.bench import machine

MB = 1_000_000
ALGORITHMS = {
    "FedAvg": FedAvg(eta_l=0.1, K=2),
    "MimeLite": MimeLite(eta=0.1, K=2, base=Momentum()),
    "Scaffold": Scaffold(eta_l=0.1, K=2),
}


@dataclass(frozen=True)
class Case:
    """Some rounds of an algorithm; memory is the limit of its client states."""

    algorithm: str
    N: int
    S: int
    R: int = 15
    memory: int | None = None
    executor: str = "batched"
    sizes: tuple[int, int] = (739, 50)  # of inputs and outputs

    @property
    def d(self) -> int:
        """How many parameters the model has."""
        inputs, outputs = self.sizes
        return (inputs + 1) * outputs


_COHORT = Case("FedAvg", N=100_000, S=100, R=4)
_LARGE = Case("Scaffold", N=1000, S=1000, R=2, memory=0, sizes=(999, 1000))
CASES = (
    *(
        Case(name, N, S=100)
        for name in ("FedAvg", "MimeLite")
        for N in (10**3, 10**4, 10**5, 10**6)
    ),
    *(replace(_COHORT, S=S, executor=e) for e in ("batched", "threads") for S in (100, 1000)),
    *(replace(_COHORT, algorithm="Scaffold", S=S, memory=50 * MB) for S in (100, 1000)),
    Case("Scaffold", N=100_000, S=100, R=300, memory=500 * MB),
    *(replace(_LARGE, executor=executor) for executor in ("batched", "threads", "fused")),
    replace(_LARGE, algorithm="FedAvg"),
)


class Lazy(Sequence[Any]):
    """N clients, each a function of its number."""

    def __init__(self, N: int, sizes: tuple[int, int]) -> None:
        self.N, (self.inputs, self.outputs) = N, sizes

    def __len__(self) -> int:
        return self.N

    def __getitem__(self, i: Any) -> Any:
        draw = torch.Generator().manual_seed(i)
        X = torch.randn(20, self.inputs, generator=draw)
        return X, torch.randint(self.outputs, (20,), generator=draw)


def peak() -> int:
    """Return the most memory this process has had, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def measure(case: Case) -> dict[str, Any]:
    """Run a case in this process."""
    clients = Lazy(case.N, case.sizes)
    problem = Supervised(lambda: nn.Linear(*case.sizes), F.cross_entropy, clients, batch=10)
    assert problem.d == case.d
    options = {"S": case.S, "memory": case.memory, "executor": case.executor}
    sim = simulate(ALGORITHMS[case.algorithm], problem, **options)
    before = peak()
    times = [next(sim).seconds for _ in range(case.R)]
    return {
        **asdict(case),
        "d": case.d,
        "peak MB": peak() / MB,
        "vectors": (peak() - before - sim.states.in_memory) / (4 * case.d),
        "ms per round": 1000 * median(times),
        "clients with a state": len(sim.states),
        "MB on disk": sim.states.on_disk / MB,
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """Return the results for a terminal."""
    made = Table("algorithm", "executor", caption="limit: of client states in memory")
    for name in ("d", "N", "S", "rounds", "limit MB", "peak MB", "vectors", "MB on disk", "ms"):
        made.add_column(name, justify="right")
    for row in rows:
        limit = "" if row["memory"] is None else f"{row['memory'] / MB:.0f}"
        numbers = (f"{row[name]:,}" for name in ("d", "N", "S", "R"))
        measured = ("peak MB", "vectors", "MB on disk", "ms per round")
        found = (f"{row[name]:,.0f}" for name in measured)
        made.add_row(row["algorithm"], row["executor"], *numbers, limit, *found)
    return made


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default="results/bench/scale.json")
@click.option("--json", "as_json", is_flag=True, help="Print the record instead of a table.")
@click.option("--case", type=int, hidden=True, help="Run one case in this process.")
def main(out: Path, as_json: bool, case: int | None) -> None:
    """Measure memory and time against N and S."""
    if case is not None:
        print(json.dumps(measure(CASES[case])))
        return
    record: dict[str, Any] = {"machine": machine(), "cases": []}
    for number in range(len(CASES)):
        command = [sys.executable, __file__, "--case", str(number)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        record["cases"].append(json.loads(done.stdout))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, record)
    if as_json:
        print(json.dumps(record))
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(table(record["cases"]))


if __name__ == "__main__":
    main()
