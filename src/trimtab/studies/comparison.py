"""What a comparison found: its entries, the advice, and its form on disk."""

from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from trimtab._files import plain, read_json
from trimtab.algorithms.registry import NAMES, Kind, kind
from trimtab.core.hyper import settings_of, step_size
from trimtab.errors import BadArgument
from trimtab.problems.metric import LOSS, Metric
from trimtab.studies.fragility import Again
from trimtab.studies.goal import Goal
from trimtab.studies.record import RoundLine
from trimtab.studies.trial import Trial

AS_FAST = 1.1  # a well-known stateless algorithm is advised if it needs <= 1.1 x the fewest rounds
FRAGILE = (
    "but this step is fragile: from a start moved by a millionth the run takes another course, as "
    "it may on another processor, so a smaller step is safer"
)


@dataclass(frozen=True)
class Candidate:
    """One step size that was tried."""

    step: float | None
    ran: int
    rounds: int | None  # to the target; None if it was not reached
    best: float | None
    diverged_at: int | None


@dataclass
class Entry:
    """One algorithm in a comparison: the best run that was found for it."""

    name: str
    label: str
    settings: dict[str, Any]
    rounds: int | None = None  # to the target; None if it was not reached
    bytes: int | None = None
    seconds: float | None = None
    best: float | None = None
    diverged_at: int | None = None
    shown: str = ""  # the name in tables and sentences
    colour: str = ""
    step: str = ""  # which of the settings is the step size
    again: Again | None = None  # the winner from a moved start
    tried: list[Candidate] = field(default_factory=list)
    curve: list[RoundLine] = field(default_factory=list)

    @property
    def diverged(self) -> bool:
        """Whether even the best run diverged."""
        return self.diverged_at is not None

    @property
    def fragile(self) -> bool | None:
        """Whether a start moved by a millionth gives another result; None: not tried."""
        return None if self.again is None else self.again.fragile

    def to_json(self) -> dict[str, Any]:
        """Return the entry as `--json` prints it."""
        names = ("name", "settings", "rounds", "bytes", "seconds", "best", "diverged", "fragile")
        return {n: plain(getattr(self, n)) for n in names} | {"diverged_at": self.diverged_at}

    def to_record(self) -> dict[str, Any]:
        """Return the entry as the folder keeps it, with all that a page shows."""
        return self.to_json() | {
            "label": self.label,
            "shown": self.shown,
            "colour": self.colour,
            "step": self.step,
            "again": None if self.again is None else asdict(self.again),
            "tried": [asdict(candidate) for candidate in self.tried],
            "curve": [line.to_json() for line in self.curve],
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Entry":
        """Read what a folder keeps; what folders of version 0.1.0 lack is filled in."""
        again, tried, curve = (record.get(name) for name in ("again", "tried", "curve"))
        plainly = {f.name for f in fields(cls)} - {"again", "tried", "curve"}
        entry = cls(
            **{name: record[name] for name in plainly if name in record},
            again=None if again is None else Again(**again),
            tried=[Candidate(**candidate) for candidate in tried or ()],
            curve=[RoundLine.from_json(line) for line in curve or ()],
        )
        base, _, number = entry.name.partition("#")
        if not entry.shown and base in NAMES:
            known = kind(base)
            entry.shown, entry.colour, entry.step = shown(known, number), known.colour, known.step
        return entry


@dataclass
class Comparison:
    """What `compare` found."""

    problem: str
    goal: Goal  # without a target: a run that had none
    entries: list[Entry]
    advice: str
    folder: Path | None = None
    page: Path | None = None

    @property
    def metric(self) -> str:
        """The name of what the algorithms are judged by."""
        return self.goal.name

    @property
    def target(self) -> float | None:
        """What was to be reached."""
        return self.goal.target

    def to_json(self) -> dict[str, Any]:
        """Return what `trimtab compare --json` prints."""
        return {
            "problem": self.problem,
            "target": self.target,
            "advice": self.advice,
            "page": None if self.page is None else str(self.page),
            "algorithms": [entry.to_json() for entry in self.entries],
        }

    def to_record(self) -> dict[str, Any]:
        """Return what `read_comparison` needs to show the result again."""
        return {
            "metric": self.metric,
            "range": {f.name: getattr(self.goal.metric, f.name) for f in fields(Metric)},
            "target": self.target,
            "advice": self.advice,
            "entries": [entry.to_record() for entry in self.entries],
        }


def shown(chosen: Kind, number: str = "") -> str:
    """Return an algorithm's name for tables and sentences."""
    return f"{chosen.shown} #{number}" if number else chosen.shown


def entry_of(
    name: str, label: str, tried: list[Trial], goal: Goal, again: Again | None = None
) -> Entry:
    """Return what became of an algorithm; the first of the trials is its best."""
    trial = tried[0]
    met, own = goal.first(trial.rounds), kind(trial.algorithm)
    until = trial.rounds[: met.r] if met else []
    return Entry(
        name=name,
        label=label,
        settings=_settings(trial),
        rounds=met.r if met else None,
        bytes=sum(line.bytes_down + line.bytes_up for line in until) if met else None,
        seconds=sum(line.seconds for line in until) if met else None,
        best=goal.best(trial.rounds),
        diverged_at=trial.diverged.r if trial.diverged else None,
        shown=shown(own, name.partition("#")[2]),
        colour=own.colour,
        step=step_size(trial.algorithm)[0],
        again=again,
        tried=[_candidate(t, goal) for t in tried],
        curve=trial.rounds,
    )


def _settings(trial: Trial) -> dict[str, Any]:
    """Return the hyper-parameters as JSON holds them."""
    settings = settings_of(trial.algorithm)
    return {name: repr(v) if is_dataclass(v) else v for name, v in settings.items()}


def _candidate(trial: Trial, goal: Goal) -> Candidate:
    met = goal.first(trial.rounds)
    return Candidate(
        step=step_size(trial.algorithm)[1],
        ran=len(trial.rounds),
        rounds=met.r if met else None,
        best=goal.best(trial.rounds),
        diverged_at=trial.diverged.r if trial.diverged else None,
    )


def advise(entries: list[Entry], goal: Goal) -> str:
    """Say in one sentence which algorithm to use."""
    well_known = {e.name for e in entries if e.name in NAMES and kind(e.name).well_known}
    stable = [e for e in entries if e.rounds is not None and not e.diverged]
    there = sorted(stable, key=lambda e: e.rounds or 0)
    wanted = f"{goal.name} {goal.target:g}"
    if not there:
        best = [e for e in entries if e.best is not None and not e.diverged]
        if not best and all(e.diverged for e in entries):
            return "All runs diverged; pass smaller step sizes, or check the scale of the data."
        if not best:
            return f"No run that did not diverge has a finite {goal.name}; look at `evaluate`."
        top = max(best, key=lambda e: goal.score({goal.name: e.best}))
        return (
            f"No algorithm reached {wanted}; {describe(top)} came closest with {top.best:.4g}: "
            "allow more rounds (R) or an easier target."
        )
    first, others = there[0], [e for e in entries if e.name != there[0].name]
    simple = [e for e in there if e.name in well_known and not kind(e.name).stateful]
    as_fast = AS_FAST * (first.rounds or 0)
    if simple and simple[0] is not first and (simple[0].rounds or 0) <= as_fast:
        return (
            f"Use {describe(simple[0])}: it reaches {wanted} in {_rounds(simple[0].rounds)}, as "
            "fast as anything else here, and keeps no state"
            + (f"; {FRAGILE}." if simple[0].fragile else ".")
        )
    slower: dict[str, str] = {}
    for e in sorted(others, key=lambda e: e.rounds or 10**9):
        if e.name in well_known and e.name not in slower:
            need = f"needs {e.rounds}" if e.rounds else "does not get there"
            slower[e.name] = f"{e.shown} {need}"
    against = f", where {' and '.join(slower.values())}" if slower else ""
    doubt = f"; {FRAGILE}" if first.fragile else ""
    return f"Use {describe(first)}: it reaches {wanted} in {_rounds(first.rounds)}{against}{doubt}."


def _rounds(n: int | None) -> str:
    return "1 round" if n == 1 else f"{n} rounds"


def describe(entry: Entry) -> str:
    """Return an algorithm with its K and step size, for a sentence."""
    s = entry.settings
    parts = [f"{k} = {s[k]:.3g}" for k in ("K", entry.step) if k in s]
    return f"{entry.shown} with {' and '.join(parts)}" if parts else entry.shown


def read_comparison(folder: Path) -> Comparison:
    """Return the comparison, or the run, that a folder holds."""
    name = "run.json" if (folder / "run.json").exists() else "compare.json"
    content = read_json(folder / name)
    if "outcome" not in content:
        raise BadArgument(
            "resume",
            "{folder} is not finished; repeat its command with {resume:True} first.",
            folder=folder,
        )
    outcome = content["outcome"]
    metric = Metric(outcome["metric"], higher=outcome["metric"] != LOSS.name)
    if "range" in outcome:
        ends = {end: value for end, value in outcome["range"].items() if value is not None}
        metric = Metric(**ends)
    goal = Goal(metric, outcome["target"])
    entries = [Entry.from_record(entry) for entry in outcome["entries"]]
    return Comparison(content["settings"]["problem"], goal, entries, outcome["advice"], folder)
