"""A small quadratic model of the problem, on which every algorithm and K can be tried at once.

f_i is replaced by the quadratic with the gradient it has at x* and the Hessian it has on the way
there, in the few directions that matter: those of the start's error under the Hessian, of the
clients' gradients, and of FedAvg's bias. K local steps on a quadratic are one matrix, so a round
costs next to nothing, and all step sizes run side by side. `rounds` is the declared second copy of
four algorithms; tests compare it with the first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, floor, inf, log10, sqrt
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.streams import COHORT, NOISE, stream
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.candidates import BETA, MIMELITE, SCAFFOLD, SGD
from trimtab.diagnosis.measure import noise_samples
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.theory import weighted

WHOLE = 64  # the model has all directions if d <= 64
START, BIAS, PULLS = 16, 6, 10  # beyond, <= 16 of the error, <= 6 of the bias, <= 10 of gradients
KS = (1, 2, 4, 8, 16, 32, 64)  # the numbers of local steps that are looked at
FINER = (0.1, 0.01)  # accuracies beyond the one that is wanted, as factors of eps
NEAR = 1.15  # a K or a step size is good enough if it needs <= 1.15 x the fewest rounds
FACTOR = 10**0.25  # the ratio of neighbouring step sizes, as `compare` has them in the end
FLAT = 1e-7  # the model is shifted until the least eigenvalue of Hess is >= 1e-7 x the largest


@dataclass(frozen=True)
class QuadraticModel:
    """N quadratics in m directions around x*, with the eigenvectors of their Hessians."""

    p: Tensor  # the weights, of shape (N,)
    a: Tensor  # the eigenvalues, of shape (N, m)
    U: Tensor  # the eigenvectors in columns, of shape (N, m, m)
    b: Tensor  # minus the gradients at x* in the basis, of shape (N, m)
    start: Vector  # x0 - x*
    sigma: float  # the noise of a mini-batch gradient in these directions, sqrt E|.|^2
    steps: int | None  # the mini-batches in a pass when they are reshuffled; None when i.i.d.

    @property
    def m(self) -> int:
        """The number of directions."""
        return self.b.shape[1]

    def reweighted(self, p: Tensor) -> "QuadraticModel":
        """Return the model of the same clients with other weights, x* moved to where it is then."""
        b = self.b - weighted(p, self.b)
        return replace(self, p=p, b=b)

    @property
    def H(self) -> Tensor:
        """The mean Hessian."""
        return weighted(self.p, torch.einsum("nij,nj,nkj->nik", self.U, self.a, self.U))


def basis(
    panel: Panel, x: Vector, error: Vector, rows: Tensor, drift: Vector, out_of_time: OutOfTime
) -> Tensor:
    """Return orthonormal directions, one in each row."""
    d = panel.problem.d
    if d <= WHOLE:
        return torch.eye(d).to(x)
    directions: list[Vector] = []

    def add(v: Vector) -> bool:
        size = float(v.norm())
        for _ in range(2):
            if directions:
                Q = torch.stack(directions)
                v = v - (Q @ v) @ Q
        if not float(v.norm()) > 1e-4 * size:
            return False
        directions.append(v / v.norm())
        return True

    for first, most in ((error, START), (drift, BIAS)):
        fresh = add(first)
        for _ in range(most - 1):
            if not fresh or out_of_time():
                break
            fresh = add(panel.mean_products(x, directions[-1]))
    gram = (rows @ rows.T).cpu().double()
    values, vectors = torch.linalg.eigh(gram)
    for j in range(1, min(PULLS, len(values)) + 1):
        if values[-j] > 1e-8 * values[-1]:
            add(vectors[:, -j].to(rows) @ rows)
    return torch.stack(directions)


def build(
    panel: Panel,
    points: Sequence[Vector],
    error: Vector,
    rows: Tensor,
    Q: Tensor,
    out_of_time: OutOfTime,
) -> QuadraticModel | None:
    """Return the model of the problem in the directions Q; None if there was no time.

    The Hessians are means over the points. rows: the clients' gradients at x*. There is no noise
    yet; `noise_in` tells how much there should be.
    """
    A = _mean_hessians(panel, points, Q, out_of_time)
    if A is None:
        return None
    a, U = torch.linalg.eigh(_with_minimum(A, panel.p))
    pulls = (rows - weighted(panel.p, rows)) @ Q.T
    return QuadraticModel(
        p=panel.p,
        a=a,
        U=U,
        b=-pulls.cpu().double(),
        start=(Q @ error).cpu().double(),
        sigma=0.0,
        steps=panel.can.steps_in_a_pass,
    )


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
    if not least < FLAT * top:
        return A
    return A + (FLAT * top - least) * torch.eye(A.shape[1], dtype=torch.float64)


def noise_in(panel: Panel, x: Vector, Q: Tensor, seed: int) -> float:
    """Return the noise of a mini-batch gradient in the directions Q, sqrt E|.|^2."""
    noise = noise_samples(panel, x, seed, 7)
    assert noise is not None
    return sqrt(float(panel.p @ (noise @ Q.T).cpu().double().square().sum(1)))


def fedavg_limit(model: QuadraticModel, eta_l: float, K: int) -> Vector | None:
    """Return where FedAvg with all clients and no noise stops, from x*; None if it diverges."""
    P = _sums(model.a, torch.tensor([[[eta_l]]], dtype=torch.float64), K)[0]
    M = weighted(model.p, torch.einsum("nij,nj,nkj->nik", model.U, P * model.a, model.U))
    if not bool(torch.isfinite(M).all()):
        return None
    pull = torch.einsum("nij,nj,nkj,nk->ni", model.U, P, model.U, model.b)
    limit: Tensor = torch.linalg.solve(M, weighted(model.p, pull))
    return limit


def _sums(a: Tensor, eta: Tensor, K: int) -> Tensor:
    """Return P: K steps of size eta from x move by -P (gradient at x), P = sum of eta q^k."""
    flat = (eta * a).abs() < 1e-9
    q = 1 - eta * a
    return torch.where(flat, K * eta, (1 - q**K) / torch.where(flat, torch.ones_like(q), a))


# -- rounds


@dataclass(frozen=True)
class Predicted:
    """How an algorithm does on the model with its best step size."""

    algorithm: str
    K: int
    rounds: int | None  # the rounds to the target; None if it does not get there in time
    eta: float | None  # the smallest step size that is about as good as the best
    gap: float  # the least f - f* over the step sizes, as a share of the start's
    ran: int = 0  # the rounds that were run
    finer: tuple[int | None, ...] = ()  # the rounds to FINER x the target, tuned for each

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def predict(
    model: QuadraticModel,
    algorithm: str,
    K: int,
    *,
    S: int,
    N: int,
    share: float,
    R: int,
    seed: int = 0,
    out_of_time: OutOfTime = lambda: False,
) -> Predicted:
    """Return the rounds until f - f* is `share` of what it is at the start, the step size tuned.

    Targets finer than `share` are looked at too, so that it is known how far the result holds.
    """
    L = float(model.a.abs().max())
    etas = step_sizes(L)
    H, x0 = model.H, model.start
    first = float(x0 @ H @ x0)
    if first <= 0:
        return Predicted(algorithm, K, 0, None, 0.0, finer=(0,) * len(FINER))
    targets = share * torch.tensor([[1.0], *([factor] for factor in FINER)], dtype=torch.float64)
    least = torch.full_like(etas, inf)
    when = torch.full((len(targets), len(etas)), inf, dtype=torch.float64)
    r, end = 0, R
    for r, x in enumerate(rounds(model, algorithm, K, etas, S=S, N=N, seed=seed), start=1):
        gap = torch.nan_to_num(((x @ H) * x).sum(1) / first, nan=inf)
        least = torch.minimum(least, gap)
        when = torch.where((gap <= targets) & (when > r), float(r), when)
        if end == R and bool(torch.isfinite(when).any(1).all()):
            end = min(R, floor(NEAR * r))  # A step that is about as good gets there by then.
        if r >= end or not bool(torch.isfinite(gap).any()) or out_of_time():
            break
    fewest = [float(row.min()) for row in when]
    finer = tuple(int(n) if n < inf else None for n in fewest[1:])
    nearest = float(least.min())
    if fewest[0] == inf:
        return Predicted(algorithm, K, None, float(etas[int(least.argmin())]), nearest, r, finer)
    eta = float(etas[when[0] <= floor(NEAR * fewest[0])].min())
    return Predicted(algorithm, K, int(fewest[0]), eta, nearest, r, finer)


def step_sizes(L: float) -> Tensor:
    """Return step sizes around 1/L, powers of 10^(1/4)."""
    low, high = floor(4 * log10(1e-3 / L)), ceil(4 * log10(30 / L))
    return torch.tensor([FACTOR**j for j in range(low, high + 1)], dtype=torch.float64)


def rounds(
    model: QuadraticModel, algorithm: str, K: int, etas: Tensor, *, S: int, N: int, seed: int = 0
) -> Iterator[Tensor]:
    """Yield the server's x - x* after each round, one row for each step size."""
    n, m, E = *model.a.shape, len(etas)
    a, U, p = model.a, model.U, model.p
    eta = etas[:, None, None]
    K = 1 if algorithm == SGD else K
    P = _sums(a, eta, K)
    into = U.permute(1, 0, 2).reshape(m, n * m)  # x @ into is U_i' x for every client.
    back = U.permute(0, 2, 1).reshape(n * m, m)  # The sum of U_i y_i over all clients is y @ back.
    b = torch.einsum("nij,ni->nj", U, model.b)
    x = model.start.expand(E, m).clone()
    c, c_i = torch.zeros(E, m, dtype=a.dtype), torch.zeros(E, n, m, dtype=a.dtype)
    momentum = torch.zeros(E, m, dtype=a.dtype)
    cohort = max(1, round(S * n / N))
    noise = model.sigma / sqrt(m) * sqrt(_effective(K, model.steps)) if algorithm != SGD else 0.0
    r = 0
    while True:
        r += 1
        chosen = torch.arange(n)
        if cohort < n:
            chosen = torch.randperm(n, generator=stream(seed, COHORT, r))[:cohort]
        w = torch.zeros_like(p).index_copy(0, chosen, p[chosen])
        share = w.sum()
        gradient = (x @ into).view(E, n, m) * a - b
        pull = gradient
        if algorithm == SCAFFOLD:
            pull = gradient + (c @ into).view(E, n, m) - c_i
        elif algorithm == MIMELITE:
            pull = gradient + BETA * (momentum @ into).view(E, n, m)
        dx = -P * pull
        if noise:
            z = torch.randn(n, m, generator=stream(seed, NOISE, 2, r), dtype=a.dtype)
            dx = dx - noise * eta * z
        if algorithm == SCAFFOLD:  # This is option II.
            new = c_i - (c @ into).view(E, n, m) - dx / (K * eta)
            dc = ((new - c_i) * w[:, None]).view(E, n * m) @ back
            c_i = torch.where((w > 0)[:, None], new, c_i)
            c = c + dc
        if algorithm == MIMELITE:
            mean = (gradient * w[:, None]).view(E, n * m) @ back / share
            momentum = mean + BETA * momentum
        x = x + (dx * w[:, None]).view(E, n * m) @ back / share
        yield x


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
