"""The tables of a diagnosis: a row for each point, and one for each client."""

from dataclasses import dataclass
from math import isfinite, nan
from statistics import median

from trimtab.diagnosis import measure, optimum
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.hessians import Hessians
from trimtab.diagnosis.measure import Gradients
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.rows import ClientRow, PointRow

OUTLIER = 3.0  # a client is an outlier if it is > 3 x as far off as the median client


@dataclass(frozen=True)
class Points:
    """What was measured at each point, the best last."""

    rows: tuple[PointRow, ...]
    B: float  # the largest B seen; NaN if none was


def of_points(
    case: Case,
    first: Gradients,
    here: Gradients,
    best: Hessians,
    start: Hessians | None,
    until: float,
) -> Points:
    """Return a row for the start, for a point on the way, and for the best point."""
    panel, problem = case.panel, case.panel.problem
    if case.best is case.x0:
        return Points((_row("start", case.f0, here, None, best),), nan)
    B = measure.ratio(panel.p, first, here)
    rows, ratios = [_row("start", case.f0, first, B, start)], [B]
    if not case.budget.out_of_time(until):
        steep = max(best.L, start.L if start is not None else 0.0)
        x = optimum.after_rounds(panel, case.x0, steep, case.seed, case.budget.until(until))
        if x is not None:
            on_the_way = measure.at_point(panel, x)
            B = measure.ratio(panel.p, on_the_way, here)
            where = f"after {optimum.ROUNDS} rounds of FedAvg"
            rows.append(_row(where, panel.can.loss(x), on_the_way, B, None))
            ratios.append(B)
    rows.append(_row(case.where, panel.can.loss(case.best), here, None, best))
    exact = panel.can.closed_forms if case.budget.decomposes(problem.d, until) else None
    return Points(tuple(rows), max(ratios) if exact is None else exact.B)


def _row(
    where: str, loss: float, at: Gradients, B: float | None, hessians: Hessians | None
) -> PointRow:
    return PointRow(
        where=where,
        loss=loss,
        zeta=at.zeta,
        G=at.G,
        B=B,
        gradient=float(at.mean.norm()),
        L=None if hessians is None else hessians.L,
        delta=None if hessians is None else hessians.delta,
    )


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
