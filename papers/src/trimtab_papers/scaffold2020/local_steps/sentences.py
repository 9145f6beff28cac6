"""The sentences of Theorem IV, and ours on option II, each above the function that judges it."""

from collections.abc import Sequence

from trimtab.diagnosis.theory import Option
from trimtab_papers.numbers import slope
from trimtab_papers.records import Records
from trimtab_papers.scaffold2020.local_steps.cells import OPTIONS, QUICK, Sweep, read_sweeps
from trimtab_papers.verdicts import MissingRecordError, Verdict, check, sentence

WHERE, OURS = "section 6, Theorem IV", "ours: the paper does not speak of option II"


def _complete(records: Records) -> list[Sweep]:
    """Return all sweeps; those of the quick version are needed at least."""
    if any(f"{k}-{r}-{option}" not in records for k, r in QUICK for option in OPTIONS):
        raise MissingRecordError
    return read_sweeps(records)


def _of(option: Option, records: Records) -> list[Sweep]:
    return [sweep for sweep in _complete(records) if sweep.option == option]


def _near_the_knee(sweeps: Sequence[Sweep], factor: float) -> bool:
    return all(1 / factor <= sweep.best_K / sweep.knee <= factor for sweep in sweeps)


def _best_K(sweeps: Sequence[Sweep]) -> str:
    return "; ".join(f"{s.title}: K = {s.best_K} against {s.knee:.3g}" for s in sweeps)


@sentence(
    "Local steps help: until K is half of the knee, K steps save a factor of K in rounds (0.8 K "
    "at least).",
    WHERE,
)
def local_steps_help(records: Records) -> Verdict:
    """Look at the least that K steps save."""
    saved = min(map(_saved, _complete(records)))
    return Verdict(saved >= 0.8, f"{saved:.2f} K at least")


def _saved(sweep: Sweep) -> float:
    """Return the least of rounds(1)/(K rounds(K)) over K up to half of the knee."""
    one, half = sweep.by_K[0].rounds, max(1.0, sweep.knee / 2)
    return min(one / at.rounds / at.K for at in sweep.by_K if half >= at.K)


@sentence("Best to take K about L/delta (option I; within a factor of 2).", WHERE)
def best_K_is_that_of_theory(records: Records) -> Verdict:
    """Compare the best K with the knee."""
    option_I = _of("I", records)
    return Verdict(_near_the_knee(option_I, 2), _best_K(option_I))


@sentence(
    "L is replaced by delta in the rate: option I's plateau is proportional to delta/mu (exponent "
    "0.8-1.2).",
    WHERE,
)
def plateau_is_proportional_to_delta(records: Records) -> Verdict:
    """Fit the exponent where L/mu is the same."""
    same = [sweep for sweep in _of("I", records) if sweep.kappa == QUICK[0][0]]
    exponent = slope([sweep.ratio for sweep in same], [sweep.plateau for sweep in same])
    told = ", ".join(f"{sweep.plateau:.3g} at {sweep.ratio}" for sweep in same)
    return Verdict(0.8 <= exponent <= 1.2, f"exponent {exponent:.2f}; plateaus {told}")


@check("Option II does not go below sqrt(L/mu) rounds per e-fold (0.8 of it at least).", OURS)
def option_II_has_a_floor(records: Records) -> Verdict:
    """Look at the least rounds for each L/mu."""
    least: dict[int, float] = {}
    for sweep in _of("II", records):
        lowest = min(at.rounds for at in sweep.by_K)
        least[sweep.kappa] = min(lowest, least.get(sweep.kappa, lowest))
    held = all(rounds >= 0.8 * kappa**0.5 for kappa, rounds in least.items())
    told = [f"L/mu = {kappa}: {r:.3g} against {kappa**0.5:.3g}" for kappa, r in least.items()]
    return Verdict(held, "; ".join(told))


@check("Option II's best K is about min(L/delta, sqrt(L/mu)) (within a factor of 3).", OURS)
def best_K_of_option_II_is_that_of_theory(records: Records) -> Verdict:
    """Compare the best K with the knee."""
    option_II = _of("II", records)
    return Verdict(_near_the_knee(option_II, 3), _best_K(option_II))


@check(
    "While L/delta >= sqrt(L/mu), both hold: option II's plateau is sqrt(L/mu) (within 20 %), its "
    "best K within a factor of 3 of that.",
    OURS,
)
def both_hold_while_clients_are_alike(records: Records) -> Verdict:
    """Compare plateau and best K where L/delta is large."""
    option_II = _of("II", records)
    alike = [sweep for sweep in option_II if sweep.kappa >= 0.999 * sweep.ratio**2]
    flat = [sweep.plateau / sweep.kappa**0.5 for sweep in alike]
    told = ", ".join(f"{ratio:.2f}" for ratio in flat)
    return Verdict(
        _near_the_knee(alike, 3) and all(0.8 <= ratio <= 1.2 for ratio in flat),
        f"{len(alike)} of {len(option_II)} pairs; plateau/sqrt(L/mu): {told}",
    )


@check("The rates are those of runs (within 15 %).", "ours: it is what the others stand on")
def rates_are_those_of_runs(records: Records) -> Verdict:
    """Compare them; a run that does not shrink the error is off by far."""
    ran = [at for sweep in _complete(records) for at in sweep.by_K if at.ran]
    off = [abs((at.run or 1e9) / at.rounds - 1) for at in ran]
    return Verdict(
        max(off) <= 0.15 if off else None,
        f"{len(off)} runs, off by {max(off, default=0):.1%} at most",
    )


SENTENCES = (
    local_steps_help,
    best_K_is_that_of_theory,
    plateau_is_proportional_to_delta,
    option_II_has_a_floor,
    best_K_of_option_II_is_that_of_theory,
    both_hold_while_clients_are_alike,
    rates_are_those_of_runs,
)
