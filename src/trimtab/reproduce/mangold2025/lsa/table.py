"""Bias and variance of both algorithms beside the closed forms."""

from trimtab.reproduce.mangold2025.lsa.cells import (
    ALGORITHMS,
    LOCAL_STEPS,
    SAMPLINGS,
    Stationary,
    of_kind,
    sizes,
)
from trimtab.reproduce.numbers import spread
from trimtab.reproduce.records import Records


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
        found = of_kind(records, kind)
        if found:
            rows.append(
                _row(
                    kind,
                    [Stationary.from_json(r) for r in found.values()],
                    next(iter(found.values()))["settings"]["K"],
                )
            )
    return "\n".join(rows)


def _row(kind: str, seeds: list[Stationary], K: int) -> str:
    """Return the row of chains."""
    title = SAMPLINGS.get(kind, f"N = {kind[1:]}")
    biases = [spread([one.predicted_bias for one in seeds], ".2g")]
    biases += [spread([one.laws[name].bias for one in seeds], ".2g") for name in ALGORITHMS]
    traces = [spread([one.predicted_trace["scaffold"] for one in seeds], ".2g")]
    traces += [spread([one.laws[name].trace for one in seeds], ".2g") for name in ALGORITHMS]
    return f"| {title} | {K} | {' | '.join([*biases, *traces])} |"
