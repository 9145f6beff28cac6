"""Is the advice any good? `diagnose` against `compare` on many problems (advice_cases.py).

    python benchmarks/advice.py            # hours at low priority; goes on where it stopped
    python benchmarks/advice.py --again    # diagnose again, race only cases without a record
    python benchmarks/advice.py --page     # docs/diagnosis.md from the records, seconds

For every case the problem is diagnosed, then `compare` tunes SGD, FedAvg and SCAFFOLD for every K
of a grid (and the advised K), and counts rounds until f(x) - f(x*) <= eps. One record for each case
in results/account; until all of them are there, the page says how many are.
"""

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import torch
from advice_cases import CASES, Case
from torch import Tensor

from trimtab import Diagnosis, Supervised, compare, diagnose
from trimtab._files import write_json
from trimtab._version import environment
from trimtab.core.threads import one_thread
from trimtab.diagnosis.rules import named

ROOT = Path(__file__).resolve().parents[1]
ACCOUNT = ROOT / "results" / "account"
TIMES = ROOT / "results" / "diagnosis" / "time.json"  # what diagnosis_time.py measured
COVERAGE = TIMES.with_name("coverage.json")  # what diagnosis_coverage.py counted
R_MOST = 100  # a race takes <= 100 rounds, fewer where the model expects fewer
WITHIN = 1.3  # the advice is near if it needs <= 1.3 x the rounds of the best
LEVEL = 0.95  # the interval of the share covers it in >= 95 % of such accounts
CLOCK = 150.0  # a diagnosis of 5 minutes that took > 150 s ended because they were over
SEEDS = 3  # a race reports the median of 3 seeds

NAMES = """\
Names: G and delta for quadratics (L/mu about 100, ten clients); per cent of similarity for
digits, letters (EMNIST, ten letters, 7 x 7 pixels) and census (a9a, 3,000 rows), ten clients
each; "labels" and the parameter of a Dirichlet distribution; "sizes" where client j has 1/j of
the samples; hospitals for heart; concrete is regression; networks have eight clients, the
transformer reads eight roles of Shakespeare; S5 where 5 clients take part. Seeds are of 7001 and
above, used nowhere before. eps is a hundredth of the start's f - f*, for quadratics a thousandth,
for networks a tenth."""


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
        if not isinstance(own, Supervised) or not own.has_test:
            return {"loss": own.loss(x)}
        return {"loss": own.evaluate(x)["loss"] + own.l2 / 2 * float(x.square().sum())}


def account(case: Case, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Diagnose, compare, and say how near the advice comes to the best.

    before: a record whose races are kept as far as they aim at the same f.
    """
    problem, started = case.make(case.seed), perf_counter()
    how: dict[str, Any] = {"S": case.S, "minutes": case.minutes, "seed": case.seed}
    first = diagnose(problem, **how)
    eps = case.share / 0.01 * first.eps
    diagnosis = first if case.share == 0.01 else diagnose(problem, eps=eps, **how)
    taken = perf_counter() - started
    goal: dict[str, Any] = {"target": diagnosis.least + eps, "S": case.S, "seed": case.seed}
    goal |= {"x": problem.x0(0), "seeds": SEEDS, "minutes": None, "split": None, "eta_g": 1.0}
    kept = [] if before is None or not _same(eps, before["settings"]["eps"]) else before["found"]
    goal["R"], rows = _races(case, diagnosis, problem, goal, kept, before)
    as_it_is = None
    if diagnosis.algorithm is not None:
        as_it_is = _as_advised(diagnosis, problem, goal, before if kept else None)
    return {
        "settings": {
            "S": case.S,
            "kind": case.kind,
            "seed": case.seed,
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
    for R in (min(R_MOST, max(30, 3 * expected)), R_MOST):  # more only if no algorithm arrived
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
    content |= {"verdict": diagnosis.verdict}
    content["gain"] = None if diagnosis.gain is None else diagnosis.gain.to_json()
    content["predicted"] = [predicted.to_json() for predicted in diagnosis.predicted]
    return content


@click.command()
@click.argument("names", nargs=-1)
@click.option("--page", "only_page", is_flag=True, help="Write docs/diagnosis.md alone.")
@click.option("--again", is_flag=True, help="Diagnose again; keep the races that have a record.")
def main(names: tuple[str, ...], only_page: bool, again: bool) -> None:
    """Compute the cases that have no record yet, then write the page."""
    os.nice(0 if only_page else 15)
    ACCOUNT.mkdir(parents=True, exist_ok=True)
    known = records()
    for name in () if only_page else names or CASES:
        if again or name not in known:
            with one_thread():
                record = account(CASES[name], known.get(name))
            write_json(ACCOUNT / f"{name}.json", record)
            click.echo(f"{name}: {judge(record)} {record['seconds']}")
            sys.stdout.flush()
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


def records() -> dict[str, Any]:
    """Return the records of the account by case, in the order of the cases."""
    paths = {name: ACCOUNT / f"{name}.json" for name in CASES}
    return {name: json.loads(p.read_text("utf-8")) for name, p in paths.items() if p.exists()}


def advised(record: dict[str, Any]) -> bool:
    """Return whether there was advice."""
    return record["diagnosis"]["algorithm"] is not None


def near(record: dict[str, Any]) -> bool:
    """Return whether the advised settings are within 1.3 x of the best."""
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
        known = diagnosis["delta"] is not None and not diagnosis["rough"]
        cells = (
            name,
            f"{diagnosis['zeta']:.2g}",
            f"{diagnosis['delta'] / diagnosis['L']:.2g}" if known else "not measured",
            _lane(verdict["advised"]) if advised(record) else "no advice",
            _count(verdict["advised"], record) if advised(record) else "-",
            "none" if verdict["best"] is None else _lane(verdict["best"]),
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


def _clock_bound(row: dict[str, Any] | None) -> bool:
    """Return whether a diagnosis was not measured, or ended because its minutes were over."""
    return row is None or row["cpu"] > CLOCK


def _seconds(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not measured"
    return f"{row['cpu']:.1f}" + (" when the minutes were over" if _clock_bound(row) else "")


def _lane(row: dict[str, Any]) -> str:
    K = "" if row["algorithm"] == "sgd" else f", K = {row['K']}"
    return f"{named(row['algorithm'])}{K}"


def _count(row: dict[str, Any], record: dict[str, Any]) -> str:
    return str(row["rounds"] or f"{record['settings']['R']}+")


def share_interval(good: int, of: int) -> tuple[float, float]:
    """Return the interval of a share (Clopper and Pearson).

    >>> [round(end, 2) for end in share_interval(27, 28)]
    [0.82, 1.0]
    """
    from scipy.stats import beta

    tail = (1 - LEVEL) / 2
    low = float(beta.ppf(tail, good, of - good + 1)) if good else 0.0
    return low, float(beta.ppf(1 - tail, good + 1, of - good)) if good < of else 1.0


def page(recorded: dict[str, Any]) -> str:
    """Return docs/diagnosis.md."""
    with_advice = {name: record for name, record in recorded.items() if advised(record)}
    silent = [name for name in recorded if name not in with_advice]
    missed = [name for name, record in with_advice.items() if not near(record)]
    sentences = [f"Missed: {', '.join(missed)}." if missed else "None was missed."]
    lost = [name for name in missed if judge(recorded[name])["best"] is None]
    if lost:
        sentences += [
            f"(In {' and '.join(lost)} no algorithm arrived in {R_MOST} rounds, with any of the "
            "algorithms; advice that does not say so counts as missed.)"
        ]
    sentences += [f"No advice was given for {', '.join(silent)}."] if silent else []
    if len(recorded) < len(CASES):
        sentences += [
            f"**{len(recorded)} of {len(CASES)} cases are in**; `make account` goes on with the "
            "others."
        ]
    text = (ROOT / "benchmarks" / "diagnosis.md.in").read_text("utf-8")
    return text.format(
        table=table(recorded),
        share=share_of(recorded),
        missed=" ".join(sentences),
        within=WITHIN,
        names=NAMES,
        times=times(),
        coverage=coverage(),
    )


def share_of(recorded: dict[str, Any]) -> str:
    """Say in how many cases the advice was near, with the interval of that share."""
    with_advice = [record for record in recorded.values() if advised(record)]
    good = sum(map(near, with_advice))
    low, high = share_interval(good, len(with_advice))
    return (
        f"{good} of {len(with_advice)} cases with advice ({good / max(1, len(with_advice)):.0%}, "
        f"{LEVEL:.0%} interval {low:.0%} to {high:.0%})"
    )


def coverage() -> str:
    """Say how many intervals contain the truth, where something was drawn and where nothing was."""
    rows = json.loads(COVERAGE.read_text("utf-8"))
    shares = []
    for name in rows[0]["widths"]:
        drawn = [name in row["covered"] for row in rows if name not in row["narrow"]]
        shares.append(f"{name} {sum(drawn) / len(drawn):.0%}")
    exact = [(name in row["covered"]) for row in rows for name in row["narrow"]]
    return f"{', '.join(shares)}; where nothing was drawn, {sum(exact):,} of {len(exact):,}"


def times() -> str:
    """Return the CPU seconds of a diagnosis as Markdown, a row for each workload."""
    rows = json.loads(TIMES.read_text("utf-8")) if TIMES.exists() else []
    versions = sorted({row["version"] for row in rows})
    lines = [
        f"| workload | d | {' | '.join(f'{version}, CPU s' for version in versions)} | ratio |",
        f"|---|---|{'---|' * len(versions)}---|",
    ]
    for name in dict.fromkeys(row["workload"] for row in rows):
        mine = {row["version"]: row for row in rows if row["workload"] == name}
        taken = [mine.get(version) for version in versions]
        known = len(taken) == 2 and not any(map(_clock_bound, taken))
        ratio = f"{taken[0]['cpu'] / taken[1]['cpu']:.1f}" if known else "-"
        shown = [_seconds(row) for row in taken]
        lines.append(
            f"| {name} | {next(iter(mine.values()))['d']} | {' | '.join(shown)} | {ratio} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
