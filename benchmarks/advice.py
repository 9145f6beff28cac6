"""Is the advice any good? `diagnose` against `compare` on many problems.

    python benchmarks/advice.py            # about 15 minutes; goes on where it stopped
    python benchmarks/advice.py --again    # diagnose anew, race only what has no record: 5 minutes
    python benchmarks/advice.py --page     # docs/diagnosis.md from the records, seconds

For every case the problem is diagnosed, then `compare` tunes SGD, FedAvg and SCAFFOLD for every K
of a grid (and the advised K), and counts rounds until f(x) - f(x*) <= eps. One record for each case
in results/diagnosis.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import torch
from torch import Tensor
from torch.nn import functional as F

from trimtab import Diagnosis, Quadratic, Supervised, compare, diagnose
from trimtab._files import write_json
from trimtab._version import environment
from trimtab.core import Oracle
from trimtab.core.streams import stream
from trimtab.core.threads import one_thread
from trimtab.diagnosis.candidates import named
from trimtab.problems.catalogue import concrete_problem, digits_problem, heart_problem
from trimtab.problems.data.a9a import a9a
from trimtab.problems.data.emnist import emnist
from trimtab.problems.models import logistic
from trimtab.problems.partition import by_similarity, split

ROOT = Path(__file__).resolve().parents[1]
GRID = (1, 4, 16, 64)
FINE = (1, 2, 4, 8, 16, 32, 64)  # for quadratics, which are fast
R_MOST = 100  # a race takes <= 100 rounds, fewer where the model expects fewer
WITHIN = 1.3  # the advice is near if it needs <= 1.3 x the rounds of the best


@dataclass(frozen=True)
class Case:
    """A problem, how many clients a round has, and eps as a share of the start's f - f*."""

    make: Callable[[], Any]
    S: int | None = None
    share: float = 0.01
    grid: tuple[int, ...] = GRID
    minutes: float = 5
    aim_of: str | None = None  # the case whose f is aimed at, where the time is too short to know


class Chunked(Quadratic):
    """Quadratics whose clients step side by side, which is faster."""

    executor = "batched"

    def chunk_oracle(self, clients: Sequence[int], seed: int, r: int) -> Oracle:
        """Return A_i y - b_i of several clients."""
        A, b = self.A[list(clients)], self.b[list(clients)]
        return lambda y, k=None: torch.einsum("nij,nj->ni", A, y.expand(b.shape)) - b


def quadratics(G: float, delta: float, N: int = 10, d: int = 20) -> Quadratic:
    """Return quadratics with L/mu about 100, |x0 - x*| = 1, and this G and delta."""
    draw = stream(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    turn = torch.linalg.qr(normal(d, d)).Q
    h = torch.logspace(-2, 0, d, dtype=torch.float64)
    root = turn @ torch.diag(h.sqrt()) @ turn.T
    D = normal(N, d, d)
    D = root @ (D + D.mT) @ root
    D = D - D.mean(0)
    D = delta / torch.linalg.eigvalsh(D).abs().max() * D
    pulls = normal(N, d)
    pulls = pulls - pulls.mean(0)
    pulls = G / pulls.square().sum(1).mean().sqrt() * pulls
    A = root @ root + D
    return Chunked(A, A @ torch.full((d,), d**-0.5, dtype=torch.float64) - pulls)


@cache
def _emnist() -> tuple[Tensor, Tensor]:
    """Return 1,500 images of ten letters, 7 x 7 pixels."""
    (X, y), *_ = emnist()
    rows = ((y >= 10) & (y < 20)).nonzero().flatten()
    rows = rows[torch.randperm(len(rows), generator=stream(2))[:1500]]
    small = F.avg_pool2d(X[rows].view(-1, 1, 28, 28), 4).flatten(1)
    return small, y[rows] - 10


def _digits(similarity: float, l2: float) -> Supervised:
    return digits_problem(similarity=similarity).replace(l2=l2, weights="samples", test=None)


def letters(similarity: float) -> Supervised:
    """Return logistic regression on ten letters of EMNIST over ten clients."""
    X, y = _emnist()
    clients = split(X, y, by_similarity(y, 10, similarity))
    return Supervised(lambda: logistic(49, 10), F.cross_entropy, clients, batch=0.2, l2=0.001)


def census(similarity: float) -> Supervised:
    """Return logistic regression on 3,000 rows of a9a over ten clients."""
    (X, y), *_ = a9a()
    X, y = X[:3000], y[:3000]
    clients = split(X, y, by_similarity(y, 10, similarity))
    return Supervised(lambda: logistic(123, 2), F.cross_entropy, clients, batch=0.2, l2=0.001)


def _cases() -> dict[str, Case]:
    cases = {
        f"quadratics-G{G:g}-delta{delta:g}": Case(
            lambda G=G, d=delta: quadratics(G, d), share=1e-3, grid=FINE
        )
        for G in (0.01, 1, 100)
        for delta in (0.02, 0.2, 0.8)
    }
    for s in (0, 10, 50, 100):
        cases[f"digits-{s}"] = Case(lambda s=s: _digits(s, 0.01))
        cases[f"emnist-{s}"] = Case(lambda s=s: letters(s))
    for s in (0, 100):
        cases[f"digits-{s}-no-l2"] = Case(lambda s=s: _digits(s, 0.0), share=0.05)
    for s in (0, 10, 100):
        cases[f"a9a-{s}"] = Case(lambda s=s: census(s))
        cases[f"concrete-{s}"] = Case(lambda s=s: concrete_problem(similarity=s))
    cases["heart"] = Case(heart_problem)
    cases["digits-50-cut-short"] = Case(
        lambda: _digits(50, 0.01), minutes=0.001, aim_of="digits-50"
    )
    cases["quadratics-G1-delta0.2-S5"] = Case(
        lambda: quadratics(1, 0.2), S=5, share=1e-3, grid=FINE
    )
    cases["digits-0-S5"] = Case(lambda: _digits(0, 0.01), S=5)
    return cases


CASES = _cases()


class Loss:
    """The problem with the value of f as its only metric, so that `compare` aims at eps."""

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        if isinstance(problem, Supervised):
            every = [problem.clients[i] for i in range(problem.N)]
            sizes = torch.tensor([float(len(data)) for data in every], dtype=torch.float64)
            pooled = bool(torch.allclose(problem.weights, sizes / sizes.sum()))
            X, y = torch.cat([d.X for d in every]), torch.cat([d.y for d in every])
            self.problem = problem.replace(test=(X, y) if pooled else None)  # one pass, if it is f

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["problem"], name)

    def evaluate(self, x: Tensor, client: int | None = None) -> dict[str, float]:
        """Return f(x)."""
        own = self.problem
        if not isinstance(own, Supervised) or own._test is None:
            return {"loss": own.loss(x)}
        return {"loss": own.evaluate(x)["loss"] + own.l2 / 2 * float(x.square().sum())}


def account(case: Case, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Diagnose, compare, and say how near the advice comes to the best.

    before: a record whose races are kept as far as they aim at the same f.
    """
    problem, started = case.make(), perf_counter()
    first = diagnose(problem, S=case.S, minutes=case.minutes)
    eps = case.share / 0.01 * first.eps
    diagnosis = (
        first if case.share == 0.01 else diagnose(problem, S=case.S, eps=eps, minutes=case.minutes)
    )
    taken = perf_counter() - started
    aim = diagnosis.least + eps
    if case.aim_of is not None:
        whole = CASES[case.aim_of]
        known = diagnose(problem, S=whole.S, minutes=whole.minutes)
        eps, aim = known.eps, known.least + known.eps  # the races of that case are its own
    goal: dict[str, Any] = {"target": aim, "S": case.S}
    kept = [] if before is None or not _same(eps, before["settings"]["eps"]) else before["found"]
    goal["R"], rows = _races(case, diagnosis, problem, goal, kept, before)
    as_it_is = None
    if diagnosis.algorithm is not None:
        as_it_is = _as_advised(diagnosis, problem, goal, before if kept else None)
    return {
        "settings": {
            "S": case.S,
            "minutes": case.minutes,
            "share": case.share,
            "eps": eps,
            "grid": case.grid,
            "R": goal["R"],
        },
        "diagnosis": summary(diagnosis),
        "found": rows,
        "with the advised step": as_it_is,
        "seconds": {"diagnose": round(taken, 1), "all": round(perf_counter() - started, 1)},
        "versions": environment(),
    }


def _same(eps: float, other: float) -> bool:
    return abs(eps - other) <= 1e-3 * other


def _races(
    case: Case,
    diagnosis: Diagnosis,
    problem: Any,
    goal: dict[str, Any],
    kept: list[dict[str, Any]],
    before: dict[str, Any] | None,
) -> tuple[int, list[dict[str, Any]]]:
    """Return the rounds that were given, and what they led to: races that have no record run."""
    advised = {diagnosis.K} if diagnosis.K is not None else set()
    Ks = sorted({*case.grid, *advised} - {row["K"] for row in kept})
    if kept and before is not None:
        R = before["settings"]["R"]
        return R, kept + (_raced(problem, Ks, goal | {"R": R}) if Ks else [])
    expected = min((one.rounds for one in diagnosis.predicted if one.rounds), default=R_MOST)
    for R in (min(R_MOST, max(30, 3 * expected)), R_MOST):  # more only if nobody got there
        rows = _raced(problem, Ks, goal | {"R": R})
        if any(row["rounds"] for row in rows):
            break
    return R, rows


def _raced(problem: Any, Ks: list[int], goal: dict[str, Any]) -> list[dict[str, Any]]:
    raced = compare(Loss(problem), ["sgd", "fedavg", "scaffold"], K=Ks, **goal)
    return [
        {"algorithm": e.name, "K": e.settings.get("K", 1), "rounds": e.rounds}
        | {"eta": e.settings.get("eta_l", e.settings.get("eta"))}
        for e in raced.entries
    ]


def _as_advised(
    diagnosis: Diagnosis, problem: Any, goal: dict[str, Any], before: dict[str, Any] | None
) -> int | None:
    """Return the rounds of the advice as it is, from the record if that is the same."""
    recorded = {} if before is None else before["diagnosis"]
    mine = (diagnosis.algorithm, diagnosis.K, diagnosis.eta_l)
    if before is not None and mine == (recorded["algorithm"], recorded["K"], recorded["eta_l"]):
        rounds: int | None = before["with the advised step"]
        return rounds
    return compare(Loss(problem), [diagnosis.advised()], **goal).entries[0].rounds


def summary(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return what the table shows of a diagnosis."""
    names = ("N", "d", "S", "G", "B", "delta", "L", "mu", "sigma", "zeta", "algorithm", "K")
    content = {name: getattr(diagnosis, name) for name in (*names, "eta_l", "sure", "optimum")}
    content |= {name: getattr(diagnosis, name) for name in ("advice", "rough", "holds", "accuracy")}
    content["predicted"] = [predicted.to_json() for predicted in diagnosis.predicted]
    return content


@click.command()
@click.argument("names", nargs=-1)
@click.option("--page", "only_page", is_flag=True, help="Write docs/diagnosis.md alone.")
@click.option("--again", is_flag=True, help="Diagnose anew; keep the races that have a record.")
def main(names: tuple[str, ...], only_page: bool, again: bool) -> None:
    """Compute the cases that have no record yet, then write the page."""
    folder = ROOT / "results" / "diagnosis"
    folder.mkdir(parents=True, exist_ok=True)
    known = records(folder)
    for name in () if only_page else names or CASES:
        if again or name not in known:
            with one_thread():
                record = account(CASES[name], known.get(CASES[name].aim_of or name))
            write_json(folder / f"{name}.json", record)
            click.echo(f"{name}: {judge(record)} {record['seconds']}")
    (ROOT / "docs" / "diagnosis.md").write_text(page(records()), "utf-8")


def judge(record: dict[str, Any]) -> dict[str, Any]:
    """Return the advised lane (None without advice), the best lane, the ratio of their rounds."""
    rows = [row for row in record["found"] if row["rounds"] is not None]
    diagnosis = record["diagnosis"]
    lane = (diagnosis["algorithm"], diagnosis["K"])
    mine = next((row for row in record["found"] if (row["algorithm"], row["K"]) == lane), None)
    best = min(rows, key=lambda row: (row["rounds"], row["K"]), default=None)
    ratio = None
    if best is not None and mine is not None and mine["rounds"] is not None:
        ratio = mine["rounds"] / best["rounds"]
    return {"advised": mine, "best": best, "ratio": ratio}


def records(folder: Path = ROOT / "results" / "diagnosis") -> dict[str, Any]:
    """Return the records by case, in the order of the cases."""
    return {
        name: json.loads((folder / f"{name}.json").read_text("utf-8"))
        for name in CASES
        if (folder / f"{name}.json").exists()
    }


def advised(record: dict[str, Any]) -> bool:
    """Tell whether there was advice."""
    return record["diagnosis"]["algorithm"] is not None


def near(record: dict[str, Any]) -> bool:
    """Tell whether the advised lane is within 1.3 x of the best."""
    ratio = judge(record)["ratio"]
    return ratio is not None and ratio <= WITHIN


def table(recorded: dict[str, Any]) -> str:
    """Return all cases as Markdown, misses in bold."""
    lines = [
        "| case | zeta | delta/L | advised | rounds | best of the grid | rounds | ratio "
        "| with the advised step | how sure |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, record in recorded.items():
        diagnosis, verdict = record["diagnosis"], judge(record)
        ratio = "none" if verdict["ratio"] is None else f"{verdict['ratio']:.2f}"
        known = diagnosis["delta"] is not None and not diagnosis.get("rough", False)
        cells = (
            name,
            f"{diagnosis['zeta']:.2g}",
            f"{diagnosis['delta'] / diagnosis['L']:.2g}" if known else "not measured",
            _lane(verdict["advised"]) if advised(record) else "no advice",
            _count(verdict["advised"], record) if advised(record) else "-",
            "nobody" if verdict["best"] is None else _lane(verdict["best"]),
            "-" if verdict["best"] is None else _count(verdict["best"], record),
            _verdict(record, ratio),
            _with_step(record),
            diagnosis["sure"].split(";")[0].rstrip(".") if advised(record) else "-",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _verdict(record: dict[str, Any], ratio: str) -> str:
    if not advised(record):
        return "-"
    return ratio if near(record) else f"**{ratio}, missed**"


def _with_step(record: dict[str, Any]) -> str:
    if not advised(record):
        return "-"
    return str(record["with the advised step"] or f"{record['settings']['R']}+")


def _lane(row: dict[str, Any]) -> str:
    K = "" if row["algorithm"] == "sgd" else f", K = {row['K']}"
    return f"{named(row['algorithm'])}{K}"


def _count(row: dict[str, Any], record: dict[str, Any]) -> str:
    return str(row["rounds"] or f"{record['settings']['R']}+")


def page(recorded: dict[str, Any]) -> str:
    """Return docs/diagnosis.md."""
    with_advice = {name: record for name, record in recorded.items() if advised(record)}
    silent = [name for name in recorded if name not in with_advice]
    good = sum(map(near, with_advice.values()))
    missed = [name for name, record in with_advice.items() if not near(record)]
    share = (
        f"{good} of {len(with_advice)} cases with advice ({good / max(1, len(with_advice)):.0%})"
    )
    todo = [name for name in CASES if name not in recorded]
    open_ = f"\nNot computed yet, and so not counted: {', '.join(todo)}.\n" if todo else ""
    sentences = [f"Missed: {', '.join(missed)}." if missed else "None was missed."]
    sentences += [f"No advice was given for {', '.join(silent)}."] if silent else []
    text = (ROOT / "benchmarks" / "diagnosis.md.in").read_text("utf-8")
    return text.format(
        table=table(recorded), share=share, missed=" ".join(sentences), open=open_, within=WITHIN
    )


if __name__ == "__main__":
    main()
