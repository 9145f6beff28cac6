"""What a comparison found: its entries, the advice, and its form on disk."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from trimtab._files import plain, read_json
from trimtab.algorithms import ALGORITHMS
from trimtab.errors import BadArgument
from trimtab.simulation import step_size
from trimtab.studies.fragility import Again
from trimtab.studies.goal import Goal
from trimtab.studies.trial import Trial, settings_of

FRAGILE = (
    "but this step is fragile: from a start moved by a millionth the run takes another course, as "
    "it may on another processor, so a smaller step is safer"
)


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
    again: dict[str, Any] | None = None  # rounds, best, fragile: the winner from a moved start
    tried: list[dict[str, Any]] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)

    @property
    def diverged(self) -> bool:
        """Whether even the best run diverged."""
        return self.diverged_at is not None

    @property
    def fragile(self) -> bool | None:
        """Whether a start moved by a millionth gives another result; None: not tried."""
        return None if self.again is None else bool(self.again["fragile"])

    def to_json(self) -> dict[str, Any]:
        """Return the entry as `--json` prints it."""
        names = ("name", "settings", "rounds", "bytes", "seconds", "best", "diverged", "fragile")
        return {n: plain(getattr(self, n)) for n in names} | {"diverged_at": self.diverged_at}


@dataclass
class Comparison:
    """What `compare` found."""

    problem: str
    metric: str
    target: float | None  # None: a run that had none
    entries: list[Entry]
    advice: str
    folder: Path | None = None
    page: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what `trimtab compare --json` prints."""
        return {
            "problem": self.problem,
            "target": self.target,
            "advice": self.advice,
            "page": None if self.page is None else str(self.page),
            "algorithms": [entry.to_json() for entry in self.entries],
        }


def entry_of(
    name: str, label: str, tried: list[Trial], goal: Goal, again: Again | None = None
) -> Entry:
    """Return what became of an algorithm; the first of the trials is its best."""
    trial = tried[0]
    met = goal.first(trial.rounds)
    entry = Entry(
        name=name,
        label=label,
        settings=settings_of(trial.algorithm),
        best=goal.best(trial.rounds),
        diverged_at=trial.diverged.r if trial.diverged else None,
        again=None if again is None else asdict(again),
        tried=[_summary(t, goal) for t in tried],
        curve=trial.rounds,
    )
    if met:
        until = trial.rounds[: met["r"]]
        entry.rounds = met["r"]
        entry.bytes = sum(line["bytes_down"] + line["bytes_up"] for line in until)
        entry.seconds = sum(line["seconds"] for line in until)
    return entry


def _summary(trial: Trial, goal: Goal) -> dict[str, Any]:
    met = goal.first(trial.rounds)
    return {
        "step": step_size(trial.algorithm)[1],
        "ran": len(trial.rounds),
        "rounds": met["r"] if met else None,
        "best": goal.best(trial.rounds),
        "diverged_at": trial.diverged.r if trial.diverged else None,
    }


def advise(entries: list[Entry], goal: Goal) -> str:
    """Say in one sentence which algorithm to use."""
    stable = [e for e in entries if e.rounds is not None and not e.diverged]
    there = sorted(stable, key=lambda e: e.rounds or 0)
    wanted = f"{goal.metric} {goal.target:g}"
    if not there:
        best = [e for e in entries if e.best is not None and not e.diverged]
        if not best and all(e.diverged for e in entries):
            return "All runs diverged; pass smaller step sizes, or check the scale of the data."
        if not best:
            return f"No run that did not diverge has a finite {goal.metric}; look at `evaluate`."
        top = max(best, key=lambda e: goal.score({goal.metric: e.best}))
        return (
            f"No algorithm reached {wanted}; {describe(top)} came closest with {top.best:.4g}: "
            "allow more rounds (-R) or an easier target."
        )
    first, others = there[0], [e for e in entries if e.name != there[0].name]
    simple = [e for e in there if e.name in ("fedavg", "sgd")]
    if simple and simple[0] is not first and (simple[0].rounds or 0) <= 1.1 * (first.rounds or 0):
        return (
            f"Use {describe(simple[0])}: it reaches {wanted} in {_rounds(simple[0].rounds)}, as "
            "fast as anything else here, and keeps no state"
            + (f"; {FRAGILE}." if simple[0].fragile else ".")
        )
    slower: dict[str, str] = {}
    for e in sorted(others, key=lambda e: e.rounds or 10**9):
        if e.name in ("fedavg", "sgd", "scaffold") and e.name not in slower:
            need = f"needs {e.rounds}" if e.rounds else "does not get there"
            slower[e.name] = f"{pretty(e.name)} {need}"
    against = f", where {' and '.join(slower.values())}" if slower else ""
    doubt = f"; {FRAGILE}" if first.fragile else ""
    return f"Use {describe(first)}: it reaches {wanted} in {_rounds(first.rounds)}{against}{doubt}."


def _rounds(n: int | None) -> str:
    return "1 round" if n == 1 else f"{n} rounds"


def describe(entry: Entry) -> str:
    """Return an algorithm with its K and step size, for a sentence."""
    s = entry.settings
    parts = [f"{k} = {s[k]:.3g}" for k in ("K", "eta_l", "eta") if k in s]
    return f"{pretty(entry.name)} with {' and '.join(parts)}" if parts else pretty(entry.name)


def pretty(name: str) -> str:
    """Return an algorithm's class name for its lower-case one."""
    base, _, number = name.partition("#")
    shown = ALGORITHMS[base].__name__ if base in ALGORITHMS else base
    return f"{shown} #{number}" if number else shown


def outcome_of(result: Comparison) -> dict[str, Any]:
    """Return what `read_comparison` needs to show the result again."""
    more = ("label", "again", "tried", "curve")
    entries = [e.to_json() | {name: getattr(e, name) for name in more} for e in result.entries]
    return {
        "metric": result.metric,
        "target": result.target,
        "advice": result.advice,
        "entries": entries,
    }


def read_comparison(folder: Path) -> Comparison:
    """Return the comparison, or the run, that a folder holds."""
    name = "run.json" if (folder / "run.json").exists() else "compare.json"
    found = read_json(folder / name)
    if "outcome" not in found:
        raise BadArgument(
            "resume",
            "{folder} is not finished; repeat its command with {resume:True} first.",
            folder=folder,
        )
    outcome = found["outcome"]
    keys = {f.name for f in fields(Entry)}
    entries = [Entry(**{k: v for k, v in e.items() if k in keys}) for e in outcome["entries"]]
    target, metric = outcome["target"], outcome["metric"]
    problem = found["settings"]["problem"]
    return Comparison(problem, metric, target, entries, outcome["advice"], folder)
