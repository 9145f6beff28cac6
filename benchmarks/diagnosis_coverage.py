"""How often do the intervals of a diagnosis contain the truth?

    python benchmarks/diagnosis_coverage.py              # 1,000 problems; continues its record
    python benchmarks/diagnosis_coverage.py --first 5000 --count 80 --out try.json

Each problem is small enough that its numbers are known: those of all clients and all samples, at
the optimum (networks: at the start). A panel of some clients, of some samples, or of both measures
the same numbers with intervals of 95 %. Where nothing is sampled the interval has to contain the
truth, and to be as narrow as arithmetic. results/diagnosis/coverage.json has a row per problem.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab import Quadratic, Supervised
from trimtab._files import write_file
from trimtab.core.threads import one_thread
from trimtab.diagnosis import hessians, intervals, measure, optimum
from trimtab.diagnosis.budget import Budget
from trimtab.diagnosis.intervals import Left, drawn
from trimtab.diagnosis.panel import Panel, panel_of, thinned
from trimtab.problems.supervised.batches import batch_size

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "results" / "diagnosis" / "coverage.json"
FIRST = 30_000  # seeds of the record; others served while the intervals were written
COUNT = 1000
NUMBERS = ("L", "mu", "delta", "zeta", "sigma")
NARROW = 1e-6  # an interval is as narrow as arithmetic if its half is <= 1e-6 x the value, or x L
SAVED = 5  # the record is written after 5 problems
TIME = 1e6  # seconds: nothing is cut short, however busy the machine is


class Draw:
    """Random numbers of one problem."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        """Return normal numbers."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def between(self, low: float, high: float) -> float:
        """Return a number between two others."""
        return low + (high - low) * float(torch.rand((), generator=self.generator))

    def power(self, low: float, high: float) -> float:
        """Return 10 to a power between two others."""
        return float(10 ** self.between(low, high))

    def whole(self, low: int, high: int) -> int:
        """Return a whole number, both ends included."""
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def some(self, N: int, share: float) -> tuple[int, ...]:
        """Return about this share of N clients."""
        count = max(6, round(N * share))
        return tuple(sorted(torch.randperm(N, generator=self.generator)[:count].tolist()))


# -- problems


def matrices(draw: Draw, N: int) -> Quadratic:
    """Return quadratics whose Hessians differ by Gaussian matrices."""
    d = draw.whole(3, 8)
    D = draw.normal(N, d, d)
    D = D + D.mT - (D + D.mT).mean(0)
    D = draw.power(-1.5, -0.3) * D / torch.linalg.eigvalsh(D).abs().amax()
    H = torch.diag(torch.logspace(-draw.between(0.5, 2), 0, d, dtype=torch.float64))
    least = float(torch.linalg.eigvalsh(H + D.mean(0))[0])
    H = H + max(0.0, 0.01 - least) * torch.eye(d, dtype=torch.float64)
    return Quadratic(H + D, draw.power(-1, 1) * draw.normal(N, d), draw.power(-1, 1))


def scales(draw: Draw, N: int) -> Quadratic:
    """Return quadratics whose clients have scales of their own, some much larger than others."""
    d = draw.whole(3, 8)
    h = torch.diag(torch.logspace(-draw.between(0.5, 2), 0, d, dtype=torch.float64))
    turns = torch.linalg.qr(draw.normal(N, d, d)).Q
    size = (draw.between(0.1, 0.5) * draw.normal(N)).exp()
    A = size[:, None, None] * (h + turns @ h @ turns.mT) / 2
    b = draw.power(-1, 1) * size[:, None] * draw.normal(N, d)
    weights = None if draw.whole(0, 1) else (0.5 * draw.normal(N)).exp()
    return Quadratic((A + A.mT) / 2, b, draw.power(-1, 1), weights)


def samples(draw: Draw, N: int, classes: int, module: nn.Module | None = None) -> Supervised:
    """Return clients with features and truths of their own.

    classes: 0 for least squares, and 1 for two classes with one logit, so that mu is not l2 alone.
    """
    d, own = draw.whole(2, 6), draw.power(-1.5, -0.5)
    truth, clients = draw.normal(d, max(1, classes)), []
    for _ in range(N):
        n = draw.whole(60, 300)
        X = draw.normal(n, d) * (own * draw.normal(d)).exp() + own * draw.normal(d)
        scores = X @ (truth + own * draw.normal(*truth.shape))
        scores = scores + 0.5 * draw.normal(*scores.shape)
        y = scores.argmax(1) if classes > 1 else (scores > 0).double() if classes else scores
        clients.append((X, y))
    torch.manual_seed(draw.whole(0, 10**6))
    batch: float | int = draw.between(0.05, 0.4) if draw.whole(0, 1) else draw.whole(4, 24)
    sampling: Any = "iid" if draw.whole(0, 1) else "reshuffle"
    made = nn.Linear(d, max(1, classes)) if module is None else module
    if module is not None:
        made = nn.Sequential(nn.Linear(d, 4), nn.Tanh(), nn.Linear(4, classes))
    loss = (F.mse_loss, F.binary_cross_entropy_with_logits, F.cross_entropy)[min(classes, 2)]
    return Supervised(made.double(), loss, clients, batch=batch, sampling=sampling, l2=0.02)


@dataclass(frozen=True)
class Family:
    """A kind of problem, and of which share of its clients and samples a panel is made."""

    make: Callable[[Draw], Quadratic | Supervised]
    clients: bool = False
    data: bool = False
    at_optimum: bool = True


FAMILIES = {
    "matrices, some clients": Family(
        lambda draw: matrices(draw, draw.whole(30, 200)), clients=True
    ),
    "scales, some clients": Family(lambda draw: scales(draw, draw.whole(30, 200)), clients=True),
    "logistic, some clients": Family(
        lambda draw: samples(draw, draw.whole(24, 60), 1), clients=True
    ),
    "least squares, some samples": Family(
        lambda draw: samples(draw, draw.whole(4, 12), 0), data=True
    ),
    "logistic, some samples": Family(lambda draw: samples(draw, draw.whole(4, 12), 1), data=True),
    "network, some samples": Family(
        lambda draw: samples(draw, draw.whole(4, 8), 3, nn.Tanh()), data=True, at_optimum=False
    ),
    "least squares, some of both": Family(
        lambda draw: samples(draw, draw.whole(24, 60), 0), clients=True, data=True
    ),
    "matrices, all": Family(lambda draw: matrices(draw, draw.whole(4, 20))),
    "scales, all": Family(lambda draw: scales(draw, draw.whole(4, 20))),
    "logistic, all": Family(lambda draw: samples(draw, draw.whole(4, 8), 1)),
}


# -- measured and true


def all_of(problem: Quadratic | Supervised) -> Panel:
    """Return all clients with all data."""
    return Panel(problem, tuple(range(problem.N)))


def point(panel: Panel, family: Family) -> Tensor:
    """Return where to measure."""
    budget = Budget(TIME)
    start = panel.problem.x0(0)
    if not family.at_optimum:
        return start
    return optimum.best_point(panel, start, budget, budget.until(1)).x


def measured(problem: Quadratic | Supervised, panel: Panel, family: Family, seed: int) -> Any:
    """Return the estimates of a panel."""
    budget = Budget(TIME)
    x = point(panel, family)
    here = measure.at_point(panel, x)
    matrices = hessians.full_hessians(panel, x, budget.until(1))
    assert matrices is not None
    found = hessians.by_matrices(panel, matrices, budget.until(1))
    noise = measure.batch_noise(panel, x, seed, budget.until(1))
    left = None
    if family.at_optimum and found is not None:
        distance = float(here.mean.norm()) / found.mu
        way = float((panel.problem.x0(0) - x).norm())
        left = Left(distance, inf if panel.problem.constant_hessians else way)
    draws = drawn(panel, problem.N, seed)
    return intervals.at_point("x", x, draws, panel.p, here, found, noise, left=left).estimates()


def true_sigma(problem: Quadratic | Supervised, x: Tensor) -> float:
    """Return sigma by its definition: from the gradients of all samples."""
    if isinstance(problem, Quadratic):
        return problem.sigma
    total = 0.0
    for p, data in zip(
        problem.weights.tolist(), map(problem.clients.__getitem__, range(problem.N)), strict=True
    ):
        each = problem.sample_gradients(x, data).detach()
        n, size = len(data), batch_size(problem.batch, len(data))
        squares = float((each - each.mean(0)).square().sum())
        replaced = problem.sampling == "iid"
        total += p * squares / size * (1 / n if replaced else (1 - size / n) / (n - 1))
    return total**0.5


def truth(problem: Quadratic | Supervised, family: Family) -> dict[str, float]:
    """Return the numbers of all clients and samples."""
    panel = all_of(problem)
    x = point(panel, family)
    A = torch.stack([dense(problem, i, x) for i in range(problem.N)])
    rows = torch.stack([problem.client_gradient(i, x).detach() for i in range(problem.N)]).double()
    found = measure.scalars(problem.weights, A, rows, at_optimum=family.at_optimum)
    return {name: float(found[name]) for name in NUMBERS[:-1]} | {"sigma": true_sigma(problem, x)}


def dense(problem: Quadratic | Supervised, i: int, x: Tensor) -> Tensor:
    """Return a client's Hessian."""
    rows = problem.client_hvp(i, x, torch.eye(problem.d, dtype=x.dtype)).detach().double()
    return (rows + rows.T) / 2


def run(name: str, seed: int) -> dict[str, Any]:
    """Return the row of one problem."""
    family, draw = FAMILIES[name], Draw(seed)
    problem = family.make(draw)
    share = draw.between(0.15, 0.65)
    clients = draw.some(problem.N, share) if family.clients else tuple(range(problem.N))
    panel = panel_of(problem, clients)
    if family.data and isinstance(problem, Supervised):
        panel = thinned(problem, clients, draw.whole(20, 60), seed, Budget(TIME))
    found, true = measured(problem, panel, family, seed), truth(problem, family)
    scale = found["L"].value
    ends = {name: (found[name].low, found[name].high) for name in NUMBERS}
    widths = {
        name: (high - low) / (abs(true[name]) if name in ("zeta", "sigma") else scale)
        for name, (low, high) in ends.items()
    }
    return {
        "family": name,
        "seed": seed,
        "covered": [n for n, (low, high) in ends.items() if low <= true[n] <= high],
        "narrow": [n for n in NUMBERS if widths[n] <= 2 * NARROW],
        "widths": {n: float(f"{width:.2g}") for n, width in widths.items()},
    }


# -- the record


def sampled(row: dict[str, Any], name: str) -> bool:
    """Return whether anything was drawn for a number: of sigma mini-batches always are."""
    family = FAMILIES[row["family"]]
    return family.clients or family.data or name == "sigma"


def write(rows: list[dict[str, Any]], out: Path) -> None:
    """Write the record, a row in each line."""
    write_file(out, "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def table(rows: list[dict[str, Any]]) -> str:
    """Return the coverage as Markdown, by family and of all."""
    lines = [f"| family | problems | {' | '.join(NUMBERS)} |", "|---|---|" + "---|" * len(NUMBERS)]
    groups = {name: [row for row in rows if row["family"] == name] for name in FAMILIES}
    groups["all where something is sampled"] = rows
    for title, some in groups.items():
        cells = []
        for name in NUMBERS:
            drawn_ = [row for row in some if sampled(row, name)]
            exact = [row for row in some if not sampled(row, name)]
            if drawn_:
                share = sum(name in row["covered"] for row in drawn_) / len(drawn_)
                cells.append(f"{share:.1%}")
            elif exact:
                good = sum(name in row["covered"] and name in row["narrow"] for row in exact)
                cells.append(f"{good} of {len(exact)} exact")
            else:
                cells.append("-")
        lines.append(f"| {title} | {len(some)} | {' | '.join(cells)} |")
    return "\n".join(lines)


@click.command()
@click.option("--first", default=FIRST, help="The first seed.")
@click.option("--count", default=COUNT, help="How many problems.")
@click.option("--out", type=Path, default=OUT, help="The record.")
@click.option("--nice", default=19, help="By how much other processes come first.")
@click.option("--only", default="", help="Families whose name contains this.")
def main(first: int, count: int, out: Path, only: str, nice: int) -> None:
    """Measure what has no row yet."""
    os.nice(nice)
    rows = json.loads(out.read_text("utf-8")) if out.exists() else []
    known = {(row["family"], row["seed"]) for row in rows}
    names = [name for name in FAMILIES if only in name]
    with one_thread():
        for seed in range(first, first + count):
            name = names[seed % len(names)]
            if (name, seed) in known:
                continue
            rows.append(run(name, seed))
            if len(rows) % SAVED == 0:
                write(rows, out)
    write(rows, out)
    click.echo(table(rows))


if __name__ == "__main__":
    main()
