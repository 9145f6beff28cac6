"""What a cell on EMNIST is asked, and what its record holds: readers and writers meet here."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trimtab.problems.partition import Scale
from trimtab.studies.fragility import Again
from trimtab_papers.names import takes_base
from trimtab_papers.records import Record, Records

HELD = 10  # a run stays at a target if the mean of 10 rounds is >= the target
SMALL = 12  # small clients have every 12th image
TARGETS = (0.45, 0.5, 0.6)  # Every record tells the rounds to these accuracies.


@dataclass(frozen=True)
class Setting:
    """What a cell runs; the defaults are those of section 7 of the SCAFFOLD paper."""

    algorithm: str
    epochs: int
    similarity: float
    S: int = 20
    N: int = 100
    target: float | None = 0.5  # The race is for it; None: for the accuracy at the limit.
    until: float = 0.6  # The winner runs on until it stays there, or to the limit.
    limit: int = 1000  # The rounds of every run are <= limit.
    network: bool = False  # True: 200 hidden units, instead of logistic regression.
    pixels: Scale = "unit"
    random_start: bool = False  # False: it starts at x = 0.
    every: int = 1  # Take every so many-th sample.
    seed: int = 0
    eta: float | None = None  # None: the step size is raced for.
    a: float = 0.1  # The share of the new gradient in those with a momentum of their own.
    classes: Literal[47, 62] = 47
    base: str = "none"  # The optimiser of those that take one.
    eta_g: float = 1.0  # The step at the server of those with a base.
    around: float | None = None  # The race is between this step size and its two neighbours.

    @property
    def name(self) -> str:
        """Tell the cells of a table apart."""
        parts = [self.algorithm, str(self.epochs), f"{self.similarity:g}"]
        parts += [self.base] if takes_base(self.algorithm) else []
        parts += [f"etag{self.eta_g:g}"] if self.eta_g != 1 else []
        parts += [f"a{self.a:g}"] if self.a != 0.1 else []
        parts += [f"S{self.S}"] if self.S != 20 else []
        parts += ["standardised"] if self.pixels != "unit" else []
        parts += ["random-start"] if self.random_start else []
        parts += [f"every{self.every}"] if self.every != 1 else []
        parts += [f"eta{self.eta:.4g}"] if self.eta is not None else []
        parts += [f"seed{self.seed}"] if self.seed else []
        return "-".join(parts)


@dataclass(frozen=True)
class Candidate:
    """A step size in the race: its rounds, the first at the target, and its best accuracy."""

    eta: float
    rounds: int
    first: int | None
    best: float | None
    diverged: bool


@dataclass(frozen=True)
class RacedRecord:
    """The race for a step size, and the winner's accuracy after every round.

    again is the winner from a start moved by a millionth; None: it was not tried.
    """

    setting: Setting
    eta: float
    candidates: tuple[Candidate, ...]
    accuracy: tuple[float, ...]
    best: float | None
    again: Again | None
    K: int
    data: str
    bytes_a_round: int | None

    @property
    def limit(self) -> int:
        """The rounds that it had."""
        return self.setting.limit

    @property
    def fragile(self) -> bool | None:
        """Whether the winner comes out otherwise from a moved start; None: it was not tried."""
        return None if self.again is None else self.again.fragile

    def to_json(self) -> Record:
        """Return what the file holds."""
        return {
            "setting": asdict(self.setting),
            "K": self.K,
            "data": self.data,
            "eta": self.eta,
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "accuracy": list(self.accuracy),
            "rounds": {
                f"{target:g}": [first(self.accuracy, target), stays(self.accuracy, target)]
                for target in TARGETS
            },
            "best": self.best,
            "again": None if self.again is None else asdict(self.again),
            "limit": self.limit,
            "bytes a round": self.bytes_a_round,
        }

    @classmethod
    def from_json(cls, record: Record) -> "RacedRecord":
        """Read a record; what an older one does not name was as usual, or was not tried."""
        again: dict[str, Any] | None = record.get("again")
        return cls(
            setting=Setting(**record["setting"]),
            eta=record["eta"],
            candidates=tuple(Candidate(**row) for row in record["candidates"]),
            accuracy=tuple(record["accuracy"]),
            best=record["best"],
            again=None if again is None else Again(**again),
            K=record["K"],
            data=record["data"],
            bytes_a_round=record["bytes a round"],
        )


def read_raced(records: Records) -> list[RacedRecord]:
    """Return the records of cells on EMNIST."""
    return [RacedRecord.from_json(record) for record in records.values()]


def first(accuracy: Sequence[float], target: float) -> int | None:
    """Return the first round at or above the target.

    >>> first([0.1, 0.5, 0.4], 0.5)
    2
    """
    return next((r for r, a in enumerate(accuracy, 1) if a >= target), None)


def stays(accuracy: Sequence[float], target: float) -> int | None:
    """Return the first round r such that rounds r to r + 9 average at or above the target.

    >>> stays([0.1, 0.6, *[0.5] * 9], 0.5)
    2
    """
    return next(
        (
            r + 1
            for r in range(len(accuracy) - HELD + 1)
            if sum(accuracy[r : r + HELD]) / HELD >= target
        ),
        None,
    )
