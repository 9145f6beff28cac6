"""The interval of everything measured, and of what is derived from it: all from joint replicates.

An interval says where another seed would find the number for the same clients: it covers which
clients, samples, mini-batches and random vectors were drawn, and what iterations left out. Where
all clients were measured on all their data nothing was drawn, and it is as narrow as arithmetic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis import quadratic_model, theory
from trimtab.diagnosis.estimate import REPLICATES, Estimate, estimated
from trimtab.diagnosis.hessians import Hessians
from trimtab.diagnosis.measure import BatchNoise, Gradients, Ratio
from trimtab.diagnosis.quadratic_model import QuadraticModel
from trimtab.diagnosis.resampling import Draws, few_draws
from trimtab.diagnosis.rows import Bias

ROUNDING = 64.0  # sums of floating-point numbers are right up to 64 x the unit of rounding

Replicates = dict[str, Tensor]


@dataclass(frozen=True)
class Sample:
    """The numbers at one point and their joint replicates."""

    at: str
    values: dict[str, float]
    replicates: Replicates
    draws: Draws
    slack: dict[str, float]  # what rounding or an iteration may have left out, on either side
    few: float = 1.0  # by what few pairs of mini-batches make sigma's interval too narrow

    def estimates(self) -> dict[str, Estimate]:
        """Return each number with its interval."""
        return {name: self._estimate(name) for name in self.values}

    def _estimate(self, name: str) -> Estimate:
        slack = self.slack.get(name, 0.0)
        return estimated(
            self.values[name],
            self.replicates[name],
            self.at,
            widen=max(self.draws.widen, self.few if name == "sigma" else 1.0),
            below=slack,
            above=slack,
            least=-float("inf") if name == "mu" else 1.0 if name == "B" else 0.0,
        )

    def derive(self, value: float, replicates: Tensor, of: Sequence[str] = ()) -> Estimate:
        """Return a number that follows from the others, with the interval that it inherits.

        of: the numbers to whose powers it is about proportional.
        """
        slack = sum(self.slack[name] / abs(self.values[name] or 1.0) for name in of) * abs(value)
        widen = self.draws.widen
        return estimated(value, replicates, self.at, widen=widen, below=slack, above=slack)


def at_point(
    at: str,
    x: Vector,
    draws: Draws,
    seed: int,
    gradients: Gradients,
    hessians: Hessians | None = None,
    noise: BatchNoise | None = None,
    ratios: tuple[Ratio, ...] = (),
    B: float | None = None,
    short_of: float = 0.0,
) -> Sample:
    """Return what was measured at a point, with joint replicates.

    short_of: by which share of the way the point is short of the optimum that it stands for.
    """
    zeta, G = gradients.replicates(draws)
    values: dict[str, float] = {"zeta": gradients.zeta, "G": gradients.G}
    replicates: Replicates = {"zeta": zeta, "G": G}
    unit = ROUNDING * torch.finfo(x.dtype).eps
    slack = {"zeta": unit * gradients.G, "G": unit * gradients.G}
    if B is not None:
        values["B"] = B
        drawn = [ratio.replicates(draws) for ratio in ratios]
        replicates["B"] = torch.stack(drawn).amax(0) if drawn else constant(B)
        slack["B"] = unit * B
    few = 1.0
    if noise is not None:
        values["sigma"] = noise.sigma
        replicates["sigma"] = noise.replicates(draws, seed)
        slack["sigma"] = unit * noise.sigma
        few = 1.0 if noise.squares is None else few_draws(len(noise.squares))
    if hessians is not None:
        names = ("L", "delta", "mu", "norm", "second")
        mine = {name: float(getattr(hessians, name)) for name in names}
        values |= mine
        replicates |= _of_hessians(hessians, mine, draws)
        for name in names:
            left_out = hessians.errors.get(name, 0.0)
            slack[name] = unit * hessians.L + (left_out if isfinite(left_out) else 0.0)
    for name, value in values.items():
        slack[name] += short_of * abs(value)
    return Sample(at, values, replicates, draws, slack, few)


def _of_hessians(hessians: Hessians, values: dict[str, float], draws: Draws) -> Replicates:
    """Return replicates of the numbers of Hessians, moved to where the values are."""
    if hessians.restricted is None:
        return {name: constant(value) for name, value in values.items()}
    drawn, centre = hessians.restricted.replicates(draws)
    drawn["second"], centre["second"] = values["second"] * drawn["second"], values["second"]
    return {name: drawn[name] + (values[name] - centre[name]) for name in values}


def constant(value: float) -> Tensor:
    """Return replicates of a number that does not depend on what is drawn."""
    return torch.full((REPLICATES,), value, dtype=torch.float64)


# -- derived


def of_theory(sample: Sample, at: theory.Constants | None, K: int) -> dict[str, Estimate]:
    """Return delta/L, the knees, and the rounds of Table 2, with what they inherit."""
    found: dict[str, Estimate] = {}
    L, delta = sample.values.get("L"), sample.values.get("delta")
    if L and delta is not None and isfinite(delta):
        each = sample.replicates["delta"] / sample.replicates["L"]
        found["delta/L"] = sample.derive(delta / L, each, ("delta", "L"))
    if at is None:
        return found
    names = ("L", "mu", "delta", "G", "B", "sigma")
    drawn = sample.replicates | ({} if at.mu else {"mu": constant(0.0)})
    rows = torch.stack([drawn[name] for name in names], 1).tolist()
    constants = [
        replace(at, L=L, mu=mu, delta=delta, G=G, B=B, sigma=sigma)
        for L, mu, delta, G, B, sigma in rows
    ]
    curvature = ("L", "delta", "mu") if at.convexity == theory.STRONGLY_CONVEX else ("L", "delta")
    for option in ("I", "II"):
        value = theory.knee(at.L, at.delta, at.mu, option)
        each = torch.tensor([theory.knee(c.L, c.delta, c.mu, option) for c in constants])
        found[f"knee {option}"] = sample.derive(value, each.double(), curvature)
    rates = [theory.totals(c, K) for c in constants if c.usable]
    for name, value in theory.totals(at, K).items():
        each = torch.tensor([rate[name] for rate in rates], dtype=torch.float64)
        rounds = sample.derive(value, each, curvature)
        found[f"rounds {name}"] = replace(rounds, at=f"{sample.at}, K = {K}")
    return found


def of_bias(
    sample: Sample, bias: Bias, drift: float, model: QuadraticModel | None, eta: float, K: int
) -> dict[str, Estimate]:
    """Return FedAvg's bias and drift with what they inherit from the clients that were drawn."""
    values: Mapping[str, float | None] = {
        "bias": bias.heterogeneity,
        "limit": bias.limit,
        "drift": drift if isfinite(drift) else None,
    }
    known = {name: value for name, value in values.items() if value is not None}
    relative = {name: constant(1.0) for name in known}
    if model is not None and sample.draws.clients_vary and known:
        relative |= _relative(model, sample.draws, eta, K)
    at = f"{sample.at}, eta_l = {eta:.3g}, K = {K}"
    return {
        name: replace(sample.derive(value, value * relative[name], ("zeta", "delta")), at=at)
        for name, value in known.items()
    }


def _relative(model: QuadraticModel, draws: Draws, eta: float, K: int) -> Replicates:
    """Return the bias, where FedAvg stops, and the drift on the model, relative to their values."""

    def numbers(p: Tensor) -> list[float]:
        mine = model.reweighted(p)
        A = torch.einsum("nij,nj,nkj->nik", mine.U, mine.a, mine.U)
        pull = theory.weighted(p, torch.einsum("nij,nj->ni", A, -mine.b))
        limit = quadratic_model.fedavg_limit(mine, eta, K)
        solved = torch.linalg.lstsq(mine.H, pull[:, None]).solution[:, 0]
        norms = [float(solved.norm()), 0.0 if limit is None else float(limit.norm())]
        return [*norms, float(pull.norm())]

    base = numbers(model.p)
    rows = [numbers(p) for p in draws.weights[::4]]
    each = torch.tensor(rows, dtype=torch.float64) / torch.tensor([b or 1.0 for b in base])
    return {name: each[:, j] for j, name in enumerate(("bias", "limit", "drift"))}
