"""What happens in a run, as one process tells another and the command line shows it.

Between processes an event is one JSON object a line. Nothing here needs torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trimtab._files import plain
from trimtab.core.display import format_bytes
from trimtab.errors import BadArgument

Metrics = Mapping[str, float | None]  # None where the number was not finite


@dataclass(frozen=True)
class SiteReport:
    """What a site tells with its reply."""

    metrics: dict[str, float]
    tested: int  # test samples
    seconds: float  # of its own work
    bytes_up: int


@dataclass(frozen=True)
class Traffic:
    """Bytes at the wire so far, by site."""

    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundCommitted:
    """A round that counts."""

    r: int
    cohort: Sequence[str]  # those that answered
    bytes_down: int
    bytes_up: int
    seconds: float
    drift: float | None  # the mean |dx_i|
    cosine: float | None  # the agreement of the updates
    metrics: Metrics  # of the x that the sites received
    absent: dict[str, str]  # those that sat out, and why
    sites: dict[str, SiteReport]
    wire: Traffic = Traffic()


@dataclass(frozen=True)
class AuditDone:
    """How far the controls of server and sites agree."""

    deviation: float | None  # |c - sum p_i c_i|; NaN or None if a site did not show its c_i
    largest: float  # max |c_i|
    missing: dict[str, str]  # who did not, and why
    ok: bool = True  # whether all did, and the deviation is rounding
    tolerance: float = 0.0  # what rounding explains
    suspects: dict[str, str] = field(default_factory=dict)  # whose c_i is out of proportion
    wire: Traffic = Traffic()

    @property
    def sentence(self) -> str:
        """What it means."""
        if self.missing:
            without = ", ".join(f"{name} ({why})" for name, why in self.missing.items())
            return f"no audit without {without}; start those sites and repeat it."
        said = f"|c - sum p_i c_i| = {self.deviation:.3g}, max |c_i| = {self.largest:.3g}"
        if self.ok:
            return f"{said}: rounding."
        whose = "; ".join(f"site {name}: {why}" for name, why in self.suspects.items())
        return f"{said}: that is not rounding ({whose or 'no site stands out'})."


@dataclass(frozen=True)
class Ended:
    """The end of a run."""

    r: int
    reached: bool  # whether x meets the target
    metrics: Metrics  # of x


@dataclass(frozen=True)
class Line:
    """A line for the log."""

    line: str
    warning: bool = False


@dataclass(frozen=True)
class ReplySize:
    """How many bytes the arrays of a reply have at most: the guard takes no larger ones."""

    most: int


@dataclass(frozen=True)
class Failed:
    """The sentence with which a process gave up; `error` is what it was there."""

    sentence: str
    argument: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: Exception) -> "Failed":
        """Return an error as JSON can hold it.

        >>> Failed.of(BadArgument("data", "{path} is empty; pass {data:PATH}.", path="a")).error()
        BadArgument('a is empty; pass data=PATH.')
        """
        if isinstance(error, BadArgument):
            return cls(error.sentence, error.argument, dict(plain(error.facts)))
        return cls(str(error))

    def error(self) -> ValueError:
        """Return the error, to be raised in this process."""
        if self.argument is None:
            return ValueError(self.sentence)
        return BadArgument(self.argument, self.sentence, **self.facts)


Event = RoundCommitted | AuditDone | Ended
_KINDS: dict[str, type[Any]] = {
    "round": RoundCommitted,
    "audit": AuditDone,
    "end": Ended,
    "line": Line,
    "reply_size": ReplySize,
    "error": Failed,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_json(event: Event | Line | Failed | ReplySize) -> dict[str, Any]:
    """Return an event as JSON holds it.

    >>> to_json(Ended(3, False, {"loss": float("nan")}))
    {'event': 'end', 'r': 3, 'reached': False, 'metrics': {'loss': None}}
    """
    return {"event": _NAMES[type(event)]} | dict(plain(asdict(event)))


def from_json(content: Mapping[str, Any]) -> Event | Line | Failed | ReplySize:
    """Return what `to_json` wrote."""
    facts = {name: value for name, value in content.items() if name != "event"}
    if "sites" in facts:
        facts["sites"] = {name: SiteReport(**report) for name, report in facts["sites"].items()}
    if "wire" in facts:
        facts["wire"] = Traffic(**facts["wire"])
    event: Event | Line | Failed | ReplySize = _KINDS[content["event"]](**facts)
    return event


def round_text(event: RoundCommitted) -> str:
    """Return a round as one line."""
    asked = len(event.cohort) + len(event.absent)
    return (
        f"round {event.r}: {len(event.cohort)} of {asked} sites, "
        f"{format_bytes(event.bytes_up)} up, {format_bytes(event.bytes_down)} down, "
        f"drift {number_text(event.drift)}, {metrics_text(event.metrics)}, "
        f"{event.seconds:.1f} s"
    )


def metrics_text(metrics: Metrics) -> str:
    """Return accuracy and loss, and whatever else there is.

    >>> metrics_text({"loss": 0.43219, "accuracy": 0.8})
    'accuracy 0.8, loss 0.4322'
    """
    first = [name for name in ("accuracy", "loss") if name in metrics]
    names = first + [name for name in metrics if name not in first]
    return ", ".join(f"{name} {number_text(metrics[name])}" for name in names) or "no metric"


def number_text(value: float | None) -> str:
    """Return a number in four digits; a dash for none."""
    return "-" if value is None else f"{value:.4g}"
