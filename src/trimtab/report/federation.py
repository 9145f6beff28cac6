"""The run of a federation, read from its operator's folder: rounds, sites, and what was sent."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import safe_open

from trimtab._files import write_file
from trimtab.algorithms.registry import NAMES, kind
from trimtab.federation.events import SiteReport
from trimtab.federation.setup.job import Job, read_job
from trimtab.federation.setup.operator_folder import Federation
from trimtab.federation.setup.status import progress
from trimtab.federation.storage.journal import read_lines
from trimtab.federation.storage.summary import CHECKPOINT, Summary
from trimtab.problems.clients import ClientSummary
from trimtab.problems.metrics import ACCURACY, LOSS
from trimtab.report.page import page_of
from trimtab.report.sources import SiteFacts, Source
from trimtab.studies.comparison import About, Comparison
from trimtab.studies.entry import Entry, describe, settings_of_text
from trimtab.studies.goal import Goal, cost_of
from trimtab.studies.record import RoundLine


def write_federation(folder: Path) -> Path:
    """Write the page of the run in an operator's folder, and return where it is."""
    path = folder / "report.html"
    write_file(path, page_of([read_federation(folder)], path))
    return path


def read_federation(folder: Path, state: str | None = None, *, underway: bool = False) -> Source:
    """Return the run of a federation; state: the folder of one of several runs."""
    federation = Federation.read(folder)
    job = read_job(federation)
    state = state or (job.state if job else "state")
    done = progress(folder / state)
    if done is None:
        raise ValueError(f"{folder} holds no experiment yet; begin with `trimtab federate server`.")
    own = federation.problem.metric
    lines = read_lines(folder / state, done.summary.commit)
    ended = [line for line in lines if line["kind"] == "end"]
    curve = _curve(done.rounds, ended[-1]["metrics"] if ended else {})
    known = {name for line in curve for name in line.metrics}
    ours = job if job is not None and job.state == state else None
    metric = own or (ACCURACY if "accuracy" in known else LOSS)
    goal = Goal(metric, ours.target if ours else None)
    entry = _entry(done.summary, curve, goal)
    result = Comparison(folder.name, goal, [entry], "", about=About(seeds=(), tested_on="test"))
    result.population = _population(folder / state, done.summary, federation.weights)
    result.advice = _sentence(entry, goal, done.summary, ended=bool(ended))
    record = _record(federation, ours, done.summary)
    sites = _sites(done.rounds, done.summary)
    return Source(folder.name, result, record, underway=underway, sites=sites)


def _curve(rounds: Sequence[dict[str, Any]], last: dict[str, float | None]) -> list[RoundLine]:
    """Return the rounds; what a round measures is the x of the one before, so it moves there."""
    after = [*(line["metrics"] for line in rounds[1:]), last][: len(rounds)]
    return [
        RoundLine(
            r=line["r"],
            bytes_down=line["bytes_down"],
            bytes_up=line["bytes_up"],
            seconds=line["seconds"],
            drift=line["drift"],
            cosine=line["cosine"],
            clients=len(line["cohort"]),
            metrics=dict(metrics),
        )
        for line, metrics in zip(rounds, after, strict=True)
    ]


def _entry(summary: Summary, curve: list[RoundLine], goal: Goal) -> Entry:
    name = summary.algorithm.partition("(")[0]
    known = kind(name.lower()) if name.lower() in NAMES else None
    met = goal.first(curve)
    cost = cost_of(curve[: met.r]) if met else None
    return Entry(
        name=name.lower(),
        label=name.lower(),
        settings=settings_of_text(summary.algorithm),
        rounds=cost.rounds if cost else None,
        bytes=cost.bytes if cost else None,
        seconds=cost.seconds if cost else None,
        best=goal.best(curve),
        shown=known.shown if known else name,
        colour=known.colour if known else "",
        step=known.step if known else "",
        curve=curve,
    )


def _sentence(entry: Entry, goal: Goal, summary: Summary, ended: bool) -> str:
    """Say what came of it, or how far it is."""
    who = f"{describe(entry)} over {len(summary.p)} sites"
    best = "no metric" if entry.best is None else f"{goal.name} {entry.best:.4g}"
    if goal.target is not None and entry.rounds is not None:
        return f"{who} reached {goal.name} {goal.target:g} in {entry.rounds} rounds."
    return f"{who} {'ran' if ended else 'has run'} {summary.r} rounds; the best is {best}."


def _sites(rounds: Sequence[dict[str, Any]], summary: Summary) -> tuple[SiteFacts, ...]:
    facts = {name: SiteFacts(name, p, 0, 0, 0.0, {}, 0, "") for name, p in summary.p.items()}
    for line in rounds:
        for name, report in line["sites"].items():
            if name in facts:
                one, told = facts[name], SiteReport(**report)
                facts[name] = replace(
                    one,
                    rounds=one.rounds + (name in line["cohort"]),
                    bytes_up=one.bytes_up + told.bytes_up,
                    seconds=one.seconds + told.seconds,
                    last=dict(told.metrics) or one.last,
                )
        for name, why in line["absent"].items():
            if name in facts:
                facts[name] = replace(facts[name], absent=facts[name].absent + 1, why=why)
    return tuple(facts.values())


def _population(folder: Path, summary: Summary, weighing: str) -> ClientSummary:
    with safe_open(folder / CHECKPOINT, framework="pt") as file:
        (d,) = file.get_slice("0").get_shape()
    return ClientSummary(len(summary.p), d, tuple(summary.p.values()), weighing)


def _record(federation: Federation, job: Job | None, summary: Summary) -> dict[str, Any]:
    """Return what a page shows as the settings of a run."""
    settings: dict[str, Any] = {"algorithm": summary.algorithm, "S": len(summary.p)}
    settings |= {"sites": ", ".join(summary.p), "batch": federation.batch or "all samples"}
    if job is None:
        return {"settings": settings}
    names = ("seed", "R", "target", "min_sites", "round_timeout", "on_lost_state")
    settings |= {name: getattr(job, name) for name in names}
    return {"settings": settings, "versions": {"trimtab": job.trimtab}}
