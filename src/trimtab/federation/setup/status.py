"""What an operator wants to know of a federation, from its folder alone. No torch is needed."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trimtab._files import plain, read_json
from trimtab.federation.events import AuditDone, Ended, Metrics
from trimtab.federation.setup.job import read_job, state_of, states_of
from trimtab.federation.setup.operator import Federation
from trimtab.federation.storage.journal import Summary, read_lines, read_summary, rounds_of
from trimtab.federation.storage.keys import check_certificate, fingerprint

CONTACTS = Path("run") / "contacts.json"  # when each site was last heard of


@dataclass(frozen=True)
class SiteStatus:
    """What is known of a site."""

    weight: float
    last: int | None  # the last round in which it took part
    member: bool  # whether the experiment counts on it yet
    key: str  # the fingerprint of its public key
    contact: str | None = None  # when it was last heard of, in UTC; None if never


@dataclass(frozen=True)
class Status:
    """How far the experiment of a federation is."""

    algorithm: str | None
    server: str  # running or stopped
    round: int
    R: int | None
    epoch: int
    metrics: Metrics
    bytes_up: int
    certificate: str
    sites: dict[str, SiteStatus]
    experiments: dict[str, int]  # the rounds of the named ones
    expiring: list[str]  # a sentence for each key and certificate that expires soon

    def to_json(self) -> dict[str, Any]:
        """Return what `federate status --json` prints."""
        return dict(plain(asdict(self)))


@dataclass(frozen=True)
class RunSummary:
    """What came of a run, and a sentence that says it."""

    sites: list[str]
    rounds: int
    reached: bool
    metric: float | None  # the problem's own; else accuracy where the sites have one, or loss
    metrics: Metrics
    bytes_up: int
    audit: AuditDone | None
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return what `federate server --json` prints."""
        audit = {k: v for k, v in asdict(self.audit).items() if k != "wire"} if self.audit else {}
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"audit": audit}


@dataclass(frozen=True)
class Progress:
    """How far an experiment is: its summary, and the journal's lines of rounds."""

    summary: Summary
    rounds: list[dict[str, Any]]

    @property
    def bytes_up(self) -> int:
        """How many bytes the sites have sent."""
        return sum(line["bytes_up"] for line in self.rounds)


def progress(folder: Path) -> Progress | None:
    """Return how far the experiment in a coordinator's folder is; None if it has not begun."""
    summary = read_summary(folder)
    if summary is None:
        return None
    return Progress(summary, rounds_of(read_lines(folder, summary.head)))


def status_of(folder: Path, experiment: str | None = None) -> Status:
    """Return how far an experiment is, the last one by default, and what is known of each site."""
    federation = Federation.read(folder)
    state = state_of(folder, experiment)
    job, done = read_job(federation, state), progress(folder / state)
    named = {name: read_summary(folder / path) for name, path in states_of(folder).items()}
    last: dict[str, int] = {}
    for line in done.rounds if done else ():
        last |= dict.fromkeys(line["cohort"], line["r"])
    p, contacts = done.summary.p if done else {}, _contacts(folder)
    return Status(
        algorithm=done.summary.algorithm if done else None,
        server="running" if _runs(folder) else "stopped",
        round=done.summary.r if done else 0,
        R=job.R if job else None,
        epoch=done.summary.epoch if done else 0,
        metrics=done.rounds[-1]["metrics"] if done and done.rounds else {},
        bytes_up=done.bytes_up if done else 0,
        certificate=_certificate(federation),
        sites={
            name: SiteStatus(
                *(p.get(name, 0.0), last.get(name), name in p, fingerprint(key)),
                contact=contacts.get(name),
            )
            for name, key in federation.sites.items()
        },
        experiments={name: begun.r if begun else 0 for name, begun in named.items()},
        expiring=federation.expiring(),
    )


def summary_of(
    folder: Path, ended: Ended | None, audit: AuditDone | None, metric: str | None = None
) -> RunSummary:
    """Return what came of a run in a coordinator's folder."""
    done = progress(folder)
    assert done is not None
    metrics = ended.metrics if ended else {}
    name = metric or ("accuracy" if "accuracy" in metrics else "loss")
    value = metrics.get(name)
    reached = ended.reached if ended else False
    sentence = (
        f"{done.summary.algorithm} ran {done.summary.r} rounds"
        f"{' and reached its target' if reached else ''}: "
        f"{'no metric' if value is None else f'{name} {value:.4g}'}."
    )
    if audit is not None and audit.deviation is not None:
        sentence += f" |c - sum p_i c_i| = {audit.deviation:.3g}."
    return RunSummary(
        sites=list(done.summary.p),
        rounds=done.summary.r,
        reached=reached,
        metric=value,
        metrics=metrics,
        bytes_up=done.bytes_up,
        audit=audit,
        sentence=sentence,
    )


def _certificate(federation: Federation) -> str:
    try:
        return f"valid until {check_certificate(federation.keys / 'server.crt'):%Y-%m-%d}"
    except ValueError:
        return "not valid now; write a new one with `trimtab federate renew`"


def _contacts(folder: Path) -> dict[str, str]:
    """Return when sites were last heard of, as a server has written it; nothing if none has."""
    try:
        return {name: str(at) for name, at in read_json(folder / CONTACTS).items()}
    except (ValueError, AttributeError):
        return {}


def _runs(folder: Path) -> bool:
    try:
        os.kill(int(read_json(folder / "run" / "live.json")["pid"]), 0)
    except (ValueError, KeyError, OSError):
        return False
    return True
