"""A small quadratic model of the problem, on which `predict` runs the algorithms.

f_i is replaced by the quadratic with the gradient it has at x* and the Hessian it has on the way
there, in the few directions that matter: those of the start's error under the Hessian, of the
clients' gradients, and of FedAvg's bias.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.measure import noise_samples
from trimtab.diagnosis.panel import Panel, weighted
from trimtab.diagnosis.rules import RULES

WHOLE = 64  # the model has all directions if d <= 64
START, BIAS, PULLS = 16, 6, 10  # beyond, <= 16 of the error, <= 6 of the bias, <= 10 of gradients


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
    def A(self) -> Tensor:
        """The Hessians, of shape (N, m, m)."""
        return torch.einsum("nij,nj,nkj->nik", self.U, self.a, self.U)

    @property
    def H(self) -> Tensor:
        """The mean Hessian."""
        return weighted(self.p, self.A)


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
        Q = basis(panel, best, error, moved, pull, budget.until(until[0]))
        on_the_way = [best] if case.quadratic else [best, case.x0, (case.x0 + best) / 2]
        A = _mean_hessians(panel, on_the_way, Q, budget.until(until[1]))
    if A is None:
        budget.note("There was no time for the quadratic model.")
        return None
    a, U = torch.linalg.eigh(_with_minimum(A, panel.p))
    pulls = (moved - weighted(panel.p, moved)) @ Q.T
    return QuadraticModel(
        p=panel.p,
        a=a,
        U=U,
        b=-pulls.cpu().double(),
        start=(Q @ error).cpu().double(),
        sigma=noise_in(panel, best, Q, case.seed) if noisy else 0.0,
        steps=panel.steps_in_a_pass,
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
    if not least < RULES.flat * top:
        return A
    return A + (RULES.flat * top - least) * torch.eye(A.shape[1], dtype=torch.float64)


def noise_in(panel: Panel, x: Vector, Q: Tensor, seed: int) -> float:
    """Return the noise of a mini-batch gradient in the directions Q, sqrt E|.|^2."""
    noise = noise_samples(panel, x, seed, 7)
    assert noise is not None
    return sqrt(float(panel.p @ (noise @ Q.T).cpu().double().square().sum(1)))


def fedavg_limit(model: QuadraticModel, eta_l: float, K: int) -> Vector | None:
    """Return where FedAvg with all clients and no noise stops, from x*; None if nowhere.

    With a step of 2/h and an even K, the local steps go back and forth along a curvature h.
    """
    P = local_steps(model.a, torch.tensor(eta_l).double(), torch.tensor(K))
    M = weighted(model.p, torch.einsum("nij,nj,nkj->nik", model.U, P * model.a, model.U))
    if not bool(torch.isfinite(M).all()):
        return None
    pull = torch.einsum("nij,nj,nkj,nk->ni", model.U, P, model.U, model.b)
    found = torch.linalg.solve_ex(M, weighted(model.p, pull))
    return None if bool(found.info) else found.result


def local_steps(a: Tensor, eta: Tensor, K: Tensor) -> Tensor:
    """Return P: K steps of size eta from x move by -P (gradient at x), P = sum of eta q^k."""
    flat = (eta * a).abs() < 1e-9
    q = 1 - eta * a
    return torch.where(flat, K * eta, (1 - q**K) / torch.where(flat, torch.ones_like(q), a))
