"""The sentences of the slides on bias, each above the function that judges it."""

from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

from trimtab_papers.mangold2025.bias.cells import (
    ALGORITHMS,
    HS,
    Chain,
    FullBatches,
    full_batches,
    mini_batches,
)
from trimtab_papers.names import TITLES
from trimtab_papers.numbers import slope, spread
from trimtab_papers.records import Records
from trimtab_papers.verdicts import MissingRecordError, Verdict, sentence

WHERE = "slides, Numerical Illustration: FedAvg"
FEW, MANY = HS

Seeds = dict[int, list[dict[str, Chain]]]
"""By H the chains of each seed, by algorithm."""


def _complete(records: Records) -> tuple[dict[int, FullBatches], Seeds]:
    """Return full batches and mini-batches by H."""
    full = {H: record for H in HS if (record := full_batches(records, H)) is not None}
    seeds = {H: some for H in HS if (some := mini_batches(records, H))}
    if len(full) < len(HS) or len(seeds) < len(HS):
        raise MissingRecordError
    return full, seeds


def _by_H(told: Callable[[int], str]) -> str:
    return "; ".join(f"H = {H}: {told(H)}" for H in HS)


@sentence(
    "FedAvg's bias is gamma (H-1)/2 Hess^-1 mean_c (Hess_c - Hess) grad f_c to first order: the "
    "relative gap halves with gamma (1.8-2.2), cosine above 0.999.",
    WHERE,
)
def fedavg_has_the_bias_of_the_formula(records: Records) -> Verdict:
    """Compare bias and formula as the step is halved."""
    full, _ = _complete(records)
    ratios = {H: [a.gap / b.gap for a, b in pairwise(full[H].steps)] for H in HS}
    cosines = {H: min(step.cosine for step in full[H].steps) for H in HS}
    held = all(1.8 < ratio < 2.2 for H in HS for ratio in ratios[H])
    return Verdict(
        held and min(cosines.values()) > 0.999,
        _by_H(lambda H: ", ".join(f"{v:.2f}" for v in ratios[H]) + f", cosine {cosines[H]:.5f}"),
    )


@sentence("Richardson-Romberg's bias is of second order (1.8-2.2).", WHERE)
def richardson_romberg_is_of_second_order(records: Records) -> Verdict:
    """Fit the exponent p of |x - x*| ~ gamma^p."""
    full, _ = _complete(records)
    orders = {
        H: slope(
            [step.gamma for step in full[H].steps],
            [step.richardson_romberg for step in full[H].steps],
        )
        for H in HS
    }
    held = all(1.8 < order < 2.2 for order in orders.values())
    return Verdict(held, _by_H(lambda H: f"order {orders[H]:.2f}"))


@sentence("SCAFFOLD has no heterogeneity bias: with full batches it stops at x*.", WHERE)
def scaffold_stops_at_the_optimum(records: Records) -> Verdict:
    """Look how far from x* it stops."""
    full, _ = _complete(records)
    held = max(full[H].scaffold for H in HS) < 1e-6
    return Verdict(held, _by_H(lambda H: f"stops {full[H].scaffold:.1g} from x*"))


@sentence("When the number of local iterations increases, FedAvg's bias increases.", WHERE)
def bias_grows_with_local_steps(records: Records) -> Verdict:
    """Compare bias/gamma at the smallest steps."""
    full, _ = _complete(records)
    last = {H: full[H].steps[-1] for H in HS}
    pace = {H: last[H].bias / last[H].gamma for H in HS}
    return Verdict(
        pace[MANY] > 2 * pace[FEW],
        _by_H(lambda H: f"bias/gamma {pace[H]:.3g} at gamma = {last[H].gamma:g}"),
    )


@sentence(
    "With i.i.d. mini-batches the mean of FedAvg's stationary law is where the formula puts it "
    "(within 30 %).",
    WHERE,
)
def mean_of_fedavg_is_that_of_the_formula(records: Records) -> Verdict:
    """Compare bias and formula, on average over the seeds."""
    _, seeds = _complete(records)
    gaps = {H: [s["fedavg"].gap for s in seeds[H] if s["fedavg"].gap is not None] for H in HS}
    held = all(fmean(gaps[H]) < 0.3 for H in HS)
    return Verdict(held, _by_H(lambda H: f"relative gap {spread(gaps[H])}"))


@sentence(
    "With i.i.d. mini-batches SCAFFOLD and Richardson-Romberg end nearer to x* than FedAvg.", WHERE
)
def both_cures_end_nearer(records: Records) -> Verdict:
    """Compare their biases, on average over the seeds."""
    _, seeds = _complete(records)
    biases = {H: {name: [s[name].bias for s in seeds[H]] for name in ALGORITHMS} for H in HS}
    held = all(
        fmean(biases[H][name]) < fmean(biases[H]["fedavg"])
        for H in HS
        for name in ("scaffold", "richardsonromberg")
    )

    def told(H: int) -> str:
        return ", ".join(f"{TITLES[n]} {spread(some, '.2g')}" for n, some in biases[H].items())

    return Verdict(held, _by_H(told))


SENTENCES = (
    fedavg_has_the_bias_of_the_formula,
    richardson_romberg_is_of_second_order,
    scaffold_stops_at_the_optimum,
    bias_grows_with_local_steps,
    mean_of_fedavg_is_that_of_the_formula,
    both_cures_end_nearer,
)
