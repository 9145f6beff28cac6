"""SCAFFOLD-M: SCAFFOLD whose local steps are mixed with the direction of the last round.

Cheng et al., "Momentum Benefits Non-IID Federated Learning Simply and Provably", 2024. The paper's
beta and g are `a` and `m` here.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from trimtab.core import Clients, EqualSteps, NonNegative, Oracle, Share, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector
    c: Vector  # the sum of p_i c_i over all N clients
    m: Vector  # the mean direction of the last round


class Upload(NamedTuple):
    dx: Vector
    dc: Vector


@dataclass(frozen=True, kw_only=True)
class ScaffoldM:
    """SCAFFOLD with momentum; a = 1 is SCAFFOLD, option II."""

    eta_l: StepSize
    K: EqualSteps
    a: Share = 0.1
    eta_g: NonNegative = 1.0

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x, c=torch.zeros_like(x), m=torch.zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return torch.zeros_like(x)  # c_i

    def local(
        self, g: Oracle, c_i: Vector, x: Vector, c: Vector, m: Vector
    ) -> tuple[Upload, Vector]:
        y, K, total = x, g.steps(self.K, equal=True), 0 * x
        for k in range(K):
            gradient = g(y, k)
            total = total + gradient
            y = y - self.eta_l * (self.a * (gradient - c_i + c) + (1 - self.a) * m)
        dx, dc = g.sent(Upload(y - x, total / K - c_i))  # c_i_new is the mean raw gradient
        return Upload(dx, dc), c_i + dc

    def round(self, server: Server, clients: Clients) -> Server:
        x, c, m = server
        replies = clients.run(self.local, x, c, m)
        dx, dc = replies.mean()
        return Server(x + self.eta_g * dx, c + replies.share * dc, m=-dx / (self.K * self.eta_l))
