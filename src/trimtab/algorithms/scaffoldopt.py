"""ScaffoldOpt: SCAFFOLD whose local steps are those of an optimiser with a memory.

Ours. After Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
2020, Algorithm 1, whose option II reads c_i off the displacement; here that would be no gradient.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from trimtab.algorithms.bases import AnyBase
from trimtab.core import Clients, NonNegative, Oracle, Steps, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector
    c: Vector  # the sum of p_i c_i over all N clients


class Upload(NamedTuple):
    dx: Vector
    dc: Vector


@dataclass(frozen=True, kw_only=True)
class ScaffoldOpt:
    """SCAFFOLD with momentum, Adam, … in the local steps, its state new in each round."""

    eta_l: StepSize
    K: Steps
    base: AnyBase
    eta_g: NonNegative = 1.0

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x, c=torch.zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return torch.zeros_like(x)  # c_i

    def local(self, g: Oracle, c_i: Vector, x: Vector, c: Vector) -> tuple[Upload, Vector]:
        y, s, K, total = x, self.base.init(x), g.steps(self.K), 0 * x
        for k in range(K):
            gradient = g(y, k)
            total, d = total + gradient, gradient - c_i + c
            y, s = y - self.eta_l * self.base.U(d, s, y), self.base.V(d, s)  # line 10
        dx, dc = g.sent(Upload(y - x, total / K - c_i))  # c_i_new is the mean raw gradient
        return Upload(dx, dc), c_i + dc

    def round(self, server: Server, clients: Clients) -> Server:
        x, c = server
        replies = clients.run(self.local, x, c)
        dx, dc = replies.mean()
        return Server(x + self.eta_g * dx, c + replies.share * dc)  # line 17
