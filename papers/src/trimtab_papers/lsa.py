"""Federated TD: FedLSA stays at its bias, SCAFFLSA (SCAFFOLD II) does not; both speed up with N.

Mangold et al., NeurIPS 2024, named by the slides under federated reinforcement learning. TD(0) with
linear features on a random Garnet MDP for each client: linear systems that are not symmetric.
"""

from itertools import pairwise
from typing import Any

from trimtab_papers.engine import Reproduction, colour
from trimtab_papers.figures import drawn, label_of
from trimtab_papers.lsa_cells import (
    ALGORITHMS,
    LOCAL_STEPS,
    SAMPLINGS,
    Stationary,
    by_size,
    cells,
    sizes,
)
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


PAPER = Sentences(ours="ours, on the mean of Garnet MDPs")


def _complete(records: Records) -> list[int]:
    """Return the seeds of which all cells of the quick version are there, if these are all."""
    needed = ["exact", *SAMPLINGS, *(f"N{N}" for N in sizes(quick=True))]
    known = [set(of_kind(records, kind)) for kind in needed]
    if not set.union(*known) or set.union(*known) != set.intersection(*known):
        raise MissingRecordError
    return sorted(known[0])


def _exact_rows(records: Records) -> dict[int, list[Record]]:
    _complete(records)
    return {seed: record["rows"] for seed, record in of_kind(records, "exact").items()}


def _laws(records: Records, kind: str) -> dict[int, Stationary]:
    _complete(records)
    found = of_kind(records, kind)
    return {seed: Stationary.from_json(record) for seed, record in found.items()}


@PAPER.says(
    "When the number of local iterations increases, bias increases: FedLSA on the mean equations "
    "ends farther from theta* with every K, from 1 to 20.",
    "slides, Classical analyses of this algorithm",
)
def bias_grows_with_K(records: Records) -> Verdict:
    found = {seed: [row["fedavg"] for row in rows] for seed, rows in _exact_rows(records).items()}
    held: Held = {
        seed: all(a < b for a, b in pairwise(e)) and e[0] < 0.01 * e[1] for seed, e in found.items()
    }
    told = ", ".join(
        f"K = {row['K']}: {row['fedavg']:.2g}" for row in _exact_rows(records)[min(found)]
    )
    return over_seeds(held, f"seed {min(found)}: {told}")


@PAPER.says(
    "Scaffold: no more heterogeneity bias. SCAFFLSA on the mean equations ends at theta* for every "
    "K (below a thousandth of FedLSA's distance, K >= 2).",
    "slides, Scaffold",
)
def scafflsa_arrives(records: Records) -> Verdict:
    worst = {
        seed: max(row["scaffold"] / row["fedavg"] for row in rows if row["K"] > 1)
        for seed, rows in _exact_rows(records).items()
    }
    held: Held = {seed: ratio < 1e-3 for seed, ratio in worst.items()}
    return over_seeds(held, f"largest ratio {max(worst.values()):.1g}")


@PAPER.says(
    "FedLSA stays at its bias and SCAFFLSA does not, with i.i.d. transitions: |E theta - theta*| "
    "of SCAFFLSA is less than a third of FedLSA's.",
    "slides, Scaffold, and the title of Mangold et al. 2024 (taming heterogeneity)",
)
def scafflsa_is_not_biased(records: Records) -> Verdict:
    found = _laws(records, "iid")
    held: Held = {
        seed: one.laws["scaffold"].bias < one.laws["fedavg"].bias / 3 for seed, one in found.items()
    }
    return over_seeds(held, _biases(found))


def _biases(found: dict[int, Stationary]) -> str:
    told = ", ".join(
        f"{title} {spread([one.laws[name].bias for one in found.values()], '.2g')}"
        for name, title in ALGORITHMS.items()
    )
    return (
        f"{told}, standard errors up to {max(o.laws['scaffold'].error for o in found.values()):.1g}"
    )


@PAPER.says(
    "Linear speed-up: the stationary variance of SCAFFLSA falls as 1/N (slope -1.1 to -0.9).",
    "slides, Scaffold also converges",
)
def scafflsa_speeds_up(records: Records) -> Verdict:
    slopes = {}
    for seed in _complete(records):
        of_N = by_size(records, seed)
        slopes[seed] = slope(list(of_N), [one.laws["scaffold"].trace for one in of_N.values()])
    held: Held = {seed: -1.1 < s < -0.9 for seed, s in slopes.items()}
    return over_seeds(held, f"slopes {spread(list(slopes.values()), '.3f')}")


@PAPER.check("FedLSA on the mean equations ends where the closed form says (within 0.1 %).")
def closed_form_of_the_limit(records: Records) -> Verdict:
    """Compare runs with the closed form, where there is a bias."""
    off = {
        seed: max(row["from the closed form"] / row["closed form"] for row in rows if row["K"] > 1)
        for seed, rows in _exact_rows(records).items()
    }
    return over_seeds({s: v < 1e-3 for s, v in off.items()}, f"at most {max(off.values()):.1g} off")


@PAPER.check(
    "With i.i.d. transitions E theta of FedLSA is that limit: its chains less SCAFFLSA's, which "
    "see the same transitions, are off by 15 % of the bias at most (K = 10)."
)
def limit_with_noise(records: Records) -> Verdict:
    """Compare the difference of two coupled means with that of the closed form."""
    off = {seed: one.moved / one.predicted_bias for seed, one in _laws(records, "iid").items()}
    return over_seeds({s: v < 0.15 for s, v in off.items()}, f"at most {max(off.values()):.1%} off")


@PAPER.check(
    "The Lyapunov equation tells the variances of both to first order: within 20 %, although the "
    "noise of transitions is multiplicative."
)
def closed_form_of_the_covariance(records: Records) -> Verdict:
    off = {
        seed: max(abs(one.laws[n].trace / one.predicted_trace[n] - 1) for n in ALGORITHMS)
        for seed, one in _laws(records, "iid").items()
    }
    return over_seeds({s: v < 0.2 for s, v in off.items()}, f"at most {max(off.values()):.1%} off")


@PAPER.check(
    "With the most clients SCAFFLSA's mean square error is less than two thirds of FedLSA's, and "
    "the difference is FedLSA's squared bias within 25 % (K = 50)."
)
def fedlsa_stops_speeding_up(records: Records) -> Verdict:
    held: Held = {}
    told = ""
    for seed in _complete(records):
        of_N = by_size(records, seed)
        most = of_N[max(of_N)]
        fedlsa, scafflsa = (most.laws[name].mean_square_error for name in ALGORITHMS)
        ratio = (fedlsa - scafflsa) / most.predicted_bias**2
        held[seed] = scafflsa < 2 / 3 * fedlsa and 0.75 < ratio < 1.25
        told = told or (
            f"seed {seed}, N = {most.N}: FedLSA {fedlsa:.2g}, SCAFFLSA {scafflsa:.2g}, bias² "
            f"{most.predicted_bias**2:.2g}"
        )
    return over_seeds(held, told)


@PAPER.check(
    "With trajectories SCAFFLSA is biased too, by their memory (by more than 3 standard errors)."
)
def memory_biases_both(records: Records) -> Verdict:
    found = _laws(records, "markov")
    laws = {seed: one.laws["scaffold"] for seed, one in found.items()}
    return over_seeds({s: law.bias > 3 * law.error for s, law in laws.items()}, _biases(found))


# -- how it is shown


def table(records: Records) -> str:
    """Return a row for each K without noise, and one for each way of sampling and each N."""
    rows = [
        "| | K | FedLSA's limit \\|θ - θ\\*\\| | FedLSA | SCAFFLSA | predicted trace | FedLSA "
        "| SCAFFLSA |",
        "|---|---|---|---|---|---|---|---|",
    ]
    exact = list(of_kind(records, "exact").values())
    for K in LOCAL_STEPS:
        mine = [row for record in exact for row in record["rows"] if row["K"] == K]
        if not mine:
            continue
        shown = [spread([row[n] for row in mine], ".2g") for n in ("closed form", *ALGORITHMS)]
        rows.append(f"| mean equations | {K} | {' | '.join(shown)} | | | |")
    for kind in (*SAMPLINGS, *(f"N{N}" for N in sizes(quick=False))):
        found = list(of_kind(records, kind).values())
        if found:
            rows.append(_row(kind, found))
    return "\n".join(rows)


def _row(kind: str, records: list[Record]) -> str:
    """Return the row of chains; all seeds have the same K."""
    title, K = SAMPLINGS.get(kind, f"N = {kind[1:]}"), records[0]["settings"]["K"]
    seeds = list(map(Stationary.from_json, records))
    biases = [spread([one.predicted_bias for one in seeds], ".2g")]
    biases += [spread([one.laws[name].bias for one in seeds], ".2g") for name in ALGORITHMS]
    traces = [spread([one.predicted_trace["scaffold"] for one in seeds], ".2g")]
    traces += [spread([one.laws[name].trace for one in seeds], ".2g") for name in ALGORITHMS]
    return f"| {title} | {K} | {' | '.join([*biases, *traces])} |"


_DOTTED: dict[str, Any] = {"color": "#777777", "linewidth": 1.3, "linestyle": ":"}


@drawn(11, 3.6)
def figure(fig: Any, records: Records) -> None:
    """Return three panels; every seed is a line or a point."""
    panels = fig.subplots(1, 3)
    _rounds(panels[0], records)
    _bias(panels[1], records)
    _size(panels[2], records)


def _rounds(axes: Any, records: Records) -> None:
    for number, record in enumerate(of_kind(records, "exact").values()):
        for name in ALGORITHMS:
            curve = record["curves"][name]
            look = {"color": colour(name), "linewidth": 1.4}
            label = label_of(ALGORITHMS[name], number == 0)
            axes.plot(curve["rounds"], curve["values"], **look, label=label)
        axes.set_yscale("log")
        axes.legend(fontsize=9)
    axes.set_xlabel("rounds")
    axes.set_ylabel("|θ - θ*|")
    axes.set_title("mean equations, K = 10", fontsize=10)


def _bias(axes: Any, records: Records) -> None:
    found = {kind: of_kind(records, kind) for kind in SAMPLINGS}
    ones = [
        (list(SAMPLINGS).index(kind), one)
        for kind, of_seed in found.items()
        for one in of_seed.values()
    ]
    for number, (place, record) in enumerate(ones):
        one, aside = Stationary.from_json(record), 0.05 * (record["settings"]["seed"] - 1)
        for j, name in enumerate(ALGORITHMS):
            law, label = one.laws[name], label_of(ALGORITHMS[name], number == 0)
            look: dict[str, Any] = {"fmt": "o", "markersize": 4, "color": colour(name)}
            at = place + 0.25 * (j - 0.5) + aside
            axes.errorbar(at, law.bias, yerr=2 * law.error, **look, label=label)
        limit = label_of("FedLSA's limit", number == 0)
        axes.plot([place - 0.35, place + 0.35], [one.predicted_bias] * 2, **_DOTTED, label=limit)
        axes.legend(fontsize=9)
    axes.set_xticks(range(len(SAMPLINGS)), SAMPLINGS.values())
    axes.set_ylim(0, 1.4 * axes.get_ylim()[1])
    axes.set_ylabel("|E θ - θ*|")
    axes.set_title("bias, K = 10, ± 2 standard errors", fontsize=10)


def _size(axes: Any, records: Records) -> None:
    seeds = sorted({record["settings"]["seed"] for record in records.values()})
    known = [of_N for seed in seeds if (of_N := by_size(records, seed))]
    for number, of_N in enumerate(known):
        for name, title in ALGORITHMS.items():
            values = [one.laws[name].mean_square_error for one in of_N.values()]
            look = {"marker": "o", "markersize": 4, "linewidth": 1, "color": colour(name)}
            axes.plot(list(of_N), values, **look, label=label_of(title, number == 0))
        predicted = [one.predicted_trace["scaffold"] for one in of_N.values()]
        label = label_of("predicted variance", number == 0)
        axes.plot(list(of_N), predicted, **_DOTTED, label=label)
    if known:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.legend(fontsize=9)
    axes.set_xlabel("clients N")
    axes.set_ylabel("E|θ - θ*|²")
    axes.set_title("i.i.d. transitions, K = 50", fontsize=10)


LSA = Reproduction(
    name="lsa",
    shows="federated TD: FedLSA stays at its bias, SCAFFLSA does not; its variance falls as 1/N",
    source="Mangold et al. 2025, slides 'Federated Reinforcement Learning' and 'Scaffold'",
    minutes=6,
    cells=cells,
    sentences=PAPER,
    table=table,
    figure=figure,
    discussion="The slides show no experiment on TD; MDPs, features and steps are ours (30 states, "
    "4 features, discount 0.9, gamma = 0.5), and a seed draws the MDPs as well as the transitions. "
    "The slides' sentences on FedAvg and Scaffold are about functions, and are judged here where "
    "there is none. A trajectory starts anew in each round from the stationary distribution; what "
    "its memory adds to the mean of both algorithms is of the order of the step and is no "
    "heterogeneity, so no control removes it.",
)
