"""What a comparison found: its entries, the advice, and its form on disk."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trimtab._files import plain, read_json
from trimtab.errors import BadArgument
from trimtab.problems.clients import ClientSummary
from trimtab.studies import export
from trimtab.studies.advice import verdict
from trimtab.studies.entry import Entry
from trimtab.studies.goal import Goal
from trimtab.studies.record import SelectedModel


@dataclass(frozen=True)
class About:
    """How a comparison was made: what a reader must know to believe it, or to make it again."""

    split: float | str = "none"  # the share of the samples that was held out to tune and stop on
    tested_on: str = "test"  # the data of the last numbers; "training" where there are no others
    seeds: tuple[int, ...] = ()  # those that are reported; the search has its own
    budget: float | None = None  # sample gradients for each algorithm; None: no limit
    complete: bool = True
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        about: dict[str, Any] = plain(asdict(self))
        return about

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "About":
        """Read what `to_json` wrote."""
        tuples = {name: tuple(content[name]) for name in ("seeds", "notes")}
        return cls(**content | tuples)


@dataclass(repr=False)
class Comparison:
    """What `compare` found."""

    problem: str
    goal: Goal  # without a target: a run that had none
    entries: list[Entry]
    advice: str
    folder: Path | None = None
    page: Path | None = None
    about: About = field(default_factory=lambda: About())
    chosen: SelectedModel | None = None  # the model that a run leaves
    population: ClientSummary | None = None  # who the clients are

    @property
    def metric(self) -> str:
        """The name of what the algorithms are judged by."""
        return self.goal.name

    @property
    def target(self) -> float | None:
        """What was to be reached."""
        return self.goal.target

    @property
    def advised(self) -> list[str]:
        """The labels of the algorithm to use, and of those to which no difference was found."""
        return [] if self.target is None else verdict(self.entries, self.goal).labels

    def to_json(self) -> dict[str, Any]:
        """Return what `trimtab compare --json` prints."""
        return {
            "problem": self.problem,
            "target": self.target,
            "advice": self.advice,
            "advised": self.advised,
            "page": None if self.page is None else str(self.page),
            "algorithms": [entry.to_json() for entry in self.entries],
            "metric": self.metric,
            "prefer": self.goal.unit,
            "slack": self.goal.slack,
            **self.about.to_json(),
        }

    def to_csv(self) -> str:
        """Return the table as CSV: one row an algorithm, numbers in full."""
        return export.to_csv(self)

    def to_latex(self) -> str:
        """Return the table for a paper (booktabs), the best of each column bold."""
        return export.to_latex(self)

    def to_pandas(self) -> Any:
        """Return the table as a DataFrame of pandas."""
        return export.to_pandas(self)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.entries)} algorithms on {self.problem}: {self.advice}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the advice, and the table."""
        return export.to_html(self)

    def to_record(self) -> dict[str, Any]:
        """Return what `read_comparison` needs to show the result again."""
        return {
            **self.goal.to_json(),
            "advice": self.advice,
            "entries": [entry.to_record() for entry in self.entries],
            "about": self.about.to_json(),
            "population": None if self.population is None else self.population.to_json(),
        }


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
    goal = Goal.from_json(outcome)
    entries = [Entry.from_record(entry) for entry in outcome["entries"]]
    about = About.from_json(outcome["about"])
    name = content["settings"]["problem"]
    result = Comparison(name, goal, entries, outcome["advice"], folder, about=about)
    if outcome["population"] is not None:
        result.population = ClientSummary.from_json(outcome["population"])
    return result
