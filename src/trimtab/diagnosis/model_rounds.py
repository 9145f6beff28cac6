"""Rounds on the quadratic model: all K and step sizes of an algorithm run side by side.

`Rounds` is the declared second copy of four algorithms; tests compare it with the first.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, floor, inf, log10, sqrt
from typing import Any

import torch
from torch import Tensor

from trimtab.core.streams import COHORT, NOISE, stream
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.candidates import BETA, MIMELITE, SCAFFOLD, SGD
from trimtab.diagnosis.quadratic_model import QuadraticModel, local_steps
from trimtab.diagnosis.rules import RULES

FACTOR = 10**0.25  # the ratio of neighbouring step sizes, as `compare` has them in the end
SLOW = 20, 100  # a K is given up after 20 x the fewest rounds of any, and >= 100
DIVERGED = 1e12  # a lane is given up if its f - f* is > 1e12 x the start's
LOOK = 8  # every 8 rounds, lanes that have ended are looked for,
THINNED = 0.75  # and put away when <= 0.75 of those that run are left
NUMBERS = 2_000_000  # lanes run side by side if all clients' vectors hold <= 2,000,000 numbers


@dataclass(frozen=True)
class Predicted:
    """How an algorithm does on the model with its best step size."""

    algorithm: str
    K: int
    rounds: int | None  # the rounds to the target; None if it does not get there in time
    eta: float | None  # the smallest step size that is about as good as the best
    gap: float  # the least f - f* over the step sizes, as a share of the start's
    ran: int = 0  # the rounds that were run
    finer: tuple[int | None, ...] = ()  # the rounds to RULES.finer x the target, tuned for each

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class Goal:
    """How far down, in how many rounds, and with how many of the clients."""

    share: float  # the f - f* that is wanted, as a share of the start's
    S: int
    N: int
    R: int  # no K runs for more rounds
    fewest: int | None = None  # the rounds that another algorithm needs, if that is known
    finer: tuple[float, ...] = (
        RULES.finer
    )  # it goes on to these, so that it is known how far it holds


def predict(
    model: QuadraticModel,
    algorithm: str,
    Ks: Sequence[int],
    goal: Goal,
    seed: int = 0,
    out_of_time: OutOfTime = lambda: False,
) -> list[Predicted]:
    """Return for each K the rounds to the goal, the step size tuned.

    When the time is over, those K come back that had it, each with as far as it got.
    """
    x0 = model.start
    first = float(x0 @ model.H @ x0)
    if first <= 0:
        return [Predicted(algorithm, K, 0, None, 0.0, finer=(0,) * len(goal.finer)) for K in Ks]
    etas = step_sizes(float(model.a.abs().max()))
    at_once = max(1, NUMBERS // (len(etas) * model.a.numel()))
    found: list[Predicted] = []
    fewest = goal.fewest
    for j in range(0, len(Ks), at_once):
        if j and out_of_time():
            break
        race = _Race(model, algorithm, Ks[j : j + at_once], etas, goal, fewest, seed)
        race.run(first, out_of_time)
        found += race.predicted()
        fewest = least_rounds(found, goal.fewest)
    return found


def least_rounds(predicted: Sequence[Predicted], other: int | None = None) -> int | None:
    """Return the fewest rounds of any, or of another one, that gets there at all."""
    counts = [one.rounds for one in predicted if one.rounds]
    return min([*counts, *([other] if other else [])], default=None)


def step_sizes(L: float) -> Tensor:
    """Return step sizes around 1/L, powers of 10^(1/4)."""
    low, high = floor(4 * log10(1e-3 / L)), ceil(4 * log10(30 / L))
    return torch.tensor([FACTOR**j for j in range(low, high + 1)], dtype=torch.float64)


class _Race:
    """Several K, each with all step sizes, until each K has got there or is given up."""

    def __init__(
        self,
        model: QuadraticModel,
        algorithm: str,
        Ks: Sequence[int],
        etas: Tensor,
        goal: Goal,
        fewest: int | None,
        seed: int,
    ) -> None:
        self.algorithm, self.Ks, self.etas, self.goal = algorithm, list(Ks), etas, goal
        self.fewest, self.H = fewest, model.H
        factors = torch.tensor([1.0, *goal.finer], dtype=torch.float64)
        lanes = len(self.Ks) * len(etas)
        self.least = torch.full((lanes,), inf, dtype=torch.float64)
        self.when = torch.full((len(factors), lanes), inf, dtype=torch.float64)
        self.ran = [0] * len(self.Ks)
        self.going = list(range(len(self.Ks)))  # which of the K have not ended
        self.ends: list[int | None] = [None] * len(self.Ks)  # known when a K has got there
        each = torch.tensor(self.Ks, dtype=torch.float64).repeat_interleave(len(etas))
        self.rounds = Rounds(
            model, algorithm, each, etas.repeat(len(self.Ks)), S=goal.S, N=goal.N, seed=seed
        )
        self.running = torch.arange(lanes)  # the lanes that `rounds` has,
        self.low = self.least.clone()  # their least gaps so far,
        self.open = (goal.share * factors[:, None]).repeat(1, lanes)  # and targets not yet reached

    def run(self, first: float, out_of_time: OutOfTime) -> None:
        """Run all lanes; `first`: twice the start's f - f*."""
        for r in range(1, self.goal.R + 1):
            x = next(self.rounds)
            gap = (x @ self.H).mul_(x).sum(1).div_(first).nan_to_num_(nan=inf)
            torch.minimum(self.low, gap, out=self.low)
            arrived = gap <= self.open
            if bool(arrived.any()):
                self.open.masked_fill_(arrived, -inf)
                self.when[:, self.running] = self.when[:, self.running].masked_fill(arrived, r)
                self._set_ends(r)
            for j in self.going:
                self.ran[j] = r
            self.going = [j for j in self.going if r < self._last(self.ends[j])]
            if not self.going or out_of_time():
                break
            if r % LOOK == 0 and not self._put_away(gap):
                break
        self.least[self.running] = self.low

    def _set_ends(self, r: int) -> None:
        """Note which K has got to all targets by round r, and the fewest rounds to the first."""
        by_K = self.when.view(len(self.when), len(self.Ks), -1).amin(2)
        for j, there in enumerate((by_K < inf).all(0).tolist()):
            if there and self.ends[j] is None:  # A step that is about as good gets there by then.
                self.ends[j] = min(self.goal.R, floor(RULES.near * r))
        first = float(by_K[0].min())
        if first < inf:
            self.fewest = int(min(first, self.fewest or inf))

    def _last(self, end: int | None) -> int:
        """Return the last round of a K that ends there, if it is known where."""
        factor, least = SLOW
        slow = inf if self.fewest is None else max(least, factor * self.fewest)
        return int(min(self.goal.R, slow)) if end is None else end

    def _put_away(self, gap: Tensor) -> bool:
        """Put lanes away that have ended, if they are many; tell whether any still runs."""
        K = self.running // len(self.etas)
        runs = (gap <= DIVERGED) & torch.isin(K, torch.tensor(self.going))
        runs &= (self.open > -inf).any(0)
        left = int(runs.sum())
        if 0 < left <= THINNED * len(runs):
            self.least[self.running] = self.low
            self.rounds.keep(runs)
            self.running, self.low = self.running[runs], self.low[runs]
            self.open = self.open[:, runs]
        return left > 0

    def predicted(self) -> list[Predicted]:
        """Return what became of each K."""
        found = []
        shape = (len(self.Ks), len(self.etas))
        for K, ran, when, least in zip(
            self.Ks,
            self.ran,
            self.when.view(-1, *shape).transpose(0, 1),
            self.least.view(shape),
            strict=True,
        ):
            fewest = [float(row.min()) for row in when]
            finer = tuple(int(n) if n < inf else None for n in fewest[1:])
            near = float(least.min())
            rounds, eta = None, float(self.etas[int(least.argmin())])
            if fewest[0] < inf:
                rounds = int(fewest[0])
                eta = float(self.etas[when[0] <= floor(RULES.near * rounds)].min())
            found.append(Predicted(self.algorithm, K, rounds, eta, near, ran, finer))
        return found


class Rounds:
    """The server's x - x* after each round, a row for each lane: a K and a step size."""

    def __init__(
        self,
        model: QuadraticModel,
        algorithm: str,
        K: Tensor,
        eta: Tensor,
        *,
        S: int,
        N: int,
        seed: int = 0,
    ) -> None:
        self.model, self.algorithm, self.seed, self.r = model, algorithm, seed, 0
        n, m = model.a.shape
        steps = (torch.ones_like(K) if algorithm == SGD else K)[:, None, None]
        size = eta[:, None, None]
        self.minus_P = -local_steps(model.a, size, steps)
        self.per_step = 1 / (steps * size)
        self.b = torch.einsum("nij,ni->nj", model.U, model.b)
        self.x = model.start.expand(len(eta), m).clone()
        self.cohort = max(1, round(S * n / N))
        self.stateful = algorithm in (SCAFFOLD, MIMELITE)
        self.memory = torch.zeros_like(self.x)  # the server's c, or its momentum
        self.c_i = torch.zeros(len(eta), n, m, dtype=model.a.dtype)
        sizes = [_effective(int(k), model.steps) for k in K.tolist()]
        noise = torch.tensor(sizes, dtype=model.a.dtype).sqrt() * model.sigma / sqrt(m)
        self.noise = size * noise[:, None, None] if algorithm != SGD else 0 * size
        self.noisy = bool((self.noise > 0).any())
        self.into, self.back = _into(model.U), _back(model.U, model.p)
        self.map: tuple[Tensor, Tensor] | None = None
        if self.cohort == n and not self.stateful:
            self.map = self._affine()

    def keep(self, lanes: Tensor) -> None:
        """Go on with these lanes only."""
        for name in ("minus_P", "per_step", "x", "memory", "c_i", "noise"):
            setattr(self, name, getattr(self, name)[lanes])
        if self.map is not None:
            self.map = self.map[0][lanes], self.map[1][lanes]

    def _affine(self) -> tuple[Tensor, Tensor]:
        """Return M and v of each lane: a round of all clients without a state is M x + v."""
        scaled = (self.minus_P * self.model.a).flatten(1)
        M = torch.stack([(self.into * row) @ self.back for row in scaled])
        v = -(self.minus_P * self.b).flatten(1) @ self.back
        return M, v[:, :, None]

    def __iter__(self) -> "Rounds":
        return self

    def __next__(self) -> Tensor:
        """Run a round of all lanes."""
        self.r += 1
        n, m = self.model.a.shape
        z = None
        if self.noisy:
            draw = stream(self.seed, NOISE, 2, self.r)
            z = torch.randn(n, m, generator=draw, dtype=self.x.dtype)
        if self.map is None:
            self._round(z)
            return self.x
        M, v = self.map
        moved = torch.baddbmm(v, M, self.x[:, :, None])[:, :, 0]
        if z is not None:
            moved.addcmul_(self.noise[:, 0], z.flatten() @ self.back, value=-1)
        self.x = self.x + moved
        return self.x

    def _round(self, z: Tensor | None) -> None:
        """Run a round client by client, each in the basis of its own eigenvectors."""
        n, (E, m) = self.cohort, self.x.shape
        i: Any = slice(None)
        into, back = self.into, self.back
        if n < len(self.model.a):
            draw = stream(self.seed, COHORT, self.r)
            i = torch.randperm(len(self.model.a), generator=draw)[:n]
            into, back = _into(self.model.U[i]), _back(self.model.U[i], self.model.p[i])
        share = self.model.p[i].sum()
        sent = torch.cat([self.x, self.memory]) if self.stateful else self.x
        own = (sent @ into).view(-1, E, n, m)
        uploads = torch.empty_like(own)
        dx = uploads[0]
        gradient = torch.mul(own[0], self.model.a[i]).sub_(self.b[i])
        if self.algorithm == SCAFFOLD:
            torch.add(gradient, own[1], out=dx).sub_(self.c_i[:, i])
        elif self.algorithm == MIMELITE:
            torch.add(gradient, own[1], alpha=BETA, out=dx)
            uploads[1] = gradient
        else:
            dx.copy_(gradient)
        dx.mul_(self.minus_P[:, i])
        if z is not None:
            dx.addcmul_(self.noise, z[i], value=-1)
        if self.algorithm == SCAFFOLD:  # This is option II.
            dc = torch.addcmul(own[1], dx, self.per_step, out=uploads[1]).neg_()
            self.c_i[:, i] += dc
        sums = (uploads.view(-1, n * m) @ back).view(-1, E, m)
        self.x = self.x + sums[0] / share
        if self.algorithm == SCAFFOLD:
            self.memory = self.memory + sums[1]
        elif self.algorithm == MIMELITE:
            self.memory = sums[1] / share + BETA * self.memory


def _into(U: Tensor) -> Tensor:
    """Return what x is multiplied by to be U_i' x for every client."""
    n, m, _ = U.shape
    return U.permute(1, 0, 2).reshape(m, n * m)


def _back(U: Tensor, p: Tensor) -> Tensor:
    """Return what all clients' y_i are multiplied by to be the sum of p_i U_i y_i."""
    n, m, _ = U.shape
    return (U.permute(0, 2, 1) * p[:, None, None]).reshape(n * m, m)


def _effective(K: int, steps: int | None) -> float:
    """Return the variance of a sum of K mini-batch noises, in units of one.

    Reshuffled mini-batches add up to nothing over a pass.

    >>> _effective(10, None), _effective(10, 5), _effective(7, 5)
    (10.0, 0.0, 1.5)
    """
    if steps is None:
        return float(K)
    rest = K % steps
    return rest * (steps - rest) / (steps - 1) if steps > 1 else 0.0
