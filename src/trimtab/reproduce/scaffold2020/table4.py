"""Table 4 of SCAFFOLD: what sampling fewer clients costs (Karimireddy et al., 2020, section 7)."""

from dataclasses import replace
from math import inf
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from trimtab.report.plots import COLOURS, STYLE
from trimtab.reproduce.published import TABLE4
from trimtab.reproduce.raced_cells import NAMES, Setting, cell, seeded
from trimtab.reproduce.reproduction import Cell, Claim, Records, Reproduction
from trimtab.reproduce.rounds_to_target import (
    both,
    chosen,
    fragile_note,
    goal,
    lines,
    rounds,
    setting,
    step_sizes,
    values,
)

ALGORITHMS = ("scaffold", "fedavg")


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return both algorithms with 20, 5 and 1 of 100 clients a round."""
    base = Setting("", 5, 0, target=0.45, until=0.45)
    sampled: tuple[int, ...] = (20, 5, 1)
    if quick:
        base = replace(base, N=20, S=4, target=0.35, until=0.35, limit=120, every=12)
        sampled = (8, 4)
    made = [
        replace(base, algorithm=name, S=S, similarity=s)
        for name in ALGORITHMS
        for S in sampled
        for s in ((0,) if quick else (0, 10))
    ]
    return [cell(s) for s in seeded(made, seeds)]


def sampling(records: Records, name: str, s: float) -> dict[int, float]:
    """Return rounds to the target by the number of sampled clients, most first."""
    found = {
        S: rounds(records, algorithm=name, similarity=s, S=S)
        for S in reversed(values(records, "S"))
    }
    return {S: r for S, r in found.items() if r is not None}


SENTENCES = (
    "The slow-down from sampling fewer clients is sub-linear.",
    "SCAFFOLD is faster than FedAvg at every rate of sampling.",
)


def claims(records: Records) -> list[Claim]:
    """Judge both; where FedAvg with few clients does not arrive, its slow-down is not known."""
    found = {
        (name, s): sampling(records, name, s)
        for name in ALGORITHMS
        for s in values(records, "similarity")
    }
    if not found or any(len(by) < 2 for by in found.values()):
        return [Claim(sentence, None) for sentence in SENTENCES]
    sublinear = all(
        by[min(by)] / by[max(by)] < max(by) / min(by)
        for (name, _), by in found.items()
        if name == "scaffold" or by[min(by)] < inf
    )
    faster = all(
        need <= found["fedavg", s][S]
        for (name, s), by in found.items()
        if name == "scaffold"
        for S, need in by.items()
    )
    text = "; ".join(
        f"{NAMES[name]} at {s:g} %: " + ", ".join(f"S = {S}: {r:g}" for S, r in by.items())
        for (name, s), by in found.items()
    )
    return [Claim(s, v, text) for s, v in zip(SENTENCES, (sublinear, faster), strict=True)]


def table(records: Records) -> str:
    """Return the rounds beside the published ones."""
    rows = [
        [
            "",
            "clients",
            "similarity",
            f"rounds to {goal(records, 'target')}",
            "published",
            "step size",
        ]
    ]
    for name in ALGORITHMS:
        for S in reversed(values(records, "S")):
            for s in values(records, "similarity"):
                here = chosen(records, algorithm=name, S=S, similarity=s)
                if not here:
                    continue
                there: Any = TABLE4.get((name, S))
                published = "" if there is None else str(there[s > 0] or "1k+")
                rows.append(
                    [
                        NAMES[name],
                        f"{S} of {setting(here[0])['N']}",
                        f"{s:g} %",
                        both(here, "target"),
                        published,
                        step_sizes(here),
                    ]
                )
    return f"{lines(rows)}\n\n{fragile_note(records)}"


def figure(records: Records) -> Figure:
    """Return rounds against the clients sampled, with the published ones as crosses."""
    with rc_context(STYLE):
        made = Figure(figsize=(9, 3.6), layout="constrained")
        similarities = values(records, "similarity")
        panels: Any = made.subplots(1, len(similarities), sharey=True, squeeze=False)[0]
        for axes, s in zip(panels, similarities, strict=True):
            for name in ALGORITHMS:
                by = {S: r for S, r in sampling(records, name, s).items() if r < inf}
                axes.plot(*_line(by), marker="o", color=COLOURS[name], label=NAMES[name])
                there = {S: row[s > 0] for (n, S), row in TABLE4.items() if n == name}
                known = {S: float(r) for S, r in there.items() if r is not None}
                axes.plot(
                    *_line(known), marker="x", linestyle=":", color=COLOURS[name], linewidth=1
                )
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(values(records, "S"), [str(S) for S in values(records, "S")])
            axes.minorticks_off()
            axes.set_xlabel("clients sampled")
            axes.set_title(f"similarity {s:g} % (dotted: published)", fontsize=10)
        panels[0].set_ylabel("rounds to the target")
        panels[0].legend()
    return made


def _line(by: dict[int, float]) -> tuple[list[int], list[float]]:
    return list(by), list(by.values())


TABLE_4 = Reproduction(
    name="table4",
    shows="rounds to 0.45 on EMNIST with 20, 5 and 1 of 100 clients a round",
    source="Karimireddy et al. 2020, Table 4",
    minutes=30,
    cells=cells,
    claims=claims,
    table=table,
    figure=figure,
    discussion="Step sizes are tuned in every cell, as in table3, so rounds are fewer than "
    "published, but for one client at 10 %: there the clients drawn decide, not the algorithm, "
    "and both arrive in the same round, 56, with three step sizes each. The first sentence holds "
    "from 20 clients to 1, by which it is judged; not from 5 to 1, where FedAvg at 0 % slows down "
    "five times and both at 10 % six to nine times. "
    "With one client a round and nothing in common FedAvg moves from one client's optimum to the "
    "next, and only a very small step keeps it on course. It looks worst at first, and wins "
    "only because the race lets small steps run as far as the best; the paper, which says 1k+, "
    "may not have tried such steps.",
)
