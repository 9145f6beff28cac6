"""Is the advice any good? `diagnose` against `compare` on many problems (advice_cases.py).

    python benchmarks/advice.py            # hours at low priority; goes on where it stopped
    python benchmarks/advice.py --again    # diagnose again; the bests that are recorded stay
    python benchmarks/advice.py --page     # docs/diagnosis.md from the records, seconds

For every case `compare` searches SGD, FedAvg and SCAFFOLD, their K and their step sizes, and counts
rounds until f(x) - f(x*) <= eps. The advised settings, as they are, run to the same target with the
same seeds. Minutes are minutes of CPU, so that a busy machine changes no record. One record for
each case in results/account; until all of them are there, the page says how many are.
"""

import json
import os
import sys
from pathlib import Path
from time import process_time
from typing import Any

import click
import torch
from advice_cases import CASES, Case
from torch import Tensor

from trimtab import Diagnosis, Supervised, compare, diagnose
from trimtab._files import write_json
from trimtab._version import environment
from trimtab.core.threads import one_thread
from trimtab.diagnosis import budget
from trimtab.diagnosis.rules import named
from trimtab.studies import budget as ledger
from trimtab.studies import study

ROOT = Path(__file__).resolve().parents[1]
ACCOUNT = ROOT / "results" / "account"
TIMES = ROOT / "results" / "diagnosis" / "time.json"  # what diagnosis_time.py measured
COVERAGE = TIMES.with_name("coverage.json")  # what diagnosis_coverage.py counted
R = 100  # a run takes <= 100 rounds
MINUTES = 3.0  # of a search for the best
EXAMPLE = TIMES.with_name("example.txt")  # what `trimtab diagnose concrete` printed first
WITHIN = 1.3  # the advice is near if it needs <= 1.3 x the rounds of the best
LEVEL = 0.95  # the interval of the share covers it in >= 95 % of such accounts
CLOCK = 150.0  # a diagnosis of 5 minutes that took > 150 s ended because they were over
SEEDS = 3  # rounds are the median of 3 seeds

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


def account(case: Case, before: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a case: the best that `compare` finds, then the advice as it is.

    before: an earlier record, whose best is kept.
    """
    problem, began = case.make(case.seed), process_time()
    how: dict[str, Any] = {"S": case.S, "minutes": case.minutes, "seed": case.seed}
    found = diagnose(problem, **how)
    eps = case.share / 0.01 * found.eps
    if case.share != 0.01:
        found = diagnose(problem, eps=eps, **how)
    taken = process_time() - began
    goal: dict[str, Any] = {"target": found.least + eps, "S": case.S, "seed": case.seed, "R": R}
    goal |= {"x": problem.x0(0), "seeds": SEEDS, "split": None}
    kept = before if before and abs(eps - before["settings"]["eps"]) <= 1e-3 * eps else None
    best = kept["best"] if kept else _best(problem, goal)
    advised = None
    if found.algorithm is not None:
        advised = _entry(compare(Loss(problem), [found.advised()], **goal).entries[0])
    return {
        "settings": {
            name: getattr(case, name) for name in ("S", "kind", "seed", "minutes", "share")
        }
        | {"eps": eps, "R": R},
        "best": best,
        "advised": advised,
        "diagnosis": summary(found),
        "seconds": {"diagnose": round(taken, 1), "all": round(process_time() - began, 1)},
        "versions": environment(),
    }


def _best(problem: Any, goal: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what `compare` finds for each algorithm; it searches K and the step size."""
    raced = compare(
        Loss(problem), ["sgd", "fedavg", "scaffold"], eta_g=1.0, minutes=MINUTES, **goal
    )
    return [_entry(entry) for entry in raced.entries]


def _entry(entry: Any) -> dict[str, Any]:
    settings = entry.settings
    return {
        "algorithm": entry.name,
        "K": settings.get("K", 1),
        "eta": settings.get("eta_l", settings.get("eta")),
        "rounds": None if entry.failed else entry.rounds,
        "complete": entry.complete,
    }


def summary(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return what the table shows of a diagnosis, and what it rests on."""
    names = ("N", "d", "S", "G", "B", "delta", "L", "mu", "sigma", "zeta", "algorithm", "K")
    names += ("eta_l", "sure", "optimum", "advice", "rough", "verdict", "confirmed", "predicted")
    content = diagnosis.to_json()
    return {name: content[name] for name in names}


@click.command()
@click.argument("names", nargs=-1)
@click.option("--page", "only_page", is_flag=True, help="Write docs/diagnosis.md alone.")
@click.option("--again", is_flag=True, help="Diagnose again; keep the bests that have a record.")
def main(names: tuple[str, ...], only_page: bool, again: bool) -> None:
    """Compute the cases that have no record yet, then write the page."""
    os.nice(0 if only_page else 15)
    budget.perf_counter = ledger.monotonic = study.monotonic = process_time
    ACCOUNT.mkdir(parents=True, exist_ok=True)
    known = records()
    for name in () if only_page else names or CASES:
        if again or name not in known:
            with one_thread():
                record = account(CASES[name], known.get(name, {}))
            write_json(ACCOUNT / f"{name}.json", record)
            click.echo(f"{name}: {record['advised']} {best_of(record)} {record['seconds']}")
            sys.stdout.flush()
    (ROOT / "docs" / "diagnosis.md").write_text(page(records()), "utf-8")


def best_of(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the settings with the fewest rounds of all that ran; None if none arrived."""
    rows = [*record["best"], *([record["advised"]] if record["advised"] else [])]
    there = [row for row in rows if row["rounds"] is not None]
    return min(there, key=lambda row: (row["rounds"], row["K"]), default=None)


def ratio_of(record: dict[str, Any]) -> float | None:
    """Return the rounds of the advice over those of the best; None if it did not arrive."""
    best, mine = best_of(record), record["advised"]
    if best is None or mine is None or mine["rounds"] is None:
        return None
    ratio: float = mine["rounds"] / best["rounds"]
    return ratio


def records() -> dict[str, Any]:
    """Return the records of the account by case, in the order of the cases."""
    paths = {name: ACCOUNT / f"{name}.json" for name in CASES}
    return {name: json.loads(p.read_text("utf-8")) for name, p in paths.items() if p.exists()}


def advised(record: dict[str, Any]) -> bool:
    """Return whether there was advice."""
    return record["diagnosis"]["algorithm"] is not None


def near(record: dict[str, Any]) -> bool:
    """Return whether the advice needs <= 1.3 x the rounds of the best, or says that none arrives.

    Where no algorithm arrives, advice is right if it says so.
    """
    if best_of(record) is None:
        return bool(record["diagnosis"]["verdict"] == "nearest")
    ratio = ratio_of(record)
    return ratio is not None and ratio <= WITHIN


def wrongly_sure(record: dict[str, Any]) -> bool:
    """Return whether advice that was called sure missed."""
    return record["diagnosis"]["sure"].startswith("sure") and not near(record)


def table(recorded: dict[str, Any]) -> str:
    """Return all cases as Markdown, misses in bold."""
    lines = [
        "| case | zeta | delta/L | advised | rounds | best found | rounds | ratio | how sure |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, record in recorded.items():
        diagnosis, best, ratio = record["diagnosis"], best_of(record), ratio_of(record)
        known = diagnosis["delta"] is not None and not diagnosis["rough"]
        shown = "none" if ratio is None else f"{ratio:.2f}"
        verdict = shown if near(record) else f"**{shown}, missed**"
        cells = (
            name,
            f"{diagnosis['zeta']:.2g}",
            f"{diagnosis['delta'] / diagnosis['L']:.2g}" if known else "not measured",
            _lane(record["advised"]) if advised(record) else "no advice",
            _count(record["advised"]) if advised(record) else "-",
            "none" if best is None else _lane(best),
            "-" if best is None else _count(best),
            verdict if advised(record) else "-",
            diagnosis["sure"].split(";")[0].rstrip(".") if advised(record) else "-",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _seconds(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not measured"
    return f"{row['cpu']:.1f}" + (" when the minutes were over" if row["cpu"] > CLOCK else "")


def _lane(row: dict[str, Any]) -> str:
    K = "" if row["algorithm"] == "sgd" else f", K = {row['K']}"
    return f"{named(row['algorithm'])}{K}"


def _count(row: dict[str, Any]) -> str:
    return str(row["rounds"] or f"{R}+")


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
    wrong = [name for name, record in recorded.items() if wrongly_sure(record)]
    sentences += [f"Wrong although called sure: {', '.join(wrong) or 'none'}."]
    sentences += [f"No advice was given for {', '.join(silent)}."] if silent else []
    if len(recorded) < len(CASES):
        sentences += [
            f"**{len(recorded)} of {len(CASES)} cases are in**; the others are open; `make "
            "account` continues with them."
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
        example=EXAMPLE.read_text("utf-8").strip(),
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
        f"| workload | d | {' | '.join(f'{version}, CPU s' for version in versions)} |",
        f"|---|---|{'---|' * len(versions)}",
    ]
    for name in dict.fromkeys(row["workload"] for row in rows):
        mine = {row["version"]: row for row in rows if row["workload"] == name}
        shown = [_seconds(mine.get(version)) for version in versions]
        lines.append(f"| {name} | {next(iter(mine.values()))['d']} | {' | '.join(shown)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
