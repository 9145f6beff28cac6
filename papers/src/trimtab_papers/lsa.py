"""Federated TD: FedLSA stays at its bias, SCAFFLSA (SCAFFOLD II) does not; both speed up with N.

Mangold et al., NeurIPS 2024, named by the slides under federated reinforcement learning. TD(0) with
linear features on a random Garnet MDP for each client: linear systems that are not symmetric.
"""

from itertools import islice, pairwise
from math import ceil
from typing import Any

import torch

from trimtab.core.task import Progress
from trimtab.problems.garnet import GarnetTD, Sampling
from trimtab.problems.linear_system import LinearSystem
from trimtab.simulation import simulate
from trimtab_papers.engine import Cell, Computing, Reproduction, build, cell_of, colour
from trimtab_papers.figures import drawn, label_of, log_log_sizes
from trimtab_papers.many_runs import TD, Chains
from trimtab_papers.verdicts import (
    Record,
    Records,
    Sentences,
    Verdict,
    complete,
    each_seed,
    of_kind,
    over_seeds,
    rounded,
    slope,
    spread,
    thinned,
)

ALGORITHMS = {"fedavg": "FedLSA", "scaffold": "SCAFFLSA"}
SAMPLINGS = {"iid": "i.i.d. transitions", "markov": "trajectories"}
SEEDS = 3  # a sentence is judged over >= 3 random federations, each with its own noise
GAMMA, K, MANY = 0.5, 10, 50  # MANY local steps where the bias is to be seen beside the variance
LOCAL_STEPS = (1, 2, 5, 10, 20)
FORGET = 20  # the controls have forgotten where they started after >= 20 rounds
KINDS = 4  # N clients are N/4 of each of 4 kinds, so that nothing but N changes with N


def kinds(quick: bool) -> list[str]:
    """Return the mean equations, both ways of sampling, and numbers of clients."""
    return ["exact", *SAMPLINGS, *(f"N{N}" for N in ((4, 64) if quick else (4, 8, 16, 32, 64)))]


# -- the cells


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return the cells of each seed; a seed makes the MDPs as well as the noise."""
    over = range(seeds if quick else max(seeds, SEEDS))
    return [cell_of(kind, _compute, kind, quick, seed=s) for s in over for kind in kinds(quick)]


def _compute(kind: str, quick: bool, seed: int) -> Computing:
    if kind == "exact":
        return _exact(seed, quick)
    if kind in SAMPLINGS:
        base = _federation(10, seed, "markov" if kind == "markov" else "iid")
        return _stationary(kind, base, 10, K, seed, quick)
    return _stationary(kind, _federation(KINDS, seed), int(kind[1:]), MANY, seed, quick)


def _federation(N: int, seed: int, sampling: Sampling = "iid") -> GarnetTD:
    return GarnetTD(N, 30, 4, gamma=0.9, heterogeneity=1.0, seed=seed, sampling=sampling)


def _slowest(system: LinearSystem) -> float:
    return float(torch.linalg.eigvals(system.mean_A).real.min())


def _exact(seed: int, quick: bool) -> Computing:
    """Run both on the mean equations, until a step would change a ten-millionth."""
    with_noise = _federation(10, seed).system
    system = LinearSystem(with_noise.A, with_noise.b)
    rows, curves = [], {}
    for steps in LOCAL_STEPS[:: 3 if quick else 1]:
        R = ceil(16 / (GAMMA * steps * _slowest(system)))
        limit = system.fedavg_limit(GAMMA, steps)
        row: dict[str, Any] = {"K": steps, "R": R}
        row["closed form"] = float((limit - system.x_star).norm())
        for name in ALGORITHMS:
            yield Progress(f"{name} with K = {steps}, {R} rounds")
            path = [done.x for done in islice(simulate(build(name, GAMMA, steps), system), R)]
            row[name] = float((path[-1] - system.x_star).norm())
            if name == "fedavg":
                row["from the closed form"] = float((path[-1] - limit).norm())
            if steps == K:
                errors = [float((x - system.x_star).norm()) for x in [system.x0(), *path]]
                curves[name] = thinned(errors, 60)
        rows.append(row)
    settings = {"kind": "exact", "seed": seed, "gamma": GAMMA, "N": 10}
    return rounded({"settings": settings, "rows": rows, "curves": curves})


def _stationary(kind: str, base: GarnetTD, N: int, steps: int, seed: int, quick: bool) -> Computing:
    """Run many chains from x* until they have forgotten it, and look at the rounds after."""
    model = TD(base, N)
    system, M = model.system, 500 if quick else 4000 if kind in SAMPLINGS else 1000
    R = max(3, ceil(4 / (GAMMA * steps * _slowest(system))))
    forget = max(6 if quick else FORGET, R)
    many, x_star, found, means = Chains(model, M), system.x_star, {}, []
    for name in ALGORITHMS:
        yield Progress(f"{M} chains of {name}, {forget + R} rounds")
        runs = simulate(build(name, GAMMA, steps), many, x=many.start(x_star), seed=seed)
        errors = torch.stack(
            [many.rows(done.x) - x_star for done in islice(runs, forget, forget + R)]
        )
        mean = errors.mean((0, 1))
        means.append(mean)
        # Chains are independent, their rounds are not.
        variance = errors.mean(0).var(0).sum() / M
        found[name] = {
            "bias": float(mean.norm()),
            "mean_square_error": float(errors.square().sum(2).mean()),
            "trace": float((errors - mean).square().sum(2).mean()),
            "error": float(variance.sqrt()),
        }
    covariances = {"fedavg": system.fedavg_covariance, "scaffold": system.scaffold_covariance}
    to_limit = system.fedavg_limit(GAMMA, steps) - x_star
    record: Record = {
        "settings": {"kind": kind, "seed": seed, "gamma": GAMMA, "K": steps, "N": N, "chains": M}
        | {"states": base.states, "d": base.d, "discount": base.gamma, "R": forget + R},
        "predicted bias": float(to_limit.norm()),
        "difference off by": float((means[0] - means[1] - to_limit).norm()),
        "predicted trace": {
            name: float(closed(GAMMA, steps).trace()) for name, closed in covariances.items()
        },
        "found": found,
    }
    return rounded(record)


# -- what the paper says


PAPER = Sentences(ours="ours, on the mean of Garnet MDPs")


def _records(records: Records, kind: str) -> dict[int, Record]:
    """Return the records of a kind by seed, once every seed has all kinds of the quick version."""
    return complete(records, kinds(quick=True))[kind]


def _by_N(records: Records, seed: int) -> dict[int, Record]:
    """Return the records of one seed by the number of clients."""
    found = [r for r in records.values() if r["settings"]["kind"][0] == "N"]
    mine = {r["settings"]["N"]: r for r in found if r["settings"]["seed"] == seed}
    return dict(sorted(mine.items()))


def _values(records: list[Record], name: str, word: str) -> list[float]:
    """Return a number of an algorithm, such as its bias, in each record."""
    return [record["found"][name][word] for record in records]


@PAPER.says(
    "When the number of local iterations increases, bias increases: FedLSA on the mean equations "
    "ends farther from theta* with every K, from 1 to 20.",
    "slides, Classical analyses of this algorithm",
)
def bias_grows_with_K(records: Records) -> Verdict:
    rows = {seed: record["rows"] for seed, record in _records(records, "exact").items()}
    biases = {seed: [row["fedavg"] for row in of_seed] for seed, of_seed in rows.items()}
    first = min(rows)
    numbers = ", ".join(f"K = {row['K']}: {row['fedavg']:.2g}" for row in rows[first])
    return each_seed(
        biases,
        lambda bias: all(a < b for a, b in pairwise(bias)) and bias[0] < 0.01 * bias[1],
        f"seed {first}: {numbers}",
    )


@PAPER.says(
    "Scaffold: no more heterogeneity bias. SCAFFLSA on the mean equations ends at theta* for every "
    "K (below a thousandth of FedLSA's distance, K >= 2).",
    "slides, Scaffold",
)
def scafflsa_arrives(records: Records) -> Verdict:
    worst = {
        seed: max(row["scaffold"] / row["fedavg"] for row in record["rows"] if row["K"] > 1)
        for seed, record in _records(records, "exact").items()
    }
    return each_seed(worst, lambda v: v < 1e-3, f"largest ratio {max(worst.values()):.1g}")


@PAPER.says(
    "FedLSA stays at its bias and SCAFFLSA does not, with i.i.d. transitions: |E theta - theta*| "
    "of SCAFFLSA is less than a third of FedLSA's.",
    "slides, Scaffold, and the title of Mangold et al. 2024 (taming heterogeneity)",
)
def scafflsa_is_not_biased(records: Records) -> Verdict:
    found = {seed: record["found"] for seed, record in _records(records, "iid").items()}
    return each_seed(
        found,
        lambda laws: laws["scaffold"]["bias"] < laws["fedavg"]["bias"] / 3,
        _biases(_records(records, "iid")),
    )


def _biases(by_seed: dict[int, Record]) -> str:
    seeds = list(by_seed.values())
    biases = ", ".join(
        f"{title} {spread(_values(seeds, name, 'bias'), '.2g')}"
        for name, title in ALGORITHMS.items()
    )
    return f"{biases}, standard errors up to {max(_values(seeds, 'scaffold', 'error')):.1g}"


@PAPER.says(
    "Linear speed-up: the stationary variance of SCAFFLSA falls as 1/N (slope -1.1 to -0.9).",
    "slides, Scaffold also converges",
)
def scafflsa_speeds_up(records: Records) -> Verdict:
    slopes = {}
    for seed in _records(records, "exact"):
        by_N = _by_N(records, seed)
        slopes[seed] = slope(list(by_N), _values(list(by_N.values()), "scaffold", "trace"))
    return each_seed(slopes, lambda s: -1.1 < s < -0.9, f"slopes {spread(slopes.values(), '.3f')}")


@PAPER.check("FedLSA on the mean equations ends where the closed form says (within 0.1 %).")
def closed_form_of_the_limit(records: Records) -> Verdict:
    """Compare runs with the closed form, where there is a bias."""
    off = {
        seed: max(r["from the closed form"] / r["closed form"] for r in one["rows"] if r["K"] > 1)
        for seed, one in _records(records, "exact").items()
    }
    return each_seed(off, lambda v: v < 1e-3, f"at most {max(off.values()):.1g} off")


@PAPER.check(
    "With i.i.d. transitions E theta of FedLSA is that limit: its chains less SCAFFLSA's, which "
    "see the same transitions, are off by 15 % of the bias at most (K = 10)."
)
def limit_with_noise(records: Records) -> Verdict:
    """Compare the difference of two coupled means with that of the closed form."""
    found = _records(records, "iid")
    off = {seed: r["difference off by"] / r["predicted bias"] for seed, r in found.items()}
    return each_seed(off, lambda v: v < 0.15, f"at most {max(off.values()):.1%} off")


@PAPER.check(
    "The Lyapunov equation tells the variances of both to first order: within 20 %, although the "
    "noise of transitions is multiplicative."
)
def closed_form_of_the_covariance(records: Records) -> Verdict:
    off = {
        seed: max(abs(r["found"][n]["trace"] / r["predicted trace"][n] - 1) for n in ALGORITHMS)
        for seed, r in _records(records, "iid").items()
    }
    return each_seed(off, lambda v: v < 0.2, f"at most {max(off.values()):.1%} off")


@PAPER.check(
    "With the most clients SCAFFLSA's mean square error is less than two thirds of FedLSA's, and "
    "the difference is FedLSA's squared bias within 25 % (K = 50)."
)
def fedlsa_stops_speeding_up(records: Records) -> Verdict:
    held, numbers = {}, ""
    for seed in _records(records, "exact"):
        N, most = list(_by_N(records, seed).items())[-1]
        fedlsa, scafflsa = (most["found"][name]["mean_square_error"] for name in ALGORITHMS)
        square = most["predicted bias"] ** 2
        held[seed] = scafflsa < 2 / 3 * fedlsa and 0.75 < (fedlsa - scafflsa) / square < 1.25
        numbers = numbers or (
            f"seed {seed}, N = {N}: FedLSA {fedlsa:.2g}, SCAFFLSA {scafflsa:.2g}, bias² "
            f"{square:.2g}"
        )
    return over_seeds(held, numbers)


@PAPER.check(
    "With trajectories SCAFFLSA is biased too, by their memory (by more than 3 standard errors)."
)
def memory_biases_both(records: Records) -> Verdict:
    found = _records(records, "markov")
    laws = {seed: record["found"]["scaffold"] for seed, record in found.items()}
    return each_seed(laws, lambda law: law["bias"] > 3 * law["error"], _biases(found))


# -- table and figure


def table(records: Records) -> str:
    """Return a row for each K without noise, and one for each way of sampling and each N."""
    rows = [
        "| | K | FedLSA's limit \\|θ - θ\\*\\| | FedLSA | SCAFFLSA | predicted trace | FedLSA "
        "| SCAFFLSA |",
        "|---|---|---|---|---|---|---|---|",
    ]
    exact = [row for record in of_kind(records, "exact").values() for row in record["rows"]]
    for K in LOCAL_STEPS:
        seeds = [row for row in exact if row["K"] == K]
        if seeds:
            biases = [spread([r[n] for r in seeds], ".2g") for n in ("closed form", *ALGORITHMS)]
            rows.append(f"| mean equations | {K} | {' | '.join(biases)} | | | |")
    for kind in kinds(quick=False)[1:]:
        seeds = list(of_kind(records, kind).values())
        if seeds:
            traces = [record["predicted trace"]["scaffold"] for record in seeds]
            columns = [
                [record["predicted bias"] for record in seeds],
                *(_values(seeds, name, "bias") for name in ALGORITHMS),
                traces,
                *(_values(seeds, name, "trace") for name in ALGORITHMS),
            ]
            title, K = SAMPLINGS.get(kind, f"N = {kind[1:]}"), seeds[0]["settings"]["K"]
            rows.append(f"| {title} | {K} | {' | '.join(spread(c, '.2g') for c in columns)} |")
    return "\n".join(rows)


_DOTTED: dict[str, Any] = {"color": "#777777", "linewidth": 1.3, "linestyle": ":"}


@drawn(11, 3.6)
def figure(fig: Any, records: Records) -> None:
    """Draw three panels; every seed is a line or a point."""
    panels = fig.subplots(1, 3)
    _draw_rounds(panels[0], records)
    _draw_bias(panels[1], records)
    _draw_sizes(panels[2], records)


def _draw_rounds(axes: Any, records: Records) -> None:
    for number, record in enumerate(of_kind(records, "exact").values()):
        for name, title in ALGORITHMS.items():
            curve, label = record["curves"][name], label_of(title, number == 0)
            look = {"color": colour(name), "linewidth": 1.4, "label": label}
            axes.plot(curve["rounds"], curve["values"], **look)
        axes.set_yscale("log")
        axes.legend(fontsize=9)
    axes.set(xlabel="rounds", ylabel="|θ - θ*|")
    axes.set_title("mean equations, K = 10", fontsize=10)


def _draw_bias(axes: Any, records: Records) -> None:
    found = [
        (place, record)
        for place, kind in enumerate(SAMPLINGS)
        for record in of_kind(records, kind).values()
    ]
    for number, (place, record) in enumerate(found):
        aside = 0.05 * (record["settings"]["seed"] - 1)
        for j, (name, title) in enumerate(ALGORITHMS.items()):
            law, label = record["found"][name], label_of(title, number == 0)
            look: dict[str, Any] = {"fmt": "o", "markersize": 4, "color": colour(name)}
            at = place + 0.25 * (j - 0.5) + aside
            axes.errorbar(at, law["bias"], yerr=2 * law["error"], **look, label=label)
        limit, label = [record["predicted bias"]] * 2, label_of("FedLSA's limit", number == 0)
        axes.plot([place - 0.35, place + 0.35], limit, **_DOTTED, label=label)
        axes.legend(fontsize=9)
    axes.set_xticks(range(len(SAMPLINGS)), SAMPLINGS.values())
    axes.set_ylim(0, 1.4 * axes.get_ylim()[1])
    axes.set_ylabel("|E θ - θ*|")
    axes.set_title("bias, K = 10, ± 2 standard errors", fontsize=10)


def _draw_sizes(axes: Any, records: Records) -> None:
    seeds = sorted({record["settings"]["seed"] for record in records.values()})
    known = [by_N for seed in seeds if (by_N := _by_N(records, seed))]
    for number, by_N in enumerate(known):
        for name, title in ALGORITHMS.items():
            errors = _values(list(by_N.values()), name, "mean_square_error")
            look = {"marker": "o", "markersize": 4, "linewidth": 1, "color": colour(name)}
            axes.plot(list(by_N), errors, **look, label=label_of(title, number == 0))
        predicted = [record["predicted trace"]["scaffold"] for record in by_N.values()]
        label = label_of("predicted variance", number == 0)
        axes.plot(list(by_N), predicted, **_DOTTED, label=label)
    if known:
        log_log_sizes(axes)
    axes.set(xlabel="clients N", ylabel="E|θ - θ*|²")
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
    "there is none. A trajectory starts again in each round from the stationary distribution; what "
    "its memory adds to the mean of both algorithms is of the order of the step and is no "
    "heterogeneity, so no control removes it.",
)
