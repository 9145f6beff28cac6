"""What the server accepts of a site: fields with a type, a range and a length, metrics, norms.

A field that is not of its kind raises `NotBelieved`, whose sentence says which one and why. The
site sits out, and nothing else follows.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from statistics import median
from sys import float_info
from types import MappingProxyType
from typing import Any

from torch import Tensor

from trimtab.commit import START, Accepted
from trimtab.core import nbytes
from trimtab.federation.events import SiteReport
from trimtab.federation.log import printable
from trimtab.federation.message import Message
from trimtab.federation.storage.ledger import Member
from trimtab.problems.metrics import ACCURACY, LOSS, Metric, ranges_of
from trimtab.problems.problem import Problem, own_metric
from trimtab.problems.supervised.problem import Supervised
from trimtab.studies.goal import Goal

log = logging.getLogger("trimtab.federation.protocol")

MOST_SAMPLES = 1 << 48  # a site has <= this many samples
MOST_NUMBER = float_info.max  # a metric is <= this, up to its sign, for a run may diverge
MOST_SECONDS = 1e8  # a site's work takes <= this, three years
MOST_NAMES = 64  # a reply has <= this many metrics
MOST_LETTERS = 64  # a name has <= this many letters
SLACK = 1e-6  # rounding takes a metric <= this beyond its range
WITNESSES = 3  # With >= 3 sites that test, none of them meets a target alone.
ENOUGH = 3  # With < 3 replies there is nothing to compare an update with.
ABOVE, ALWAYS = 10.0, 30.0  # An update has <= 10 x the usual norm, and <= 30 x the median.
ROUNDING = 1e-6  # Norms <= 1e-6 max(1, |x|) are rounding, as near the optimum.
Ranges = Mapping[str, Metric | None]
"""The metrics that a problem defines, with their ranges; None for a range that is not known."""
_STATE, _DIGEST = re.compile(r"start|[0-9a-f]{1,40}"), re.compile(r"[0-9a-f]{64}|")


class NotBelieved(ValueError):
    """A site reports what cannot be."""


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
    accepted: Accepted  # the state that the site has kept with this reply


def read_report(reply: Message, ranges: Ranges | None = None) -> Report:
    """Return what a reply says, with metrics in these ranges; raise NotBelieved if it cannot be.

    >>> from trimtab.problems.metrics import ACCURACY
    >>> read_report(Message({"tested": 3, "metrics": {"accuracy": 0.5}})).metrics
    {'accuracy': 0.5}
    >>> read_report(Message({"metrics": {"accuracy": 7.0}}), {"accuracy": ACCURACY})
    Traceback (most recent call last):
    trimtab.federation.protocol.checks.NotBelieved: its accuracy is 7.0, outside 0 … 1
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
        accepted=Accepted(
            _word("state", header.get("state", START), _STATE),
            _word("digest", header.get("digest", ""), _DIGEST),
        ),
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


def _word(name: str, value: Any, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise NotBelieved(f"its {name} is {shown(value)}, which is none")
    return value


def shown(value: Any) -> str:
    """Return any value as a few letters of one line.

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


def _metrics(named: Any, ranges: Ranges | None) -> dict[str, float]:
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
        if ranges is not None and name not in ranges:
            raise NotBelieved(
                f"it reports {shown(name)}, a metric that the problem does not define"
            )
        known = ranges.get(name) if ranges else None
        low, high = (known.low, known.high) if known else (-MOST_NUMBER, MOST_NUMBER)
        least, most = max(low, -MOST_NUMBER), min(high, MOST_NUMBER)
        found[name] = _number(name, value, least, most, SLACK)
    assert all(map(isfinite, found.values()))
    return found


# -- metrics


def defined_metrics(problem: Problem) -> Ranges:
    """Return the metrics that a problem defines, with their ranges.

    A problem that is no module defines what its server's copy measures at the start.
    """
    own = own_metric(problem)
    known = ranges_of(problem.metrics, own)
    names = {LOSS.name, ACCURACY.name, *problem.metrics, *([own.name] if own else [])}
    if not isinstance(problem, Supervised):
        try:
            names |= set(problem.evaluate(problem.x0()))
        except Exception:  # The server's copy has no data.
            log.info("the server cannot measure; sites report a loss and the target's metric")
    return {name: known.get(name) for name in names}


def report_of(member: Member, reply: Report) -> SiteReport:
    """Return the report of a site; it counts by the test samples with which it enrolled."""
    enrolled = reply.tested if member.tested is None else member.tested
    if reply.tested > enrolled:
        raise NotBelieved(
            f"it tests on {reply.tested} samples, but enrolled with {enrolled}; let it leave and "
            "join again if it has more now"
        )
    bytes_up = nbytes(tuple(reply.arrays.values()))
    return SiteReport(reply.metrics, enrolled, reply.seconds, bytes_up)


def goal_for(
    reports: Mapping[str, SiteReport], target: float | None, metric: Metric | None
) -> Goal:
    """Return the goal of a run: the problem's metric, else accuracy or loss.

    It is accuracy if most sites have one: a single one that claims it changes no goal.
    """
    having = sum("accuracy" in report.metrics for report in reports.values())
    return Goal(metric or (ACCURACY if 2 * having > len(reports) else LOSS), target)


def mean_metrics(reports: list[SiteReport]) -> dict[str, float]:
    """Return the mean of each metric over those that have it, weighted by their test samples.

    >>> mean_metrics([SiteReport({"loss": 1.0}, 1, 0, 0), SiteReport({"loss": 4.0}, 2, 0, 0)])
    {'loss': 3.0}
    """
    means = {}
    for name in dict.fromkeys(name for report in reports for name in report.metrics):
        having = [report for report in reports if name in report.metrics and report.tested]
        if having:
            total = sum(report.tested * report.metrics[name] for report in having)
            means[name] = total / sum(report.tested for report in having)
    return means


def is_reached(
    reports: Mapping[str, SiteReport],
    target: float | None,
    metric: Metric | None,
    witnesses: int = 0,
) -> bool:
    """Return whether x meets the target, by the mean, and by the mean without any one site.

    witnesses: how many sites of the federation test, whether or not they answered now. With fewer
    of them than three, the log says whose numbers decide.
    """
    means = mean_metrics(list(reports.values()))
    goal = goal_for(reports, target, metric)
    if not goal.reached(means):
        return False
    testing = [n for n, report in reports.items() if report.tested and goal.name in report.metrics]
    if max(witnesses, len(testing)) < WITNESSES:
        who = " and ".join(testing)
        log.warning("the target is met by the numbers of %s alone; no other site tests", who)
        return True
    for name in testing:
        others = mean_metrics([report for other, report in reports.items() if other != name])
        if not goal.reached(others):
            log.warning("the target would be met by the numbers of %s alone; rounds go on", name)
            return False
    return True


# -- the norms of updates


def outliers(
    norms: Mapping[str, Mapping[str, float]],
    scale: float,
    last: Mapping[str, Mapping[str, float]],
    first: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, str]:
    """Return the sites whose updates are refused for the norm of an array, and why.

    An array is refused above 10 times the median or the site's own last accepted norm, whichever is
    larger, and always above 30 times the median. The first update of a site that joins has all of
    its c_i in it, so it is compared with the first updates of the others.

    norms: the norm of each array, by site.
    scale: max(1, |x|).
    last: the norms that were accepted from each site last; those of a new site are empty.
    first: the median norms of first updates; default none.

    >>> outliers({"a": {"0": 1.0}, "b": {"0": 2.0}, "c": {"0": 25.0}}, 1.0, {"c": {"0": 2.0}})
    {'c': 'array 0 has norm 25, 12.5 times that of most sites'}
    """
    refused: dict[str, str] = {}
    if len(norms) < ENOUGH:
        return refused
    for place in next(iter(norms.values())):
        most = max(median(own[place] for own in norms.values()), ROUNDING * scale)
        for name, own in norms.items():
            before = last.get(name)
            usual = most if before else max(most, first.get(place, 0.0))
            limit = min(ABOVE * max(usual, (before or {}).get(place, 0.0)), ALWAYS * usual)
            if own[place] > limit:
                times = f"{own[place] / usual:.3g} times that of most sites"
                refused.setdefault(name, f"array {place} has norm {own[place]:.3g}, {times}")
    return refused
