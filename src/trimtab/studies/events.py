"""What long work tells while it goes on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CellDone:
    """A cell of a reproduction has its record, and the seconds that it took."""

    name: str
    seconds: float
