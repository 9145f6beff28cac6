"""The sentences of the paper on Table 3, each above the function that judges it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from trimtab.reproduce.names import TITLES, takes_local_steps
from trimtab.reproduce.raced_record import RacedRecord, Setting, read_raced
from trimtab.reproduce.reproduction import Judge, Records, Verdict, sentence
from trimtab.reproduce.rounds_to_target import PUBLISHED, Reading, judged, needed, rounds
from trimtab.reproduce.scaffold2020.table3.cells import settings

WHERE = "section 7.2, Table 3"


@dataclass(frozen=True)
class Table:
    """Rounds to the target by one reading; a cell without a record leaves a sentence open."""

    raced: Sequence[RacedRecord]
    reading: Reading = PUBLISHED

    @property
    def epochs(self) -> list[int]:
        """The rows of an algorithm."""
        return sorted({setting.epochs for setting in self._settings})

    @property
    def similarities(self) -> list[float]:
        """The columns."""
        return sorted({setting.similarity for setting in self._settings})

    @property
    def _settings(self) -> list[Setting]:
        return settings(quick=any(record.setting.N != 100 for record in self.raced))

    def sgd(self, similarity: float) -> float:
        """Return SGD's rounds."""
        wanted = {"algorithm": "sgd", "epochs": 1, "similarity": similarity}
        return needed(self.raced, self.reading, **wanted)

    def by_epochs(self, algorithm: str, similarity: float) -> list[float]:
        """Return the rounds of an algorithm, fewest epochs first."""
        wanted = {"algorithm": algorithm, "similarity": similarity}
        return [needed(self.raced, self.reading, epochs=e, **wanted) for e in self.epochs]

    def numbers(self, algorithms: Sequence[str], similarities: Sequence[float]) -> str:
        """Return the rounds of some cells, a question mark where there is no record."""
        parts = []
        for name in algorithms:
            for s in similarities:
                cells = [
                    rounds(self.raced, algorithm=name, epochs=e, similarity=s)
                    for e in (self.epochs if takes_local_steps(name) else [1])
                ]
                told = ", ".join("?" if r is None else f"{r:g}" for r in cells)
                parts.append(f"{TITLES[name]} at {s:g} %: {told}")
        return "; ".join(parts)


def by_every_reading(
    *algorithms: str, at: Callable[[float], bool] = lambda similarity: True
) -> Callable[[Callable[[Table], bool]], Judge]:
    """Judge a table by every reading, and tell the rounds of some algorithms at similarities."""

    def judge_of(holds: Callable[[Table], bool]) -> Judge:
        def judge(records: Records) -> Verdict:
            raced = read_raced(records)
            table = Table(raced)
            told = table.numbers(algorithms, [s for s in table.similarities if at(s)])
            return judged(raced, lambda reading: holds(Table(raced, reading)), told)

        return judge

    return judge_of


@sentence("SCAFFOLD never needs more rounds than SGD.", WHERE)
@by_every_reading("sgd", "scaffold")
def scaffold_is_never_slower_than_sgd(table: Table) -> bool:
    """Compare every cell with SGD's at its similarity."""
    return all(
        r <= table.sgd(s) for s in table.similarities for r in table.by_epochs("scaffold", s)
    )


@sentence("SCAFFOLD beats FedAvg at 0 % similarity for every number of epochs.", WHERE)
@by_every_reading("scaffold", "fedavg", at=lambda similarity: similarity == 0)
def scaffold_beats_fedavg(table: Table) -> bool:
    """Compare them epoch by epoch."""
    pairs = zip(table.by_epochs("scaffold", 0), table.by_epochs("fedavg", 0), strict=True)
    return all(scaffold < fedavg for scaffold, fedavg in pairs)


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
    pairs = [
        pair
        for s in table.similarities
        for pair in zip(table.by_epochs("fedavg", s), table.by_epochs("fedprox", s), strict=True)
    ]
    return all(fedavg < fedprox or fedavg == inf for fedavg, fedprox in pairs)


SENTENCES = (
    scaffold_is_never_slower_than_sgd,
    scaffold_beats_fedavg,
    fedavg_drifts,
    epochs_help_similar_clients,
    sgd_does_not_depend_on_similarity,
    fedprox_is_slower,
)
