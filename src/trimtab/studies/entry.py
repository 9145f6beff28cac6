"""What became of one algorithm in a comparison: what was tried, and what its seeds say."""

from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

from trimtab._files import plain
from trimtab.algorithms.registry import Kind, kind
from trimtab.core.hyper import settings_of, step_size
from trimtab.studies.fragility import Again
from trimtab.studies.goal import Cost, Goal, cost_of
from trimtab.studies.record import RoundLine
from trimtab.studies.statistics import interval, median
from trimtab.studies.trial import Trial


@dataclass(frozen=True)
class Candidate:
    """One step size that was tried, and the K, eta_g and beta that were searched with it."""

    step: float | None
    ran: int
    rounds: int | None  # to the target; None if it was not reached
    best: float | None
    diverged_at: int | None
    K: int | None = None
    eta_g: float | None = None
    beta: float | None = None


@dataclass(frozen=True)
class SeedRun:
    """The winner with one seed: what it cost to the target, and what its best model is worth."""

    seed: int
    cost: Cost | None  # to the target; None if it was not reached
    best: float | None  # of what was looked at while it ran
    chosen: int | None  # the round of the best model
    test: dict[str, float | None]  # the metrics of that model on the test data
    diverged_at: int | None = None
    folder: str | None = None  # the name of its own, in that of the algorithm
    nearly: Cost | None = None  # to the easiest target that the rows cannot tell from it

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "SeedRun":
        """Read what `asdict` wrote."""
        costs = {name: record[name] for name in ("cost", "nearly")}
        read = {name: None if cost is None else Cost(**cost) for name, cost in costs.items()}
        return cls(**record | read)


@dataclass
class Entry:
    """One algorithm in a comparison: the best that was found for it, over the seeds."""

    name: str
    label: str
    settings: dict[str, Any]
    rounds: int | None = None  # to the target, the median; None if some seed did not reach it
    bytes: int | None = None
    seconds: float | None = None
    best: float | None = None
    diverged_at: int | None = None
    exchanges: int | None = None
    work: int | None = None  # sample gradients at the clients
    interval: tuple[float, float] | None = None  # of the rounds, 90 %
    reached: int | None = None  # how many seeds reached the target
    test: float | None = None  # the median of the metric at the chosen rounds, on the test data
    tests: dict[str, float] = field(default_factory=dict)  # the same of every metric
    per_client: dict[str, Any] | None = None
    not_run: list[str] = field(default_factory=list)  # of the search, and why
    baseline: bool = False  # it is no federated algorithm, and is not advised
    runs: list[SeedRun] = field(default_factory=list)
    shown: str = ""  # the name in tables and sentences
    colour: str = ""
    step: str = ""  # which of the settings is the step size
    again: Again | None = None  # the winner from a moved start
    tried: list[Candidate] = field(default_factory=list)
    searched: list[Candidate] = field(default_factory=list)  # with every K, eta_g and beta
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
        names = (
            *("name", "label", "settings", "rounds", "bytes", "seconds", "best", "diverged"),
            *(
                "fragile",
                "diverged_at",
                "exchanges",
                "work",
                "interval",
                "reached",
                "test",
                "tests",
            ),
            "per_client",
            *("not_run", "baseline"),
        )
        runs = [plain(asdict(run)) for run in self.runs]
        return {n: plain(getattr(self, n)) for n in names} | {"runs": runs}

    def to_record(self) -> dict[str, Any]:
        """Return the entry as the folder keeps it, with all that a page shows."""
        return self.to_json() | {
            "shown": self.shown,
            "colour": self.colour,
            "step": self.step,
            "again": None if self.again is None else asdict(self.again),
            "tried": [asdict(candidate) for candidate in self.tried],
            "searched": [asdict(candidate) for candidate in self.searched],
            "curve": [line.to_json() for line in self.curve],
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Entry":
        """Read what `to_record` wrote."""
        again, interval = record["again"], record["interval"]
        built = {"again", "tried", "searched", "curve", "runs", "interval"}
        plainly = {f.name for f in fields(cls)} - built
        return cls(
            **{name: record[name] for name in plainly},
            again=None if again is None else Again(**again),
            interval=None if interval is None else (interval[0], interval[1]),
            runs=[SeedRun.from_json(run) for run in record["runs"]],
            tried=[Candidate(**candidate) for candidate in record["tried"]],
            searched=[Candidate(**candidate) for candidate in record["searched"]],
            curve=[RoundLine.from_json(line) for line in record["curve"]],
        )


def shown(chosen: Kind, number: str = "") -> str:
    """Return an algorithm's name for tables and sentences."""
    return f"{chosen.shown} #{number}" if number else chosen.shown


def entry_of(
    name: str, label: str, tried: list[Trial], goal: Goal, again: Again | None = None
) -> Entry:
    """Return what became of an algorithm; the first of the trials is its best."""
    trial, own = tried[0], kind(tried[0].algorithm)
    cost = cost_to_target(trial, goal)
    return Entry(
        name=name,
        label=label,
        settings=_settings(trial),
        rounds=cost.rounds if cost else None,
        bytes=cost.bytes if cost else None,
        seconds=cost.seconds if cost else None,
        exchanges=cost.exchanges if cost else None,
        work=cost.work if cost else None,
        best=goal.best(trial.rounds),
        diverged_at=trial.diverged.r if trial.diverged else None,
        shown=shown(own, name.partition("#")[2]),
        colour=own.colour,
        step=step_size(trial.algorithm)[0],
        again=again,
        tried=[candidate_of(t, goal) for t in tried],
        curve=trial.rounds,
    )


def over_seeds(entry: Entry, runs: list[SeedRun], goal: Goal) -> Entry:
    """Return the entry with what the seeds say: medians, and the interval of the rounds."""
    costs = [run.cost for run in runs if run.cost is not None]
    bests = [run.best for run in runs if run.best is not None]
    tests: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run.test.items():
            tests.setdefault(name, []).extend([] if value is None else [value])
    worth = {name: median(values) for name, values in tests.items() if values}
    diverged = [run.diverged_at for run in runs if run.diverged_at is not None]
    every = 0 < len(costs) == len(runs)
    found = interval([cost.rounds for cost in costs]) if every else None

    def middle(name: str) -> Any:
        return median([getattr(cost, name) for cost in costs]) if every else None

    return replace(
        entry,
        **{name: middle(name) for name in ("rounds", "bytes", "seconds", "exchanges", "work")},
        best=median(bests) if bests else None,
        test=worth.get(goal.name),
        tests=worth,
        diverged_at=diverged[0] if diverged else None,
        interval=None if found is None else (found.low, found.high),
        reached=len(costs),
        runs=runs,
    )


def eased(entry: Entry, goal: Goal) -> Entry:
    """Return the entry as it would be with the easiest target that the rows cannot tell."""
    runs = [replace(run, cost=run.nearly) for run in entry.runs]
    return over_seeds(entry, runs, goal.easier()) if goal.slack else entry


def without_messages(entry: Entry) -> Entry:
    """Return the entry; of a baseline, in which nothing is sent, without what sending costs."""
    return replace(entry, bytes=None, exchanges=None) if entry.baseline else entry


def cost_to_target(trial: Trial, goal: Goal) -> Cost | None:
    """Return what a run cost until its target was first met; None if it was not."""
    met = goal.first(trial.rounds)
    return cost_of(trial.rounds[: met.r]) if met else None


def _settings(trial: Trial) -> dict[str, Any]:
    """Return the hyper-parameters as JSON holds them."""
    settings = settings_of(trial.algorithm)
    return {name: repr(v) if is_dataclass(v) else v for name, v in settings.items()}


def candidate_of(trial: Trial, goal: Goal, **searched: Any) -> Candidate:
    """Return what became of a trial; `searched`: the K, eta_g and beta that it had."""
    met = goal.first(trial.rounds)
    return Candidate(
        step=step_size(trial.algorithm)[1],
        ran=len(trial.rounds),
        rounds=met.r if met else None,
        best=goal.best(trial.rounds),
        diverged_at=trial.diverged.r if trial.diverged else None,
        **searched,
    )


def describe(entry: Entry) -> str:
    """Return an algorithm with what was chosen for it, for a sentence."""
    s = entry.settings
    shown = {k: s[k] for k in ("K", entry.step) if k in s}
    if s.get("eta_g", 1.0) != 1.0:
        shown["eta_g"] = s["eta_g"]
    parts = [f"{k} = {v if isinstance(v, str) else f'{v:.3g}'}" for k, v in shown.items()]
    return f"{entry.shown} with {listed(parts)}" if parts else entry.shown


def rounds_in_words(count: int) -> str:
    """Return a number of rounds, for a sentence.

    >>> rounds_in_words(1), rounds_in_words(20)
    ('1 round', '20 rounds')
    """
    return "1 round" if count == 1 else f"{count} rounds"


def listed(words: list[str]) -> str:
    """Return words with commas and 'and'.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""
