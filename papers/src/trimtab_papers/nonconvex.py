"""SCAFFOLD where f is not strongly convex: rounds against N/S, eps and K.

Karimireddy et al., 2020: Theorem III (non-convex and general convex) and Theorem IV (weakly
convex), all with full gradients (sigma = 0); the paper shows no experiment. Option I, eta_g = 1,
the best step size of each cell. Theorem III: 32 clients with six samples each, a network of four
tanh units (36 numbers), or a linear model of eight features whose scales fall as 1/j; K = 4.
Theorem IV: eight quadratics in 16 dimensions whose Hessians do not commute and have negative
eigenvalues, down to -delta, around a mean with eigenvalues from 1e-6 L to L.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log, sqrt
from statistics import fmean
from typing import Any

import numpy as np

from trimtab_papers.engine import Reproduction, colour
from trimtab_papers.figures import drawn, label_of
from trimtab_papers.nonconvex_cells import EPS, KINDS, Kind, cells
from trimtab_papers.quadratics import best_K, least_saved, plateau
from trimtab_papers.rounds_to_target import lines
from trimtab_papers.verdicts import (
    MissingRecordError,
    Record,
    Records,
    Sentences,
    Verdict,
    complete,
    each_seed,
    of_kind,
    over_seeds,
    slope,
    spread,
)

# -- what the paper says


PAPER = Sentences()
THIRD, FOURTH = "section 5, Theorem III", "section 6, Theorem IV"


# -- Theorem III: exponents of N/S and of 1/eps


@dataclass(frozen=True)
class Fit:
    """An exponent, common to all seeds, and its standard error."""

    exponent: float
    error: float

    def at_most(self, bound: float) -> bool | None:
        """Return whether it is below a bound by two standard errors; None if it may be either."""
        low, high = self.exponent - 2 * self.error, self.exponent + 2 * self.error
        return None if low <= bound < high else high <= bound


def rounds_by_ratio(record: Record) -> dict[int, float]:
    """Return the rounds to the smallest eps by N/S; a run that did not arrive is left out."""
    last = {int(ratio): row["rounds"][-1] for ratio, row in record["found"].items()}
    return {ratio: rounds for ratio, rounds in sorted(last.items()) if rounds is not None}


def fitted(series: Mapping[int, Mapping[int, float]]) -> Fit:
    """Fit y ~ x^p with one p for all seeds and a factor for each, by least squares."""
    rows = [(log(x), log(y), seed) for seed, by_x in series.items() for x, y in by_x.items()]
    x, y, seeds = (np.array(column) for column in zip(*rows, strict=True))
    for seed in series:
        x[seeds == seed] -= x[seeds == seed].mean()
        y[seeds == seed] -= y[seeds == seed].mean()
    exponent = float(x @ y / (x @ x))
    left = y - exponent * x
    free = len(rows) - len(series) - 1
    return Fit(exponent, sqrt(float(left @ left) / free / float(x @ x)))


def _against_sampling(records: Records, kind: Kind, bound: float) -> Verdict:
    """Fit the exponent of N/S; each seed must be below the bound, and all together surely so."""
    by_seed = complete(records, KINDS)[kind]
    series = {seed: rounds_by_ratio(record) for seed, record in by_seed.items()}
    missed = sum(len(r["found"]) - len(series[seed]) for seed, r in by_seed.items())
    alone = {seed: slope(list(s), list(s.values())) for seed, s in series.items()}
    together = fitted(series)
    numbers = f"exponent {together.exponent:.2f} ± {together.error:.2f} (standard error), by seed "
    numbers += ", ".join(f"{exponent:.2f}" for exponent in alone.values())
    if missed:
        numbers += f"; runs that did not arrive: {missed}"
        return Verdict(False, numbers, seeds=len(by_seed))
    verdict = over_seeds({seed: exponent <= bound for seed, exponent in alone.items()}, numbers)
    if verdict.held == together.at_most(bound):
        return verdict
    return replace(verdict, held=None, mixed=True)


def _against_eps(records: Records, kind: Kind) -> Verdict:
    """Fit the exponent of 1/eps where all clients are at work, seed by seed."""
    exponents = {}
    for seed, record in complete(records, KINDS)[kind].items():
        pairs = list(zip(record["eps"], record["found"]["1"]["rounds"], strict=True))
        known = [(1 / eps, rounds) for eps, rounds in pairs if rounds is not None]
        exponents[seed] = slope(*zip(*known, strict=True))
    numbers = f"exponent {spread(exponents.values(), '.2f')}"
    return each_seed(exponents, lambda exponent: exponent <= 1, numbers)


@PAPER.says(
    "Non-convex, sigma = 0: SCAFFOLD needs of order (N/S)^(2/3) rounds (a bound: exponent at most "
    "2/3 in each seed, and in all by two standard errors).",
    THIRD,
)
def non_convex_rounds_against_sampling(records: Records) -> Verdict:
    return _against_sampling(records, "network", 2 / 3)


@PAPER.says("Non-convex, sigma = 0: of order 1/eps rounds (a bound: exponent at most 1).", THIRD)
def non_convex_rounds_against_eps(records: Records) -> Verdict:
    return _against_eps(records, "network")


@PAPER.says(
    "General convex, sigma = 0: of order D^2/eps + N/S rounds (a bound: the exponent of N/S is at "
    "most 1 in each seed, and in all by two standard errors).",
    THIRD,
)
def convex_rounds_against_sampling(records: Records) -> Verdict:
    return _against_sampling(records, "convex", 1.0)


@PAPER.says(
    "General convex, sigma = 0: of order D^2/eps + N/S rounds (a bound: the exponent of 1/eps is "
    "at most 1).",
    THIRD,
)
def convex_rounds_against_eps(records: Records) -> Verdict:
    return _against_eps(records, "convex")


# -- Theorem IV: rounds against K


Sweeps = dict[int, dict[int, float]]
"""Rounds by L/delta, then by K."""


def sweeps(record: Record) -> Sweeps:
    """Return the sweeps of a seed; those in which a run did not arrive are left out."""
    found = {
        int(similar): {row["K"]: row["rounds"] for row in rows}
        for similar, rows in record["found"].items()
    }
    return {similar: rounds for similar, rounds in found.items() if all(rounds.values())}


def _all_sweeps(records: Records) -> dict[int, Sweeps]:
    """Return the sweeps of each seed, in which every run must have arrived."""
    by_seed = complete(records, KINDS)["weak"]
    found = {seed: sweeps(record) for seed, record in by_seed.items()}
    if any(len(found[seed]) < len(record["found"]) for seed, record in by_seed.items()):
        raise MissingRecordError
    return found


@PAPER.says(
    "Weakly convex, sigma = 0: of order (L + delta K)/(K eps) rounds: until K is half of L/delta, "
    "K steps save a factor of K (0.8 K at least).",
    FOURTH,
)
def local_steps_help(records: Records) -> Verdict:
    saved = {
        seed: min(least_saved(rounds, similar) for similar, rounds in some.items())
        for seed, some in _all_sweeps(records).items()
    }
    numbers = f"{min(saved.values()):.2f} K at least"
    return each_seed(saved, lambda least: least >= 0.8, numbers)


@PAPER.says(
    "Weakly convex: a K beyond L/delta would only waste computation (the smallest K within 1.3 x "
    "of the fewest rounds is L/delta, within a factor of 2).",
    FOURTH,
)
def best_K_is_that_of_theory(records: Records) -> Verdict:
    ratios = {
        seed: [best_K(rounds) / similar for similar, rounds in some.items()]
        for seed, some in _all_sweeps(records).items()
    }
    numbers = spread((ratio for some in ratios.values() for ratio in some), ".2g")
    return each_seed(
        ratios, lambda some: all(0.5 <= r <= 2 for r in some), f"best K delta/L {numbers}"
    )


@PAPER.says(
    "Weakly convex: with K large the rounds are of order delta/eps (a bound: the exponent of delta "
    "is at most 1.1).",
    FOURTH,
)
def plateau_is_that_of_delta(records: Records) -> Verdict:
    exponents = {
        seed: slope([1 / similar for similar in some], list(map(plateau, some.values())))
        for seed, some in _all_sweeps(records).items()
    }
    numbers = f"exponent {spread(exponents.values(), '.2f')}"
    return each_seed(exponents, lambda exponent: exponent <= 1.1, numbers)


@PAPER.check(
    "The exact map is what SCAFFOLD does on these quadratics, whose f_i are not convex (to a "
    "millionth over five rounds).",
    "ours: it is what the sentences on Theorem IV stand on",
)
def map_is_what_runs_do(records: Records) -> Verdict:
    weak = complete(records, KINDS)["weak"].values()
    off = max(value for record in weak for value in record["runs are off by"])
    curved = [v for record in weak for v in record["least eigenvalue of any f_i/delta"]]
    numbers = f"runs of {len(weak)} seeds differ by {off:.1g} at most; "
    numbers += f"least eigenvalue {spread(curved, '.2f')} delta"
    held = off < 1e-6 and max(curved) < 0 and min(curved) >= -1 - 1e-9
    return Verdict(held, numbers, seeds=len(weak))


# -- table and figure


def table(records: Records) -> str:
    return f"{_third(records)}\n\n{_fourth(records)}"


def _third(records: Records) -> str:
    kinds: dict[Kind, str] = {
        "network": "network, squared gradient norm",
        "convex": "linear model, f - f*",
    }
    known = {kind: list(map(rounds_by_ratio, of_kind(records, kind).values())) for kind in kinds}
    rows = [["N/S", *(f"rounds: {title} to {EPS[-1]:g} of its start" for title in kinds.values())]]
    for ratio in sorted({ratio for some in known.values() for one in some for ratio in one}):
        seeds = [[one[ratio] for one in some if ratio in one] for some in known.values()]
        rows.append([str(ratio), *(spread(rounds) if rounds else "" for rounds in seeds)])
    return lines(rows)


def _by_similarity(records: Records) -> dict[int, list[dict[int, float]]]:
    """Return the rounds by K of all seeds, by L/delta."""
    found: dict[int, list[dict[int, float]]] = {}
    for record in of_kind(records, "weak").values():
        for similar, rounds in sweeps(record).items():
            found.setdefault(similar, []).append(rounds)
    return dict(sorted(found.items()))


def _fourth(records: Records) -> str:
    rows = [["L/delta", "rounds: K = 1", "K large", "best K"]]
    for similar, seeds in _by_similarity(records).items():
        columns = [rounds[1] for rounds in seeds], map(plateau, seeds), map(best_K, seeds)
        rows.append([str(similar), *map(spread, columns)])
    return lines(rows)


_GUIDE: dict[str, Any] = {"color": "#888888", "linewidth": 1.2, "linestyle": (0, (4, 3))}
_SHADES = ("#b9d7e4", "#7fb5cd", "#2e86ab", "#12455c")


@drawn(11, 3.6)
def figure(fig: Any, records: Records) -> None:
    """Return three panels; points are seeds, lines are their means."""
    panels = fig.subplots(1, 3)
    _draw_sampled(panels[0], records, "network", (2 / 3, "(N/S)^(2/3)"), "network: |∇f|²")
    _draw_sampled(panels[1], records, "convex", (1, "N/S"), "linear model: f − f*")
    _draw_weak(panels[2], records)
    for axes in panels:
        axes.set_ylabel("rounds")
        if axes.lines:
            axes.set(xscale="log", yscale="log")
            axes.tick_params(axis="y", which="minor", labelleft=False)
            axes.legend(fontsize=8)


def _draw_sampled(
    axes: Any, records: Records, kind: Kind, guide: tuple[float, str], title: str
) -> None:
    axes.set(xlabel="N/S", title=title)
    series = list(map(rounds_by_ratio, of_kind(records, kind).values()))
    if not series:
        return
    for rounds in series:
        look = {"color": colour("scaffold"), "markersize": 3.5, "alpha": 0.6}
        label = label_of("SCAFFOLD I, each seed")
        axes.plot(list(rounds), list(rounds.values()), "o", **look, label=label)
    ratios = sorted({ratio for rounds in series for ratio in rounds})
    means = [fmean(rounds[ratio] for rounds in series if ratio in rounds) for ratio in ratios]
    axes.plot(ratios, means, color=colour("scaffold"), linewidth=1.6, label="SCAFFOLD I")
    power, label = guide
    axes.plot(ratios, [means[0] * ratio**power for ratio in ratios], **_GUIDE, label=label)


def _draw_weak(axes: Any, records: Records) -> None:
    """Draw the mean over the seeds for each L/delta."""
    axes.set(xlabel="K δ/L", title="weakly convex quadratics: |∇f|²")
    found = _by_similarity(records)
    for (similar, seeds), shade in zip(found.items(), _SHADES, strict=False):
        means = {K: fmean(rounds[K] for rounds in seeds) for K in seeds[0]}
        look = {"color": shade, "linewidth": 1.6, "marker": "o", "markersize": 3}
        label = f"L/δ = {similar}"
        axes.plot([K / similar for K in means], list(means.values()), label=label, **look)
    if found:
        axes.axvline(1, **_GUIDE, label="K = L/δ")


NONCONVEX = Reproduction(
    name="nonconvex",
    shows="rounds of SCAFFOLD against N/S on a network, and against K on weakly convex quadratics",
    source="Karimireddy et al. 2020, Theorems III and IV",
    minutes=1.5,
    cells=cells,
    sentences=PAPER,
    table=table,
    figure=figure,
    discussion="Theorem III is an upper bound with a constant that is not given, so an exponent "
    "below its own agrees with it, and one above it in one small problem does not refute it. On "
    "the network the rounds hardly grow until N/S is about 8 and then faster than any 2/3: the "
    "fit over all N/S is below 2/3, but not in every seed, and from 16 to 32 the exponent is above "
    "1 in every seed; so the verdict is mixed. The same bend is in the linear model, whose bound "
    "has the term N/S. Our explanation, not measured: controls start at zero, and with one client "
    "of 32 a round it takes over a hundred rounds until each has been asked once. Each number of "
    "rounds is that of the step size that was first there, a factor of 1.5 from the next; all step "
    "sizes of a cell see the same cohorts. General convex is shown as far as a linear model can: "
    "it has a least eigenvalue, so its rounds grow more slowly than 1/eps. For Theorem IV f is a "
    "convex quadratic (nothing else is bounded below), the f_i are not convex, and the law is as "
    "sharp as for strongly convex ones in `local-steps`.",
)
