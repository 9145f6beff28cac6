"""The sentences of the slides on the speed-up, each above the function that judges it."""

from collections.abc import Sequence
from statistics import fmean

from trimtab_papers.mangold2025.speedup.cells import (
    ALGORITHMS,
    PROBLEMS,
    Stationary,
    by_size,
    sizes,
)
from trimtab_papers.names import TITLES
from trimtab_papers.numbers import slope
from trimtab_papers.records import Records
from trimtab_papers.verdicts import MissingRecordError, Verdict, check, sentence

WHERE = "slides, Numerical Illustration: Speed-Up of Scaffold"
OURS = "ours: the slides print (gamma/N) C, without the A^-1 of their own bias formula"

Sizes = dict[int, list[Stationary]]
"""The records of all seeds by N."""


def _complete(records: Records) -> dict[str, Sizes]:
    """Return the records by problem; those of the quick version are needed at least."""
    known = {problem: by_size(records, problem) for problem in PROBLEMS}
    if any(not set(sizes(problem, quick=True)) <= set(known[problem]) for problem in PROBLEMS):
        raise MissingRecordError
    return known


def _trace(seeds: Sequence[Stationary], name: str) -> float:
    return fmean(seed.laws[name].trace for seed in seeds)


def _mean_square_error(seeds: Sequence[Stationary], name: str) -> float:
    return fmean(seed.laws[name].mean_square_error for seed in seeds)


def _told(numbers: dict[str, float], form: str) -> str:
    return ", ".join(f"{problem} {value:{form}}" for problem, value in numbers.items())


def _falls_as_one_over_N(records: Records, name: str) -> Verdict:
    """Fit the exponent of N on each problem."""
    slopes = {
        problem: slope(list(of_N), [_trace(seeds, name) for seeds in of_N.values()])
        for problem, of_N in _complete(records).items()
    }
    return Verdict(all(-1.1 < s < -0.9 for s in slopes.values()), _told(slopes, ".3f"))


@sentence(
    "Linear speed-up: the stationary variance of SCAFFOLD falls as 1/N (slope -1.1 to -0.9).", WHERE
)
def variance_of_scaffold_falls(records: Records) -> Verdict:
    """Fit the exponent."""
    return _falls_as_one_over_N(records, "scaffold")


@sentence("FedAvg's does as well.", WHERE)
def variance_of_fedavg_falls(records: Records) -> Verdict:
    """Fit the exponent."""
    return _falls_as_one_over_N(records, "fedavg")


@check("Both are what (eta_g gamma/N) A^-1 C says, within 10 % for every N.", OURS)
def variances_are_those_of_theory(records: Records) -> Verdict:
    """Look for the N that is farthest off."""
    farthest = {
        (name, problem): max(
            (abs(_trace(seeds, name) / seeds[0].predicted_trace - 1), N)
            for N, seeds in of_N.items()
        )
        for name in ALGORITHMS
        for problem, of_N in _complete(records).items()
    }
    told = "; ".join(
        f"{TITLES[name]}, {problem} {off:.1%} at N = {N}"
        for (name, problem), (off, N) in farthest.items()
    )
    return Verdict(all(off < 0.1 for off, _ in farthest.values()), f"farthest off: {told}")


@sentence("SCAFFOLD's variance is close to FedAvg's (within 10 %).", WHERE)
def variances_are_close(records: Records) -> Verdict:
    """Look for the N at which they are farthest apart."""
    apart = {
        problem: max(
            abs(_trace(seeds, "scaffold") / _trace(seeds, "fedavg") - 1) for seeds in of_N.values()
        )
        for problem, of_N in _complete(records).items()
    }
    return Verdict(all(v < 0.1 for v in apart.values()), f"farthest apart: {_told(apart, '.1%')}")


@check(
    "FedAvg's mean square error stops falling at its squared bias; SCAFFOLD's goes on with 1/N.",
    "ours: what the slides' two formulas say together",
)
def fedavg_stops_at_its_bias(records: Records) -> Verdict:
    """Compare the most clients with the fewest, on the quadratics."""
    of_N = _complete(records)["quadratic"]
    few, most = min(of_N), max(of_N)
    floor = of_N[most][0].predicted_bias
    fedavg, scaffold = (
        {N: _mean_square_error(of_N[N], name) for N in (few, most)} for name in ALGORITHMS
    )
    stops = fedavg[most] > 0.5 * floor and fedavg[most] > 2 * scaffold[most]
    falls = scaffold[few] / scaffold[most] > 0.8 * most / few
    return Verdict(
        stops and falls,
        f"quadratics, N = {few} and {most}: FedAvg {fedavg[few]:.2g} and {fedavg[most]:.2g} "
        f"(bias² {floor:.2g}), SCAFFOLD {scaffold[few]:.2g} and {scaffold[most]:.2g}",
    )


SENTENCES = (
    variance_of_scaffold_falls,
    variance_of_fedavg_falls,
    variances_are_those_of_theory,
    variances_are_close,
    fedavg_stops_at_its_bias,
)
