"""The interval of every number: `scalars` again, of other clients, samples and mini-batches.

An interval says where another seed would find the number for the same clients. It covers which
clients, samples, mini-batches and directions were drawn, and what iterations left out. Where
everything was measured nothing was drawn, and it is as narrow as arithmetic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, log
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.streams import NOISE, stream
from trimtab.diagnosis import quadratic_model, theory
from trimtab.diagnosis.hessians import Hessians, Restricted
from trimtab.diagnosis.measure import BatchNoise, Gradients, Numbers, Ratio, scalars
from trimtab.diagnosis.quadratic_model import QuadraticModel
from trimtab.diagnosis.resampling import EXTREMES, REPLICATES, Draws, Estimate, estimated, largest
from trimtab.diagnosis.rows import Bias

ROUNDING = 64.0  # sums of floating-point numbers are right up to 64 x the unit of rounding
CHUNK = 20  # 20 replicates are computed at once, which keeps the matrices of 1,024 clients small
OF_HESSIANS = ("L", "delta", "mu", "norm", "second")
RELATIVE = ("zeta", "G", "sigma", "mu", "norm", "second")  # whose errors grow with them
ROOTS = ("zeta", "G")  # whose squares have errors on both sides where the numbers are about zero


@dataclass(frozen=True)
class Left:
    """What is left of the way to an optimum."""

    distance: float = 0.0  # |x - x*|, at most
    way: float = (
        inf  # |x0 - x*|, over which Hessians may change by L; infinite if they are constant
    )


@dataclass(frozen=True)
class Sample:
    """The numbers at one point and their joint replicates."""

    at: str
    values: dict[str, float]
    replicates: Numbers  # around the values; those of L and delta with clients that were not seen
    slack: dict[str, float] = field(default_factory=dict)  # what rounding and iterations left out

    def estimates(self) -> dict[str, Estimate]:
        """Return each number with its interval."""
        return {name: self._estimate(name) for name in self.values}

    def _estimate(self, name: str) -> Estimate:
        least = -float("inf") if name == "mu" else 1.0 if name == "B" else 0.0
        slack = self.slack.get(name, 0.0)
        return estimated(self.values[name], self.replicates[name], self.at, slack, least)

    @property
    def errors(self) -> dict[str, float]:
        """The standard errors of zeta and sigma, where something was drawn."""
        known = {name: self.replicates[name] for name in ("zeta", "sigma") if name in self.values}
        return {name: float(each.std()) for name, each in known.items() if each.max() > each.min()}

    def derive(self, value: float, replicates: Tensor, of: Sequence[str] = ()) -> Estimate:
        """Return a number that follows from the others, with the interval that it inherits.

        of: the numbers to whose powers it is about proportional.
        """
        slack = sum(self.slack[name] / abs(self.values[name] or 1.0) for name in of) * abs(value)
        return estimated(value, replicates, self.at, slack)


def at_point(
    at: str,
    x: Vector,
    draws: Draws,
    p: Tensor,
    here: Gradients,
    hessians: Hessians | None = None,
    noise: BatchNoise | None = None,
    ratios: tuple[Ratio, ...] = (),
    B: float | None = None,
    left: Left | None = None,
) -> Sample:
    """Return what was measured at a point, with joint replicates.

    p: the weights of the clients. left: what is left of the way, if the point is an optimum.
    """
    noise = noise or BatchNoise()
    restricted = None if hessians is None else hessians.restricted
    replicated = _replicated(draws, p.cpu().double(), here, restricted, noise, left is not None)
    values: dict[str, float] = {"zeta": here.zeta, "G": here.G}
    if noise.each is not None:
        values["sigma"] = noise.sigma
    if hessians is not None:
        values |= {name: float(getattr(hessians, name)) for name in OF_HESSIANS}
    around = {name: replicated.around(name, value, draws) for name, value in values.items()}
    if left is not None and "step" in replicated.seen and hessians is not None:
        # At another optimum Hessians differ, to an unknown side, as they change on the way there.
        grown = (replicated.seen["step"] / left.way * draws.tails[2]).exp()
        around |= {name: around[name] * grown for name in OF_HESSIANS}
    if B is not None:
        values["B"], around["B"] = B, _of_ratios(ratios, draws, B)
    slack = _slack(x, here, hessians, left or Left())
    return Sample(at, values, _consistent(around), {name: slack.get(name, 0.0) for name in values})


def _slack(x: Vector, here: Gradients, hessians: Hessians | None, left: Left) -> dict[str, float]:
    """Return what rounding, iterations and the way to the optimum may have left out."""
    unit = ROUNDING * torch.finfo(x.dtype).eps
    if hessians is None:
        return dict.fromkeys(("zeta", "G"), unit * here.G)
    delta = hessians.delta if isfinite(hessians.delta) else hessians.L
    slack = {
        "zeta": unit * here.G + delta * left.distance,
        "G": unit * here.G + hessians.L * left.distance,
    }
    for name in OF_HESSIANS:
        error = hessians.errors.get(name, 0.0)
        known = error if isfinite(error) else 0.0
        slack[name] = (unit + left.distance / left.way) * hessians.L + known
    return slack


def _of_ratios(ratios: tuple[Ratio, ...], draws: Draws, B: float) -> Tensor:
    """Return B as other clients and samples might have made it: the largest of the points."""
    if not (ratios and draws.vary):
        return constant(B)
    normals = [None] * REPLICATES if draws.normals is None else list(draws.normals)
    rows = [
        [float(one.of(w, z)) for one in ratios] for w, z in zip(draws.weights, normals, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64).amax(1)


def constant(value: float) -> Tensor:
    """Return replicates of a number that does not depend on what is drawn."""
    return torch.full((REPLICATES,), value, dtype=torch.float64)


@dataclass(frozen=True)
class Replicated:
    """`scalars` of what was measured, and of what else might have been drawn."""

    centre: Numbers
    seen: Numbers  # of the clients that were measured, with other weights, samples and batches
    every: Numbers  # the same with the tail of the clients that were not

    def around(self, name: str, value: float, draws: Draws) -> Tensor:
        """Return where the number of all clients and samples may be.

        A replicate is off from the value as the value is off from the truth. So the replicates are
        moved by their bias, once to the value and once beyond, and made wider where few clients or
        folds make a bootstrap too narrow.
        """
        if name not in self.seen:
            return constant(value)
        seen, centre, widen = self.seen[name], float(self.centre[name]), draws.widen(name)
        usable = min(value, centre, float(seen.min())) > 0
        if name in RELATIVE and usable:
            logs = seen.log()
            moved = log(value) + log(centre) - logs.mean() + widen * (logs - logs.mean())
            return moved.exp()
        if name in ROOTS:
            value, centre, seen = value * abs(value), centre * abs(centre), seen * seen.abs()
        moved = value + centre - seen.mean() + widen * (seen - seen.mean())
        if name in ROOTS:
            return moved.clamp_min(0.0).sqrt()
        return moved * self.every[name] / seen.clamp_min(1e-300) if name in EXTREMES else moved


def _replicated(
    draws: Draws,
    p: Tensor,
    here: Gradients | None,
    restricted: Restricted | None,
    noise: BatchNoise,
    at_optimum: bool,
) -> Replicated:
    """Map `scalars` over the replicates, as far as anything was drawn."""
    looked_at = None if restricted is None else restricted.clients
    if restricted is not None and looked_at is not None and len(looked_at) < len(p):
        # Only these clients have Hessians, so that their numbers are joint among themselves.
        some = replace(restricted, clients=None)
        mine = draws.of_some(looked_at, restricted.p)
        a = _replicated(mine, restricted.p, None, some, BatchNoise(), False)
        b = _replicated(draws, p, here, None, noise, False)
        return Replicated(a.centre | b.centre, a.seen | b.seen, a.every | b.every)
    V = None
    if noise.squares is not None:
        draw = stream(draws.seed, NOISE, 6)
        normals = [None] * REPLICATES if draws.normals is None else list(draws.normals)
        V = torch.stack([noise.drawn(draw, z) for z in normals])
    if not draws.vary:
        if V is None:
            return Replicated({}, {}, {})
        only = {"sigma": (V @ p).sqrt()}
        return Replicated(scalars(p, V=noise.each), only, only)
    small = None if restricted is None else restricted.reduced()
    A = None if small is None else small.A
    X = None if here is None else here.vectors(None if small is None else small.directions)
    error = None if X is None else X.error
    found: dict[str, Any] = {"at_optimum": at_optimum}
    beyond = None
    if small is not None:
        found["apart"], found["steepest"] = small.apart, small.steepest
        beyond = largest(small.apart, draws)

    def one(w: Tensor, z: Tensor | None, v: Tensor | None, f: Tensor | None) -> Numbers:
        matrices, rows = (None if part is None else part.drawn(z) for part in (A, X))
        # A replicate has the error of what was measured, and one more.
        twice = None if error is None else 2 * error
        return scalars(w, matrices, rows, v, error=twice, beyond=f, **found)

    def mapped(f: Tensor | None) -> Numbers:
        given = draws.weights, draws.normals, V, f
        dims = tuple(None if part is None else 0 for part in given)
        numbers: Numbers = torch.func.vmap(one, dims, chunk_size=CHUNK)(*given)
        return numbers

    parts = (None if part is None else part.each for part in (A, X, noise))
    centre = scalars(p, *parts, error=error, **found)
    seen = mapped(None)
    every = mapped(beyond) if draws.clients_vary and beyond is not None else seen
    return Replicated(centre, seen, every)


def _consistent(found: Numbers) -> Numbers:
    """Return replicates in which no number contradicts another.

    Each was moved and widened by itself; |Hess| <= L and |Hess_i - Hess| <= L + |Hess| hold still.
    """
    found = dict(found)
    if "L" in found:
        # What was not measured is NaN, which fmax passes over.
        found["norm"] = torch.fmax(found["norm"], found["mu"].abs())
        half = torch.fmax(found["delta"] / 2, found["delta"] - found["norm"])
        found["L"] = torch.fmax(found["L"], torch.fmax(found["norm"], half))
    found["G"] = torch.fmax(found["G"], found["zeta"])
    return found


# -- derived numbers


def of_theory(sample: Sample, at: theory.Constants | None, K: int) -> dict[str, Estimate]:
    """Return delta/L, the knees, and the rounds of Table 2, with what they inherit."""
    found: dict[str, Estimate] = {}
    L, delta = sample.values.get("L"), sample.values.get("delta")
    if L and delta is not None and isfinite(delta):
        each = sample.replicates["delta"] / sample.replicates["L"]
        ratio = sample.derive(delta / L, each, ("delta", "L"))
        found["delta/L"] = replace(ratio, high=max(ratio.value, min(2.0, ratio.high)))
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
    sample: Sample,
    draws: Draws,
    bias: Bias,
    drift: float,
    model: QuadraticModel | None,
    eta: float,
    K: int,
) -> dict[str, Estimate]:
    """Return FedAvg's bias and drift with what they inherit from the clients that were drawn."""
    values: Mapping[str, float | None] = {
        "bias": bias.heterogeneity,
        "limit": bias.limit,
        "drift": drift if isfinite(drift) else None,
    }
    known = {name: value for name, value in values.items() if value is not None}
    relative = {name: constant(1.0) for name in known}
    if model is not None and draws.clients_vary and known:
        relative |= _relative(model, draws, eta, K)
    at = f"{sample.at}, eta_l = {eta:.3g}, K = {K}"
    return {
        name: replace(sample.derive(value, value * relative[name], ("zeta", "delta")), at=at)
        for name, value in known.items()
    }


def _relative(model: QuadraticModel, draws: Draws, eta: float, K: int) -> Numbers:
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
