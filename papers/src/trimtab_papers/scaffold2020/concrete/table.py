"""The demo as a table: rounds to the target at SGD's rates and at each algorithm's own best."""

from trimtab_papers.names import TITLES
from trimtab_papers.records import Records
from trimtab_papers.scaffold2020.concrete.cells import CUTS, DECADES, FINE, TARGET, of_cut


def table(records: Records) -> str:
    """Return the rounds to the target, at SGD's rates and at each algorithm's own best."""
    rows = [
        f"| cut | algorithm | SGD's rate, powers of ten | rounds to {TARGET:g} "
        "| SGD's rate, factors of 1.8 | rounds | own best rate | rounds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cut in CUTS:
        tuned = of_cut(records, cut)
        if "sgd" not in tuned:
            continue
        coarse, fine = (tuned["sgd"].best(grid).eta for grid in (DECADES, FINE))
        for name, each in tuned.items():
            best = each.best()
            rows.append(
                f"| {CUTS[cut]} | {TITLES[name]} | {coarse:g} | {each.at(coarse).told(each.R)} "
                f"| {fine:.3g} | {each.at(fine).told(each.R)} | {best.eta:.3g} "
                f"| {best.told(each.R)} |"
            )
    rows.append("| the slides | | SCAFFOLD < SGD < FedAvg | | | | FedAvg's < SGD's | |")
    return "\n".join(rows)
