"""The sentences of the slides on the speed-up, each above the function that judges it."""

from trimtab_papers.mangold2025.speedup.cells import (
    ALGORITHMS,
    PROBLEMS,
    Stationary,
    by_size,
    sizes,
)
from trimtab_papers.names import TITLES
from trimtab_papers.numbers import slope, spread
from trimtab_papers.records import Records
from trimtab_papers.verdicts import (
    Held,
    MissingRecordError,
    Verdict,
    check,
    over_seeds,
    sentence,
)

WHERE = "slides, Numerical Illustration: Speed-Up of Scaffold"
OURS = "ours: the slides print (gamma/N) C, without the A^-1 of their own bias formula"

Seed = dict[str, dict[int, Stationary]]
"""The records of one seed by problem, then by N."""


def _complete(records: Records) -> dict[int, Seed]:
    """Return the records by seed, of the seeds that have the sizes of the quick version."""
    seeds: dict[int, Seed] = {}
    for problem in PROBLEMS:
        for N, some in by_size(records, problem).items():
            for one in some:
                seeds.setdefault(one.seed, {p: {} for p in PROBLEMS})[problem][N] = one
    wanted = {problem: set(sizes(problem, quick=True)) for problem in PROBLEMS}
    complete = {
        s: known for s, known in seeds.items() if all(wanted[p] <= set(known[p]) for p in known)
    }
    if not complete:
        raise MissingRecordError
    return dict(sorted(complete.items()))


def _told(by_seed: dict[int, dict[str, float]], form: str) -> str:
    return ", ".join(
        f"{problem} {spread([one[problem] for one in by_seed.values()], form)}"
        for problem in PROBLEMS
    )


def _falls_as_one_over_N(records: Records, name: str) -> Verdict:
    """Fit the exponent of N on each problem."""
    slopes = {
        seed: {
            problem: slope(list(of_N), [one.laws[name].trace for one in of_N.values()])
            for problem, of_N in known.items()
        }
        for seed, known in _complete(records).items()
    }
    held: Held = {seed: all(-1.1 < s < -0.9 for s in slopes[seed].values()) for seed in slopes}
    return over_seeds(held, _told(slopes, ".3f"))


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
    seeds = _complete(records)
    farthest = {
        seed: {
            (name, problem): max(
                (abs(one.laws[name].trace / one.predicted_trace - 1), N) for N, one in of_N.items()
            )
            for name in ALGORITHMS
            for problem, of_N in known.items()
        }
        for seed, known in seeds.items()
    }
    held: Held = {s: all(off < 0.1 for off, _ in far.values()) for s, far in farthest.items()}
    worst = {key: max(far[key] for far in farthest.values()) for key in farthest[min(farthest)]}
    told = "; ".join(
        f"{TITLES[name]}, {problem} {off:.1%} at N = {N}"
        for (name, problem), (off, N) in worst.items()
    )
    return over_seeds(held, f"farthest off: {told}")


@sentence("SCAFFOLD's variance is close to FedAvg's (within 10 %).", WHERE)
def variances_are_close(records: Records) -> Verdict:
    """Look for the N at which they are farthest apart."""
    apart = {
        seed: {
            problem: max(
                abs(one.laws["scaffold"].trace / one.laws["fedavg"].trace - 1)
                for one in of_N.values()
            )
            for problem, of_N in known.items()
        }
        for seed, known in _complete(records).items()
    }
    held: Held = {seed: all(v < 0.1 for v in apart[seed].values()) for seed in apart}
    return over_seeds(held, f"farthest apart: {_told(apart, '.1%')}")


@check(
    "FedAvg's mean square error stops falling at its squared bias; SCAFFOLD's goes on with 1/N.",
    "ours: what the slides' two formulas say together",
)
def fedavg_stops_at_its_bias(records: Records) -> Verdict:
    """Compare the most clients with the fewest, on the quadratics."""
    held: Held = {}
    told = ""
    for seed, known in _complete(records).items():
        of_N = known["quadratic"]
        few, most = min(of_N), max(of_N)
        floor = of_N[most].predicted_bias
        fedavg, scaffold = (
            {N: of_N[N].laws[name].mean_square_error for N in (few, most)} for name in ALGORITHMS
        )
        stops = fedavg[most] > 0.5 * floor and fedavg[most] > 2 * scaffold[most]
        held[seed] = stops and scaffold[few] / scaffold[most] > 0.8 * most / few
        told = told or (
            f"quadratics, N = {few} and {most}: FedAvg {fedavg[few]:.2g} and {fedavg[most]:.2g} "
            f"(bias² {floor:.2g}), SCAFFOLD {scaffold[few]:.2g} and {scaffold[most]:.2g}"
        )
    return over_seeds(held, told)


SENTENCES = (
    variance_of_scaffold_falls,
    variance_of_fedavg_falls,
    variances_are_those_of_theory,
    variances_are_close,
    fedavg_stops_at_its_bias,
)
