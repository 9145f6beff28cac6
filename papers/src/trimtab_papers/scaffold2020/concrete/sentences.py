"""The sentences of the slides, judged on the sorted cut, each above the function that judges it."""

from trimtab_papers.names import TITLES
from trimtab_papers.records import Records
from trimtab_papers.scaffold2020.concrete.cells import (
    ALGORITHMS,
    DECADES,
    FINE,
    TARGET,
    Tuned,
    of_cut,
)
from trimtab_papers.verdicts import MissingRecordError, Verdict, check, sentence

WHERE, OURS = "slides, Quick demo", "ours: the slides compare at one rate"


def _sorted(records: Records) -> dict[str, Tuned]:
    """Return the three algorithms on the sorted cut, by name."""
    tuned = of_cut(records, "sorted")
    if len(tuned) < len(ALGORITHMS):
        raise MissingRecordError
    return tuned


def _own_best(tuned: dict[str, Tuned], *names: str) -> str:
    each = [(TITLES[name], tuned[name].best(), tuned[name].R) for name in names]
    told = "; ".join(f"{title} {best.told(R)} at {best.eta:.3g}" for title, best, R in each)
    return f"rounds to {TARGET:g}: {told}"


@sentence("FedAvg needs a smaller learning rate than SGD.", WHERE)
def fedavg_needs_a_smaller_rate(records: Records) -> Verdict:
    """Compare their best rates on both grids."""
    tuned = _sorted(records)
    fine, sgd_fine = (tuned[name].best(FINE).eta for name in ("fedavg", "sgd"))
    coarse, sgd_coarse = (tuned[name].best(DECADES).eta for name in ("fedavg", "sgd"))
    return Verdict(
        fine < sgd_fine and coarse < sgd_coarse,
        f"best rates in factors of 1.8: {fine:.3g} and {sgd_fine:.3g}; powers of ten: {coarse:g} "
        f"and {sgd_coarse:g}",
    )


@sentence("FedAvg is slower than SGD, each with its own best rate.", WHERE)
def fedavg_is_slower_than_sgd(records: Records) -> Verdict:
    """Compare their rounds."""
    tuned = _sorted(records)
    held = tuned["sgd"].best().sooner(tuned["fedavg"].best())
    return Verdict(held, _own_best(tuned, "sgd", "fedavg"))


@sentence("SCAFFOLD works with SGD's learning rate, tuned over powers of ten.", WHERE)
def scaffold_works_with_a_coarse_rate(records: Records) -> Verdict:
    """Look whether it reaches the target."""
    tuned = _sorted(records)
    eta = tuned["sgd"].best(DECADES).eta
    scaffold = tuned["scaffold"].at(eta)
    told = f"at {eta:g}: {scaffold.told(tuned['sgd'].R)} rounds to {TARGET:g}"
    return Verdict(scaffold.rounds is not None, told)


@sentence("SCAFFOLD works with SGD's learning rate, tuned in factors of 1.8.", WHERE)
def scaffold_works_with_a_fine_rate(records: Records) -> Verdict:
    """Look whether it reaches the target."""
    tuned = _sorted(records)
    eta = tuned["sgd"].best(FINE).eta
    scaffold = tuned["scaffold"].at(eta)
    limit = 2 / tuned["sgd"].L_of_a_client
    told = f"at {eta:.3g}: {scaffold.told(tuned['sgd'].R)}"
    return Verdict(
        scaffold.rounds is not None, f"{told}; the limit of the steepest client is {limit:.3g}"
    )


@sentence("With SGD's learning rate (powers of ten) SCAFFOLD is faster than SGD.", WHERE)
def scaffold_is_faster_with_the_same_rate(records: Records) -> Verdict:
    """Compare their rounds at that rate."""
    tuned = _sorted(records)
    sgd, R = tuned["sgd"].best(DECADES), tuned["sgd"].R
    scaffold = tuned["scaffold"].at(sgd.eta)
    told = f"SCAFFOLD {scaffold.told(R)}, SGD {sgd.told(R)}"
    return Verdict(scaffold.sooner(sgd), f"rounds to {TARGET:g} at {sgd.eta:g}: {told}")


@check("At its own best rate SCAFFOLD is faster than SGD at its own.", OURS)
def scaffold_is_faster_at_its_best(records: Records) -> Verdict:
    """Compare their rounds."""
    tuned = _sorted(records)
    held = tuned["scaffold"].best().sooner(tuned["sgd"].best())
    return Verdict(held, _own_best(tuned, "scaffold", "sgd"))


SENTENCES = (
    fedavg_needs_a_smaller_rate,
    fedavg_is_slower_than_sgd,
    scaffold_works_with_a_coarse_rate,
    scaffold_works_with_a_fine_rate,
    scaffold_is_faster_with_the_same_rate,
    scaffold_is_faster_at_its_best,
)
