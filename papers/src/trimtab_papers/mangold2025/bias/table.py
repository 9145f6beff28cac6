"""Fixed points beside the formula, and the means with mini-batches."""

from trimtab_papers.mangold2025.bias.cells import (
    ALGORITHMS,
    BATCH,
    GAMMA,
    HS,
    full_batches,
    mini_batches,
)
from trimtab_papers.numbers import spread
from trimtab_papers.records import Records


def table(records: Records) -> str:
    """Return one table for full batches, and one for mini-batches."""
    between = (
        f"Mini-batches of {BATCH}: how far from x* the mean over chains and the last quarter of "
        "the rounds is."
    )
    return "\n".join([*_full_batches(records), "", between, "", *_mini_batches(records)])


def _full_batches(records: Records) -> list[str]:
    rows = [
        "| H | gamma | FedAvg: bias | predicted | relative gap | cosine "
        "| Richardson-Romberg: bias |",
        "|---|---|---|---|---|---|---|",
    ]
    for H in HS:
        record = full_batches(records, H)
        for step in record.steps if record is not None else ():
            rows.append(
                f"| {H} | {step.gamma:g} | {step.bias:.4g} | {step.predicted:.4g} "
                f"| {step.gap:.3f} | {step.cosine:.5f} | {step.richardson_romberg:.2g} |"
            )
    return rows


def _mini_batches(records: Records) -> list[str]:
    rows = [
        "| H | gamma | FedAvg | predicted | SCAFFOLD | predicted "
        "| Richardson-Romberg | predicted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for H in HS:
        seeds = list(mini_batches(records, H).values())
        if seeds:
            bias = {name: spread([s[name].bias for s in seeds], ".2g") for name in ALGORITHMS}
            fedavg, scaffold = (seeds[0][name].predicted for name in ("fedavg", "scaffold"))
            rows.append(
                f"| {H} | {GAMMA[H]:g} | {bias['fedavg']} | {fedavg:.2g} "
                f"| {bias['scaffold']} | {scaffold:.2g} "
                f"| {bias['richardsonromberg']} | second order |"
            )
    return rows
