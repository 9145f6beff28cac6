"""Table 3 as we show it: beside the published numbers, and by all readings."""

from math import exp, inf, log
from statistics import fmean
from typing import Any

from trimtab.reproduce.published import TABLE3
from trimtab.reproduce.raced_cells import NAMES
from trimtab.reproduce.reproduction import Records
from trimtab.reproduce.rounds_to_target import (
    READINGS,
    Reading,
    both,
    chosen,
    fragile_note,
    goal,
    lines,
    named,
    rounds,
    step_sizes,
    values,
)
from trimtab.reproduce.scaffold2020.table3.cells import ALGORITHMS, SIMILARITIES, best_common


def published(name: str, epochs: int, s: float) -> int | None:
    """Return the published rounds; None where the paper says 1k+, or nothing."""
    row = TABLE3.get((name, epochs))
    return row[SIMILARITIES.index(int(s))] if row and s in SIMILARITIES else None


def table(records: Records) -> str:
    """Return a table for each similarity, then the other readings."""
    parts = [_tuned(records, s) for s in values(records, "similarity")]
    parts.append(fragile_note(records))
    return "\n\n".join([*parts, *_second(records), *_few(records), *_closeness(records)])


def _tuned(records: Records, s: float) -> str:
    target, until = (f"rounds to {goal(records, of)}" for of in ("target", "until"))
    head = [f"similarity {s:g} %", "epochs", target, "published", "times SGD", "published"]
    rows = [[*head, until, "step size"]]
    sgd, theirs = rounds(records, algorithm="sgd", similarity=s), published("sgd", 1, s)
    for name in ALGORITHMS:
        for e in values(records, "epochs"):
            here = chosen(records, algorithm=name, epochs=e, similarity=s)
            if not here:
                continue
            ours = rounds(records, algorithm=name, epochs=e, similarity=s)
            there = published(name, e, s)
            rows.append(
                [
                    NAMES[name],
                    str(e),
                    both(here, "target"),
                    "1k+" if there is None else str(there),
                    f"{sgd / ours:.1f}" if sgd and ours and max(sgd, ours) < inf else "",
                    f"{theirs / there:.1f}" if theirs and there else "",
                    both(here, "until"),
                    step_sizes(here),
                ]
            )
    return lines(rows)


def _second(records: Records) -> list[str]:
    """Return the rounds with one step size for an algorithm everywhere."""
    etas = best_common(records)
    if not etas:
        return []
    rows = [["one step size for all cells", "step size", "epochs", "0 %", "10 %", "100 %"]]
    for name, eta in etas.items():
        for e in [1] if name == "sgd" else [1, 5, 10, 20]:
            here = [
                chosen(records, algorithm=name, epochs=e, similarity=s, eta=eta)
                for s in SIMILARITIES
            ]
            rows.append([NAMES[name], f"{eta:.2g}", str(e), *(both(h, "target") for h in here)])
    return [lines(rows)]


def _few(records: Records) -> list[str]:
    """Return the cells with other pixels and another start beside the usual ones."""
    rows = [["5 epochs, rounds to 0.5", "0 %", "10 %", "step sizes"]]
    for text, wanted in (
        ("pixels 0..1, start at zero", {}),
        ("pixels standardised", {"pixels": "standardised"}),
        ("random start", {"random_start": True}),
    ):
        for name in ("scaffold", "fedavg"):
            usual: dict[str, Any] = {"algorithm": name, "epochs": 5} | wanted
            here = [chosen(records, **usual | {"similarity": s}) for s in (0, 10)]
            if all(here):
                etas = ", ".join(map(step_sizes, here))
                rows.append([f"{NAMES[name]}, {text}", *(both(h, "target") for h in here), etas])
    return [lines(rows)] if len(rows) > 3 else []


def distance(records: Records, reading: Reading, etas: dict[str, float]) -> str:
    """Return by which factor the rounds, and the speed-ups over SGD, miss the paper on average.

    The geometric mean over all cells that both give as numbers; and how many those are.
    """
    off, faster = [], []
    for name, e in TABLE3:
        for s in SIMILARITIES:

            def ours(name: str, e: int, s: float = s) -> float | None:
                wanted = {"algorithm": name, "epochs": e, "similarity": s, "eta": etas.get(name)}
                return rounds(records, reading, **wanted)

            there, here, sgd = published(name, e, s), ours(name, e), ours("sgd", 1)
            if not there or not here or here == inf:
                continue
            off.append(abs(log(here / there)))
            theirs = published("sgd", 1, s)
            if name != "sgd" and theirs and sgd and sgd < inf:
                faster.append(abs(log((sgd / here) / (theirs / there))))
    if not off or not faster:
        return ""
    return f"{exp(fmean(off)):.2f} | {exp(fmean(faster)):.2f} | {len(off)}"


def _closeness(records: Records) -> list[str]:
    """Return which reading is closest to the paper."""
    rows = [["reading", "rounds off by", "speed-ups over SGD off by", "cells"]]
    tuned = {f"tuned per cell, {named(records, r)}": (r, dict[str, float]()) for r in READINGS}
    etas = best_common(records)
    if len(etas) == len(ALGORITHMS):
        tuned |= {
            f"one step size per algorithm, {named(records, r)}": (r, etas) for r in READINGS[:2]
        }
    rows += [
        [name, *text.split(" | ")]
        for name, how in tuned.items()
        if (text := distance(records, *how))
    ]
    return [lines(rows)] if len(rows) > 1 else []
