"""What a cluster costs and gives: an empty round, one and two actors, 10^6 clients, Flower.

    python benchmarks/cluster.py            # about half an hour; results/bench/cluster.json
    python benchmarks/cluster.py --only "empty;W1"

Nodes are processes of Ray on this machine, with one CPU each. A case that is in the record is not
measured again, so that an interrupted measurement goes on.
"""

import os

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # all addresses are the loopback's
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import click
import torch
from torch import Tensor

from trimtab import Ray, Scaffold, Simulation, Tree, load_problem, simulate
from trimtab._files import write_json
from trimtab_papers.bench import WORKLOADS, machine

PROBLEMS = Path(__file__).with_name("cluster_problems.py")
STORE = 80 * 2**20  # bytes of a node's object store
MB = 1_000_000


class SentExchange(NamedTuple):
    """The upload of an empty program."""

    dx: Tensor


class Server(NamedTuple):
    """The server's state."""

    x: Tensor


@dataclass(frozen=True)
class Empty:
    """A round in which clients do nothing."""

    def init_server(self, x: Tensor) -> Any:
        """Return the server's state."""
        return Server(x)

    def init_client(self, x: Tensor) -> Any:
        """Return the state of a client, of which it has as many as SCAFFOLD's."""
        return torch.zeros_like(x)

    def local(self, g: Any, c_i: Tensor, x: Tensor) -> Any:
        """Return what came."""
        return SentExchange(x), c_i

    def round(self, server: Any, clients: Any) -> Any:
        """Reach the clients once."""
        return Server(clients.run(self.local, server.x).mean().dx)


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """Start so many nodes with one CPU each; end them by their own handles."""
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": STORE, "node_ip_address": "127.0.0.1"}
    made = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    for _ in range(nodes - 1):
        made.add_node(**node)
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    ray.init(address=made.address, **quiet)
    try:
        yield made.address
    finally:
        ray.shutdown()
        made.shutdown()


def in_turn(runs: dict[str, Simulation], warm: int, repeats: int) -> dict[str, list[float]]:
    """Run a round of each in turn; return their milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(warm + repeats):
        for name, sim in runs.items():
            started = perf_counter()
            next(sim)
            if repeat >= warm:
                times[name].append(1000 * (perf_counter() - started))
    return times


def empty() -> dict[str, Any]:
    """Measure a round with an empty program, S = 100."""
    rows = []
    for d in (1_000, 37_000):
        problem = load_problem(f"{PROBLEMS}:numbered", N=10_000, d=d)
        with cluster(2):
            for actors in (1, 2):
                runs = {
                    "loop": simulate(_EMPTY, problem, S=100, executor="loop"),
                    "tree": simulate(_EMPTY, problem, S=100, executor=Tree()),
                    "ray": simulate(_EMPTY, problem, S=100, executor=Ray(actors=actors)),
                }
                times = in_turn(runs, warm=5, repeats=60)
                runs["ray"].runs_on.close()
                row = {"d": d, "S": 100, "actors": actors}
                rows.append(row | {name: _summary(each) for name, each in times.items()})
    return {"rows": rows}


def workload(name: str) -> dict[str, Any]:
    """Measure SCAFFOLD on a workload: in one process, and on one and two actors."""
    work = WORKLOADS[name]
    problem = load_problem(f"{PROBLEMS}:workload", name=name)
    draw = torch.Generator().manual_seed(1)
    repeats, warm = {"W2": (5, 1)}.get(name, (15, 3))
    cohorts = [torch.randperm(work.N, generator=draw)[: work.S].tolist() for _ in range(60)]
    algorithm = Scaffold(eta_l=work.eta, K=25 if name == "W1" else work.K)
    with cluster(3):  # Each simulation keeps its actors, and so there are three in all.
        executors: dict[str, Any] = {"one process": "auto", "tree": Tree()}
        executors |= {"1 actor": Ray(actors=1), "2 actors": Ray(actors=2)}
        runs = {
            each: simulate(algorithm, problem, cohorts=cohorts, executor=executor)
            for each, executor in executors.items()
        }
        times = in_turn(runs, warm, repeats)
        for sim in runs.values():
            sim.runs_on.close()
    x = [sim.server.x for sim in runs.values()]
    return {
        "shows": work.shows if name != "W1" else work.shows.replace("1 epoch", "5 epochs"),
        "executor": runs["one process"].executor,
        "milliseconds": {each: _summary(found) for each, found in times.items()},
        "equal bits": bool(torch.equal(x[1], x[2]) and torch.equal(x[1], x[3])),
    }


def scale(N: int, d: int = 1_000, S: int = 10_000) -> dict[str, Any]:
    """Let every one of N clients take part once, with its state on disk, over two actors."""
    problem = load_problem(f"{PROBLEMS}:numbered", N=N, d=d)
    cohorts = [range(j, j + S) for j in range(0, N, S)]
    cohorts.append(range(0, N, N // S))  # and some of them again
    limit = 64 * MB
    rows: list[dict[str, Any]] = []
    with cluster(2):
        sim = simulate(
            Scaffold(eta_l=0.1, K=1), problem, cohorts=cohorts, executor=Ray(actors=2), memory=limit
        )
        started = perf_counter()
        for round in sim:
            if round.r % max(1, len(cohorts) // 10) and round.r < len(cohorts):
                continue
            driver = sim.runs_on
            slots = driver.slots()
            facts = driver.call_all([(slot, ("facts",)) for slot in slots])
            memory, disk = sim.states._sizes()
            rows.append(
                {
                    "clients": min(round.r * S, N),
                    "peak MB of each actor": [fact["peak_bytes"] / MB for fact in facts],
                    "states MB in memory": memory / MB,
                    "states MB on disk": disk / MB,
                    "ms a round": 1000 * round.seconds,
                    "seconds": perf_counter() - started,
                }
            )
            print(rows[-1], file=sys.stderr)
        audit = sim.audit() if N <= 10**5 else None
        driver.close()
    return {"N": N, "d": d, "S": S, "limit MB": limit / MB, "rows": rows, "audit": audit}


def flower() -> dict[str, Any]:
    """Measure a round of Flower's simulation engine, of ours on two actors, and of ours alone."""
    import peers

    peers.ENVIRONMENTS.mkdir(exist_ok=True)
    here = peers.HERE / "peers"
    starts = {peers.OURS: peers.command(peers.OURS), "flwr": peers.command("flwr")}
    starts["trimtab-ray"] = [sys.executable, "-P", str(here / "trimtab_ray.py")]
    rows = []
    for name in ("W1", "W2", "W4"):
        for algorithm in peers.ALGORITHMS:
            with TemporaryDirectory(dir=peers.ENVIRONMENTS) as folder:
                work = peers.told(WORKLOADS[name], algorithm, Path(folder))
                rows += peers.measure(work, starts, repeats=5, logs=peers.ENVIRONMENTS, limit=300.0)
            print(rows[-2:], file=sys.stderr)
    return {"rows": rows}


def _summary(times: list[float]) -> dict[str, float]:
    return {"least": min(times), "median": median(times)}


_EMPTY: Any = Empty()
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "empty": empty,
    "W1": lambda: workload("W1"),
    "W2": lambda: workload("W2"),
    "W4": lambda: workload("W4"),
    "100,000 clients": lambda: scale(10**5),
    "1,000,000 clients": lambda: scale(10**6),
    "Flower": flower,
}


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default="results/bench/cluster.json")
@click.option("--only", help="Cases with semicolons between: " + "; ".join(CASES) + ".")
@click.option("--again", is_flag=True, help="Measure again what is in the record.")
def main(out: Path, only: str | None, again: bool) -> None:
    """Measure what a cluster costs and gives."""
    record = json.loads(out.read_text()) if out.exists() else {"cases": {}}
    for name in CASES if only is None else only.split(";"):
        if name in record["cases"] and not again:
            continue
        print(name, file=sys.stderr)
        found = {"machine": machine()} | CASES[name]()
        record["cases"][name] = found
        write_json(out, record)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
