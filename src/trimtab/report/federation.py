"""The result of a federation's run, read from its operator's folder: rounds, sites, messages."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import safe_open

from trimtab.federation.events import SiteReport
from trimtab.federation.setup.job import Job, read_job, state_of
from trimtab.federation.setup.operator import Federation
from trimtab.federation.setup.status import progress
from trimtab.federation.storage.journal import CHECKPOINT, Summary, read_lines
from trimtab.problems.clients import ClientSummary
from trimtab.problems.metrics import ACCURACY, LOSS
from trimtab.report.clients import SiteFacts
from trimtab.report.page import write_pages
from trimtab.report.sources import Source, entry_of_rounds
from trimtab.studies.comparison import About, Comparison
from trimtab.studies.entry import Entry, describe
from trimtab.studies.goal import Goal
from trimtab.studies.record import RoundLine


def write_federation(folder: Path, state: str) -> Path:
    """Write the page of a run in an operator's folder, and return its path."""
    page = (folder / state).parent / "report.html"
    return write_pages([read_federation(folder, state)], page)


def read_federation(folder: Path, state: str | None = None, *, finished: bool = True) -> Source:
    """Return the run of a federation.

    state: the folder of one of several runs; that of the last one that was started by default.
    finished: whether no more rounds follow; default True.
    """
    federation = Federation.read(folder)
    state = state or state_of(folder, None)
    job = read_job(federation, state)
    done = progress(folder / state)
    if done is None:
        raise ValueError(f"{folder} holds no experiment yet; begin with `trimtab federate server`.")
    own = federation.problem.metric
    lines = read_lines(folder / state, done.summary.head)
    ended = [line for line in lines if line["kind"] == "end"]
    curve = _curve(done.rounds, ended[-1]["metrics"] if ended else {})
    known = {name for line in curve for name in line.metrics}
    ours = job if job is not None and job.state == state else None
    metric = own or (ACCURACY if "accuracy" in known else LOSS)
    goal = Goal(metric, ours.target if ours else None)
    entry = entry_of_rounds(done.summary.algorithm, curve, goal)
    about = About(seeds=(), tested_on="test", finished=finished)
    result = Comparison(folder.name, goal, [entry], "", about=about)
    result.population = _population(folder / state, done.summary, federation.weights)
    result.advice = _sentence(entry, goal, done.summary, ended=bool(ended))
    record = _record(federation, ours, done.summary)
    sites = _sites(done.rounds, done.summary)
    return Source(folder.name, result, record, sites=sites)


def _curve(rounds: Sequence[dict[str, Any]], last: dict[str, float | None]) -> list[RoundLine]:
    """Return the rounds; a round measures the model of the one before, where the metrics belong."""
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


def _sentence(entry: Entry, goal: Goal, summary: Summary, ended: bool) -> str:
    who = f"{describe(entry)} over {len(summary.p)} sites"
    best = "no metric" if entry.best is None else f"{goal.name} {entry.best:.4g}"
    if goal.target is not None and entry.rounds is not None:
        return f"{who} reached {goal.name} {goal.target:g} in {entry.rounds} rounds."
    return f"{who} {'ran' if ended else 'has run'} {summary.r} rounds; the best is {best}."


def _sites(rounds: Sequence[dict[str, Any]], summary: Summary) -> tuple[SiteFacts, ...]:
    facts = {name: SiteFacts(name, p) for name, p in summary.p.items()}
    for line in rounds:
        for name, report in line["sites"].items():
            if name in facts:
                one, site = facts[name], SiteReport(**report)
                facts[name] = replace(
                    one,
                    rounds=one.rounds + (name in line["cohort"]),
                    bytes_up=one.bytes_up + site.bytes_up,
                    seconds=one.seconds + site.seconds,
                    last=dict(site.metrics) or one.last,
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
    """Return the settings of a run, for its page."""
    settings: dict[str, Any] = {"algorithm": summary.algorithm, "S": len(summary.p)}
    settings |= {"sites": len(summary.p), "batch": federation.batch or "all samples"}
    if job is None:
        return {"settings": settings}
    names = ("seed", "R", "target", "min_sites", "round_timeout", "on_lost_state")
    settings |= {name: getattr(job, name) for name in names}
    return {"settings": settings, "versions": {"trimtab": job.trimtab}}
