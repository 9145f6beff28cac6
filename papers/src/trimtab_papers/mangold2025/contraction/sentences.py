"""The slides' sentences on contraction, the rate and the gradients, each above its judge."""

from trimtab_papers.mangold2025.contraction.cells import PROBLEMS, coupled
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

ROUNDING = 1e-6  # a distance may exceed its bound by <= 1e-6 of it


def _complete(records: Records) -> dict[str, dict[int, Record]]:
    """Return the records by kind and seed; each seed has all of them."""
    known = {kind: of_kind(records, kind) for kind in (*PROBLEMS, "gradients")}
    seeds = [set(of_seed) for of_seed in known.values()]
    if not seeds[0] or any(some != seeds[0] for some in seeds):
        raise MissingRecordError
    return known


def _contracts(records: Records, name: str) -> Verdict:
    """Look for the round at which the distance takes the largest share of its bound."""
    known = _complete(records)
    factors = {
        problem: {seed: coupled(record)[name].factor for seed, record in known[problem].items()}
        for problem in PROBLEMS
    }
    held: Held = {
        seed: all(factors[problem][seed] <= 1 + ROUNDING for problem in PROBLEMS)
        for seed in known["gradients"]
    }
    told = ", ".join(f"{p} {spread(list(factors[p].values()))}" for p in PROBLEMS)
    return over_seeds(held, f"largest share of the bound: {told}")


@sentence(
    "FedAvg's law contracts in W2: after t rounds the coupled chains are at most "
    "(1 - gamma mu)^(H t) x as far apart (mu = min_c mu_c, gamma H L = 1).",
    "slides, FedAvg (with stochastic gradients) converges",
)
def fedavg_contracts(records: Records) -> Verdict:
    """Look at x."""
    return _contracts(records, "fedavg")


@sentence(
    "Scaffold's law contracts in W2 at the same rate if gamma H L <= 1, in the norm of its whole "
    "state, |x|^2 + (gamma H)^2/N sum_c |xi_c|^2.",
    "slides, Scaffold also converges; they print x, and leave the norm open",
)
def scaffold_contracts(records: Records) -> Verdict:
    """Look at x and controls."""
    return _contracts(records, "scaffold")


@check(
    "The rate is attained: where one axis is the flattest of all clients, the last round contracts "
    "both by (1 - gamma mu)^H (within 1 %).",
    "ours",
)
def rate_is_attained(records: Records) -> Verdict:
    """Compare the last round with the bound."""
    found = _complete(records)["aligned"]
    off = {
        seed: max(
            abs(row["last factor"] / record["settings"]["contraction"] - 1)
            for row in record["found"].values()
        )
        for seed, record in found.items()
    }
    return over_seeds({s: v < 0.01 for s, v in off.items()}, f"at most {max(off.values()):.1g} off")


@sentence(
    "Scaffold's rate: after every round E|x_T - x*|^2 is below (1 - gamma mu/4)^(H T) {…} + "
    "gamma sigma^2/(N mu) + …, with all constants 1.",
    "slides, New Convergence Rate for Scaffold",
)
def rate_of_scaffold(records: Records) -> Verdict:
    """Look for the round at which the error takes the largest share of its bound."""
    known = _complete(records)
    shares = {
        problem: {s: record["found"]["scaffold"]["rate"] for s, record in known[problem].items()}
        for problem in PROBLEMS
    }
    held: Held = {s: all(shares[p][s] <= 1 for p in PROBLEMS) for s in known["gradients"]}
    told = ", ".join(f"{p} {spread(list(shares[p].values()))}" for p in PROBLEMS)
    return over_seeds(held, f"largest share of the bound: {told}")


def _slopes(records: Records, name: str) -> dict[int, float]:
    found = {}
    for seed, record in _complete(records)["gradients"].items():
        pairs = [(row["N"], row[name]["gradients"]) for row in record["rows"]]
        there = [(N, count) for N, count in pairs if count is not None]
        found[seed] = slope(*map(list, zip(*there, strict=True))) if len(there) > 1 else 0.0
    return found


@sentence(
    "Linear speed-up: the gradients per client until E|x - x*|^2 <= eps^2 fall as 1/N with "
    "Scaffold (slope -1.15 to -0.85, step tuned for each N).",
    "slides, Linear Speed-Up!",
)
def gradients_fall(records: Records) -> Verdict:
    """Fit the exponent of N."""
    slopes = _slopes(records, "scaffold")
    held: Held = {seed: -1.15 < s < -0.85 for seed, s in slopes.items()}
    return over_seeds(held, f"slopes {spread(list(slopes.values()), '.3f')}")


@check(
    "In |x| alone Scaffold does not contract: chains with equal x and other controls part, by more "
    "than a thousandth of their distance, which rounding does not explain.",
    "ours",
)
def x_alone_does_not(records: Records) -> Verdict:
    """Look at chains that differ in their controls only."""
    known = _complete(records)
    shares = {
        seed: min(
            known[problem][seed]["found"]["scaffold"]["x alone"]["largest"]
            / known[problem][seed]["found"]["scaffold"]["x alone"]["start"]
            for problem in PROBLEMS
        )
        for seed in known["gradients"]
    }
    held: Held = {seed: share > 1e-3 for seed, share in shares.items()}
    return over_seeds(held, f"|x - x'| grows from 0 to {spread(list(shares.values()))} of it")


SENTENCES = (
    fedavg_contracts,
    scaffold_contracts,
    rate_of_scaffold,
    gradients_fall,
    rate_is_attained,
    x_alone_does_not,
)
