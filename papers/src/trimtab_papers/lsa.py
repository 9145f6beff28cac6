"""Federated TD: FedLSA stays at its bias, SCAFFLSA (SCAFFOLD II) does not; both speed up with N.

Mangold et al., NeurIPS 2024, named by the slides under federated reinforcement learning. TD(0) with
linear features on a random Garnet MDP for each client: linear systems that are not symmetric.
"""

from dataclasses import dataclass
from itertools import islice, pairwise
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.task import Progress
from trimtab.problems.garnet import GarnetTD, Sampling
from trimtab.problems.linear_system import LinearSystem
from trimtab.simulation import simulate
from trimtab_papers.engine import Cell, Computing, Reproduction, build, colour
from trimtab_papers.figures import label_of, new_figure
from trimtab_papers.many_runs import BLOCK, Chains
from trimtab_papers.verdicts import (
    Held,
    MissingRecordError,
    Record,
    Records,
    Verdict,
    check,
    of_kind,
    over_seeds,
    rounded,
    sentence,
    slope,
    spread,
    thinned,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ALGORITHMS = {"fedavg": "FedLSA", "scaffold": "SCAFFLSA"}
SAMPLINGS = {"iid": "i.i.d. transitions", "markov": "trajectories"}
SEEDS = 3  # a sentence is judged over >= 3 random federations, each with its own noise
GAMMA, K, MANY = 0.5, 10, 50  # MANY local steps where the bias is to be seen beside the variance
LOCAL_STEPS = (1, 2, 5, 10, 20)
FORGET = 20  # the controls have forgotten where they started after >= 20 rounds
KINDS = 4  # N clients are N/4 of each of 4 kinds, so that nothing but N changes with N


def sizes(quick: bool) -> tuple[int, ...]:
    """Return the numbers of clients."""
    return (4, 64) if quick else (4, 8, 16, 32, 64)


# -- what a record holds


@dataclass(frozen=True)
class Law:
    """Where an algorithm ends: |E x - x*|, E|x - x*|^2, trace of the covariance, standard error."""

    bias: float
    mean_square_error: float
    trace: float
    error: float

    def to_json(self) -> dict[str, float]:
        """Return what the file holds of an algorithm."""
        return dict(vars(self))


@dataclass(frozen=True)
class Stationary:
    """Both algorithms on one federation, and what the closed forms say of them."""

    N: int
    laws: dict[str, Law]
    moved: float  # how far E of FedLSA - SCAFFLSA, on equal transitions, is from limit - x*
    predicted_bias: float  # |FedLSA's limit - x*|
    predicted_trace: dict[str, float]

    @classmethod
    def from_json(cls, record: Record) -> "Stationary":
        """Read a record."""
        return cls(
            N=record["settings"]["N"],
            laws={name: Law(**row) for name, row in record["found"].items()},
            moved=record["difference off by"],
            predicted_bias=record["predicted bias"],
            predicted_trace=record["predicted trace"],
        )


def by_size(records: Records, seed: int) -> dict[int, Stationary]:
    """Return what was found of one seed by the number of clients."""
    mine = (
        r
        for r in records.values()
        if r["settings"]["kind"][0] == "N" and r["settings"]["seed"] == seed
    )
    found = [Stationary.from_json(record) for record in mine]
    return {one.N: one for one in sorted(found, key=lambda one: one.N)}


# -- how it is computed


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return the cells of each seed; a seed makes the MDPs as well as the noise."""

    def cell(kind: str, seed: int) -> Cell:
        name = f"{kind}-seed{seed}" if seed else kind
        return Cell(name, lambda data, scratch: _compute(kind, seed, quick))

    kinds = ["exact", *SAMPLINGS, *(f"N{N}" for N in sizes(quick))]
    count = seeds if quick else max(seeds, SEEDS)
    return [cell(kind, seed) for seed in range(count) for kind in kinds]


def _compute(kind: str, seed: int, quick: bool) -> Computing:
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
                curves[name] = thinned(errors, 60).to_json()
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
        deviations = errors - mean
        # Chains are independent, their rounds are not.
        spread = errors.mean(0).var(0).sum() / M
        found[name] = Law(
            bias=float(mean.norm()),
            mean_square_error=float(errors.square().sum(2).mean()),
            trace=float(deviations.square().sum(2).mean()),
            error=float(spread.sqrt()),
        ).to_json()
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


class TD:
    """N clients of the kinds that a GarnetTD has, as a Model of many runs."""

    exact = False

    def __init__(self, base: GarnetTD, N: int) -> None:
        self.base, self.N, self.d = base, N, base.d
        kinds = [i % base.N for i in range(N)]
        self.system = LinearSystem(
            *(t[kinds] for t in (base.system.A, base.system.b, base.system.noise))
        )
        self._after, self._visits = base.P.cumsum(2), base.visits.cumsum(1)

    def gradients(self, i: int, x: Tensor) -> Tensor:
        """Return A_i x - b_i at each row of x."""
        return self.system.client_gradient(i, x)

    def draw(self, i: int, k: int, M: int, source: torch.Generator) -> Tensor:
        """Return k transitions of M chains, (k, M, 2); a trajectory is one block of a round."""
        kind, last = i % self.base.N, self.base.states - 1
        at = torch.rand(2, k, M, generator=source, dtype=torch.float64)
        if self.base.sampling == "iid":
            s = torch.searchsorted(self._visits[kind], at[0]).clamp(max=last)
            return torch.stack([s, self._next(kind, s, at[1])], 2)
        assert k == BLOCK == K  # a round is one block, and so one trajectory
        path = [torch.searchsorted(self._visits[kind], at[0, 0]).clamp(max=last)]
        for step in range(k):
            path.append(self._next(kind, path[-1], at[1, step]))
        states = torch.stack(path)
        return torch.stack([states[:-1], states[1:]], 2)

    def _next(self, kind: int, s: Tensor, at: Tensor) -> Tensor:
        return (self._after[kind][s] < at[..., None]).sum(-1).clamp(max=self.base.states - 1)

    def sampled(self, i: int, x: Tensor, batches: Tensor) -> Tensor:
        """Return the semi-gradients at the M rows of x, each on its transition."""
        s, after = batches.unbind(1)
        here = self.base.phi[s]
        difference = here - self.base.gamma * self.base.phi[after]
        found: Tensor = here * ((difference * x).sum(1) - self.base.r[i % self.base.N, s])[:, None]
        return found

    def hessian(self, i: int, x: Vector) -> Tensor:
        """Return A_i."""
        return self.system.A[i]

    def third(self, i: int, x: Vector, V: Tensor) -> Vector:
        """Return zero."""
        return torch.zeros_like(x)

    def covariance(self, i: int, x: Vector) -> Tensor:
        """Return the covariance of one i.i.d. transition's semi-gradient at x*."""
        return self.system.noise[i]


# -- what the paper says


OURS = "ours, on the mean of Garnet MDPs"


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


@sentence(
    "When the number of local iterations increases, bias increases: FedLSA on the mean equations "
    "ends farther from theta* with every K, from 1 to 20.",
    "slides, Classical analyses of this algorithm",
)
def bias_grows_with_K(records: Records) -> Verdict:
    """Compare each K with the one before."""
    found = {seed: [row["fedavg"] for row in rows] for seed, rows in _exact_rows(records).items()}
    held: Held = {
        seed: all(a < b for a, b in pairwise(e)) and e[0] < 0.01 * e[1] for seed, e in found.items()
    }
    told = ", ".join(
        f"K = {row['K']}: {row['fedavg']:.2g}" for row in _exact_rows(records)[min(found)]
    )
    return over_seeds(held, f"seed {min(found)}: {told}")


@sentence(
    "Scaffold: no more heterogeneity bias. SCAFFLSA on the mean equations ends at theta* for every "
    "K (below a thousandth of FedLSA's distance, K >= 2).",
    "slides, Scaffold",
)
def scafflsa_arrives(records: Records) -> Verdict:
    """Compare the two."""
    worst = {
        seed: max(row["scaffold"] / row["fedavg"] for row in rows if row["K"] > 1)
        for seed, rows in _exact_rows(records).items()
    }
    held: Held = {seed: ratio < 1e-3 for seed, ratio in worst.items()}
    return over_seeds(held, f"largest ratio {max(worst.values()):.1g}")


@sentence(
    "FedLSA stays at its bias and SCAFFLSA does not, with i.i.d. transitions: |E theta - theta*| "
    "of SCAFFLSA is less than a third of FedLSA's.",
    "slides, Scaffold, and the title of Mangold et al. 2024 (taming heterogeneity)",
)
def scafflsa_is_not_biased(records: Records) -> Verdict:
    """Compare the means of the chains."""
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


@check(
    "With trajectories SCAFFLSA is biased too, by their memory (by more than 3 standard errors).",
    OURS,
)
def memory_biases_both(records: Records) -> Verdict:
    """Compare the bias with its standard error."""
    found = _laws(records, "markov")
    laws = {seed: one.laws["scaffold"] for seed, one in found.items()}
    return over_seeds({s: law.bias > 3 * law.error for s, law in laws.items()}, _biases(found))


@sentence(
    "Linear speed-up: the stationary variance of SCAFFLSA falls as 1/N (slope -1.1 to -0.9).",
    "slides, Scaffold also converges",
)
def scafflsa_speeds_up(records: Records) -> Verdict:
    """Fit the exponent of N."""
    slopes = {}
    for seed in _complete(records):
        of_N = by_size(records, seed)
        slopes[seed] = slope(list(of_N), [one.laws["scaffold"].trace for one in of_N.values()])
    held: Held = {seed: -1.1 < s < -0.9 for seed, s in slopes.items()}
    return over_seeds(held, f"slopes {spread(list(slopes.values()), '.3f')}")


@check("FedLSA on the mean equations ends where the closed form says (within 0.1 %).", OURS)
def closed_form_of_the_limit(records: Records) -> Verdict:
    """Compare runs with the closed form, where there is a bias."""
    off = {
        seed: max(row["from the closed form"] / row["closed form"] for row in rows if row["K"] > 1)
        for seed, rows in _exact_rows(records).items()
    }
    return over_seeds({s: v < 1e-3 for s, v in off.items()}, f"at most {max(off.values()):.1g} off")


@check(
    "With i.i.d. transitions E theta of FedLSA is that limit: its chains less SCAFFLSA's, which "
    "see the same transitions, are off by 15 % of the bias at most (K = 10).",
    OURS,
)
def limit_with_noise(records: Records) -> Verdict:
    """Compare the difference of two coupled means with that of the closed form."""
    off = {seed: one.moved / one.predicted_bias for seed, one in _laws(records, "iid").items()}
    return over_seeds({s: v < 0.15 for s, v in off.items()}, f"at most {max(off.values()):.1%} off")


@check(
    "The Lyapunov equation tells the variances of both to first order: within 20 %, although the "
    "noise of transitions is multiplicative.",
    OURS,
)
def closed_form_of_the_covariance(records: Records) -> Verdict:
    """Compare traces."""
    off = {
        seed: max(abs(one.laws[n].trace / one.predicted_trace[n] - 1) for n in ALGORITHMS)
        for seed, one in _laws(records, "iid").items()
    }
    return over_seeds({s: v < 0.2 for s, v in off.items()}, f"at most {max(off.values()):.1%} off")


@check(
    "With the most clients SCAFFLSA's mean square error is less than two thirds of FedLSA's, and "
    "the difference is FedLSA's squared bias within 25 % (K = 50).",
    OURS,
)
def fedlsa_stops_speeding_up(records: Records) -> Verdict:
    """Look at the most clients."""
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


SENTENCES = (
    bias_grows_with_K,
    scafflsa_arrives,
    scafflsa_is_not_biased,
    scafflsa_speeds_up,
    closed_form_of_the_limit,
    limit_with_noise,
    closed_form_of_the_covariance,
    fedlsa_stops_speeding_up,
    memory_biases_both,
)


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


def figure(records: Records) -> "Figure":
    """Return three panels; every seed is a line or a point."""
    with new_figure(11, 3.6) as made:
        panels: Any = made.subplots(1, 3)
        _rounds(panels[0], records)
        _bias(panels[1], records)
        _size(panels[2], records)
    return made


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
    sentences=SENTENCES,
    table=table,
    figure=figure,
    discussion="The slides show no experiment on TD; MDPs, features and steps are ours (30 states, "
    "4 features, discount 0.9, gamma = 0.5), and a seed draws the MDPs as well as the transitions. "
    "The slides' sentences on FedAvg and Scaffold are about functions, and are judged here where "
    "there is none. A trajectory starts anew in each round from the stationary distribution; what "
    "its memory adds to the mean of both algorithms is of the order of the step and is no "
    "heterogeneity, so no control removes it.",
)
