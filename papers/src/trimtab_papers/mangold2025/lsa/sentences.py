"""What the slides say of FedAvg and Scaffold, judged on federated TD; and checks of our own."""

from itertools import pairwise

from trimtab_papers.mangold2025.lsa.cells import (
    ALGORITHMS,
    SAMPLINGS,
    Stationary,
    by_size,
    sizes,
)
from trimtab_papers.numbers import slope, spread
from trimtab_papers.records import Record, Records, of_kind
from trimtab_papers.verdicts import (
    Held,
    MissingRecordError,
    Verdict,
    check,
    over_seeds,
    sentence,
)

OURS = "ours, on the mean of Garnet MDPs"


def _complete(records: Records) -> list[int]:
    """Return the seeds of which all cells of the quick version are there, if these are all."""
    needed = ["exact", *SAMPLINGS, *(f"N{N}" for N in sizes(quick=True))]
    known = [set(of_kind(records, kind)) for kind in needed]
    if not set.union(*known) or set.union(*known) != set.intersection(*known):
        raise MissingRecordError
    return sorted(known[0])


def _exact(records: Records) -> dict[int, list[Record]]:
    _complete(records)
    return {seed: record["rows"] for seed, record in of_kind(records, "exact").items()}


def _laws(records: Records, kind: str) -> dict[int, Stationary]:
    _complete(records)
    found = of_kind(records, kind)
    return {seed: Stationary.from_json(record) for seed, record in found.items()}


@sentence(
    "When the number of local iterations increases, bias increases: FedLSA on the mean equations "
    "ends farther from theta* with every K, from 1 to 20.",
    "slides, Classical analyses of this algorithm",
)
def bias_grows_with_K(records: Records) -> Verdict:
    """Compare each K with the one before."""
    found = {seed: [row["fedavg"] for row in rows] for seed, rows in _exact(records).items()}
    held: Held = {
        seed: all(a < b for a, b in pairwise(e)) and e[0] < 0.01 * e[1] for seed, e in found.items()
    }
    told = ", ".join(f"K = {row['K']}: {row['fedavg']:.2g}" for row in _exact(records)[min(found)])
    return over_seeds(held, f"seed {min(found)}: {told}")


@sentence(
    "Scaffold: no more heterogeneity bias. SCAFFLSA on the mean equations ends at theta* for every "
    "K (below a thousandth of FedLSA's distance, K >= 2).",
    "slides, Scaffold",
)
def scafflsa_arrives(records: Records) -> Verdict:
    """Compare the two."""
    worst = {
        seed: max(row["scaffold"] / row["fedavg"] for row in rows if row["K"] > 1)
        for seed, rows in _exact(records).items()
    }
    held: Held = {seed: ratio < 1e-3 for seed, ratio in worst.items()}
    return over_seeds(held, f"largest ratio {max(worst.values()):.1g}")


@sentence(
    "FedLSA stays at its bias and SCAFFLSA does not, with i.i.d. transitions: |E theta - theta*| "
    "of SCAFFLSA is less than a third of FedLSA's.",
    "slides, Scaffold, and the title of Mangold et al. 2024 (taming heterogeneity)",
)
def scafflsa_is_not_biased(records: Records) -> Verdict:
    """Compare the means of the chains."""
    found = _laws(records, "iid")
    held: Held = {
        seed: one.laws["scaffold"].bias < one.laws["fedavg"].bias / 3 for seed, one in found.items()
    }
    return over_seeds(held, _biases(found))


def _biases(found: dict[int, Stationary]) -> str:
    told = ", ".join(
        f"{title} {spread([one.laws[name].bias for one in found.values()], '.2g')}"
        for name, title in ALGORITHMS.items()
    )
    return (
        f"{told}, standard errors up to {max(o.laws['scaffold'].error for o in found.values()):.1g}"
    )


@check(
    "With trajectories SCAFFLSA is biased too, by their memory (by more than 3 standard errors).",
    OURS,
)
def memory_biases_both(records: Records) -> Verdict:
    """Compare the bias with its standard error."""
    found = _laws(records, "markov")
    laws = {seed: one.laws["scaffold"] for seed, one in found.items()}
    return over_seeds({s: law.bias > 3 * law.error for s, law in laws.items()}, _biases(found))


@sentence(
    "Linear speed-up: the stationary variance of SCAFFLSA falls as 1/N (slope -1.1 to -0.9).",
    "slides, Scaffold also converges",
)
def scafflsa_speeds_up(records: Records) -> Verdict:
    """Fit the exponent of N."""
    slopes = {}
    for seed in _complete(records):
        of_N = by_size(records, seed)
        slopes[seed] = slope(list(of_N), [one.laws["scaffold"].trace for one in of_N.values()])
    held: Held = {seed: -1.1 < s < -0.9 for seed, s in slopes.items()}
    return over_seeds(held, f"slopes {spread(list(slopes.values()), '.3f')}")


@check("FedLSA on the mean equations ends where the closed form says (within 0.1 %).", OURS)
def closed_form_of_the_limit(records: Records) -> Verdict:
    """Compare runs with the closed form, where there is a bias."""
    off = {
        seed: max(row["from the closed form"] / row["closed form"] for row in rows if row["K"] > 1)
        for seed, rows in _exact(records).items()
    }
    return over_seeds({s: v < 1e-3 for s, v in off.items()}, f"at most {max(off.values()):.1g} off")


@check(
    "With i.i.d. transitions E theta of FedLSA is that limit: its chains less SCAFFLSA's, which "
    "see the same transitions, are off by 15 % of the bias at most (K = 10).",
    OURS,
)
def limit_with_noise(records: Records) -> Verdict:
    """Compare the difference of two coupled means with that of the closed form."""
    off = {seed: one.moved / one.predicted_bias for seed, one in _laws(records, "iid").items()}
    return over_seeds({s: v < 0.15 for s, v in off.items()}, f"at most {max(off.values()):.1%} off")


@check(
    "The Lyapunov equation tells the variances of both to first order: within 20 %, although the "
    "noise of transitions is multiplicative.",
    OURS,
)
def closed_form_of_the_covariance(records: Records) -> Verdict:
    """Compare traces."""
    off = {
        seed: max(abs(one.laws[n].trace / one.predicted_trace[n] - 1) for n in ALGORITHMS)
        for seed, one in _laws(records, "iid").items()
    }
    return over_seeds({s: v < 0.2 for s, v in off.items()}, f"at most {max(off.values()):.1%} off")


@check(
    "With the most clients SCAFFLSA's mean square error is less than two thirds of FedLSA's, and "
    "the difference is FedLSA's squared bias within 25 % (K = 50).",
    OURS,
)
def fedlsa_stops_speeding_up(records: Records) -> Verdict:
    """Look at the most clients."""
    held: Held = {}
    told = ""
    for seed in _complete(records):
        of_N = by_size(records, seed)
        most = of_N[max(of_N)]
        fedlsa, scafflsa = (most.laws[name].mean_square_error for name in ALGORITHMS)
        ratio = (fedlsa - scafflsa) / most.predicted_bias**2
        held[seed] = scafflsa < 2 / 3 * fedlsa and 0.75 < ratio < 1.25
        told = told or (
            f"seed {seed}, N = {most.N}: FedLSA {fedlsa:.2g}, SCAFFLSA {scafflsa:.2g}, bias² "
            f"{most.predicted_bias**2:.2g}"
        )
    return over_seeds(held, told)


SENTENCES = (
    bias_grows_with_K,
    scafflsa_arrives,
    scafflsa_is_not_biased,
    scafflsa_speeds_up,
    closed_form_of_the_limit,
    limit_with_noise,
    closed_form_of_the_covariance,
    fedlsa_stops_speeding_up,
    memory_biases_both,
)
