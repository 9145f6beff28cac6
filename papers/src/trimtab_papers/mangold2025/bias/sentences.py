"""The sentences of the slides on bias, each above the function that judges it."""

from collections.abc import Callable
from itertools import pairwise

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
from trimtab_papers.verdicts import Held, MissingRecordError, Verdict, over_seeds, sentence

WHERE = "slides, Numerical Illustration: FedAvg"
FEW, MANY = HS

Chains = dict[int, dict[str, Chain]]
"""The chains of one seed by H, then by algorithm."""


def _complete(records: Records) -> tuple[dict[int, FullBatches], dict[int, Chains]]:
    """Return full batches by H, and mini-batches by seed, of the seeds that have every H."""
    full = {H: record for H in HS if (record := full_batches(records, H)) is not None}
    by_H = {H: mini_batches(records, H) for H in HS}
    seeds = [seed for seed in by_H[FEW] if all(seed in by_H[H] for H in HS)]
    if len(full) < len(HS) or not seeds:
        raise MissingRecordError
    return full, {seed: {H: by_H[H][seed] for H in HS} for seed in seeds}


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
    """Compare bias and formula, seed by seed."""
    _, seeds = _complete(records)
    gaps = {s: {H: chains[H]["fedavg"].gap or 0.0 for H in HS} for s, chains in seeds.items()}
    held: Held = {seed: max(by_H.values()) < 0.3 for seed, by_H in gaps.items()}
    told = _by_H(lambda H: f"relative gap {spread([by_H[H] for by_H in gaps.values()])}")
    return over_seeds(held, told)


@sentence(
    "With i.i.d. mini-batches SCAFFOLD and Richardson-Romberg end nearer to x* than FedAvg.", WHERE
)
def both_cures_end_nearer(records: Records) -> Verdict:
    """Compare their biases, seed by seed."""
    _, seeds = _complete(records)
    held: Held = {
        seed: all(
            chains[H][name].bias < chains[H]["fedavg"].bias
            for H in HS
            for name in ("scaffold", "richardsonromberg")
        )
        for seed, chains in seeds.items()
    }

    def told(H: int) -> str:
        biases = {n: [chains[H][n].bias for chains in seeds.values()] for n in ALGORITHMS}
        return ", ".join(f"{TITLES[n]} {spread(some, '.2g')}" for n, some in biases.items())

    return over_seeds(held, _by_H(told))


SENTENCES = (
    fedavg_has_the_bias_of_the_formula,
    richardson_romberg_is_of_second_order,
    scaffold_stops_at_the_optimum,
    bias_grows_with_local_steps,
    mean_of_fedavg_is_that_of_the_formula,
    both_cures_end_nearer,
)
