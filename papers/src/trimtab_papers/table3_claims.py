"""The cells of Table 3 of SCAFFOLD, and its sentences, each above the function that judges it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, log

from trimtab_papers.engine import TITLES, Cell, takes_local_steps
from trimtab_papers.raced import FACTOR, RacedRecord, Setting, cell, read_raced
from trimtab_papers.rounds_to_target import (
    PUBLISHED,
    Reading,
    judged,
    required_rounds,
    rounds_text,
    text_by_size,
)
from trimtab_papers.verdicts import (
    Judge,
    MissingRecordError,
    Records,
    Sentences,
    Verdict,
    over_seeds,
)

SIMILARITIES = (0, 10, 100)
FOR_ALL = tuple(round(FACTOR**e, 6) for e in (-4, -2, 0, -6, -5))  # 0.029 <= eta <= 1
ALGORITHMS = ("sgd", "scaffold", "fedavg", "fedprox")


def settings(quick: bool) -> list[Setting]:
    usual, epochs, similarities = Setting("", 1, 0), [1, 5, 10, 20], list(SIMILARITIES)
    if quick:
        usual = replace(usual, S=8, N=20, target=0.45, until=0.5, limit=120, every=12)
        epochs, similarities = [1, 5], [0, 100]
    table = []
    for name in ALGORITHMS:
        for e in epochs if takes_local_steps(name) else [1]:
            limit = usual.limit if e <= 5 else 300
            table += [
                replace(usual, algorithm=name, epochs=e, similarity=s, limit=limit)
                for s in similarities
            ]
    return table


def cells(quick: bool, seeds: int) -> list[Cell]:
    return [cell(setting) for setting in settings(quick)]


# -- the other readings


def unknowns() -> list[Setting]:
    """Return a few cells with other pixels, and with another start."""
    few = [Setting(name, 5, s) for name in ("scaffold", "fedavg") for s in (0, 10)]
    return [replace(s, pixels="standardised") for s in few] + [
        replace(s, random_start=True) for s in few
    ]


def common(records: Records) -> list[Setting]:
    """Return the second reading: the three best common step sizes of each algorithm, everywhere."""
    known, common = _by_name(records), list[Setting]()
    for name in ALGORITHMS:
        cells = _settings_of(name)
        raced = [known[setting.name] for setting in cells if setting.name in known]
        if len(raced) == len(cells):
            best = _best_three(raced)
            common += [replace(setting, eta=eta, until=0.5) for eta in best for setting in cells]
    return common


def _best_three(raced: list[RacedRecord]) -> list[float]:
    """Return the step sizes that do best in all races together.

    A candidate's score in a cell is its rounds to the target, or the limit; unknown is the limit.
    """
    scores: dict[float, list[float]] = {}
    for record in raced:
        for candidate in record.candidates:
            score = (candidate["first"] or record.limit) / record.limit
            scores.setdefault(round(candidate["eta"], 6), []).append(score)
    total = {eta: sum(some) + len(raced) - len(some) for eta, some in scores.items()}
    return sorted(total, key=lambda eta: total[eta])[:3]


def for_all(eta: float) -> list[Setting]:
    """Return the third reading: one step size for all algorithms and cells."""
    return [replace(s, eta=eta, until=0.5, limit=1000) for s in settings(quick=False)]


def more(records: Records) -> list[Cell]:
    """Return what the paper leaves open: pixels, start, one step size for an algorithm or all."""
    others = [*unknowns(), *common(records), *(s for eta in FOR_ALL for s in for_all(eta))]
    return [cell(setting) for setting in {setting.name: setting for setting in others}.values()]


def best_common(records: Records) -> dict[str, float]:
    """Return for each algorithm the common step size that loses least, of those that are complete.

    A step size's score is the sum of the logarithms of its rounds, a cell where the target is not
    met counting as ten times the limit.
    """
    known, best = _by_name(records), {}
    for name in ALGORITHMS:
        raced = [record.setting for record in known.values() if record.setting.algorithm == name]
        scores = {}
        for eta in {setting.eta for setting in raced if setting.eta is not None}:
            cells = [replace(setting, eta=eta, until=0.5).name for setting in _settings_of(name)]
            if all(cell in known for cell in cells):
                scores[eta] = sum(log(_rounds(known[cell])) for cell in cells)
        if scores:
            best[name] = min(scores, key=lambda eta: scores[eta])
    return best


def _rounds(record: RacedRecord) -> int:
    return PUBLISHED.rounds(record) or 10 * record.limit


def _settings_of(algorithm: str) -> list[Setting]:
    return [setting for setting in settings(quick=False) if setting.algorithm == algorithm]


def _by_name(records: Records) -> dict[str, RacedRecord]:
    return {record.setting.name: record for record in read_raced(records)}


# -- what a sentence is judged by


Pair = tuple[float, float]
"""The rounds of two algorithms in one cell."""


@dataclass(frozen=True)
class Table:
    """Rounds to the target by one reading; a cell without a record leaves a sentence open."""

    raced: Sequence[RacedRecord]
    reading: Reading = PUBLISHED

    @property
    def epochs(self) -> list[int]:
        return sorted({setting.epochs for setting in self._settings})

    @property
    def similarities(self) -> list[float]:
        return sorted({setting.similarity for setting in self._settings})

    @property
    def _settings(self) -> list[Setting]:
        return settings(quick=any(record.setting.N != 100 for record in self.raced))

    def sgd(self, similarity: float) -> float:
        cell = {"algorithm": "sgd", "epochs": 1, "similarity": similarity}
        return required_rounds(self.raced, self.reading, **cell)

    def by_epochs(self, algorithm: str, similarity: float) -> list[float]:
        """Return the rounds of an algorithm, fewest epochs first."""
        row = {"algorithm": algorithm, "similarity": similarity}
        return [required_rounds(self.raced, self.reading, epochs=e, **row) for e in self.epochs]

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
                rounds_text(self.raced, algorithm=name, epochs=e, similarity=s)
                for e in (self.epochs if takes_local_steps(name) else [1])
            ]
            parts.append(f"{TITLES[name]} at {s:g} %: {', '.join(cells)}")
        return "; ".join(parts)


def by_every_reading(
    *algorithms: str, at: Callable[[float], bool] = lambda similarity: True
) -> Callable[[Callable[[Table], bool]], Judge]:
    """Judge a table by every reading, with the rounds of some algorithms as the numbers."""

    def judge_of(holds: Callable[[Table], bool]) -> Judge:
        def judge(records: Records) -> Verdict:
            raced = read_raced(records)
            similarities = [s for s in Table(raced).similarities if at(s)]
            numbers = text_by_size(raced, lambda r: Table(r).numbers(algorithms, similarities))
            return judged(raced, lambda seed, reading: holds(Table(seed, reading)), numbers)

        return judge

    return judge_of


# -- what the paper says


PAPER = Sentences("section 7.3, Table 3")
REPORT = "report, section 5.2"


@PAPER.says("SCAFFOLD never needs more rounds than SGD.")
@by_every_reading("sgd", "scaffold")
def scaffold_is_never_slower_than_sgd(table: Table) -> bool:
    return all(r <= sgd for r, sgd in table.against_sgd("scaffold", table.similarities))


@PAPER.says("SCAFFOLD beats FedAvg at 0 % similarity for every number of epochs.")
@by_every_reading("scaffold", "fedavg", at=lambda similarity: similarity == 0)
def scaffold_beats_fedavg(table: Table) -> bool:
    return all(scaffold < fedavg for scaffold, fedavg in table.pairs("scaffold", "fedavg", [0]))


@PAPER.says("FedAvg at 0 % loses as epochs grow, while SCAFFOLD flattens.")
@by_every_reading("scaffold", "fedavg", at=lambda similarity: similarity == 0)
def fedavg_drifts(table: Table) -> bool:
    """Compare most epochs with fewest for FedAvg, and with the worst of the others for SCAFFOLD."""
    fedavg, scaffold = table.by_epochs("fedavg", 0), table.by_epochs("scaffold", 0)
    return fedavg[-1] > fedavg[0] and scaffold[-1] <= 1.1 * max(scaffold[:-1])


@PAPER.says("Both gain monotonically from epochs where clients are similar.")
@by_every_reading("scaffold", "fedavg", at=lambda similarity: similarity > 0)
def epochs_help_similar_clients(table: Table) -> bool:
    return all(
        few >= many
        for name in ("scaffold", "fedavg")
        for s in table.similarities
        if s > 0
        for few, many in pairwise(table.by_epochs(name, s))
    )


@PAPER.says("SGD does not depend on the similarity (within 31 %, the published spread).")
@by_every_reading("sgd")
def sgd_does_not_depend_on_similarity(table: Table) -> bool:
    """Compare its slowest cell with its fastest; the published ones are 416 and 317."""
    sgd = [table.sgd(s) for s in table.similarities]
    return max(sgd) <= 1.313 * min(sgd)


@PAPER.says("FedProx (mu = 1) is slower than FedAvg everywhere.")
@by_every_reading("fedavg", "fedprox")
def fedprox_is_slower(table: Table) -> bool:
    """Compare them cell by cell; where FedAvg does not arrive nothing is slower."""
    pairs = table.pairs("fedavg", "fedprox", table.similarities)
    return all(fedavg < fedprox or fedavg == inf for fedavg, fedprox in pairs)


@PAPER.says("Across all epochs and similarities SCAFFOLD is the fastest (no other is faster).")
@by_every_reading("sgd", "scaffold", "fedavg", "fedprox")
def scaffold_is_the_fastest(table: Table) -> bool:
    """Look for a cell in which another needs fewer rounds; the published table has one."""
    others = [
        *table.against_sgd("scaffold", table.similarities),
        *table.pairs("scaffold", "fedavg", table.similarities),
        *table.pairs("scaffold", "fedprox", table.similarities),
    ]
    return all(scaffold <= other for scaffold, other in others)


@PAPER.says("FedAvg is always slower than SCAFFOLD.", repeats=scaffold_is_the_fastest)
@by_every_reading("scaffold", "fedavg")
def fedavg_is_always_slower(table: Table) -> bool:
    """Compare them cell by cell; equal rounds are not slower."""
    pairs = table.pairs("scaffold", "fedavg", table.similarities)
    return all(scaffold < fedavg for scaffold, fedavg in pairs)


@PAPER.says(
    "SCAFFOLD's performance is always better than that of SGD.",
    repeats=scaffold_is_never_slower_than_sgd,
)
@by_every_reading("sgd", "scaffold")
def scaffold_is_always_faster_than_sgd(table: Table) -> bool:
    """Compare every cell with SGD's; equal rounds are not better."""
    return all(r < sgd for r, sgd in table.against_sgd("scaffold", table.similarities))


@PAPER.says("At 0 % FedAvg consistently gets worse as epochs increase.")
@by_every_reading("fedavg", at=lambda similarity: similarity == 0)
def fedavg_gets_worse_with_every_step(table: Table) -> bool:
    return all(few < many for few, many in pairwise(table.by_epochs("fedavg", 0)))


@PAPER.says("At 0 % and with more than 5 epochs FedAvg is worse than SGD.")
@by_every_reading("sgd", "fedavg", at=lambda similarity: similarity == 0)
def fedavg_falls_behind_sgd(table: Table) -> bool:
    rows = zip(table.epochs, table.by_epochs("fedavg", 0), strict=True)
    many = [r for epochs, r in rows if epochs > 5]
    if not many:
        raise MissingRecordError
    return all(r > table.sgd(0) for r in many)


@PAPER.says("SCAFFOLD at 0 % initially worsens with more epochs and then flattens.")
@by_every_reading("scaffold", at=lambda similarity: similarity == 0)
def scaffold_worsens_and_flattens(table: Table) -> bool:
    """Compare the second number of epochs with the first, and the last with the worst before."""
    scaffold = table.by_epochs("scaffold", 0)
    return scaffold[1] > scaffold[0] and scaffold[-1] <= 1.1 * max(scaffold[:-1])


@PAPER.says("SCAFFOLD and FedAvg get faster with more similarity.")
@by_every_reading("scaffold", "fedavg")
def similarity_helps(table: Table) -> bool:
    return all(
        alike < sorted_
        for name in ("scaffold", "fedavg")
        for s in table.similarities
        if s > 0
        for alike, sorted_ in zip(table.by_epochs(name, s), table.by_epochs(name, 0), strict=True)
    )


@PAPER.says("With more similarity both FedAvg and SCAFFOLD outperform SGD.")
@by_every_reading("sgd", "scaffold", "fedavg", at=lambda similarity: similarity > 0)
def both_outperform_sgd(table: Table) -> bool:
    alike = [s for s in table.similarities if s > 0]
    return all(r < sgd for n in ("scaffold", "fedavg") for r, sgd in table.against_sgd(n, alike))


@PAPER.says(
    "FedProx is always slower than the other local update methods.", repeats=fedprox_is_slower
)
@by_every_reading("scaffold", "fedavg", "fedprox")
def fedprox_is_the_slowest_local_method(table: Table) -> bool:
    """Compare it with both; where another does not arrive nothing is slower."""
    pairs = [
        p for n in ("scaffold", "fedavg") for p in table.pairs(n, "fedprox", table.similarities)
    ]
    return all(other < fedprox or other == inf for other, fedprox in pairs)


@PAPER.says("FedProx in some cases outperforms SGD.")
@by_every_reading("sgd", "fedprox")
def fedprox_may_outperform_sgd(table: Table) -> bool:
    return any(r < sgd for r, sgd in table.against_sgd("fedprox", table.similarities))


@PAPER.says("FedProx is always the worst, SGD included.", REPORT, repeats=fedprox_is_slower)
@by_every_reading("sgd", "scaffold", "fedavg", "fedprox")
def fedprox_is_always_the_worst(table: Table) -> bool:
    """Compare it with all; the published table says otherwise at 100 %."""
    others = [
        p for n in ("scaffold", "fedavg") for p in table.pairs(n, "fedprox", table.similarities)
    ]
    others += [(sgd, r) for r, sgd in table.against_sgd("fedprox", table.similarities)]
    return all(other < fedprox or other == inf for other, fedprox in others)


@PAPER.says("At 0 % FedAvg with the most epochs never reaches the target.", REPORT)
@by_every_reading("fedavg", at=lambda similarity: similarity == 0)
def fedavg_never_arrives(table: Table) -> bool:
    return table.by_epochs("fedavg", 0)[-1] == inf


@PAPER.check(
    f"With one step size for all algorithms, {FOR_ALL[0]:.2g}, SGD hardly depends on the "
    "similarity (within 31 %).",
    "ours: the reading under which the published SGD looks as it does",
)
def sgd_is_constant_at_a_small_step(records: Records) -> Verdict:
    raced = read_raced(records)
    row = {"algorithm": "sgd", "eta": FOR_ALL[0]}
    sgd = [required_rounds(raced, PUBLISHED, similarity=s, **row) for s in SIMILARITIES]
    numbers = ", ".join(f"{r:g} at {s} %" for s, r in zip(SIMILARITIES, sgd, strict=True))
    return over_seeds({0: max(sgd) <= 1.313 * min(sgd)}, numbers)
