"""Table 3 as we show it: beside the published numbers, and by all readings."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from statistics import fmean
from typing import Any

from trimtab_papers import published
from trimtab_papers.names import TITLES, takes_local_steps
from trimtab_papers.raced_record import RacedRecord, read_raced
from trimtab_papers.records import Records
from trimtab_papers.rounds_to_target import (
    AIMS,
    PUBLISHED,
    READINGS,
    Reading,
    aimed_at,
    both,
    chosen,
    fragile_note,
    lines,
    rounds,
    shown,
    small_clients,
    step_sizes,
    values,
)
from trimtab_papers.scaffold2020.table3.cells import (
    ALGORITHMS,
    FOR_ALL,
    SIMILARITIES,
    best_common,
)


def table(records: Records) -> str:
    """Return a table for each similarity, then the other readings."""
    raced, common = read_raced(records), best_common(records)
    parts = [_tuned(raced, s) for s in values(raced, "similarity")]
    parts += [fragile_note(raced), *small_clients(raced, _ROWS)]
    parts += [*_one_step_size(raced, common), *_for_all(raced), *_pixels_and_start(raced)]
    return "\n\n".join([*parts, *_closeness(raced, common)])


_ROWS = [
    (f"{TITLES[name]}, {epochs} epochs" if epochs > 1 else f"{TITLES[name]}, 1 epoch", wanted)
    for name, epochs in published.TABLE3
    for wanted in [{"algorithm": name, "epochs": epochs}]
]


def _tuned(raced: Sequence[RacedRecord], s: float) -> str:
    target, until = (f"rounds to {aimed_at(raced, aim)}" for aim in AIMS)
    head = [f"similarity {s:g} %", "epochs", target, "published", "times SGD", "published"]
    rows = [[*head, until, "step size"]]
    sgd, published_sgd = rounds(raced, algorithm="sgd", similarity=s), published.table3("sgd", 1, s)
    for name in ALGORITHMS:
        for e in values(raced, "epochs"):
            seeds = chosen(raced, algorithm=name, epochs=e, similarity=s)
            if not seeds:
                continue
            ours = rounds(raced, algorithm=name, epochs=e, similarity=s)
            theirs = published.table3(name, e, s)
            rows.append(
                [
                    TITLES[name],
                    str(e),
                    both(seeds, "target"),
                    "1k+" if theirs is None else str(theirs),
                    f"{sgd / ours:.1f}" if sgd and ours and max(sgd, ours) < inf else "",
                    f"{published_sgd / theirs:.1f}" if published_sgd and theirs else "",
                    both(seeds, "until"),
                    step_sizes(seeds),
                ]
            )
    return lines(rows)


def _one_step_size(raced: Sequence[RacedRecord], common: Mapping[str, float]) -> list[str]:
    """Return the rounds with one step size for an algorithm everywhere."""
    rows = [["one step size for all cells", "step size", "epochs", "0 %", "10 %", "100 %"]]
    for name, eta in common.items():
        for e in [1, 5, 10, 20] if takes_local_steps(name) else [1]:
            wanted: dict[str, Any] = {"algorithm": name, "epochs": e, "eta": eta}
            row = [both(chosen(raced, similarity=s, **wanted), "target") for s in SIMILARITIES]
            rows.append([TITLES[name], f"{eta:.2g}", str(e), *row])
    return [lines(rows)] if common else []


def _for_all(raced: Sequence[RacedRecord]) -> list[str]:
    """Return the rounds with one step size for all algorithms and cells, where there are some."""
    etas = [eta for eta in sorted(FOR_ALL) if chosen(raced, algorithm="sgd", eta=eta)]
    rows = [["one step size for all algorithms", "epochs", "0 %", "10 %", "100 %"]]
    for eta in etas:
        for name, epochs in published.TABLE3:
            wanted: dict[str, Any] = {"algorithm": name, "epochs": epochs, "eta": eta}
            cells = [chosen(raced, similarity=s, **wanted) for s in SIMILARITIES]
            if any(cells):
                row = [shown(seeds, PUBLISHED) if seeds else "" for seeds in cells]
                rows.append([f"{eta:.2g}, {TITLES[name]}", str(epochs), *row])
    return [lines(rows)] if len(rows) > 1 else []


def _pixels_and_start(raced: Sequence[RacedRecord]) -> list[str]:
    """Return the cells with other pixels and another start beside the usual ones."""
    rows = [["5 epochs, rounds to 0.5", "0 %", "10 %", "step sizes"]]
    for title, wanted in (
        ("pixels 0..1, start at zero", {}),
        ("pixels standardised", {"pixels": "standardised"}),
        ("random start", {"random_start": True}),
    ):
        for name in ("scaffold", "fedavg"):
            usual: dict[str, Any] = {"algorithm": name, "epochs": 5} | wanted
            cells = [chosen(raced, similarity=s, **usual) for s in (0, 10)]
            if all(cells):
                etas = ", ".join(map(step_sizes, cells))
                row = [both(seeds, "target") for seeds in cells]
                rows.append([f"{TITLES[name]}, {title}", *row, etas])
    return [lines(rows)] if len(rows) > 3 else []


Named = tuple[str, int, float]
"""A cell of the table: algorithm, epochs, similarity."""


@dataclass(frozen=True)
class Distance:
    """By which factors the rounds and the speed-ups over SGD miss the paper, on average.

    cells: how many there are that both give as numbers.
    """

    rounds: float
    speed_ups: float
    cells: int


def distance(
    raced: Sequence[RacedRecord],
    reading: Reading,
    common: Mapping[str, float],
    cells: Collection[Named] | None = None,
) -> Distance | None:
    """Return how far a reading is from the paper, by geometric means; None if nothing is there.

    common: step sizes by algorithm; those that are not in it were tuned in every cell.
    cells: those that count; None: all that there are.
    """
    off, off_in_speed_up = [], []
    for (name, epochs), row in published.TABLE3.items():
        for s, theirs in row.items():
            ours = _ours(raced, reading, common, (name, epochs, s))
            counts = cells is None or (name, epochs, s) in cells
            if not counts or not theirs or not ours or ours == inf:
                continue
            off.append(abs(log(ours / theirs)))
            sgd = _ours(raced, reading, common, ("sgd", 1, s))
            published_sgd = published.table3("sgd", 1, s)
            if name != "sgd" and published_sgd and sgd and sgd < inf:
                off_in_speed_up.append(abs(log((sgd / ours) / (published_sgd / theirs))))
    if not off or not off_in_speed_up:
        return None
    return Distance(exp(fmean(off)), exp(fmean(off_in_speed_up)), len(off))


def _ours(
    raced: Sequence[RacedRecord], reading: Reading, common: Mapping[str, float], cell: Named
) -> float | None:
    name, epochs, s = cell
    eta = common.get(name)
    return rounds(raced, reading, algorithm=name, epochs=epochs, similarity=s, eta=eta)


def _closeness(raced: Sequence[RacedRecord], common: Mapping[str, float]) -> list[str]:
    """Return which reading is closest to the paper."""
    ways: dict[str, tuple[Reading, Mapping[str, float]]] = {
        f"tuned per cell, {reading.named(raced)}": (reading, {}) for reading in READINGS
    }
    if len(common) == len(ALGORITHMS):
        ways |= {
            f"one step size per algorithm, {reading.named(raced)}": (reading, common)
            for reading in READINGS[:2]
        }
    rows = [["reading", "rounds off by", "speed-ups over SGD off by", "cells"]]
    for way, (reading, etas) in ways.items():
        far = distance(raced, reading, etas)
        if far is not None:
            rows.append([way, f"{far.rounds:.2f}", f"{far.speed_ups:.2f}", str(far.cells)])
    if len(rows) == 1:
        return []
    return [lines(rows), *_closeness_for_all(raced)]


def _closeness_for_all(raced: Sequence[RacedRecord]) -> list[str]:
    """Return how near each step size for all comes, on the cells in which all arrive."""
    known = {eta: cells for eta in sorted(FOR_ALL) if (cells := _of_published(raced, eta))}
    if len(known) < 2:
        return []
    tried = set.intersection(*(set(cells) for cells in known.values()))
    shared = {cell for cell in tried if all(cells[cell] < inf for cells in known.values())}
    head = ["one step size for all algorithms", "rounds off by", "speed-ups over SGD off by"]
    rows = [[*head, "cells", f"does not arrive, of {len(tried)} cells"]]
    for way, eta in [("tuned per cell", None), *((f"{eta:.2g}", eta) for eta in known)]:
        far = distance(raced, PUBLISHED, {} if eta is None else everywhere(eta), shared)
        if far is not None:
            lost = sum(known[eta][cell] == inf for cell in tried) if eta is not None else 0
            off = [f"{far.rounds:.2f}", f"{far.speed_ups:.2f}"]
            rows.append([way, *off, str(far.cells), str(lost)])
    return [lines(rows)] if len(rows) > 1 else []


def everywhere(eta: float) -> dict[str, float]:
    """Return a step size for every algorithm."""
    return dict.fromkeys(ALGORITHMS, eta)


def _of_published(raced: Sequence[RacedRecord], eta: float) -> dict[Named, float]:
    """Return the rounds of a step size in the cells for which the paper has a number."""
    return {
        (name, epochs, s): ours
        for (name, epochs), row in published.TABLE3.items()
        for s, theirs in row.items()
        if theirs
        for ours in [rounds(raced, algorithm=name, epochs=epochs, similarity=s, eta=eta)]
        if ours is not None
    }
