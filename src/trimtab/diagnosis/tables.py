"""The tables of a diagnosis: a row for each point, and one for each client."""

from dataclasses import dataclass
from math import isfinite, nan
from statistics import median

from trimtab.core import Vector
from trimtab.diagnosis import measure, optimum
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.first_facts import Early
from trimtab.diagnosis.hessians import Hessians, HessiansSeen
from trimtab.diagnosis.intervals import at_point
from trimtab.diagnosis.measure import Gradients, Ratio
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.rows import ClientRow, PointRow

OUTLIER = 3.0  # a client is an outlier if it is > 3 x as far off as the median client


@dataclass(frozen=True)
class Points:
    """What was measured at each point, the best last."""

    rows: tuple[PointRow, ...]
    B: float  # the largest B seen; NaN if none was
    ratios: tuple[Ratio, ...] = ()  # of which B is the largest; empty where it is exact


def of_points(
    case: Case, first: Gradients, early: Early, here: Gradients, seen: HessiansSeen, until: float
) -> Points:
    """Return a row for the start, for a point on the way, and for the best point."""
    best, start = seen.here, seen.start
    panel, problem = case.panel, case.panel.problem

    def row(
        where: str, x: Vector, at: Gradients, ratio: Ratio | None, hessians: Hessians | None
    ) -> PointRow:
        B = None if ratio is None else float(ratio.of(panel.p))
        ratios = () if ratio is None else (ratio,)
        found = at_point(where, x, early.draws, panel.p, at, hessians, None, ratios, B).estimates()
        return PointRow(
            where=where,
            loss=panel.loss(x),
            zeta=at.zeta,
            G=at.G,
            B=B,
            gradient=float(at.mean.norm()),
            L=None if hessians is None else hessians.L,
            delta=None if hessians is None else hessians.delta,
            intervals={name: one for name, one in found.items() if isfinite(one.value)},
        )

    if case.best is case.x0:
        return Points((row("start", case.x0, here, None, best),), nan)
    ratio = measure.ratio(first, here)
    rows, ratios = [row("start", case.x0, first, ratio, start)], [ratio]
    if early.x is not None and early.gradients is not None:
        ratio = measure.ratio(early.gradients, here)
        rows.append(row(optimum.ON_THE_WAY, early.x, early.gradients, ratio, None))
        ratios.append(ratio)
    rows.append(row(case.where, case.best, here, None, best))
    exact = panel.closed_forms if case.budget.decomposes(problem.d, until) else None
    if exact is not None:
        return Points(tuple(rows), exact.B)
    return Points(tuple(rows), max(float(r.of(panel.p)) for r in ratios), tuple(ratios))


def of_clients(panel: Panel, here: Gradients, hessians: Hessians) -> tuple[ClientRow, ...]:
    """Return a row for each client, those that differ most first; outliers are named."""
    known = [[v for v in sizes if isfinite(v)] for sizes in (here.apart, hessians.apart)]
    usual = [median(values or [0.0]) for values in known]
    top = [max(values, default=0.0) or 1.0 for values in known]
    rows = []
    for j, client in enumerate(panel.clients):
        sizes = here.apart[j], hessians.apart[j]
        far = [
            word
            for word, size, middle in zip(("gradient", "Hessian"), sizes, usual, strict=True)
            if size > OUTLIER * middle > 0 and len(panel.clients) > 2
        ]
        rows.append(
            ClientRow(
                client=client,
                weight=float(panel.p[j]),
                gradient=sizes[0],
                hessian=sizes[1],
                measured=hessians.measured[j],
                outlier=f"outlier by {' and '.join(far)}" if far else "",
            )
        )

    def how_far(row: ClientRow) -> float:
        second = row.hessian / top[1] if isfinite(row.hessian) else 0.0
        return row.gradient / top[0] + second

    return tuple(sorted(rows, key=how_far, reverse=True))
