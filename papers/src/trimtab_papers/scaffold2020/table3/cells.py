"""The cells of Table 3, and those of the other readings."""

from dataclasses import replace
from math import log

from trimtab_papers.names import takes_local_steps
from trimtab_papers.raced_cells import FACTOR, cell
from trimtab_papers.raced_record import RacedRecord, Setting, read_raced
from trimtab_papers.records import Records
from trimtab_papers.reproduction import Cell
from trimtab_papers.rounds_to_target import PUBLISHED

SIMILARITIES = (0, 10, 100)
FOR_ALL = tuple(round(FACTOR**e, 6) for e in (-4, -2, 0, -6, -5))  # 0.029 <= eta <= 1
ALGORITHMS = ("sgd", "scaffold", "fedavg", "fedprox")


def settings(quick: bool) -> list[Setting]:
    """Return the cells of the table."""
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
    """Return the cells of the table for the first seed."""
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
    known, wanted = _by_name(records), list[Setting]()
    for name in ALGORITHMS:
        cells = _settings_of(name)
        raced = [known[setting.name] for setting in cells if setting.name in known]
        if len(raced) == len(cells):
            best = _best_three(raced)
            wanted += [replace(setting, eta=eta, until=0.5) for eta in best for setting in cells]
    return wanted


def _best_three(raced: list[RacedRecord]) -> list[float]:
    """Return the step sizes that do best in all races together.

    A candidate's score in a cell is its rounds to the target, or the limit; unknown is the limit.
    """
    scores: dict[float, list[float]] = {}
    for record in raced:
        for candidate in record.candidates:
            score = (candidate.first or record.limit) / record.limit
            scores.setdefault(round(candidate.eta, 6), []).append(score)
    total = {eta: sum(some) + len(raced) - len(some) for eta, some in scores.items()}
    return sorted(total, key=lambda eta: total[eta])[:3]


def for_all(eta: float) -> list[Setting]:
    """Return the third reading: one step size for all algorithms and cells."""
    return [replace(s, eta=eta, until=0.5, limit=1000) for s in settings(quick=False)]


def more(records: Records) -> list[Cell]:
    """Return what the paper leaves open: pixels, start, one step size for an algorithm or all."""
    wanted = [*unknowns(), *common(records), *(s for eta in FOR_ALL for s in for_all(eta))]
    return [cell(setting) for setting in {setting.name: setting for setting in wanted}.values()]


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
