"""How long does a diagnosis take? CPU seconds of `diagnose`, of this version and of another.

    python benchmarks/diagnosis_time.py                       # this version: what has no record
    python benchmarks/diagnosis_time.py --again               # this version again
    python benchmarks/diagnosis_time.py --source DIR/src --label 0.2.0    # another version

Each diagnosis runs in a process of its own, with one thread, on the same tensors, and its minutes
are counted in CPU time; the least of two counts, since others use the machine too. The record is
results/diagnosis/time.json, a row for each version and workload; docs/diagnosis.md has the table.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import torch
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "results" / "diagnosis" / "time.json"
REPEATS = 2
SEED = 11  # of what is cut and drawn here; the account has other seeds

CHILD = """
import json, sys, time
# Minutes are minutes of CPU, however busy the machine is.
time.perf_counter = time.monotonic = time.process_time
sys.path.insert(0, sys.argv[1])
import torch
from torch.nn import functional as F
from diagnosis_time import module
from trimtab import Supervised, diagnose

torch.set_num_threads(1)
work = torch.load(sys.argv[2])
problem = Supervised(module(work["module"]), F.cross_entropy, work["clients"], batch=0.2, l2=0.001)
began = time.process_time()
found = diagnose(problem, minutes=5)
seconds = time.process_time() - began
row = {"cpu": seconds, "version": sys.argv[3], "advice": found.advice, "d": problem.d}
print(json.dumps(row))
"""


def module(name: str) -> nn.Module:
    """Return a module by its name, always with the same parameters."""
    torch.manual_seed(SEED)
    if name != "cnn":
        return nn.Linear(int(name), 10)
    convolutions = [nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)]
    convolutions += [nn.Conv2d(4, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)]
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *convolutions, nn.Flatten(), nn.Linear(32, 10))


def workloads() -> dict[str, dict[str, object]]:
    """Return the tensors of each workload, sorted by label over the clients."""
    from trimtab.problems.data.emnist import emnist
    from trimtab.problems.data.images import digits
    from trimtab.problems.partition import by_similarity, split

    (X, y), *_ = digits()
    (images, labels), *_ = emnist()
    rows = ((labels >= 10) & (labels < 20)).nonzero().flatten()
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED))[:1500]]
    small = F.avg_pool2d(images[rows].view(-1, 1, 28, 28), 4).flatten(1)
    letters = labels[rows] - 10
    few = torch.randperm(len(X), generator=torch.Generator().manual_seed(SEED))[:360]

    def cut(X: torch.Tensor, y: torch.Tensor, N: int) -> list[object]:
        return [(a.clone(), b.clone()) for a, b in split(X, y, by_similarity(y, N, 0, SEED))]

    return {
        "digits": {"module": "64", "clients": cut(X, y, 10)},
        "EMNIST, ten letters": {"module": "49", "clients": cut(small, letters, 10)},
        "a CNN on digits": {"module": "cnn", "clients": cut(X[few], y[few], 6)},
    }


def measured(source: Path, work: Path, label: str) -> dict[str, object]:
    """Diagnose once in a process of its own."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = os.pathsep.join([str(source), str(ROOT / "benchmarks")])
    run = [sys.executable, "-c", CHILD, str(source), str(work), label]
    done = subprocess.run(
        run,
        env=os.environ | one | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@click.command()
@click.option("--source", type=Path, default=ROOT / "src", help="Whose sources are measured.")
@click.option("--label", default="unreleased", help="The name of that version in the record.")
@click.option("--again", is_flag=True, help="Measure again what has a record.")
@click.option("--only", multiple=True, help="A workload; all of them by default.")
def main(source: Path, label: str, again: bool, only: tuple[str, ...]) -> None:
    """Measure what has no record yet, and write it after each workload."""
    recorded = json.loads(OUT.read_text("utf-8")) if OUT.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work.pt"
        for name, tensors in workloads().items():
            if only and name not in only:
                continue
            known = [row for row in recorded if row["workload"] == name]
            if not again and label in [row["version"] for row in known]:
                continue
            torch.save(tensors, work)
            runs = [measured(source, work, label) for _ in range(REPEATS)]
            best = min(runs, key=lambda run: run["cpu"])
            row = {"workload": name} | best
            row["runs"] = [round(run["cpu"], 2) for run in runs]
            recorded = [r for r in recorded if (r["workload"], r["version"]) != (name, label)]
            recorded.append(row)
            OUT.parent.mkdir(parents=True, exist_ok=True)
            OUT.write_text(json.dumps(recorded, indent=1) + "\n", "utf-8")
            click.echo(f"{name}, {label}: {row['runs']} s of CPU. {row['advice']}")


if __name__ == "__main__":
    main()
