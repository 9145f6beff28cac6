"""What the sites measure, taken together: means by enrolled sizes, and whether a target is met."""

import logging
from collections.abc import Mapping

from trimtab.core import nbytes
from trimtab.federation.events import SiteReport
from trimtab.federation.protocol.claims import NotBelieved, Report
from trimtab.federation.storage.ledger import Member
from trimtab.problems.metrics import ACCURACY, LOSS, Metric
from trimtab.studies.goal import Goal

log = logging.getLogger("trimtab.federation.protocol")

WITNESSES = 3  # with >= 3 sites that test, none of them meets a target alone


def report_of(member: Member, reply: Report) -> SiteReport:
    """Return what a site reports; it counts by the test samples with which it enrolled."""
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
    """Return what is to be reached: the problem's metric, else accuracy or loss.

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
    """Tell whether x meets the target: by the mean, and by the mean without any one site.

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
        log.warning("the target is met by the numbers of %s alone; nobody else tests", who)
        return True
    for name in testing:
        others = mean_metrics([report for other, report in reports.items() if other != name])
        if not goal.reached(others):
            log.warning("the target would be met by the numbers of %s alone; rounds go on", name)
            return False
    return True
