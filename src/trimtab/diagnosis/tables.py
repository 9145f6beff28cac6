"""The rows of a diagnosis: one for each point, one for each client."""

from math import isfinite, nan
from statistics import median
from typing import Any

from trimtab.diagnosis import measure, optimum
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.measure import Gradients, Hessians
from trimtab.diagnosis.panel import Panel

OUTLIER = 3.0  # times the median


def of_points(
    case: Case,
    first: Gradients,
    here: Gradients,
    best: Hessians,
    start: Hessians | None,
    until: float,
) -> tuple[list[dict[str, Any]], float]:
    """Return a row for each point, the best last; and the largest B seen, NaN if none was."""
    panel, problem = case.panel, case.panel.problem
    if case.best is case.x0:
        return [_row("start", case.f0, here, None, best)], nan
    tried: list[tuple[str, float, Gradients, Hessians | None]] = [("start", case.f0, first, start)]
    if not case.budget.out_of_time(until):
        steep = max(best.L, start.L if start is not None else 0.0)
        few = optimum.after_rounds(panel, case.x0, steep, case.seed, case.budget.until(until))
        if few is not None:
            there = measure.at_point(panel, few)
            name = f"after {optimum.ROUNDS} rounds of FedAvg"
            tried.append((name, problem.loss(few), there, None))
    ratios = [measure.ratio(panel.p, there, here) for _, _, there, _ in tried]
    rows = [
        _row(where, loss, there, ratio, hessians)
        for (where, loss, there, hessians), ratio in zip(tried, ratios, strict=True)
    ]
    rows.append(_row(case.where, problem.loss(case.best), here, None, best))
    exact = panel.can.closed_forms if case.budget.decomposes(problem.d, until) else None
    return rows, max(ratios) if exact is None else exact.B


def _row(
    where: str, loss: float, at: Gradients, B: float | None, hessians: Hessians | None
) -> dict[str, Any]:
    row = {"where": where, "loss": loss, "zeta": at.zeta, "G": at.G, "B": B}
    row |= {"gradient": float(at.mean.norm())}
    row |= {name: getattr(hessians, name, None) for name in ("L", "delta")}
    return row


def of_clients(panel: Panel, here: Gradients, hessians: Hessians) -> list[dict[str, Any]]:
    """Return a row for each client, those that differ most first; outliers are named."""
    known = [[v for v in sizes if isfinite(v)] for sizes in (here.apart, hessians.apart)]
    usual = [median(values or [0.0]) for values in known]
    top = [max(values, default=0.0) or 1.0 for values in known]
    rows = []
    for j, i in enumerate(panel.clients):
        sizes = here.apart[j], hessians.apart[j]
        far = [
            word
            for word, size, middle in zip(("gradient", "Hessian"), sizes, usual, strict=True)
            if size > OUTLIER * middle > 0 and len(panel.clients) > 2
        ]
        rows.append(
            {
                "client": i,
                "weight": float(panel.p[j]),
                "gradient": sizes[0],
                "hessian": sizes[1],
                "measured": hessians.measured[j],
                "outlier": f"outlier by {' and '.join(far)}" if far else "",
            }
        )

    def how_far(row: dict[str, Any]) -> float:
        second = row["hessian"] / top[1] if isfinite(row["hessian"]) else 0.0
        return float(row["gradient"] / top[0] + second)

    return sorted(rows, key=how_far, reverse=True)
