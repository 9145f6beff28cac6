"""Federated TD(0): each client evaluates a policy in its own random MDP, with linear features.

Garnet MDPs after Archibald, McKinnon and Thomas (1995), in federated TD as Mangold et al. (NeurIPS
2024) have them: A_i = Phi' D_i (I - gamma P_i) Phi and b_i = Phi' D_i r_i, with P_i the transitions
under the policy and D_i their stationary distribution.
"""

from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.core.streams import BATCH, PROBLEM, stream
from trimtab.problems.identity import line
from trimtab.problems.linear_system import ERROR, LinearSystem
from trimtab.problems.problem import Problem, normalised

BRANCHES = 4  # a state leads to <= 4 others under the policy, besides its neighbour
NEIGHBOUR = 0.1  # it leads to its neighbour on a ring with a chance >= 0.1, so all are visited

Sampling = Literal["iid", "markov"]


class GarnetTD(Problem):
    """TD(0) of N clients, x the weights of the features; x* solves the mean of their equations.

    Client i has the transitions (1 - h) P + h P_i and the rewards (1 - h) r + h r_i, where h is
    `heterogeneity`, (P, r) one random Garnet that all share and (P_i, r_i) one of its own: at 0 all
    are the same, at 1 each has its own. The features are common. All are drawn from `seed`.

    g(y, k) is the semi-gradient phi(s) ((phi(s) - gamma phi(s'))' y - r(s)) of one transition, g(y)
    its mean A_i y - b_i. sampling="iid": s is drawn from the stationary distribution for every k.
    "markov": step k sees the k-th transition of one trajectory, which starts again in each round
    from the stationary distribution: samples depend on (seed, client, round, k) alone.
    A trajectory over all rounds would depend on the number of earlier steps.

    >>> problem = GarnetTD(N=3, states=10, features=2, gamma=0.9, heterogeneity=1.0, seed=0)
    >>> problem.d, problem.evaluate(problem.x_star)["error"]
    (2, 0.0)
    """

    constant_hessians, symmetric, metric = True, False, ERROR

    def __init__(
        self,
        N: int,
        states: int,
        features: int,
        gamma: float,
        heterogeneity: float,
        seed: int = 0,
        sampling: Sampling = "iid",
    ) -> None:
        _check(N, states, features, gamma, heterogeneity, sampling)
        self.N, self.d, self.states, self.gamma = N, features, states, gamma
        self.heterogeneity, self.seed, self.sampling = heterogeneity, seed, sampling
        self.weights = normalised(None, N)
        draw = stream(seed, PROBLEM)
        phi = torch.randn(states, features, generator=draw, dtype=torch.float64)
        self.phi = phi / phi.norm(dim=1).max()
        common, own = _garnet(states, draw), [_garnet(states, draw) for _ in range(N)]
        h = heterogeneity
        self.P = torch.stack([(1 - h) * common[0] + h * P for P, _ in own])
        self.r = torch.stack([(1 - h) * common[1] + h * r for _, r in own])
        self.visits = torch.stack([_stationary(P) for P in self.P])

    # -- the Problem

    def x0(self, seed: int = 0) -> Vector:
        """Return zero."""
        return torch.zeros(self.d, dtype=torch.float64)

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return g_i; its transitions depend on (seed, i, r, k) alone."""
        path = _Trajectory(self, i, seed, r)

        def g(y: Vector, k: int | None = None) -> Vector:
            if k is None:
                return self.client_gradient(i, y)
            s, after = path.transition(k) if self.sampling == "markov" else path.independent(k)
            return self._semi_gradient(i, y, s, after)

        return g

    def _semi_gradient(self, i: int, y: Vector, s: Tensor | int, after: Tensor | int) -> Vector:
        """Return phi(s) ((phi(s) - gamma phi(s'))' y - r(s)), for one transition or several."""
        here, difference = self.phi[s], self.phi[s] - self.gamma * self.phi[after]
        product: Tensor = here * (difference @ y - self.r[i, s])[..., None]
        return product

    def client_gradient(self, i: int, x: Vector) -> Vector:
        """Return A_i x - b_i."""
        return self.system.client_gradient(i, x)

    def client_hvp(self, i: int, x: Vector, V: Tensor) -> Tensor:
        """Return A_i v for each row v of V."""
        return self.system.client_hvp(i, x, V)

    def gradient(self, x: Vector) -> Vector:
        """Return the residual of the mean equations."""
        return self.system.gradient(x)

    def loss(self, x: Vector) -> float:
        """Return |x - x*|^2, as a stand-in for f: there is no loss."""
        return self.system.loss(x)

    def client_loss(self, i: int, x: Vector) -> float:
        """Return |x - x*|^2, the same for all clients."""
        return self.system.loss(x)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return error |x - x*|^2 and residual |A x - b|, of the mean system or of a client's."""
        return self.system.evaluate(x, client)

    @cached_property
    def fingerprint(self) -> str:
        """The line that identifies this problem in a saved run."""
        names = ("N", "states", "gamma", "heterogeneity", "seed", "sampling")
        return line("GarnetTD", {"d": self.d} | {name: getattr(self, name) for name in names})

    # -- closed forms

    @cached_property
    def system(self) -> LinearSystem:
        """The mean equations; its noise is that of one i.i.d. transition, at x*.

        The noise of a transition grows with |x - x*|, and that of a LinearSystem does not; so
        `fedavg_limit` holds for i.i.d. transitions, whose means multiply, but the covariances only
        to first order in the step size. For Markovian ones all of it is of first order.
        """
        A, b = self._equations
        x_star = torch.linalg.solve(A.mean(0), b.mean(0))
        noise = torch.stack([self._noise(i, x_star) for i in range(self.N)])
        return LinearSystem(A, b, noise)

    @property
    def x_star(self) -> Vector:
        """The solution of the mean equations."""
        return self.system.x_star

    @cached_property
    def _equations(self) -> tuple[Tensor, Tensor]:
        weighted = self.visits[..., None] * self.phi  # D_i Phi, of shape (N, states, d)
        A = weighted.mT @ (self.phi - self.gamma * self.P @ self.phi)
        return A, torch.einsum("nsj,ns->nj", weighted, self.r)

    def _noise(self, i: int, x: Vector) -> Tensor:
        """Return the covariance at x of g(x, k) for one i.i.d. transition."""
        s = torch.arange(self.states).repeat_interleave(self.states)
        after = torch.arange(self.states).repeat(self.states)
        chance = (self.visits[i, :, None] * self.P[i]).flatten()
        rows = self._semi_gradient(i, x, s, after)
        mean = chance @ rows
        return (chance[:, None] * rows).mT @ rows - torch.outer(mean, mean)


class _Trajectory:
    """The transitions of one client in one round."""

    def __init__(self, problem: GarnetTD, i: int, seed: int, r: int) -> None:
        self._visits, self._P = problem.visits[i], problem.P[i]
        self._where, self._path = (seed, BATCH, i, r), list[int]()
        self._draw: torch.Generator | None = None

    def independent(self, k: int) -> tuple[int, int]:
        """Return s from the stationary distribution, and s' after it, drawn for k."""
        draw = stream(*self._where, k)
        s = _chosen(self._visits, draw)
        return s, _chosen(self._P[s], draw)

    def transition(self, k: int) -> tuple[int, int]:
        """Return the k-th transition of the trajectory, which is lengthened up to there."""
        if self._draw is None:
            self._draw = stream(*self._where)
            self._path = [_chosen(self._visits, self._draw)]
        while len(self._path) < k + 2:
            self._path.append(_chosen(self._P[self._path[-1]], self._draw))
        return self._path[k], self._path[k + 1]


def _chosen(chances: Tensor, draw: torch.Generator) -> int:
    at = torch.rand((), generator=draw, dtype=torch.float64)
    return min(int(torch.searchsorted(chances.cumsum(0), at, right=True)), len(chances) - 1)


def _garnet(states: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the transitions and the rewards of a random Garnet under a policy.

    From each state to a few others, with chances that cut [0, 1] at random, and to its neighbour.
    """
    P = torch.zeros(states, states, dtype=torch.float64)
    few = min(BRANCHES, states)
    for s in range(states):
        cuts = torch.rand(few - 1, generator=draw, dtype=torch.float64).sort().values
        ends = torch.cat([cuts.new_zeros(1), cuts, cuts.new_ones(1)])
        P[s, torch.randperm(states, generator=draw)[:few]] = (1 - NEIGHBOUR) * ends.diff()
        P[s, (s + 1) % states] += NEIGHBOUR
    return P, torch.rand(states, generator=draw, dtype=torch.float64)


def _stationary(P: Tensor) -> Tensor:
    """Return the distribution D with D P = D; there is one, since every state leads to all."""
    equations = torch.cat([P.mT - torch.eye(len(P)).to(P), P.new_ones(1, len(P))])
    right = torch.cat([P.new_zeros(len(P)), P.new_ones(1)])
    solution: Tensor = torch.linalg.lstsq(equations, right[:, None], driver="gelsd").solution[:, 0]
    return solution


def _check(
    N: int, states: int, features: int, gamma: float, heterogeneity: float, sampling: str
) -> None:
    """Raise ValueError if the arguments make no MDP, or no unique x*."""
    for name, count in (("N", N), ("states", states), ("features", features)):
        if not isinstance(count, int):
            raise ValueError(f"GarnetTD: {name}={count!r}; pass a whole number.")
    if N < 1 or states < 2:
        raise ValueError(f"GarnetTD: N={N}, states={states}; pass N >= 1 and states >= 2.")
    if not 1 <= features <= states:
        raise ValueError(
            f"GarnetTD: features={features}, so x* is not unique; pass 1 to states={states}."
        )
    for name, value in (("gamma", gamma), ("heterogeneity", heterogeneity)):
        ends = "below" if name == "gamma" else "up to"
        if not 0 <= value <= 1 or (name == "gamma" and value == 1):
            raise ValueError(f"GarnetTD: {name}={value}; pass a number from 0 {ends} 1.")
    if sampling not in ("iid", "markov"):
        raise ValueError(f"GarnetTD: sampling={sampling!r}; pass 'iid' or 'markov'.")
