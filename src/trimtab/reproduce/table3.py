"""Table 3 of SCAFFOLD: rounds to 0.5 on EMNIST by algorithm, epochs and similarity.

Karimireddy et al., 2020, section 7. The paper leaves open how pixels were scaled, which step sizes
were tried and whether for each cell or once, and whether reaching 0.5 means touching it or staying
there: each is a reading, and all are shown.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, inf, log
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from trimtab.report.plots import COLOURS, STYLE
from trimtab.reproduce.emnist import NAMES, Setting, cell, seeded
from trimtab.reproduce.published import TABLE3
from trimtab.reproduce.reading import (
    PUBLISHED,
    READINGS,
    Need,
    Reading,
    both,
    chosen,
    goal,
    judged,
    lines,
    named,
    need,
    rounds,
    setting,
    shown,
    step_sizes,
    values,
)
from trimtab.reproduce.reproduction import Cell, Claim, Records, Reproduction

SIMILARITIES = (0, 10, 100)
ALGORITHMS = ("sgd", "scaffold", "fedavg", "fedprox")


def settings(quick: bool) -> list[Setting]:
    """Return the cells of the table."""
    small, epochs, similarities = Setting("", 1, 0), [1, 5, 10, 20], list(SIMILARITIES)
    if quick:
        small = replace(small, S=4, N=20, target=0.4, until=0.45, limit=120, every=12)
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


# -- the claims


def claims(records: Records) -> list[Claim]:
    """Return the sentences of section 7, judged over the cells."""
    made = settings(any(setting(r)["N"] != 100 for r in records.values()))
    epochs = sorted({s.epochs for s in made})
    similarities = sorted({s.similarity for s in made})
    mixed = [s for s in similarities if s > 0]

    def row(need: Need, name: str, s: float) -> list[float]:
        return [need(algorithm=name, epochs=e, similarity=s) for e in epochs]

    def below_sgd(need: Need) -> bool:
        sgd = {s: need(algorithm="sgd", epochs=1, similarity=s) for s in similarities}
        return all(n <= sgd[s] for s in similarities for n in row(need, "scaffold", s))

    def beats(need: Need) -> bool:
        pairs = zip(row(need, "scaffold", 0), row(need, "fedavg", 0), strict=True)
        return all(ours < theirs for ours, theirs in pairs)

    def drifts(need: Need) -> bool:
        fedavg, scaffold = row(need, "fedavg", 0), row(need, "scaffold", 0)
        return fedavg[-1] > fedavg[0] and scaffold[-1] <= 1.1 * max(scaffold[:-1])

    def gain(need: Need) -> bool:
        return all(
            a >= b
            for name in ("scaffold", "fedavg")
            for s in mixed
            for a, b in pairwise(row(need, name, s))
        )

    def steady(need: Need) -> bool:
        found = [need(algorithm="sgd", epochs=1, similarity=s) for s in similarities]
        return max(found) <= 1.313 * min(found)  # 416 to 317

    def slower(need: Need) -> bool:
        pairs = [
            pair
            for s in similarities
            for pair in zip(row(need, "fedavg", s), row(need, "fedprox", s), strict=True)
        ]
        return all(fedavg < fedprox or fedavg == inf for fedavg, fedprox in pairs)

    def numbers(*names: str, only: Sequence[float] = ()) -> str:
        parts = []
        for name in names:
            for s in only or similarities:
                found = [
                    rounds(records, algorithm=name, epochs=e, similarity=s)
                    for e in ([1] if name == "sgd" else epochs)
                ]
                text = ", ".join("?" if r is None else f"{r:g}" for r in found)
                parts.append(f"{NAMES[name]} at {s:g} %: {text}")
        return "; ".join(parts)

    return [
        judged(records, sentence, judge, text)
        for sentence, judge, text in (
            (
                "SCAFFOLD never needs more rounds than SGD.",
                below_sgd,
                numbers("sgd", "scaffold"),
            ),
            (
                "SCAFFOLD beats FedAvg at 0 % similarity for every number of epochs.",
                beats,
                numbers("scaffold", "fedavg", only=(0,)),
            ),
            (
                "FedAvg at 0 % loses as epochs grow, while SCAFFOLD flattens.",
                drifts,
                numbers("scaffold", "fedavg", only=(0,)),
            ),
            (
                "Both gain monotonically from epochs where clients are similar.",
                gain,
                numbers("scaffold", "fedavg", only=mixed),
            ),
            (
                "SGD does not depend on the similarity (within 31 %, the published spread).",
                steady,
                numbers("sgd"),
            ),
            (
                "FedProx (mu = 1) is slower than FedAvg everywhere.",
                slower,
                numbers("fedavg", "fedprox"),
            ),
        )
    ]


# -- what is shown


def published(name: str, epochs: int, s: float) -> int | None:
    """Return the published rounds; None where the paper says 1k+, or nothing."""
    row = TABLE3.get((name, epochs))
    return row[SIMILARITIES.index(int(s))] if row and s in SIMILARITIES else None


def table(records: Records) -> str:
    """Return a table for each similarity, then the other readings."""
    parts = [_tuned(records, s) for s in values(records, "similarity")]
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


def figure(records: Records) -> Figure:
    """Return bars of the rounds, ours beside the paper's; below, the curves at most epochs."""
    similarities = values(records, "similarity")
    with rc_context(STYLE):
        made = Figure(figsize=(10, 6.8), layout="constrained")
        panels: Any = made.subplots(2, len(similarities), sharey="row", squeeze=False)
        for axes, s in zip(panels[0], similarities, strict=True):
            _bars(axes, records, s)
        for axes, s in zip(panels[1], similarities, strict=True):
            _curves(axes, records, s)
        panels[0][0].set_ylabel(f"rounds to {goal(records, 'target')}")
        panels[1][0].set_ylabel("test accuracy")
        panels[0][-1].legend(
            handles=[
                Line2D([], [], linestyle="", marker="s", markersize=9, color="#888888"),
                Line2D([], [], linestyle="", marker="s", markersize=8, mec="#888888", mfc="none"),
            ],
            labels=["ours", "published"],
            loc="upper right",
        )
        panels[1][-1].legend(loc="lower right")
    return made


def _bars(axes: Any, records: Records, s: float) -> None:
    keys = [k for k in TABLE3 if chosen(records, algorithm=k[0], epochs=k[1], similarity=s)]
    for j, (name, e) in enumerate(keys):
        here = chosen(records, algorithm=name, epochs=e, similarity=s)
        ours = rounds(records, algorithm=name, epochs=e, similarity=s)
        met = ours is not None and ours < inf
        height = ours if met else here[0]["limit"]
        axes.bar(j - 0.2, height, 0.4, color=COLOURS[name], alpha=1 if met else 0.5)
        there = published(name, e, s)
        axes.bar(j + 0.2, there or 1000, 0.4, color="none", edgecolor=COLOURS[name])
        for at, value in ((j - 0.2, None if met else shown(here, PUBLISHED)), (j + 0.2, there)):
            if value is None or isinstance(value, str):
                text = value or ("1k+" if at > j else "")
                top = height if at < j else 1000
                axes.text(at, top, text, fontsize=6, ha="center", va="bottom")
    axes.set_yscale("log")
    axes.set_xticks(range(len(keys)), [f"{NAMES[n]} {e}" for n, e in keys], rotation=90)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", visible=False)
    axes.set_title(f"similarity {s:g} %", fontsize=10)


def _curves(axes: Any, records: Records, s: float) -> None:
    known = values(records, "epochs")
    most = 10 if 10 in known else known[-1]
    for name in ALGORITHMS:
        for r in chosen(records, algorithm=name, similarity=s)[: None if name != "sgd" else 1]:
            if name == "sgd" or setting(r)["epochs"] == most:
                label = NAMES[name] + ("" if name == "sgd" else f", {most} epochs")
                axes.plot(r["accuracy"], color=COLOURS[name], linewidth=1.2, label=label)
    axes.set_xlabel("rounds")
    axes.set_xlim(0, 150)


_DISCUSSION = """\
*a / b*: the first round at the target / the first round whose next ten average at or above it;
*n+*: not met in n rounds. The images are not the official Balanced split (see Data).

**Rounds.** Ours are fewer than published in every cell, by the factor in the last table: a grid in
factors of 1.8 that follows the winner, tuned in every cell, finds larger steps than the paper seems
to have tried. What the paper is about survives: the order of the algorithms, FedAvg's loss with
epochs where clients differ, and the gain from epochs where they are alike. Asking for 0.6, where
drift costs most, brings both rounds and speed-ups closer to the published ones than asking for 0.5.

**SGD.** The published 317, 365 and 416 look like one step size at all three similarities. Tuned for
each, SGD does depend on the similarity: a full gradient of 20 of 100 sorted clients is noisy,
because the cohort lacks some classes, and that noise, not curvature, limits the step; where clients
are alike the best step is larger and the rounds are fewer.

**FedProx.** mu = 1 pulls every local path back to x with a force of the order of the curvature
itself, so it gives up what local steps gain; it needs more rounds than FedAvg wherever local steps
help at all."""


TABLE_3 = Reproduction(
    name="table3",
    shows="rounds to 0.5 on EMNIST: algorithms, epochs and similarities",
    source="Karimireddy et al. 2020, Table 3",
    minutes=120,
    cells=cells,
    claims=claims,
    table=table,
    figure=figure,
    discussion=_DISCUSSION,
    more=more,
)
