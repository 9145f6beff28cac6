"""What a run costs until its target: rounds, exchanges, bytes, sample gradients, seconds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trimtab.errors import BadArgument
from trimtab.studies.record import RoundLine

Unit = Literal["rounds", "exchanges", "bytes", "work"]
"""What may be preferred: communication rounds, exchanges, bytes, or sample gradients at clients."""

WORDS: dict[Unit, str] = {
    "rounds": "rounds",
    "exchanges": "exchanges",
    "bytes": "bytes",
    "work": "sample gradients",
}


@dataclass(frozen=True)
class Cost:
    """What some rounds cost."""

    rounds: int
    exchanges: int
    bytes: int
    work: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self)


def cost_of(lines: Sequence[RoundLine]) -> Cost:
    """Add up what rounds cost."""
    return Cost(
        rounds=len(lines),
        exchanges=sum(line.exchanges for line in lines),
        bytes=sum(line.bytes_down + line.bytes_up for line in lines),
        work=sum(line.work for line in lines),
        seconds=sum(line.seconds for line in lines),
    )


def spent(lines: Sequence[RoundLine], unit: Unit) -> float:
    """Return what rounds cost in one unit."""
    return float(getattr(cost_of(lines), unit))


def unit_of(prefer: str) -> Unit:
    """Return a unit, or refuse what is none."""
    for unit in WORDS:
        if prefer == unit:
            return unit
    raise BadArgument(
        "prefer", "{prefer:{_given}}; pass rounds, exchanges, bytes or work.", _given=prefer
    )
