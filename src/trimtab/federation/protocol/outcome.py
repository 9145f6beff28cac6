"""What a round and a run leave behind."""

from dataclasses import asdict, dataclass
from typing import Any

from trimtab.core import State, Vector
from trimtab.federation.events import SiteReport


@dataclass(frozen=True)
class FederatedRound:
    """What a committed round left behind."""

    r: int  # counts from 1
    x: Vector
    server: State
    cohort: tuple[str, ...]  # those that answered
    bytes_down: int
    bytes_up: int
    seconds: float
    drift: float  # mean |dx_i|
    cosine: float  # agreement of the moves
    metrics: dict[str, float]  # of the x that the sites received: that of round r - 1
    sites: dict[str, SiteReport]
    absent: dict[str, str]  # those that sat out, and why

    def to_journal(self) -> dict[str, Any]:
        """Return what the journal keeps of it, besides its number."""
        facts = {k: v for k, v in vars(self).items() if k not in ("r", "x", "server")}
        return facts | {"sites": {name: asdict(report) for name, report in self.sites.items()}}


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    r: int
    reached: bool  # whether x meets the target
    metrics: dict[str, float]  # of x
