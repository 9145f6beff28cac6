"""The sentences of the paper on Table 3, each above the function that judges it."""

from itertools import pairwise
from math import inf

from trimtab_papers.raced_record import read_raced
from trimtab_papers.records import Records
from trimtab_papers.rounds_to_target import PUBLISHED, needed
from trimtab_papers.scaffold2020.table3.cells import FOR_ALL, SIMILARITIES
from trimtab_papers.scaffold2020.table3.judging import Table, by_every_reading
from trimtab_papers.verdicts import MissingRecordError, Verdict, check, over_seeds, sentence

WHERE, REPORT = "section 7.3, Table 3", "report, section 5.2"


@sentence("SCAFFOLD never needs more rounds than SGD.", WHERE)
@by_every_reading("sgd", "scaffold")
def scaffold_is_never_slower_than_sgd(table: Table) -> bool:
    """Compare every cell with SGD's at its similarity."""
    return all(r <= sgd for r, sgd in table.against_sgd("scaffold", table.similarities))


@sentence("SCAFFOLD beats FedAvg at 0 % similarity for every number of epochs.", WHERE)
@by_every_reading("scaffold", "fedavg", at=lambda similarity: similarity == 0)
def scaffold_beats_fedavg(table: Table) -> bool:
    """Compare them epoch by epoch."""
    return all(scaffold < fedavg for scaffold, fedavg in table.pairs("scaffold", "fedavg", [0]))


@sentence("FedAvg at 0 % loses as epochs grow, while SCAFFOLD flattens.", WHERE)
@by_every_reading("scaffold", "fedavg", at=lambda similarity: similarity == 0)
def fedavg_drifts(table: Table) -> bool:
    """Compare most epochs with fewest for FedAvg, and with the worst of the others for SCAFFOLD."""
    fedavg, scaffold = table.by_epochs("fedavg", 0), table.by_epochs("scaffold", 0)
    return fedavg[-1] > fedavg[0] and scaffold[-1] <= 1.1 * max(scaffold[:-1])


@sentence("Both gain monotonically from epochs where clients are similar.", WHERE)
@by_every_reading("scaffold", "fedavg", at=lambda similarity: similarity > 0)
def epochs_help_similar_clients(table: Table) -> bool:
    """Look for a row in which more epochs need more rounds."""
    return all(
        few >= many
        for name in ("scaffold", "fedavg")
        for s in table.similarities
        if s > 0
        for few, many in pairwise(table.by_epochs(name, s))
    )


@sentence("SGD does not depend on the similarity (within 31 %, the published spread).", WHERE)
@by_every_reading("sgd")
def sgd_does_not_depend_on_similarity(table: Table) -> bool:
    """Compare its slowest cell with its fastest; the published ones are 416 and 317."""
    sgd = [table.sgd(s) for s in table.similarities]
    return max(sgd) <= 1.313 * min(sgd)


@sentence("FedProx (mu = 1) is slower than FedAvg everywhere.", WHERE)
@by_every_reading("fedavg", "fedprox")
def fedprox_is_slower(table: Table) -> bool:
    """Compare them cell by cell; where FedAvg does not arrive nothing is slower."""
    pairs = table.pairs("fedavg", "fedprox", table.similarities)
    return all(fedavg < fedprox or fedavg == inf for fedavg, fedprox in pairs)


@sentence("Across all epochs and similarities SCAFFOLD is the fastest (nobody is faster).", WHERE)
@by_every_reading("sgd", "scaffold", "fedavg", "fedprox")
def scaffold_is_the_fastest(table: Table) -> bool:
    """Look for a cell in which another needs fewer rounds; the published table has one."""
    others = [
        *table.against_sgd("scaffold", table.similarities),
        *table.pairs("scaffold", "fedavg", table.similarities),
        *table.pairs("scaffold", "fedprox", table.similarities),
    ]
    return all(scaffold <= other for scaffold, other in others)


@sentence("FedAvg is always slower than SCAFFOLD.", WHERE, repeats=scaffold_is_the_fastest)
@by_every_reading("scaffold", "fedavg")
def fedavg_is_always_slower(table: Table) -> bool:
    """Compare them cell by cell; equal rounds are not slower."""
    pairs = table.pairs("scaffold", "fedavg", table.similarities)
    return all(scaffold < fedavg for scaffold, fedavg in pairs)


@sentence(
    "SCAFFOLD's performance is always better than that of SGD.",
    WHERE,
    repeats=scaffold_is_never_slower_than_sgd,
)
@by_every_reading("sgd", "scaffold")
def scaffold_is_always_faster_than_sgd(table: Table) -> bool:
    """Compare every cell with SGD's; equal rounds are not better."""
    return all(r < sgd for r, sgd in table.against_sgd("scaffold", table.similarities))


@sentence("At 0 % FedAvg consistently gets worse as epochs increase.", WHERE)
@by_every_reading("fedavg", at=lambda similarity: similarity == 0)
def fedavg_gets_worse_with_every_step(table: Table) -> bool:
    """Look for more epochs that do not need more rounds."""
    return all(few < many for few, many in pairwise(table.by_epochs("fedavg", 0)))


@sentence("At 0 % and with more than 5 epochs FedAvg is worse than SGD.", WHERE)
@by_every_reading("sgd", "fedavg", at=lambda similarity: similarity == 0)
def fedavg_falls_behind_sgd(table: Table) -> bool:
    """Compare its rows of more than 5 epochs with SGD's."""
    rows = zip(table.epochs, table.by_epochs("fedavg", 0), strict=True)
    many = [r for epochs, r in rows if epochs > 5]
    if not many:
        raise MissingRecordError
    return all(r > table.sgd(0) for r in many)


@sentence("SCAFFOLD at 0 % initially worsens with more epochs and then flattens.", WHERE)
@by_every_reading("scaffold", at=lambda similarity: similarity == 0)
def scaffold_worsens_and_flattens(table: Table) -> bool:
    """Compare the second number of epochs with the first, and the last with the worst before."""
    scaffold = table.by_epochs("scaffold", 0)
    return scaffold[1] > scaffold[0] and scaffold[-1] <= 1.1 * max(scaffold[:-1])


@sentence("SCAFFOLD and FedAvg get faster with more similarity.", WHERE)
@by_every_reading("scaffold", "fedavg")
def similarity_helps(table: Table) -> bool:
    """Compare every similarity with 0 %, at every number of epochs."""
    return all(
        alike < sorted_
        for name in ("scaffold", "fedavg")
        for s in table.similarities
        if s > 0
        for alike, sorted_ in zip(table.by_epochs(name, s), table.by_epochs(name, 0), strict=True)
    )


@sentence("With more similarity both FedAvg and SCAFFOLD outperform SGD.", WHERE)
@by_every_reading("sgd", "scaffold", "fedavg", at=lambda similarity: similarity > 0)
def both_outperform_sgd(table: Table) -> bool:
    """Compare every cell above 0 % with SGD's."""
    alike = [s for s in table.similarities if s > 0]
    return all(r < sgd for n in ("scaffold", "fedavg") for r, sgd in table.against_sgd(n, alike))


@sentence(
    "FedProx is always slower than the other local update methods.",
    WHERE,
    repeats=fedprox_is_slower,
)
@by_every_reading("scaffold", "fedavg", "fedprox")
def fedprox_is_the_slowest_local_method(table: Table) -> bool:
    """Compare it with both; where another does not arrive nothing is slower."""
    pairs = [
        p for n in ("scaffold", "fedavg") for p in table.pairs(n, "fedprox", table.similarities)
    ]
    return all(other < fedprox or other == inf for other, fedprox in pairs)


@sentence("FedProx in some cases outperforms SGD.", WHERE)
@by_every_reading("sgd", "fedprox")
def fedprox_may_outperform_sgd(table: Table) -> bool:
    """Look for a cell in which it does."""
    return any(r < sgd for r, sgd in table.against_sgd("fedprox", table.similarities))


@sentence("FedProx is always the worst, SGD included.", REPORT, repeats=fedprox_is_slower)
@by_every_reading("sgd", "scaffold", "fedavg", "fedprox")
def fedprox_is_always_the_worst(table: Table) -> bool:
    """Compare it with all; the published table says otherwise at 100 %."""
    others = [
        p for n in ("scaffold", "fedavg") for p in table.pairs(n, "fedprox", table.similarities)
    ]
    others += [(sgd, r) for r, sgd in table.against_sgd("fedprox", table.similarities)]
    return all(other < fedprox or other == inf for other, fedprox in others)


@sentence("At 0 % FedAvg with the most epochs never reaches the target.", REPORT)
@by_every_reading("fedavg", at=lambda similarity: similarity == 0)
def fedavg_never_arrives(table: Table) -> bool:
    """Look at its last row."""
    return table.by_epochs("fedavg", 0)[-1] == inf


@check(
    f"With one step size for all algorithms, {FOR_ALL[0]:.2g}, SGD hardly depends on the "
    "similarity (within 31 %).",
    "ours: the reading under which the published SGD looks as it does",
)
def sgd_is_constant_at_a_small_step(records: Records) -> Verdict:
    """Compare its slowest cell with its fastest at that step size."""
    raced = read_raced(records)
    wanted = {"algorithm": "sgd", "eta": FOR_ALL[0]}
    sgd = [needed(raced, PUBLISHED, similarity=s, **wanted) for s in SIMILARITIES]
    numbers = ", ".join(f"{r:g} at {s} %" for s, r in zip(SIMILARITIES, sgd, strict=True))
    return over_seeds({0: max(sgd) <= 1.313 * min(sgd)}, numbers)


SENTENCES = (
    scaffold_is_never_slower_than_sgd,
    scaffold_beats_fedavg,
    fedavg_drifts,
    epochs_help_similar_clients,
    sgd_does_not_depend_on_similarity,
    fedprox_is_slower,
    scaffold_is_the_fastest,
    fedavg_is_always_slower,
    scaffold_is_always_faster_than_sgd,
    fedavg_gets_worse_with_every_step,
    fedavg_falls_behind_sgd,
    scaffold_worsens_and_flattens,
    similarity_helps,
    both_outperform_sgd,
    fedprox_is_the_slowest_local_method,
    fedprox_may_outperform_sgd,
    fedprox_is_always_the_worst,
    fedavg_never_arrives,
    sgd_is_constant_at_a_small_step,
)
