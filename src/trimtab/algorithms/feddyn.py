"""FedDyn: dynamic regularisation, so that the clients' optima agree with the common one.

Acar et al., "Federated Learning Based on Dynamic Regularization", 2021, Algorithm 1, with SGD as
the local solver. The server's h is called `c`: it is the sum of p_i h_i over all clients.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from trimtab.core import Clients, Oracle, Positive, Steps, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector
    c: Vector  # h


class Upload(NamedTuple):
    dx: Vector


@dataclass(frozen=True, kw_only=True)
class FedDyn:
    """FedAvg on f_i(y) - <h_i, y> + alpha/2 |y - x|^2, where h_i grows to be the gradient at x*."""

    eta_l: StepSize
    K: Steps
    alpha: Positive = 0.1

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x, c=torch.zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return torch.zeros_like(x)  # h_i

    def local(self, g: Oracle, h_i: Vector, x: Vector) -> tuple[Upload, Vector]:
        y = x
        for k in range(g.steps(self.K)):
            y = y - self.eta_l * (g(y, k) - h_i + self.alpha * (y - x))  # (1)
        (dx,) = g.sent(Upload(y - x))
        return Upload(dx), h_i - self.alpha * dx  # (2): a client keeps what it sent

    def round(self, server: Server, clients: Clients) -> Server:
        x, h = server
        replies = clients.run(self.local, x)
        (dx,) = replies.mean()
        h_new = h - self.alpha * replies.share * dx
        return Server(x + dx - h_new / self.alpha, h_new)
