"""The result of one algorithm in a comparison: its settings, its search, and its report seeds."""

import ast
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from statistics import median_low
from typing import Any

import torch

from trimtab._files import plain
from trimtab.algorithms.registry import NAMES, kind
from trimtab.core import Algorithm, leaves
from trimtab.core.hyper import settings_of, step_size
from trimtab.studies.fragility import Again
from trimtab.studies.goal import Cost, Goal
from trimtab.studies.record import RoundLine
from trimtab.studies.statistics import LEAST_SEEDS, interval, rounding_error


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
    """The winner with one report seed: its cost to the target, and the worth of its best model."""

    seed: int
    cost: Cost | None  # to the target; None if it was not reached
    best: float | None  # on the rows that it was judged by
    chosen: int | None  # the round of the best model
    test: dict[str, float | None]  # the metrics of that model on the test data
    diverged_at: int | None = None
    folder: str | None = None  # its folder in that of the algorithm
    nearly: Cost | None = None  # to the easiest target that the held-out rows cannot tell from it
    scores: list[float | None] = field(default_factory=list)  # the metric after every round

    def to_json(self) -> dict[str, Any]:
        """Return the run as `--json` prints it, without the score of every round."""
        printed: dict[str, Any] = plain(asdict(replace(self, scores=[])))
        del printed["scores"]
        return printed

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "SeedRun":
        """Read what `asdict` wrote."""
        costs = {name: record[name] for name in ("cost", "nearly")}
        read = {name: None if cost is None else Cost(**cost) for name, cost in costs.items()}
        return cls(**record | read)


@dataclass(eq=False)  # Two algorithms may have the same numbers, and are still two.
class Entry:
    """One algorithm in a comparison: the best settings found for it, and their report seeds.

    The costs are medians over the seeds: to the target, or None if some seed did not reach it; of
    a run without target, up to the round of the chosen model.
    """

    name: str
    label: str
    settings: dict[str, Any]
    rounds: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    best: float | None = None
    diverged_at: int | None = None
    exchanges: int | None = None
    work: int | None = None  # sample gradients at the clients
    interval: tuple[float, float] | None = None  # of the rounds, 90 %; for five seeds and more
    range: tuple[int, int] | None = None  # the fewest and the most rounds of two to four seeds
    reached: int | None = None  # how many seeds reached the target
    test: float | None = None  # the median of the metric at the chosen rounds, on the test data
    tests: dict[str, float] = field(default_factory=dict)  # the same of every metric
    per_client: dict[str, Any] | None = None
    complete: bool = True  # whether no stage of the search was cut short
    at_edge: list[str] = field(default_factory=list)  # "step" or "K", if the best is the last tried
    not_run: list[str] = field(default_factory=list)  # what was cut short, and why
    spent: float | None = None  # sample gradients of the search and the seeds
    stateful: bool = False  # whether its clients keep a state from round to round
    baseline: bool = False  # whether it is a baseline, which is never recommended
    runs: list[SeedRun] = field(default_factory=list)
    shown: str = ""  # the name in tables and sentences
    colour: str = ""
    step: str = ""  # the name of the step size among the settings
    again: Again | None = None  # the winner from a moved start
    searched: list[Candidate] = field(default_factory=list)
    curve: list[RoundLine] = field(default_factory=list)  # every round of the first report seed

    @property
    def diverged(self) -> bool:
        """Whether even the best run diverged."""
        return self.diverged_at is not None

    @property
    def fragile(self) -> bool | None:
        """Whether a start moved by a millionth gives another result; None: not tried."""
        return None if self.again is None else self.again.fragile

    @property
    def failed(self) -> bool:
        """Whether some seed diverged or did not reach the target."""
        return self.diverged or self.rounds is None

    def to_json(self) -> dict[str, Any]:
        """Return the entry as `--json` prints it."""
        names = (
            *("name", "label", "settings", "rounds", "bytes", "seconds", "best", "diverged"),
            *("fragile", "diverged_at", "exchanges", "work", "interval", "range", "reached"),
            *("test", "tests", "per_client", "complete", "at_edge", "not_run", "spent"),
            *("stateful", "baseline"),
        )
        runs = [run.to_json() for run in self.runs]
        return {n: plain(getattr(self, n)) for n in names} | {"runs": runs}

    def to_record(self) -> dict[str, Any]:
        """Return the entry as the folder keeps it."""
        record: dict[str, Any] = plain(asdict(replace(self, curve=[])))
        return record | {"curve": [line.to_json() for line in self.curve]}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Entry":
        """Read what `to_record` wrote."""
        own = {f.name: record[f.name] for f in fields(cls) if f.name in record}
        own |= {n: None if own.get(n) is None else tuple(own[n]) for n in ("interval", "range")}
        return cls(
            **own
            | {
                "again": None if own.get("again") is None else Again(**own["again"]),
                "runs": [SeedRun.from_json(run) for run in own["runs"]],
                "searched": [Candidate(**candidate) for candidate in own["searched"]],
                "curve": [RoundLine.from_json(line) for line in own["curve"]],
            }
        )


def new_entry(name: str, label: str, algorithm: Algorithm, d: int) -> Entry:
    """Return an entry with what the algorithm itself says: its settings, state, name and colour.

    d: the number of parameters of the problem.
    """
    known, settings, number = kind(algorithm), settings_of(algorithm), name.partition("#")[2]
    return Entry(
        name,
        label,
        settings={k: repr(v) if is_dataclass(v) else v for k, v in settings.items()},
        stateful=bool(leaves(algorithm.init_client(torch.zeros(d)))),
        shown=f"{known.shown} #{number}" if number else known.shown,
        colour=known.colour,
        step=step_size(algorithm)[0],
    )


def aggregate_seeds(entry: Entry, runs: list[SeedRun], goal: Goal) -> Entry:
    """Return the entry with the medians of its seeds, and the interval or range of their rounds."""
    costs = [run.cost for run in runs if run.cost is not None]
    bests = [run.best for run in runs if run.best is not None]
    tests: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run.test.items():
            tests.setdefault(name, []).extend([] if value is None else [value])
    medians = {name: median_low(values) for name, values in tests.items() if values}
    diverged = [run.diverged_at for run in runs if run.diverged_at is not None]
    every = 0 < len(costs) == len(runs)
    rounds = [cost.rounds for cost in costs] if every else []
    found = interval(rounds, rounding_error(rounds)) if len(rounds) >= LEAST_SEEDS else None
    return replace(
        entry,
        **_medians(costs if every else []),
        best=median_low(bests) if bests else None,
        test=medians.get(goal.name),
        tests=medians,
        diverged_at=diverged[0] if diverged else None,
        interval=None if found is None else (max(1.0, found.low), found.high),
        range=(min(rounds), max(rounds)) if 1 < len(rounds) < LEAST_SEEDS else None,
        reached=len(costs),
        runs=runs,
    )


def _medians(costs: Sequence[Cost]) -> dict[str, Any]:
    """Return the median of each cost by name; None where there are none."""
    names = [f.name for f in fields(Cost)]
    return {n: median_low([getattr(cost, n) for cost in costs]) if costs else None for n in names}


def relaxed(entry: Entry, goal: Goal) -> Entry:
    """Return the entry for the easiest target that the held-out rows cannot tell from this one."""
    runs = [replace(run, cost=run.nearly) for run in entry.runs]
    return aggregate_seeds(entry, runs, goal.easier()) if goal.slack else entry


# -- in words


def settings_of_text(text: str) -> dict[str, Any]:
    """Return the hyper-parameters in an algorithm's repr; an expression remains text.

    >>> settings_of_text("Mime(eta=0.1, K=5, base=Momentum(beta=0.9))")
    {'eta': 0.1, 'K': 5, 'base': 'Momentum(beta=0.9)'}
    """
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return {}
    words = call.keywords if isinstance(call, ast.Call) else []
    return {
        word.arg: word.value.value
        if isinstance(word.value, ast.Constant)
        else ast.unparse(word.value)
        for word in words
        if word.arg is not None
    }


def all_settings(entry: Entry) -> dict[str, Any]:
    """Return the settings of an entry; a base optimiser is replaced by its own.

    >>> settings = {"eta": 0.1, "K": 5, "base": "Momentum(beta=0.9)"}
    >>> all_settings(Entry("mime", "mime", settings))
    {'eta': 0.1, 'K': 5, 'beta': 0.9}
    """
    own = {name: value for name, value in entry.settings.items() if name != "base"}
    base = settings_of_text(str(entry.settings.get("base", "")))
    clear = base and not base.keys() & own.keys()
    return own | base if clear else dict(entry.settings)


def stated_settings(entry: Entry) -> dict[str, Any]:
    """Return the settings that repeat the result: K, the step size, and those that may differ.

    Left out is what has the default of its class and was not searched; of a user's own algorithm,
    whose defaults a record does not have, nothing is left out.
    """
    name = "fedavg" if entry.baseline else entry.name.partition("#")[0]
    defaults = {f.name: f.default for f in fields(kind(name).cls)} if name in NAMES else {}
    tried = ("K", "eta_g", "beta")
    searched = {n for c in entry.searched for n in tried if getattr(c, n) is not None}
    always = ("K", entry.step)
    settings = all_settings(entry)
    return {n: settings[n] for n in always if n in settings} | {
        name: value
        for name, value in settings.items()
        if name in searched or name not in defaults or value != defaults[name]
    }


def display_name(entry: Entry) -> str:
    """Return the name of an algorithm with that of its base optimiser.

    >>> display_name(Entry("mime", "mime", {"base": "Momentum(beta=0.9)"}, shown="Mime"))
    'Mime (Momentum)'

    Momentum with beta = 0 is none.

    >>> display_name(Entry("mime", "mime", {"base": "Momentum(beta=0.0)"}, shown="Mime"))
    'Mime'
    """
    base = str(entry.settings.get("base", ""))
    plain_steps = settings_of_text(base) == {"beta": 0.0}
    return entry.shown if not base or plain_steps else f"{entry.shown} ({base.partition('(')[0]})"


def describe(entry: Entry) -> str:
    """Return an algorithm with the settings that repeat its result, for a sentence."""
    settings = settings_in_words(entry)
    return f"{display_name(entry)} with {settings}" if settings else display_name(entry)


def settings_in_words(entry: Entry) -> str:
    """Return the settings that repeat the result, for a sentence."""
    return listed([f"{name} = {setting(v)}" for name, v in stated_settings(entry).items()])


def setting(value: Any) -> str:
    """Return the value of a setting with three digits; whole numbers and words as they are.

    >>> setting(1024), setting(0.0841), setting("II"), setting(False)
    ('1024', '0.0841', 'II', 'False')
    """
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def two_ends(ends: tuple[float, float], between: str) -> str:
    """Return an interval or a range; fractions have two digits.

    >>> two_ends((7.57, 8.46), " to "), two_ends((99.1, 120.2), " to "), two_ends((7, 12), " … ")
    ('7.6 to 8.5', '99 to 120', '7 … 12')
    """
    return between.join(f"{end:.2g}" if end < 99.5 else f"{end:.0f}" for end in ends)


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
