"""The cells of nonconvex: rounds of SCAFFOLD I with the best step size, against N/S, eps and K.

sampled: a small network, or a linear model; rounds to the first model whose error is eps of that of
the start. weak: quadratics with indefinite Hessians around a convex mean.

An algorithm that does the same to every coordinate takes steps of size eta on f if it takes steps
of size one and its gradients are multiplied by eta. So x is M models in a row, each with a step
size of its own, and `simulate` runs them side by side with the same cohorts.
"""

from collections.abc import Sequence
from itertools import islice
from math import log10
from typing import Literal

import torch
from torch import Tensor

from trimtab.algorithms import Scaffold
from trimtab.core import Gradient, Vector
from trimtab.core.streams import PROBLEM, stream
from trimtab.core.task import Progress
from trimtab.core.threads import one_thread
from trimtab.problems.problem import Problem, normalised
from trimtab.simulation import simulate
from trimtab_papers.engine import Cell, Computing, cell_of
from trimtab_papers.quadratics import quadratics, scaffold_is_off_by, scaffold_map, tried
from trimtab_papers.verdicts import Record, rounded

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


# -- regressions, each client's data its own, run with many step sizes at once


FAR = 1e3  # a model has diverged if |x| >= 1000; it gets no gradients any more


class Regression(Problem):
    """N clients with n samples of p features each; f_i is half the mean square error.

    hidden: units of a network v' tanh(W u), which is not convex; 0: the linear model w' u, which is
    convex. The features have scales 1, 1/2, 1/3 ..., so that it is hardly strongly convex. Each
    client has a truth of its own.
    """

    def __init__(
        self, hidden: int, etas: Tensor, seed: int, N: int = 32, n: int = 6, p: int = 8
    ) -> None:
        self.hidden, self.etas, self.N, self.n, self.p = hidden, etas, N, n, p
        self.one = hidden * (p + 1) if hidden else p  # the numbers of one model
        self.d = len(etas) * self.one
        self.weights = normalised(None, N)
        draw = stream(seed, PROBLEM)
        shapes = ((N, n, p), (p,), (N, p), (N, n))
        U, common, own, noise = (
            torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes
        )
        T = torch.einsum("inj,ij->in", U, common + own) / p**0.5 + 0.1 * noise
        self.U = U / torch.arange(1, p + 1, dtype=torch.float64)
        self.T = torch.tanh(T) if hidden else T
        flat = self.U.reshape(-1, p), self.T.reshape(-1, 1)
        self.best = torch.linalg.lstsq(*flat).solution[:, 0]  # of the linear model

    # -- all models side by side: the Problem

    def rows(self, x: Vector) -> Tensor:
        """Return the models, (..., M, numbers of one)."""
        return x.view(*x.shape[:-1], len(self.etas), self.one)

    def x0(self, seed: int = 0) -> Vector:
        """Return one start for all: small random numbers for a network, whose zero is a saddle."""
        draw = stream(seed, PROBLEM, 1)
        start = torch.randn(self.one, generator=draw, dtype=torch.float64) / 2
        return (start if self.hidden else torch.zeros_like(start)).repeat(len(self.etas))

    def chunk_oracle(self, clients: Sequence[int], seed: int, r: int) -> Gradient:
        """Return eta grad f_i on all data, whatever k, of several clients at once."""
        return lambda Y, k=None: self._scaled(clients, Y)

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return eta grad f_i on all data, whatever k."""
        return lambda y, k=None: self._scaled([i], y[None])[0]

    def _scaled(self, clients: Sequence[int], Y: Tensor) -> Tensor:
        models = self.rows(Y)
        here = models.norm(dim=-1, keepdim=True) < FAR
        moves = self.etas[:, None] * self.gradients(clients, models)
        return torch.where(here, moves, 0.0).flatten(1)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return the least error of all models."""
        return {"loss": float(self.errors(x).min())}

    # -- one model, or several

    def first_layer(self, models: Tensor) -> Tensor:
        return models[..., : -self.hidden].reshape(*models.shape[:-1], self.hidden, self.p)

    def predictions(self, U: Tensor, models: Tensor) -> Tensor:
        """Return what the models say of the features."""
        if not self.hidden:
            return (U @ models[..., None])[..., 0]
        W = self.first_layer(models)
        return (torch.tanh(U @ W.mT) @ models[..., -self.hidden :, None])[..., 0]

    def gradients(self, clients: Sequence[int], models: Tensor) -> Tensor:
        """Return grad f_i of each model; the first dimension is the clients'."""
        U = self.U[list(clients)][:, None]
        off = (self.predictions(U, models) - self.T[list(clients)][:, None])[..., None] / self.n
        if not self.hidden:
            return (off.mT @ U)[..., 0, :]
        W = self.first_layer(models)
        z = torch.tanh(U @ W.mT)
        inner = off * models[..., None, -self.hidden :] * (1 - z.square())
        return torch.cat([(inner.mT @ U).flatten(-2), (off.mT @ z)[..., 0, :]], dim=-1)

    def losses(self, models: Tensor) -> Tensor:
        """Return f of each model, (M, numbers of one)."""
        off = self.predictions(self.U[:, None], models) - self.T[:, None]
        return off.square().mean((0, 2)) / 2

    def errors(self, x: Vector) -> Tensor:
        """Return what a theorem bounds: |grad f|^2 of the networks, f - f* of the linear models."""
        models = self.rows(x)
        if self.hidden:
            every_client = models.expand(self.N, *models.shape)
            return self.gradients(range(self.N), every_client).mean(0).square().sum(-1)
        e: Tensor = (self.U[:, None] @ (models - self.best)[..., None])[..., 0]
        return e.square().mean((0, 2)) / 2  # A difference of losses would drown in rounding.


# -- the cells


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return one cell for each kind of problem and seed; a slope needs several seeds."""
    over = range(max(QUICK_SEEDS if quick else SEEDS, seeds))
    return [cell_of(kind, _compute, kind, quick, seed=seed) for seed in over for kind in KINDS]


def _compute(kind: Kind, quick: bool, seed: int) -> Computing:
    return _weak(seed, quick) if kind == "weak" else _sampled(kind, seed, quick)


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
