"""Predict: rounds of the algorithms themselves, by `simulate`, on a quadratic model of the problem.

f_i is replaced by the quadratic with the gradient it has at x* and the Hessian it has on the way
there, in the few directions that matter: those of the start's error under the Hessian, of the
clients' gradients, and of FedAvg's bias.

An algorithm that does the same to every coordinate and is linear in its gradients takes steps of
size eta if it takes steps of size one and its gradients are multiplied by eta. So x is M models in
a row, each with a step size of its own, and one simulation runs them side by side. Any other
algorithm is simulated once for each step size, while there is time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from math import ceil, floor, inf, log2, sqrt

import torch
from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.core.streams import NOISE, stream
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.measure import noise_samples
from trimtab.diagnosis.panel import Panel, orthonormal, weighted
from trimtab.diagnosis.rules import RULES, make
from trimtab.errors import Diverged
from trimtab.problems.problem import Problem
from trimtab.simulation import simulate
from trimtab.studies.goal import HeldTarget

EXPLODED = 1e12  # a model gets no gradients any more if its gap is > 1e12 x the start's


# -- the model


@dataclass(frozen=True)
class QuadraticModel:
    """N quadratics in m directions around x*."""

    p: Tensor  # the weights, of shape (N,)
    A: Tensor  # the Hessians, of shape (N, m, m)
    b: Tensor  # minus the gradients at x* in these directions, of shape (N, m)
    start: Vector  # x0 - x*
    sigma: float  # the noise of a mini-batch gradient in these directions, sqrt E|.|^2
    steps: int | None  # the mini-batches in a pass when they are reshuffled; None when i.i.d.

    @cached_property
    def H(self) -> Tensor:
        """The mean Hessian."""
        return weighted(self.p, self.A)

    @cached_property
    def eigen(self) -> tuple[Tensor, Tensor]:
        """The eigenvalues (N, m) of the Hessians, and their eigenvectors in columns."""
        values, U = torch.linalg.eigh(self.A)
        return values, U


def build(
    case: Case, moved: Tensor, pull: Vector, noisy: bool, until: tuple[float, float]
) -> QuadraticModel | None:
    """Return the quadratic model; None if there is no time for it.

    moved: grad f_i - grad f of each client. pull: the direction of FedAvg's bias. noisy: whether
    mini-batches have noise. until: the shares of the time at which the directions and the Hessians
    have to be there.
    """
    panel, budget, best = case.panel, case.budget, case.best
    error, A = case.start - best, None
    if not budget.out_of_time(until[0]):
        Q = _directions(panel, best, error, moved, pull, budget.until(until[0]))
        on_the_way = [best] if case.quadratic else [best, case.x0, (case.x0 + best) / 2]
        A = _mean_hessians(panel, on_the_way, Q, budget.until(until[1]))
    if A is None:
        budget.note("There was no time for the quadratic model.")
        return None
    pulls, sigma = (moved - weighted(panel.p, moved)) @ Q.T, 0.0
    if noisy:
        noise = noise_samples(panel, best, case.seed, 7)
        assert noise is not None
        sigma = sqrt(float(panel.p @ (noise @ Q.T).cpu().double().square().sum(1)))
    return QuadraticModel(
        p=panel.p,
        A=_with_minimum(A, panel.p),
        b=-pulls.cpu().double(),
        start=(Q @ error).cpu().double(),
        sigma=sigma,
        steps=panel.steps_in_a_pass,
    )


def _directions(
    panel: Panel, x: Vector, error: Vector, rows: Tensor, drift: Vector, out_of_time: OutOfTime
) -> Tensor:
    """Return orthonormal directions, one in each row."""
    d = panel.problem.d
    of_error, of_drift, of_gradients = RULES.model_directions
    if d <= RULES.whole_model:
        return torch.eye(d).to(x)
    Q = x.new_zeros(0, d)
    for first, most in ((error, of_error), (drift, of_drift)):
        for j in range(most):
            if j and out_of_time():
                break
            fresh = orthonormal(Q, panel.mean_products(x, Q[-1:]) if j else first[None])
            if not len(fresh):
                break
            Q = torch.cat([Q, fresh])
    values, vectors = torch.linalg.eigh((rows @ rows.T).cpu().double())
    kept = vectors.flip(1)[:, values.flip(0) > 1e-8 * values[-1]][:, :of_gradients]
    return torch.cat([Q, orthonormal(Q, kept.T.to(rows) @ rows)])


def _mean_hessians(
    panel: Panel, points: Sequence[Vector], Q: Tensor, out_of_time: OutOfTime
) -> Tensor | None:
    """Return the Hess_i in the directions Q, means over the points there was time for."""
    N, m = panel.problem.N, len(Q)
    A, used = torch.zeros(N, m, m, dtype=torch.float64), 0
    for x in points:
        if out_of_time():
            break
        there = [(HQ @ Q.T).cpu().double() for HQ in panel.all_products(x, Q, out_of_time)]
        if len(there) < N:
            break
        A, used = A + torch.stack(there), used + 1
    return (A + A.mT) / (2 * used) if used else None


def _with_minimum(A: Tensor, p: Tensor) -> Tensor:
    """Shift all Hessians until f has a minimum; that leaves their differences alone."""
    least = float(torch.linalg.eigvalsh(weighted(p, A))[0])
    top = float(torch.linalg.eigvalsh(A).abs().max())
    if not least < RULES.flat * top:
        return A
    return A + (RULES.flat * top - least) * torch.eye(A.shape[1], dtype=torch.float64)


def fedavg_limit(model: QuadraticModel, eta_l: float, K: int) -> Vector | None:
    """Return where FedAvg with all clients and no noise stops, from x*; None if nowhere.

    K local steps from x move by -P (gradient at x), P = the sum of eta (1 - eta A_i)^k. With a step
    of 2/h and an even K, they go back and forth along a curvature h.
    """
    a, U = model.eigen
    flat = (eta_l * a).abs() < 1e-9
    q = 1 - eta_l * a
    P = torch.where(flat, K * eta_l, (1 - q**K) / torch.where(flat, torch.ones_like(q), a))
    M = weighted(model.p, torch.einsum("nij,nj,nkj->nik", U, P * a, U))
    if not bool(torch.isfinite(M).all()):
        return None
    pull = torch.einsum("nij,nj,nkj,nk->ni", U, P, U, model.b)
    found = torch.linalg.solve_ex(M, weighted(model.p, pull))
    return None if bool(found.info) else found.result


# -- rounds on the model


@dataclass(frozen=True)
class Predicted:
    """How an algorithm does on the model with its best step size."""

    algorithm: str
    K: int
    rounds: int | None  # the rounds to the target; None if it does not get there in time
    eta: float | None  # the smallest step size that is about as good as the best
    gap: float  # the least f - f* over the step sizes, as a share of the start's
    ran: int = 0  # the rounds that were run


class SideBySide(Problem):
    """The quadratics of a model, for M copies of x whose gradients are multiplied by M factors."""

    def __init__(self, model: QuadraticModel, factors: Tensor) -> None:
        self.model, self.factors = model, factors.clone()
        self.N, self.m = model.b.shape
        self.d = len(factors) * self.m
        self.weights = model.p
        self._noise = lru_cache(maxsize=2)(self._pass_of_noise)

    def x0(self, seed: int = 0) -> Vector:
        """Return the start, for all copies."""
        return self.model.start.repeat(len(self.factors))

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return the gradients of one client at all copies."""
        at_once = self.chunk_oracle([i], seed, r)

        def g(y: Vector, k: int | None = None) -> Vector:
            return at_once(y[None], k)[0]

        return g

    def chunk_oracle(self, clients: Sequence[int], seed: int, r: int) -> Gradient:
        """Return the gradients of several clients at once."""
        some = list(clients)
        A, b = self.model.A[some], self.model.b[some][:, None]
        factors = self.factors[:, None]

        def g(y: Vector, k: int | None = None) -> Vector:
            models = y.expand(len(some), self.d).view(len(some), -1, self.m)
            gradients = torch.baddbmm(b, models, A, beta=-1)
            if k is not None and self.model.sigma:
                gradients = gradients + self._drawn(seed, r, k)[some][:, None]
            return (factors * gradients).flatten(1)

        return g

    def _drawn(self, seed: int, r: int, k: int) -> Tensor:
        """Return the noise of mini-batch k of each client; over a pass it adds up to nothing."""
        steps = self.model.steps
        if steps is None:
            return self._noise(seed, r, k, 1)[0]
        return self._noise(seed, r, k // steps, steps)[k % steps]

    def _pass_of_noise(self, seed: int, r: int, number: int, steps: int) -> Tensor:
        draw = stream(seed, NOISE, 2, r, number)
        z = torch.randn(steps, self.N, self.m, generator=draw, dtype=torch.float64)
        if self.model.steps is not None:
            z = (z - z.mean(0)) * (sqrt(steps / (steps - 1)) if steps > 1 else 0.0)
        return z * (self.model.sigma / sqrt(self.m))

    def gaps(self, x: Vector) -> Tensor:
        """Return f - f* of each copy, as a share of the start's."""
        models, start, H = x.view(-1, self.m), self.model.start, self.model.H
        found = ((models @ H) * models).sum(1) / (start @ H @ start)
        return found.nan_to_num(nan=inf)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return the least gap of all copies."""
        return {"loss": float(self.gaps(x).min())}


@dataclass(frozen=True)
class Aim:
    """How far down, in how many rounds, and with how many of the clients."""

    share: float  # the f - f* that is wanted, as a share of the start's
    S: int
    N: int
    R: int = RULES.rounds  # no run has more rounds
    seed: int = 0
    by_chance: bool = False  # whether cohorts or mini-batches are drawn at random


def predict(
    model: QuadraticModel,
    algorithm: str,
    K: int,
    aim: Aim,
    fewest: int | None = None,
    out_of_time: OutOfTime = lambda: False,
) -> Predicted:
    """Return the rounds of an algorithm with K local steps to the target, the step size tuned.

    fewest: the rounds of the best so far; one that needs far more is given up.
    """
    if not float(model.start @ model.H @ model.start) > 0:
        return Predicted(algorithm, K, 0, None, 0.0)
    etas = step_sizes(model, K)
    if runs_side_by_side(algorithm):
        rounds = _gaps(model, algorithm, K, etas, aim)
        return _counted(algorithm, K, etas, rounds, aim, fewest, out_of_time)
    alone: list[Predicted] = []
    for eta in etas.flip(0)[::2]:
        worse = [one.rounds is None or one.rounds > (fewest or inf) for one in alone[-2:]]
        if alone and (out_of_time() or (all(worse) and any(one.rounds for one in alone))):
            break
        each = torch.tensor([float(eta)], dtype=torch.float64)
        rounds = _gaps(model, algorithm, K, each, aim, scaled=False)
        alone.append(_counted(algorithm, K, each, rounds, aim, fewest, out_of_time))
        counts = [one.rounds for one in alone if one.rounds is not None]
        fewest = min([*counts, *([] if fewest is None else [fewest])], default=None)
    there = [one for one in alone if one.rounds is not None]
    if not there:
        return min(alone, key=lambda one: one.gap)
    least = min(one.rounds or 0 for one in there)
    near = [one for one in there if (one.rounds or 0) <= RULES.near * least]
    return Predicted(algorithm, K, least, near[-1].eta, min(o.gap for o in there), there[0].ran)


def step_sizes(model: QuadraticModel, K: int) -> Tensor:
    """Return step sizes from far below 1/(K L) to what the mean Hessian can bear."""
    steepest, mean = float(model.eigen[0].abs().max()), float(torch.linalg.eigvalsh(model.H)[-1])
    low, high = floor(log2(1 / (16 * K * steepest))), ceil(log2(2 / mean))
    return 2.0 ** (torch.arange(2 * low, 2 * high + 1, dtype=torch.float64) / 2)


def _gaps(
    model: QuadraticModel, algorithm: str, K: int, etas: Tensor, aim: Aim, scaled: bool = True
) -> Iterator[Tensor]:
    """Yield the gaps of all step sizes after each round."""
    problem = SideBySide(model, etas if scaled else torch.ones(1, dtype=torch.float64))
    made = make(algorithm, K, 1.0 if scaled else float(etas[0]))
    cohort = max(1, round(aim.S * problem.N / aim.N))
    rounds = simulate(made, problem, S=cohort, seed=aim.seed, executor="batched")
    try:
        for done in islice(rounds, aim.R):
            gaps = problem.gaps(done.x)
            problem.factors[gaps > EXPLODED] = 0.0
            yield gaps
    except Diverged:
        return


def _counted(
    algorithm: str,
    K: int,
    etas: Tensor,
    rounds: Iterator[Tensor],
    aim: Aim,
    fewest: int | None,
    out_of_time: OutOfTime,
) -> Predicted:
    """Count the rounds until the best step size is there, and those that are about as good."""
    first = torch.full_like(etas, inf)
    least = torch.full_like(etas, inf)
    held, seen = [HeldTarget(-aim.share) for _ in etas], [list[float]() for _ in etas]
    last = inf if fewest is None else max(RULES.least, RULES.behind * fewest)
    r = 0
    for r, gaps in enumerate(rounds, start=1):
        least = torch.minimum(least, gaps)
        if aim.by_chance:  # A lucky round does not count, as in `compare`.
            for j, gap in enumerate(gaps.tolist()):
                seen[j].append(-gap)
                first[j] = held[j].add(seen[j]).round or inf
        else:
            first = torch.where((gaps <= aim.share) & (first == inf), float(r), first)
        best = float(first.min())
        if r >= (floor(RULES.near * best) if best < inf else last) or out_of_time():
            break
    best = float(first.min())
    if best == inf:
        nearest = int(least.argmin())
        return Predicted(algorithm, K, None, float(etas[nearest]), float(least[nearest]), r)
    eta = float(etas[first <= floor(RULES.near * best)].min())
    return Predicted(algorithm, K, int(best), eta, float(least.min()), r)


@lru_cache
def runs_side_by_side(algorithm: str) -> bool:
    """Return whether two step sizes side by side give what each gives alone."""
    a = torch.tensor([[1.0, 0.3], [0.5, 0.8]], dtype=torch.float64)
    U = torch.linalg.qr(torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)).Q
    A = torch.stack([V @ torch.diag(values) @ V.T for V, values in zip((U, U.T), a, strict=True)])
    b = torch.tensor([[1.0, -2.0], [-1.0, 2.0]], dtype=torch.float64)
    p, start = torch.full((2,), 0.5, dtype=torch.float64), b[0] + 3
    model = QuadraticModel(p, A, b, start, 0.0, None)
    aim = Aim(0.0, 2, 2, R=3)
    etas = torch.tensor([0.25, 0.5], dtype=torch.float64)
    together = torch.stack(list(_gaps(model, algorithm, 3, etas, aim)))
    alone = [list(_gaps(model, algorithm, 3, eta[None], aim, scaled=False)) for eta in etas]
    return torch.allclose(together, torch.cat([torch.stack(one) for one in alone], 1), rtol=1e-9)
