"""What a sentence on Table 3 is judged by: the rounds of one seed, by one reading."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trimtab_papers.names import TITLES, takes_local_steps
from trimtab_papers.raced_record import RacedRecord, Setting, read_raced
from trimtab_papers.records import Records
from trimtab_papers.rounds_to_target import (
    PUBLISHED,
    Reading,
    judged,
    needed,
    told,
    told_by_size,
)
from trimtab_papers.scaffold2020.table3.cells import settings
from trimtab_papers.verdicts import Judge, Verdict

Pair = tuple[float, float]
"""The rounds of two algorithms in one cell."""


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

    def pairs(self, one: str, other: str, similarities: Sequence[float]) -> list[Pair]:
        """Return the rounds of two algorithms side by side, at each number of epochs."""
        return [
            pair
            for s in similarities
            for pair in zip(self.by_epochs(one, s), self.by_epochs(other, s), strict=True)
        ]

    def against_sgd(self, algorithm: str, similarities: Sequence[float]) -> list[Pair]:
        """Return the rounds of an algorithm, each beside SGD's at its similarity."""
        return [(r, self.sgd(s)) for s in similarities for r in self.by_epochs(algorithm, s)]

    def numbers(self, algorithms: Sequence[str], similarities: Sequence[float]) -> str:
        """Return the rounds of some cells, a question mark where there is no record."""
        return "; ".join(self._numbers_of(name, similarities) for name in algorithms)

    def _numbers_of(self, name: str, similarities: Sequence[float]) -> str:
        if not any(record.setting.algorithm == name for record in self.raced):
            return f"{TITLES[name]}: not run"
        parts = []
        for s in similarities:
            cells = [
                told(self.raced, algorithm=name, epochs=e, similarity=s)
                for e in (self.epochs if takes_local_steps(name) else [1])
            ]
            parts.append(f"{TITLES[name]} at {s:g} %: {', '.join(cells)}")
        return "; ".join(parts)


def by_every_reading(
    *algorithms: str, at: Callable[[float], bool] = lambda similarity: True
) -> Callable[[Callable[[Table], bool]], Judge]:
    """Judge a table by every reading, and tell the rounds of some algorithms at similarities."""

    def judge_of(holds: Callable[[Table], bool]) -> Judge:
        def judge(records: Records) -> Verdict:
            raced = read_raced(records)
            similarities = [s for s in Table(raced).similarities if at(s)]
            numbers = told_by_size(raced, lambda r: Table(r).numbers(algorithms, similarities))
            return judged(raced, lambda seed, reading: holds(Table(seed, reading)), numbers)

        return judge

    return judge_of
