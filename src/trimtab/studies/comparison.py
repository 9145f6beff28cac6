"""The result of a comparison or a run: its entries, the advice, and its form on disk."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from trimtab._files import plain, read_json, write_json
from trimtab.core.sections import sections_html
from trimtab.errors import BadArgument
from trimtab.problems.clients import ClientSummary
from trimtab.studies.advice import verdict
from trimtab.studies.entry import Entry
from trimtab.studies.goal import Goal
from trimtab.studies.record import SelectedModel
from trimtab.studies.sections import sections, to_csv, to_latex, to_pandas


@dataclass(frozen=True)
class About:
    """How a comparison was made: what a reader must know to believe it, or to repeat it."""

    split: float | str = "none"  # the share of the samples that was held out to tune and stop on
    tested_on: str = "test"  # the data of the last numbers; "training" where there are no others
    seeds: tuple[int, ...] = ()  # those that are reported; the search has its own
    budget: float | None = None  # sample gradients for each algorithm; None: no limit
    complete: bool = True
    notes: tuple[str, ...] = ()
    target_from: str = ""  # a sentence about where the target comes from; empty if it was given
    round_cost: float = 0.0  # the sample gradients that a round costs besides its own
    finished: bool = True  # False while the comparison goes on, or if it was interrupted

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        about: dict[str, Any] = plain(asdict(self))
        return about

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "About":
        """Read what `to_json` wrote."""
        tuples = {name: tuple(content[name]) for name in ("seeds", "notes")}
        known = {f.name for f in fields(cls)}
        return cls(**{n: value for n, value in content.items() if n in known} | tuples)


@dataclass(repr=False)
class Comparison:
    """The result of `compare`, or of `run` as a comparison of one algorithm."""

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
        return to_csv(self)

    def to_latex(self) -> str:
        """Return the table for a paper (booktabs), the best of each column bold."""
        return to_latex(self)

    def to_pandas(self) -> Any:
        """Return the table as a DataFrame of pandas."""
        return to_pandas(self)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.entries)} algorithms on {self.problem}: {self.advice}>"

    def _repr_html_(self) -> str:
        return f"<div>{sections_html(sections(self), figures=False)}</div>"

    # -- on disk

    def save(self) -> None:
        """Write the result into the record of its folder, which exists; `load` reads it there."""
        assert self.folder is not None
        path = record_path(self.folder)
        outcome = {
            **self.goal.to_json(),
            "advice": self.advice,
            "entries": [entry.to_record() for entry in self.entries],
            "about": self.about.to_json(),
            "population": None if self.population is None else self.population.to_json(),
        }
        write_json(path, read_json(path) | {"outcome": outcome})

    @classmethod
    def load(cls, folder: str | Path) -> "Comparison":
        """Return the comparison, or the run, that a folder holds.

        folder: the folder that `compare` or `run` wrote, or still writes: `about.finished` says it.
        """
        folder = Path(folder)
        content = read_json(record_path(folder))
        outcome = content.get("outcome")
        if outcome is None:
            raise BadArgument(
                "resume",
                "{folder} is not finished; repeat its command with {resume:True} first.",
                folder=folder,
            )
        try:
            clients = outcome["population"]
            return cls(
                problem=content["settings"]["problem"],
                goal=Goal.from_json(outcome),
                entries=[Entry.from_record(entry) for entry in outcome["entries"]],
                advice=outcome["advice"],
                folder=folder,
                about=About.from_json(outcome["about"]),
                chosen=SelectedModel.from_json(content) if "chosen_round" in content else None,
                population=None if clients is None else ClientSummary.from_json(clients),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{record_path(folder)} is damaged ({type(error).__name__}: {error}); restore it, "
                "or run its command again."
            ) from error


def record_path(folder: Path) -> Path:
    """Return the JSON file of a folder: that of a run if there is one, else of a comparison."""
    run = folder / "run.json"
    return run if run.exists() else folder / "compare.json"
