"""Contraction: two chains with common noise approach each other as fast as the slides say.

Mangold et al., 2025 (slides "FedAvg (with stochastic gradients) converges!", "Scaffold also
converges!", "New Convergence Rate for Scaffold", "Linear Speed-Up!").
"""

from typing import Any

from trimtab_papers.contraction_cells import ALGORITHMS, PROBLEMS, SIZES, cells, coupled
from trimtab_papers.engine import TITLES, Reproduction, colour
from trimtab_papers.figures import drawn, label_of
from trimtab_papers.verdicts import (
    Held,
    MissingRecordError,
    Record,
    Records,
    Sentences,
    Verdict,
    of_kind,
    over_seeds,
    slope,
    spread,
)

# -- what the paper says


ROUNDING = 1e-6  # a distance may exceed its bound by <= 1e-6 of it


def _complete(records: Records) -> dict[str, dict[int, Record]]:
    """Return the records by kind and seed; each seed has all of them."""
    known = {kind: of_kind(records, kind) for kind in (*PROBLEMS, "gradients")}
    seeds = [set(of_seed) for of_seed in known.values()]
    if not seeds[0] or any(some != seeds[0] for some in seeds):
        raise MissingRecordError
    return known


def _contracts(records: Records, name: str) -> Verdict:
    """Look for the round at which the distance takes the largest share of its bound."""
    known = _complete(records)
    factors = {
        problem: {seed: coupled(record)[name].factor for seed, record in known[problem].items()}
        for problem in PROBLEMS
    }
    held: Held = {
        seed: all(factors[problem][seed] <= 1 + ROUNDING for problem in PROBLEMS)
        for seed in known["gradients"]
    }
    told = ", ".join(f"{p} {spread(factors[p].values())}" for p in PROBLEMS)
    return over_seeds(held, f"largest share of the bound: {told}")


PAPER = Sentences()


@PAPER.says(
    "FedAvg's law contracts in W2: after t rounds the coupled chains are at most "
    "(1 - gamma mu)^(H t) x as far apart (mu = min_c mu_c, gamma H L = 1).",
    "slides, FedAvg (with stochastic gradients) converges",
)
def fedavg_contracts(records: Records) -> Verdict:
    return _contracts(records, "fedavg")


@PAPER.says(
    "Scaffold's law contracts in W2 at the same rate if gamma H L <= 1, in the norm of its whole "
    "state, |x|^2 + (gamma H)^2/N sum_c |xi_c|^2.",
    "slides, Scaffold also converges; they print x, and leave the norm open",
)
def scaffold_contracts(records: Records) -> Verdict:
    return _contracts(records, "scaffold")


@PAPER.says(
    "Scaffold's rate: after every round E|x_T - x*|^2 is below (1 - gamma mu/4)^(H T) {…} + "
    "gamma sigma^2/(N mu) + …, with all constants 1.",
    "slides, New Convergence Rate for Scaffold",
)
def rate_of_scaffold(records: Records) -> Verdict:
    """Look for the round at which the error takes the largest share of its bound."""
    known = _complete(records)
    shares = {
        problem: {s: record["found"]["scaffold"]["rate"] for s, record in known[problem].items()}
        for problem in PROBLEMS
    }
    held: Held = {s: all(shares[p][s] <= 1 for p in PROBLEMS) for s in known["gradients"]}
    told = ", ".join(f"{p} {spread(shares[p].values())}" for p in PROBLEMS)
    return over_seeds(held, f"largest share of the bound: {told}")


def _slopes(records: Records, name: str) -> dict[int, float]:
    found = {}
    for seed, record in _complete(records)["gradients"].items():
        pairs = [(row["N"], row[name]["gradients"]) for row in record["rows"]]
        there = [(N, count) for N, count in pairs if count is not None]
        found[seed] = slope(*map(list, zip(*there, strict=True))) if len(there) > 1 else 0.0
    return found


@PAPER.says(
    "Linear speed-up: the gradients per client until E|x - x*|^2 <= eps^2 fall as 1/N with "
    "Scaffold (slope -1.15 to -0.85, step tuned for each N).",
    "slides, Linear Speed-Up!",
)
def gradients_fall(records: Records) -> Verdict:
    slopes = _slopes(records, "scaffold")
    held: Held = {seed: -1.15 < s < -0.85 for seed, s in slopes.items()}
    return over_seeds(held, f"slopes {spread(slopes.values(), '.3f')}")


@PAPER.check(
    "The rate is attained: where one axis is the flattest of all clients, the last round contracts "
    "both by (1 - gamma mu)^H (within 1 %).",
    "ours",
)
def rate_is_attained(records: Records) -> Verdict:
    found = _complete(records)["aligned"]
    off = {
        seed: max(
            abs(row["last factor"] / record["settings"]["contraction"] - 1)
            for row in record["found"].values()
        )
        for seed, record in found.items()
    }
    return over_seeds({s: v < 0.01 for s, v in off.items()}, f"at most {max(off.values()):.1g} off")


@PAPER.check(
    "In |x| alone Scaffold does not contract: chains with equal x and other controls part, by more "
    "than a thousandth of their distance, which rounding does not explain.",
    "ours",
)
def x_alone_does_not(records: Records) -> Verdict:
    """Look at chains that differ in their controls only."""
    known = _complete(records)
    shares = {
        seed: min(
            known[problem][seed]["found"]["scaffold"]["x alone"]["largest"]
            / known[problem][seed]["found"]["scaffold"]["x alone"]["start"]
            for problem in PROBLEMS
        )
        for seed in known["gradients"]
    }
    held: Held = {seed: share > 1e-3 for seed, share in shares.items()}
    return over_seeds(held, f"|x - x'| grows from 0 to {spread(shares.values())} of it")


# -- how it is shown


def table(records: Records) -> str:
    """Return a row for each problem, and below one for each N."""
    rows = [
        "| | (1 - γμ)^H | largest share of the bound on W2: FedAvg | SCAFFOLD | of the bound on "
        "E\\|x - x\\*\\|² |",
        "|---|---|---|---|---|",
    ]
    for problem, title in PROBLEMS.items():
        found = list(of_kind(records, problem).values())
        if found:
            numbers = [spread([r["settings"]["contraction"] for r in found], ".4f")]
            numbers += [spread([coupled(r)[n].factor for r in found]) for n in coupled(found[0])]
            numbers += [spread([r["found"]["scaffold"]["rate"] for r in found])]
            rows.append(f"| {title} | {' | '.join(numbers)} |")
    rows += ["", "| N | gradients per client: FedAvg | SCAFFOLD |", "|---|---|---|"]
    seeds = [record["rows"] for record in of_kind(records, "gradients").values()]
    for N in SIZES:
        mine = [row for found in seeds for row in found if row["N"] == N]
        if mine:
            counts = [
                _counts([row[name]["gradients"] for row in mine]) for name in ("fedavg", "scaffold")
            ]
            rows.append(f"| {N} | {' | '.join(counts)} |")
    return "\n".join(rows)


def _counts(counts: list[int | None]) -> str:
    """Return gradients; a dash where no step that was tried gets there."""
    there = [float(count) for count in counts if count is not None]
    return spread(there, ".0f") if len(there) == len(counts) else "-"


_DASHED: dict[str, Any] = {"color": "#777777", "linewidth": 1.3, "linestyle": "--"}


@drawn(10, 7)
def figure(fig: Any, records: Records) -> None:
    """Return a panel for each problem and one for the gradients; every seed is a line."""
    *panels, last = fig.subplots(2, 2).flatten()
    for axes, problem in zip(panels, PROBLEMS, strict=True):
        _distances(axes, records, problem)
    _gradients(last, records)


def _distances(axes: Any, records: Records, problem: str) -> None:
    for number, record in enumerate(of_kind(records, problem).values()):
        settings = record["settings"]
        for name, chains in coupled(record).items():
            rounds = chains.curve["rounds"]
            shares = [value / chains.curve["values"][0] for value in chains.curve["values"]]
            label = label_of(TITLES[name], number == 0)
            axes.plot(rounds, shares, color=colour(name), linewidth=1.4, label=label)
        bound = [settings["contraction"] ** t for t in rounds]
        axes.plot(rounds, bound, **_DASHED, label=label_of("(1 - γμ)^(Ht)", number == 0))
        axes.set_yscale("log")
        axes.legend(fontsize=9)
    axes.set_xlabel("rounds t")
    axes.set_ylabel("distance, as a share of the first")
    axes.set_title(PROBLEMS[problem], fontsize=10)


def _gradients(axes: Any, records: Records) -> None:
    for number, record in enumerate(of_kind(records, "gradients").values()):
        for name in ALGORITHMS:
            pairs = [(row["N"], row[name]["gradients"]) for row in record["rows"]]
            there = [(N, count) for N, count in pairs if count is not None]
            axes.plot(
                *zip(*there, strict=True),
                marker="o",
                markersize=4,
                linewidth=1,
                color=colour(name),
                label=label_of(TITLES[name], number == 0),
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.legend(fontsize=9)
    axes.set_xlabel("clients N")
    axes.set_ylabel("gradients per client")
    axes.set_title("until E|x - x*|² ≤ 0.0003", fontsize=10)


CONTRACTION = Reproduction(
    name="contraction",
    shows="FedAvg and SCAFFOLD contract by (1 - gamma mu)^H a round; gradients fall as 1/N",
    source="Mangold et al. 2025, slides '… converges!' and 'Linear Speed-Up!'",
    minutes=5,
    cells=cells,
    sentences=PAPER,
    table=table,
    figure=figure,
    discussion="The distance of chains with common noise bounds W2 from above, so a share below 1 "
    "proves the bound for these problems, starts and rounds. mu and L are those of the clients "
    "over all x (for the logistic regressions mu is their l2), gamma = 1/(H L). The slides print "
    "the contraction of SCAFFOLD for x; its controls are part of the state, and the norm in which "
    "it contracts counts them. Where clients are flat in different directions their mean contracts "
    "faster than the bound; with one flat axis for all, at its rate. The gradients are counted "
    "with H = 10 and the best of a few steps around the one whose variance is half the target, "
    "all of them below 1/(H L).",
)
