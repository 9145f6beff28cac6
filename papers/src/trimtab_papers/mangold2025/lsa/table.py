"""Bias and variance of both algorithms beside the closed forms."""

from trimtab_papers.mangold2025.lsa.cells import (
    ALGORITHMS,
    LOCAL_STEPS,
    SAMPLINGS,
    Stationary,
    sizes,
)
from trimtab_papers.numbers import spread
from trimtab_papers.records import Record, Records, of_kind


def table(records: Records) -> str:
    """Return a row for each K without noise, and one for each way of sampling and each N."""
    rows = [
        "| | K | FedLSA's limit \\|θ - θ\\*\\| | FedLSA | SCAFFLSA | predicted trace | FedLSA "
        "| SCAFFLSA |",
        "|---|---|---|---|---|---|---|---|",
    ]
    exact = list(of_kind(records, "exact").values())
    for K in LOCAL_STEPS:
        mine = [row for record in exact for row in record["rows"] if row["K"] == K]
        if not mine:
            continue
        shown = [spread([row[n] for row in mine], ".2g") for n in ("closed form", *ALGORITHMS)]
        rows.append(f"| mean equations | {K} | {' | '.join(shown)} | | | |")
    for kind in (*SAMPLINGS, *(f"N{N}" for N in sizes(quick=False))):
        found = list(of_kind(records, kind).values())
        if found:
            rows.append(_row(kind, found))
    return "\n".join(rows)


def _row(kind: str, records: list[Record]) -> str:
    """Return the row of chains; all seeds have the same K."""
    title, K = SAMPLINGS.get(kind, f"N = {kind[1:]}"), records[0]["settings"]["K"]
    seeds = list(map(Stationary.from_json, records))
    biases = [spread([one.predicted_bias for one in seeds], ".2g")]
    biases += [spread([one.laws[name].bias for one in seeds], ".2g") for name in ALGORITHMS]
    traces = [spread([one.predicted_trace["scaffold"] for one in seeds], ".2g")]
    traces += [spread([one.laws[name].trace for one in seeds], ".2g") for name in ALGORITHMS]
    return f"| {title} | {K} | {' | '.join([*biases, *traces])} |"
