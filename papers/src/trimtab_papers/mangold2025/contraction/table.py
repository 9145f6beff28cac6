"""Shares of the bounds, and the gradients by N."""

from trimtab_papers.mangold2025.contraction.cells import PROBLEMS, coupled
from trimtab_papers.mangold2025.contraction.gradients import SIZES
from trimtab_papers.numbers import spread
from trimtab_papers.records import Records, of_kind


def table(records: Records) -> str:
    """Return a row for each problem, and below one for each N."""
    rows = [
        "| | (1 - γμ)^H | largest share of the bound on W2: FedAvg | SCAFFOLD | of the bound on "
        "E\\|x - x\\*\\|² |",
        "|---|---|---|---|---|",
    ]
    for problem, title in PROBLEMS.items():
        found = list(of_kind(records, problem).values())
        if found:
            numbers = [spread([r["settings"]["contraction"] for r in found], ".4f")]
            numbers += [spread([coupled(r)[n].factor for r in found]) for n in coupled(found[0])]
            numbers += [spread([r["found"]["scaffold"]["rate"] for r in found])]
            rows.append(f"| {title} | {' | '.join(numbers)} |")
    rows += ["", "| N | gradients per client: FedAvg | SCAFFOLD |", "|---|---|---|"]
    seeds = [record["rows"] for record in of_kind(records, "gradients").values()]
    for N in SIZES:
        mine = [row for found in seeds for row in found if row["N"] == N]
        if mine:
            counts = [
                _counts([row[name]["gradients"] for row in mine]) for name in ("fedavg", "scaffold")
            ]
            rows.append(f"| {N} | {' | '.join(counts)} |")
    return "\n".join(rows)


def _counts(counts: list[int | None]) -> str:
    """Return gradients; a dash where no step that was tried gets there."""
    there = [float(count) for count in counts if count is not None]
    return spread(there, ".0f") if len(there) == len(counts) else "-"
