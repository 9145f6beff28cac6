"""Rounds of SCAFFOLD I with the best step size: against N/S and eps, and against K.

sampled: a small network, or a linear model, in `regression`; rounds to the first model whose error
is eps of that of the start. weak: quadratics with indefinite Hessians around a convex mean.
"""

from itertools import islice
from math import log10
from typing import Literal

import torch

from trimtab.algorithms import Scaffold
from trimtab.core.streams import PROBLEM, stream
from trimtab.core.task import Progress
from trimtab.core.threads import one_thread
from trimtab.simulation import simulate
from trimtab_papers.numbers import rounded
from trimtab_papers.records import Record
from trimtab_papers.reproduction import Cell, Computing
from trimtab_papers.scaffold2020.nonconvex.regression import Regression
from trimtab_papers.scaffold2020.quadratics import (
    quadratics,
    scaffold_is_off_by,
    scaffold_map,
    tried,
)

Kind = Literal["network", "convex", "weak"]
KINDS: tuple[Kind, ...] = ("network", "convex", "weak")
SEEDS, QUICK_SEEDS = 6, 3  # seeds >= 6: the slope is to be known to a tenth
N, K, HIDDEN = 32, 4, 4
RATIOS, QUICK_RATIOS = (1, 2, 4, 8, 16, 32), (1, 4, 16)  # values of N/S
EPS = (0.1, 0.03, 0.01, 0.003, 0.001)  # errors, relative to that of the start
STEPS = tried(0.005, 10.0, 1.5)  # values of K eta_l
LIMIT = 3000  # the rounds of every run are <= 3000
SIMILAR, QUICK_SIMILAR = (5, 10, 20, 40), (10, 20)  # values of L/delta
CLIENTS, DIRECTIONS, LEAST = 8, 16, 1e-6  # of the quadratics; their least eigenvalue is 1e-6 L
WEAK_EPS = 1e-4  # |grad f|^2 <= 1e-4 (f(x0) - f*) L


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return one cell for each kind of problem and seed; a slope needs several seeds."""

    def cell(kind: Kind, seed: int) -> Cell:
        name = kind + (f"-seed{seed}" if seed else "")
        if kind == "weak":
            return Cell(name, lambda data, scratch: _weak(seed, quick))
        return Cell(name, lambda data, scratch: _sampled(kind, seed, quick))

    over = range(max(QUICK_SEEDS if quick else SEEDS, seeds))
    return [cell(kind, seed) for seed in over for kind in KINDS]


# -- Theorem III


def _sampled(kind: Kind, seed: int, quick: bool) -> Computing:
    """Return the rounds to each eps, and the step size that was first there, for each N/S."""
    hidden = HIDDEN if kind == "network" else 0
    problem = Regression(hidden, STEPS / K, seed, N=N)
    found: dict[str, dict[str, list[float | None]]] = {}
    for ratio in QUICK_RATIOS if quick else RATIOS:
        yield Progress(f"N/S = {ratio}")
        rounds, steps = _rounds(problem, N // ratio, seed)
        found[str(ratio)] = {"rounds": rounds, "K eta_l": steps}
    record: Record = {
        "settings": {"kind": kind, "seed": seed, "N": N, "K": K, "option": "I", "batch": "all"}
        | {"hidden": hidden, "d": problem.one, "eta_g": 1, "limit": LIMIT},
        "candidates": STEPS.tolist(),
        "eps": EPS,
        "found": found,
    }
    return rounded(record)


@one_thread()
def _rounds(
    problem: Regression, S: int, seed: int
) -> tuple[list[float | None], list[float | None]]:
    x0 = problem.x0(seed)
    targets = [eps * float(problem.errors(x0)[0]) for eps in EPS]
    rounds: list[float | None] = [None] * len(EPS)
    steps: list[float | None] = [None] * len(EPS)
    algorithm = Scaffold(eta_l=1.0, K=K, option="I")  # The problem multiplies by the step sizes.
    runs = simulate(algorithm, problem, S=S, seed=seed, x=x0, executor="batched")
    for done in islice(runs, LIMIT):
        errors = problem.errors(done.x)
        best = int(errors.argmin())
        for j, target in enumerate(targets):
            if rounds[j] is None and float(errors[best]) <= target:
                rounds[j], steps[j] = done.r, float(STEPS[best])
        if rounds[-1] is not None:
            break
    return rounds, steps


# -- Theorem IV


def _weak(seed: int, quick: bool) -> Computing:
    """Return the rounds of the best step size for each L/delta and K, all clients at work."""
    found: dict[str, list[dict[str, float | None]]] = {}
    off: list[float] = []
    least: list[float] = []
    for similar in QUICK_SIMILAR if quick else SIMILAR:
        delta = 1 / similar
        h = torch.logspace(log10(LEAST), log10(1 - delta), DIRECTIONS, dtype=torch.float64)
        problem = quadratics(h, delta, CLIENTS, seed)
        least.append(float(torch.linalg.eigvalsh(problem.A).min()) / delta)
        g = torch.randn(DIRECTIONS, generator=stream(seed, PROBLEM, 2), dtype=torch.float64)
        counts = sorted({max(1, round(similar * 2.0**j)) for j in range(-7, 5)})
        rows = []
        for steps in counts:
            yield Progress(f"L/delta = {similar}, K = {steps}")
            eta_l = tried(1e-3, 2.0, 1.1)
            maps = scaffold_map(problem, eta_l, steps)
            rounds, best = _first(maps, g / h.sqrt(), h, WEAK_EPS * float(g @ g) / 2)
            rows.append({"K": steps, "rounds": rounds, "eta_l": float(eta_l[best])})
        found[str(similar)] = rows
        off.append(scaffold_is_off_by(problem, 0.5, similar))
    record: Record = {
        "settings": {"kind": "weak", "seed": seed, "N": CLIENTS, "d": DIRECTIONS, "option": "I"}
        | {"batch": "all", "L": 1, "least eigenvalue of f/L": LEAST, "eps": WEAK_EPS},
        "least eigenvalue of any f_i/delta": least,
        "found": found,
        "runs are off by": off,
    }
    return rounded(record)


@one_thread()
def _first(
    maps: torch.Tensor, x: torch.Tensor, h: torch.Tensor, target: float
) -> tuple[int | None, int]:
    """Return the first round at which |grad f|^2 <= target with some step, and which step."""
    state = torch.cat([x, x]).expand(len(maps), -1)  # The controls are the gradients at the start.
    for r in range(1, 20 * LIMIT + 1):
        state = (maps @ state[..., None])[..., 0].clamp(-1e9, 1e9)
        squares = (state[:, : len(h)] * h).square().sum(1)
        best = int(squares.argmin())
        if float(squares[best]) <= target:
            return r, best
    return None, best
