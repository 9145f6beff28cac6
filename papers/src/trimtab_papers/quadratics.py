"""Random quadratics whose Hessians differ by delta, and exact maps of SCAFFOLD and DANE there.

With all clients and full gradients a round is a linear map of the error, so that its rate is a
spectral radius, and no run is too long. SCAFFOLD is that of option I, the theorems' case, whose
controls are the gradients at the model of the round before; so its map is of (x, the x before).
"""

from collections.abc import Mapping
from itertools import islice
from math import log

import torch
from torch import Tensor

from trimtab.algorithms import Scaffold
from trimtab.core.streams import PROBLEM, stream
from trimtab.core.threads import one_thread
from trimtab.problems.quadratic import Quadratic
from trimtab.simulation import simulate


def quadratics(eigenvalues: Tensor, delta: float, N: int, seed: int) -> Quadratic:
    """Return N quadratics: the Hessian of f has the eigenvalues, those of the f_i are delta away.

    The differences sum to zero, do not commute, and the largest |eigenvalue| of them is delta. The
    gradients at the optimum, which is at zero, differ too.
    """
    d, draw = len(eigenvalues), stream(seed, PROBLEM)
    numbers = torch.randn((N, d, d + 1), generator=draw, dtype=torch.float64)
    numbers = numbers - numbers.mean(0)
    D = numbers[..., :d] + numbers[..., :d].mT
    D = D * (delta / torch.linalg.eigvalsh(D).abs().max())
    return Quadratic(torch.diag(eigenvalues) + D, numbers[..., d])


@one_thread()
def scaffold_map(problem: Quadratic, eta_l: Tensor, K: int) -> Tensor:
    """Return the map of (x - x*, the x before - x*) in a round of SCAFFOLD I, for each eta_l."""
    a, V = torch.linalg.eigh(problem.A)  # The shape of a is (clients, directions).
    eta = eta_l[:, None, None]
    q = (1 - eta * a) ** K  # K steps multiply the error of y by q.
    P = torch.where(a.abs() > 1e-12, (1 - q) / a, eta * K)  # K steps add P (c_i - c).
    Q = torch.einsum("nij,enj,nkj->eik", V, q, V) / problem.N
    late = torch.einsum("nij,enj,nkj,nkl->eil", V, P, V, problem.A - problem.H) / problem.N
    top = torch.cat([Q, late], dim=2)
    below = torch.eye(problem.d, 2 * problem.d, dtype=a.dtype).expand_as(top)
    return torch.cat([top, below], dim=1)


def scaffold_is_off_by(problem: Quadratic, eta_l: float, K: int) -> float:
    """Return how far five rounds of a run are from the exact map, relative to the error."""
    algorithm, x = Scaffold(eta_l=eta_l, K=K, option="I"), torch.ones(problem.d).double()
    first, *_, last = islice(simulate(algorithm, problem, x=x), 6)
    (exact,) = scaffold_map(problem, torch.tensor([eta_l], dtype=torch.float64), K)
    start = torch.cat([first.x - problem.x_star, x - problem.x_star])
    state = torch.linalg.matrix_power(exact, 5) @ start
    return off_by(last.x, problem.x_star + state[: problem.d])


def off_by(run: Tensor, exact: Tensor) -> float:
    """Return the difference relative to what is exact."""
    return float((run - exact).norm() / exact.norm())


@one_thread()
def dane_map(problem: Quadratic, weight: Tensor) -> Tensor:
    """Return the map of x - x* in a round of DANE with exact solves, for each prox weight."""
    eye = torch.eye(problem.d, dtype=problem.A.dtype)
    shifted = problem.A + weight[:, None, None, None] * eye
    moves: Tensor = torch.linalg.inv(shifted) @ problem.H
    return eye - moves.mean(1)


@one_thread()
def radius(maps: Tensor) -> Tensor:
    """Return by what factor a round shrinks the error in the long run, for each map."""
    finite = torch.isfinite(maps).all(-1).all(-1)[:, None, None]
    largest: Tensor = torch.linalg.eigvals(torch.where(finite, maps, 2.0)).abs().amax(1)
    return largest


def per_e_fold(rate: float) -> float | None:
    """Return the rounds that shrink the error by e; None if it does not shrink.

    >>> round(per_e_fold(0.5), 3), per_e_fold(1.0)
    (1.443, None)
    """
    return -1 / log(rate) if 0 < rate < 1 else None


def tried(low: float, high: float, factor: float) -> Tensor:
    """Return numbers from low to high, each the factor x the last.

    >>> tried(1.0, 8.5, 2.0).tolist()
    [1.0, 2.0, 4.0, 8.0]
    """
    count = int(log(high / low) / log(factor)) + 1
    return low * factor ** torch.arange(count, dtype=torch.float64)


# -- rounds against K


def plateau(rounds: Mapping[int, float]) -> float:
    """Return the rounds of the three largest K, on average."""
    return sum(list(rounds.values())[-3:]) / 3


def best_K(rounds: Mapping[int, float]) -> int:
    """Return the smallest K whose rounds are within 1.3 x of the plateau."""
    return next(K for K, some in rounds.items() if some <= 1.3 * plateau(rounds))


def least_saved(rounds: Mapping[int, float], knee: float) -> float:
    """Return the least of rounds(1)/(K rounds(K)) over K up to half of the knee."""
    half = max(1.0, knee / 2)
    return min(rounds[1] / some / K for K, some in rounds.items() if half >= K)
