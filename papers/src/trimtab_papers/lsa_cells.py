"""The cells of lsa: where FedLSA and SCAFFLSA end without noise, with transitions, by N."""

from dataclasses import dataclass
from itertools import islice
from math import ceil
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.task import Progress
from trimtab.problems.garnet import GarnetTD, Sampling
from trimtab.problems.linear_system import LinearSystem
from trimtab.simulation import simulate
from trimtab_papers.engine import Cell, Computing, build
from trimtab_papers.many_runs import BLOCK, Chains
from trimtab_papers.verdicts import Record, Records, rounded, thinned

ALGORITHMS = {"fedavg": "FedLSA", "scaffold": "SCAFFLSA"}
SAMPLINGS = {"iid": "i.i.d. transitions", "markov": "trajectories"}
SEEDS = 3  # a sentence is judged over >= 3 random federations, each with its own noise
GAMMA, K, MANY = 0.5, 10, 50  # MANY local steps where the bias is to be seen beside the variance
LOCAL_STEPS = (1, 2, 5, 10, 20)
FORGET = 20  # the controls have forgotten where they started after >= 20 rounds
KINDS = 4  # N clients are N/4 of each of 4 kinds, so that nothing but N changes with N


def sizes(quick: bool) -> tuple[int, ...]:
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
        return self.system.A[i]

    def third(self, i: int, x: Vector, V: Tensor) -> Vector:
        return torch.zeros_like(x)

    def covariance(self, i: int, x: Vector) -> Tensor:
        """Return the covariance of one i.i.d. transition's semi-gradient at x*."""
        return self.system.noise[i]
