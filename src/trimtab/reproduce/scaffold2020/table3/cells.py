"""The cells of Table 3, and those of the other readings."""

from dataclasses import replace
from math import log

from trimtab.reproduce.raced_cells import Setting, cell, seeded
from trimtab.reproduce.reproduction import Cell, Records
from trimtab.reproduce.rounds_to_target import PUBLISHED, need, setting

SIMILARITIES = (0, 10, 100)
ALGORITHMS = ("sgd", "scaffold", "fedavg", "fedprox")


def settings(quick: bool) -> list[Setting]:
    """Return the cells of the table."""
    small, epochs, similarities = Setting("", 1, 0), [1, 5, 10, 20], list(SIMILARITIES)
    if quick:
        small = replace(small, S=8, N=20, target=0.45, until=0.5, limit=120, every=12)
        epochs, similarities = [1, 5], [0, 100]
    made = [replace(small, algorithm="sgd", similarity=s) for s in similarities]
    for name in ALGORITHMS[1:]:
        for e in epochs:
            limit = small.limit if e <= 5 else 300
            made += [
                replace(small, algorithm=name, epochs=e, similarity=s, limit=limit)
                for s in similarities
            ]
    return made


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return the cells of the table for each seed."""
    return [cell(s) for s in seeded(settings(quick), seeds)]


# -- the other readings


def unknowns() -> list[Setting]:
    """Return a few cells with other pixels, and with another start."""
    few = [Setting(name, 5, s) for name in ("scaffold", "fedavg") for s in (0, 10)]
    return [replace(s, pixels="standardised") for s in few] + [
        replace(s, random_start=True) for s in few
    ]


def common(records: Records) -> list[Setting]:
    """Return the second reading: the three best common step sizes of each algorithm, everywhere.

    A candidate's score in a cell is its rounds to the target, or the limit; unknown is the limit.
    """
    wanted, made = settings(quick=False), list[Setting]()
    for name in ALGORITHMS:
        here = [s for s in wanted if s.algorithm == name]
        raced = [records[s.name] for s in here if s.name in records]
        if len(raced) < len(here):
            continue
        scores: dict[float, list[float]] = {}
        for record in raced:
            for c in record["candidates"]:
                need = (c["first"] or record["limit"]) / record["limit"]
                scores.setdefault(round(c["eta"], 6), []).append(need)
        total = {eta: sum(n) + len(raced) - len(n) for eta, n in scores.items()}
        best = sorted(total, key=lambda eta: total[eta])[:3]
        made += [replace(s, eta=eta, until=0.5) for eta in best for s in here]
    return made


def more(records: Records) -> list[Cell]:
    """Return what the paper leaves open: other pixels, another start, one step size for all."""
    return [cell(s) for s in [*unknowns(), *common(records)]]


def best_common(records: Records) -> dict[str, float]:
    """Return for each algorithm the common step size that loses least, of those that are complete.

    A cell's score is its rounds over those of the cell's own race; not met is ten times the limit.
    """
    found = {}
    for name in ALGORITHMS:
        here = [s for s in settings(quick=False) if s.algorithm == name]
        etas = {r["setting"]["eta"] for r in records.values() if setting(r)["algorithm"] == name}
        scores = {}
        for eta in etas - {None}:
            there = [records.get(replace(s, eta=eta, until=0.5).name) for s in here]
            if any(r is None for r in there):
                continue
            found_there = [need(r, PUBLISHED) or 10 * r["limit"] for r in there if r is not None]
            scores[eta] = sum(map(log, found_there))
        if scores:
            found[name] = min(scores, key=lambda eta: scores[eta])
    return found
