"""The interval of every number: `scalars` again, of other clients, samples and mini-batches.

An interval says where another seed would find the number for the same clients. It covers which
clients, samples, mini-batches and directions were drawn, and what iterations left out. Where
everything was measured nothing was drawn, and it is as narrow as arithmetic.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isfinite, log, sqrt
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.streams import NOISE, PARTITION, stream
from trimtab.diagnosis.hessians import Hessians
from trimtab.diagnosis.measure import (
    BatchNoise,
    Gradients,
    Numbers,
    Restricted,
    Sampled,
    scalars,
    vectors,
)
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.rules import RULES

LEVEL = 0.95  # an interval covers the number in about 95 % of the diagnoses
REPLICATES = 200  # quantiles of 200 replicates are off by about a percent of probability
CHUNK = 20  # 20 replicates are computed at once, which keeps the matrices of 1,024 clients small
ROUNDING = 64.0  # sums of floating-point numbers are right up to 64 x the unit of rounding
OF_HESSIANS = ("L", "delta", "mu", "norm", "second")
RELATIVE = ("zeta", "G", "sigma", "mu", "norm", "second")  # whose errors grow with them
ROOTS = ("zeta", "G")  # whose squares have errors on both sides where the numbers are about zero
EXTREMES = ("L", "delta")  # of a single client, whose folds alone say how far they may be off


# -- a number with its interval


@dataclass(frozen=True)
class Estimate:
    """A number with the interval in which another seed would find it."""

    value: float
    low: float
    high: float
    at: str  # the point at which it was measured

    def overlaps(self, other: "Estimate") -> bool:
        """Return whether the two intervals have a number in common."""
        return self.low <= other.high and other.low <= self.high

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    def __str__(self) -> str:
        value, low, high = (f"{number:.3g}" for number in (self.value, self.low, self.high))
        digits = 1e-3 * abs(self.value)  # Three are shown, so a narrower interval shows nothing.
        return value if self.high - self.low <= digits else f"{value} ({low} to {high})"


def estimated(
    value: float, replicates: Tensor, at: str, slack: float = 0.0, least: float = 0.0
) -> Estimate:
    """Return the value with the interval of its replicates.

    slack: what rounding, or an iteration that ended, may have left out on either side. least: what
    the number cannot be below.

    >>> print(estimated(2.0, torch.linspace(1.9, 2.4, 1001).double(), "start"))
    2 (1.91 to 2.39)
    """
    finite = replicates[torch.isfinite(replicates)].double()
    if not isfinite(value):
        return Estimate(value, value, value, at)
    low = high = value
    if len(finite):
        n = len(finite)  # A new draw is below the j-th of n others with probability j/(n + 1).
        outside = max(0.0, ((n + 1) * (1 - LEVEL) / 2 - 1) / max(1, n - 1))
        ends = torch.tensor([outside, 1 - outside], dtype=torch.float64)
        low, high = torch.quantile(finite, ends).tolist()
    return Estimate(value, min(value, max(least, low - slack)), max(value, high + slack), at)


def constant(value: float) -> Tensor:
    """Return replicates of a number that does not depend on what is drawn."""
    return torch.full((REPLICATES,), value, dtype=torch.float64)


def student(freedom: float) -> float:
    """Return Student's quantile over the normal one (Abramowitz and Stegun, 26.7.5).

    scipy.stats has it too, but takes a third of a second to import.

    >>> round(student(4) * 1.96, 2), round(student(9) * 1.96, 2)
    (2.78, 2.26)
    """
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    terms = (
        (z**2 + 1) / 4,
        (5 * z**4 + 16 * z**2 + 3) / 96,
        (3 * z**6 + 19 * z**4 + 17 * z**2 - 15) / 384,
        (79 * z**8 + 776 * z**6 + 1482 * z**4 - 1920 * z**2 - 945) / 92160,
    )
    return 1 + sum(term / freedom**power for power, term in enumerate(terms, 1))


# -- what else might have been drawn


@dataclass(frozen=True)
class Draws:
    """The same replicates for every number, so that what is derived from several stays joint."""

    weights: Tensor  # p as other clients might have made it, of shape (replicates, clients)
    normals: Tensor | None  # of the folds' deviations, (replicates, clients, folds)
    tails: Tensor  # exponential, gamma and normal numbers of each replicate, (3, replicates)
    clients: float  # 1 / sum p_i^2: so many equal clients would say as much (Kish)
    N: int  # the clients of the whole problem
    seed: int

    @property
    def share(self) -> float:
        """The share of the clients that were measured."""
        return self.weights.shape[1] / self.N

    @property
    def clients_vary(self) -> bool:
        """Whether only some of the clients were measured."""
        return self.share < 1

    @property
    def vary(self) -> bool:
        """Whether only some of the clients, or of their samples, were measured."""
        return self.clients_vary or self.normals is not None

    def of_some(self, clients: tuple[int, ...], p: Tensor) -> "Draws":
        """Return replicates for some of the panel's clients, drawn at random; p: their weights.

        Of all the panel's clients they are the same: only then are other numbers joint with these.
        """
        if len(clients) == self.weights.shape[1]:
            return self
        return _drawn(p, self.N, self.seed, self.normals is not None)

    def widen(self, name: str) -> float:
        """Return Student's quantile over the normal one, for so few clients or folds."""
        factors = [student(max(1.0, self.clients - 1))] if self.clients_vary else [1.0]
        if self.normals is not None:
            # The largest of all is now one client's and now another's, so the folds of two count.
            clients = 2 if name in EXTREMES else self.clients
            factors.append(student(clients * (RULES.folds - 1)))
        return max(factors)


def drawn(panel: Panel, N: int, seed: int) -> Draws:
    """Return the replicates for a panel of a problem with N clients."""
    return _drawn(panel.p.cpu().double(), N, seed, panel.thinned is not None)


def _drawn(p: Tensor, N: int, seed: int, thinned: bool) -> Draws:
    """Draw weights, normal numbers and tails.

    Where all clients are measured no others might have been drawn, and all weights are p. Else the
    counts of a bootstrap are shrunk by the share of the clients that is known (Rao and Wu). What
    differs between clients then contains what their samples cause, and only the share of the
    clients that is known is left for the samples themselves (Cochran, Sampling Techniques, 10.3).
    """
    n, draw = len(p), stream(seed, PARTITION, 77)
    chosen = torch.randint(n, (REPLICATES, n), generator=draw)
    ones = torch.ones(REPLICATES, n, dtype=torch.float64)
    counts = torch.zeros_like(ones).scatter_add(1, chosen, ones)
    equal = 1 / float(p.square().sum())
    shrunk = min(1.0, sqrt((1 - n / N) * equal / max(1.0, equal - 1)))
    weights = p * (1 + shrunk * (counts - 1))
    tails = torch.empty(3, REPLICATES, dtype=torch.float64)
    tails[0].exponential_(generator=draw)
    tails[1] = torch._standard_gamma(torch.full_like(tails[1], _top(n)), generator=draw)
    tails[2].normal_(generator=draw)
    normals = torch.randn(REPLICATES, n, RULES.folds, generator=draw, dtype=torch.float64)
    return Draws(
        weights=weights / weights.sum(1, keepdim=True),
        normals=normals if thinned else None,
        tails=tails,
        clients=equal,
        N=N,
        seed=seed,
    )


def _top(n: int) -> int:
    """Return how many of the n largest values say how a tail goes on."""
    return max(1, min(10, n // 4))


def largest(values: Tensor, draws: Draws) -> Tensor:
    """Return by which factor the largest of all clients may exceed the largest of those measured.

    The largest few are continued by an exponential tail, from which as many are drawn as there are
    clients that were not measured. A bootstrap never exceeds the largest that it saw. The gamma
    numbers allow for a scale that is known from few values only. One factor, at least 1, for each
    replicate.
    """
    ordered = values.sort(descending=True).values.tolist()
    top = _top(len(ordered))
    if not draws.clients_vary or len(ordered) < 2 or not ordered[0] > 0:
        return torch.ones(REPLICATES, dtype=torch.float64)
    edge, exponential, gamma = ordered[top], *draws.tails[:2]
    excess = sum(value - edge for value in ordered[:top]) / gamma
    unseen = torch.tensor(top * (1 / draws.share - 1), dtype=torch.float64)
    factor: Tensor = (edge + excess * (unseen / exponential).log()) / ordered[0]
    return factor.clamp_min(1.0)


# -- the numbers of a point with their replicates


@dataclass(frozen=True)
class Left:
    """What is left of the way to an optimum."""

    distance: float = 0.0  # |x - x*|, at most
    way: float = inf  # |x0 - x*|, over which Hessians may change by L; inf if they are constant


@dataclass(frozen=True)
class Sample:
    """The numbers at one point and their joint replicates."""

    at: str
    values: dict[str, float]
    replicates: Numbers  # around the values; those of L and delta with clients that were not seen
    slack: dict[str, float] = field(default_factory=dict)  # what rounding and iterations left out

    def estimates(self) -> dict[str, Estimate]:
        """Return each number with its interval."""
        least = {"mu": -inf, "B": 1.0}
        return {
            name: estimated(value, self.replicates[name], self.at, slack, least.get(name, 0.0))
            for name, value in self.values.items()
            for slack in [self.slack.get(name, 0.0)]
        }

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
    differences: tuple[Sampled, ...] = (),
    B: float | None = None,
    left: Left | None = None,
) -> Sample:
    """Return what was measured at a point, with joint replicates.

    p: the weights of the clients. differences: those of gradients, of which B is made; none if B is
    exact. left: what is left of the way, if the point is about an optimum.
    """
    noise = noise or BatchNoise()
    restricted = None if hessians is None else hessians.restricted
    values: dict[str, float] = {"zeta": here.zeta, "G": here.G}
    values |= {} if noise.each is None else {"sigma": noise.sigma}
    values |= {} if B is None else {"B": B}
    if hessians is not None:
        values |= {name: float(getattr(hessians, name)) for name in OF_HESSIANS}
    measured = _Measured(p.cpu().double(), here, restricted, noise, differences, left is not None)
    replicated = _replicated(draws, measured)
    around = {name: replicated.around(name, value, draws) for name, value in values.items()}
    if left is not None and "step" in replicated.seen:
        # At another optimum Hessians differ, to an unknown side, as they change on the way there.
        grown = (replicated.seen["step"] / left.way * draws.tails[2]).exp()
        around |= {name: around[name] * grown for name in OF_HESSIANS}
    slack = _slack(x, here, hessians, left or Left())
    return Sample(at, values, _consistent(around), {name: slack.get(name, 0.0) for name in values})


def _slack(x: Vector, here: Gradients, hessians: Hessians | None, left: Left) -> dict[str, float]:
    """Return what rounding, iterations and the way to the optimum may have left out."""
    unit = ROUNDING * torch.finfo(x.dtype).eps
    slack = dict.fromkeys(("zeta", "G"), unit * here.G)
    if hessians is None:
        return slack
    slack["zeta"] += left.distance * (hessians.delta if isfinite(hessians.delta) else hessians.L)
    slack["G"] += left.distance * hessians.L
    known = {name: error for name, error in hessians.errors.items() if isfinite(error)}
    moved = (unit + left.distance / left.way) * hessians.L
    return slack | {name: moved + known.get(name, 0.0) for name in OF_HESSIANS}


@dataclass(frozen=True)
class _Measured:
    """What the numbers of a point are made of, as far as it was measured."""

    p: Tensor
    here: Gradients | None
    restricted: Restricted | None
    noise: BatchNoise
    differences: tuple[Sampled, ...] = ()
    at_optimum: bool = False


@dataclass(frozen=True)
class _Replicated:
    """`scalars` of what was measured, and of what else might have been drawn."""

    centre: Numbers
    seen: Numbers  # of the clients that were measured, with other weights, samples and batches
    beyond: Numbers  # the factors of L and delta by which clients that were not may exceed them

    def around(self, name: str, value: float, draws: Draws) -> Tensor:
        """Return where the number of all clients and samples may be.

        The value is off from the truth as a replicate is off from the centre. So the replicates are
        reflected, which removes their bias too, and made wider where few clients or folds make a
        bootstrap too narrow.
        """
        if name not in self.seen:
            return constant(value)
        seen, centre, widen = self.seen[name], float(self.centre[name]), draws.widen(name)
        if name in RELATIVE and min(value, centre, float(seen.min())) > 0:
            logs = seen.log()
            off = logs.mean() - log(centre) + widen * (logs - logs.mean())
            return value * (-off).exp()
        if name in ROOTS:
            value, centre, seen = value * abs(value), centre * abs(centre), seen * seen.abs()
        moved: Tensor = value - (seen.mean() - centre + widen * (seen - seen.mean()))
        if name in ROOTS:
            return moved.clamp_min(0.0).sqrt()
        return moved * self.beyond[name] if name in EXTREMES else moved


def _replicated(draws: Draws, of: _Measured) -> _Replicated:
    """Map `scalars` over the replicates, as far as anything was drawn."""
    looked_at = None if of.restricted is None else of.restricted.clients
    if of.restricted is not None and looked_at is not None and len(looked_at) < len(of.p):
        # Only these clients have Hessians, so that their numbers are joint among themselves.
        some = replace(of.restricted, clients=None)
        mine = draws.of_some(looked_at, some.p)
        a = _replicated(mine, _Measured(some.p, None, some, BatchNoise()))
        b = _replicated(draws, replace(of, restricted=None))
        return _Replicated(a.centre | b.centre, a.seen | b.seen, a.beyond | b.beyond)
    p, V, share = of.p, None, draws.share
    if of.noise.squares is not None:
        draw = stream(draws.seed, NOISE, 6)
        normals = [None] * REPLICATES if draws.normals is None else sqrt(share) * draws.normals
        V = torch.stack([of.noise.drawn(draw, z, share) for z in normals])
    if not draws.vary:
        if V is None:
            return _Replicated({}, {}, {})
        only = {"sigma": (V @ p).sqrt()}
        return _Replicated(scalars(p, V=of.noise.each), only, only)
    small = None if of.restricted is None else of.restricted.reduced()
    X = None
    if of.here is not None:  # Without Hessians, the span of the gradients is enough.
        directions = of.here.rows[:0] if small is None else small.directions
        X = vectors(of.here.rows, directions, of.here.deviations)
    A = None if small is None else small.A
    found: dict[str, Any] = {"at_optimum": of.at_optimum}
    if small is not None:
        found |= {"apart": small.apart, "steepest": small.steepest}

    def mapped(share: float, beyond: Tensor | None = None) -> tuple[Numbers, Numbers]:
        """Return the numbers, and replicates with this share of the variance that samples cause."""
        parts = [part and part.shrunk(p, share) for part in (A, X, *of.differences)]

        def one(
            w: Tensor, z: Tensor | None, v: Tensor | None, f: Tensor | None, drawn: bool = True
        ) -> Numbers:
            """Return the numbers of one; drawn: whether samples are drawn for it."""
            each = [part and (part.drawn(z), part.expected(share, drawn=drawn)) for part in parts]
            (matrices, _), (rows, error) = (pair or (None, None) for pair in each[:2])
            pairs = [pair for pair in each[2:] if pair]
            return scalars(w, matrices, rows, v, between=pairs, error=error, beyond=f, **found)

        z = None if draws.normals is None else sqrt(share) * draws.normals
        given = draws.weights, z, V, beyond
        dims = tuple(None if part is None else 0 for part in given)
        numbers: Numbers = torch.func.vmap(one, dims, chunk_size=CHUNK)(*given)
        return one(p, None, of.noise.each, None, drawn=False), numbers

    centre, seen = mapped(draws.share)
    if small is None or not draws.clients_vary:
        return _Replicated(centre, seen, dict.fromkeys(EXTREMES, torch.ones(())))
    # The largest is a client's own, so that its samples count in full.
    whole, plain = (centre, seen) if draws.normals is None else mapped(1.0)
    every = mapped(1.0, largest(small.apart, draws))[1]
    factors = {name: every[name] / plain[name].clamp_min(1e-300) for name in EXTREMES}
    own = {name: whole[name] for name in EXTREMES}, {name: plain[name] for name in EXTREMES}
    return _Replicated(centre | own[0], seen | own[1], factors)


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
    if "B" in found:
        found["B"] = found["B"].clamp_min(1.0)
    return found
