"""What a site or a server says: data with a type, a range and a length, checked here alone.

A claim that is not of its kind is a `NotBelieved`, whose sentence says which one and why. Who made
it sits out; nothing else comes of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from sys import float_info
from types import MappingProxyType
from typing import Any

from torch import Tensor

from trimtab.federation.log import printable
from trimtab.federation.message import Message
from trimtab.problems.metrics import Metric

MOST_SAMPLES = 1 << 48  # a site has <= this many samples
MOST_NUMBER = float_info.max  # a metric is <= this, up to its sign, for a run may diverge
MOST_SECONDS = 1e8  # a site's work takes <= this, three years
MOST_NAMES = 64  # a reply has <= this many metrics
MOST_LETTERS = 64  # a name has <= this many letters
SLACK = 1e-6  # rounding takes a metric <= this beyond its range
Ranges = Mapping[str, Metric]


class NotBelieved(ValueError):
    """Somebody says what cannot be."""


@dataclass(frozen=True)
class Report:
    """What a sound reply says besides its arrays; what a kind of reply does not have is 0."""

    arrays: dict[str, Tensor]
    metrics: dict[str, float]
    tested: int  # samples that the metrics are of
    n: int  # samples to learn from
    d: int
    dtype: str
    seconds: float
    start: bool  # whether the state is that of a client that was never accepted


def read_report(reply: Message, ranges: Ranges = MappingProxyType({})) -> Report:
    """Return what a reply says, with metrics in these ranges; a NotBelieved tells what cannot be.

    >>> from trimtab.problems.metrics import ACCURACY
    >>> read_report(Message({"tested": 3, "metrics": {"accuracy": 0.5}})).metrics
    {'accuracy': 0.5}
    >>> read_report(Message({"metrics": {"accuracy": 7.0}}), {"accuracy": ACCURACY})
    Traceback (most recent call last):
    trimtab.federation.protocol.claims.NotBelieved: its accuracy is 7.0, outside 0 … 1
    """
    header = reply.header
    return Report(
        arrays=reply.arrays,
        metrics=_metrics(header.get("metrics", {}), ranges),
        tested=whole("tested", header.get("tested", 0), 0, MOST_SAMPLES),
        n=whole("n", header.get("n", 0), 0, MOST_SAMPLES),
        d=whole("d", header.get("d", 0), 0, MOST_SAMPLES),
        dtype=word("dtype", header.get("dtype", "")),
        seconds=_number("seconds", header.get("seconds", 0.0), 0.0, MOST_SECONDS),
        start=header.get("start", False) is True,
    )


def whole(name: str, value: Any, least: int, most: int) -> int:
    """Return a whole number within its range."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise NotBelieved(f"its {name} is {shown(value)}, which is no whole number")
    if not least <= value <= most:
        raise NotBelieved(f"its {name} is {shown(value)}, outside {least} … {most}")
    return value


def word(name: str, value: Any) -> str:
    """Return a short string that a line can hold as it is."""
    if not isinstance(value, str) or len(value) > MOST_LETTERS or not value.isprintable():
        raise NotBelieved(f"its {name} is {shown(value)}, which is no name")
    return value


def shown(value: Any) -> str:
    """Return whatever was said as a few letters of one line.

    >>> shown(10**70), shown([[]] * 1000)
    ('a number of more than 60 digits', '[[], [], [], [], [], [], [], [], [], [], …')
    """
    if isinstance(value, int) and abs(value) >= 10**60:
        return "a number of more than 60 digits"
    return printable(repr(value), 40)


def _number(name: str, value: Any, least: float, most: float, slack: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotBelieved(f"its {name} is {shown(value)}, which is no number")
    # Python compares whole numbers of any length with floats.
    if not least - slack <= value <= most + slack:
        raise NotBelieved(f"its {name} is {shown(value)}, outside {least:g} … {most:g}")
    return float(value)


def _metrics(named: Any, ranges: Ranges) -> dict[str, float]:
    """Return the metrics, each within its range; those that were not finite come as None."""
    if not isinstance(named, dict):
        raise NotBelieved(f"its metrics are {shown(named)}, which is no table of numbers")
    if len(named) > MOST_NAMES:
        raise NotBelieved(f"it has {len(named)} metrics, more than {MOST_NAMES}")
    found = {}
    for name, value in named.items():
        if value is None:
            continue
        word("metric", name)
        known = ranges.get(name)
        low, high = (known.low, known.high) if known else (-MOST_NUMBER, MOST_NUMBER)
        least, most = max(low, -MOST_NUMBER), min(high, MOST_NUMBER)
        found[name] = _number(name, value, least, most, SLACK)
    assert all(map(isfinite, found.values()))
    return found
