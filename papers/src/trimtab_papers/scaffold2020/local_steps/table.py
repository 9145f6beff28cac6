"""Best K and plateau beside what theory says."""

from trimtab_papers.records import Records
from trimtab_papers.scaffold2020.local_steps.cells import read_sweeps


def table(records: Records) -> str:
    """Return a row for each option and problem."""
    rows = [
        "| option | L/mu | delta/mu | best K | predicted knee | rounds per e-fold: K = 1 | plateau "
        "| delta/mu | sqrt(L/mu) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for sweep in sorted(read_sweeps(records), key=lambda sweep: sweep.option):
        rows.append(
            f"| {sweep.option} | {sweep.kappa} | {sweep.ratio} | {sweep.best_K} "
            f"| {sweep.knee:.3g} | {sweep.by_K[0].rounds:.3g} | {sweep.plateau:.3g} "
            f"| {sweep.ratio} | {sweep.kappa**0.5:.3g} |"
        )
    return "\n".join(rows)
