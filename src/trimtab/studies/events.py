"""What a study tells while it runs."""

from dataclasses import dataclass

from trimtab.core import Algorithm
from trimtab.studies.record import RoundLine


@dataclass(frozen=True)
class RoundDone:
    """A round is over: of which run, by which algorithm, and its line in the record."""

    label: str
    algorithm: Algorithm
    line: RoundLine


@dataclass(frozen=True)
class CellDone:
    """A cell of a reproduction has its record."""

    name: str
    seconds: float
