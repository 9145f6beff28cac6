"""Scaffnew: SCAFFOLD whose number of local steps is drawn, one coin for all clients.

Mishchenko et al., "ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication Acceleration!
Finally!", 2022, Algorithm 2. The paper's gamma and h_i are `eta_l` and c_i - c here.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from trimtab.core import Clients, Oracle, Share, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector
    c: Vector  # the sum of p_i c_i over all N clients


class Upload(NamedTuple):
    dx: Vector
    dc: Vector


@dataclass(frozen=True, kw_only=True)
class Scaffnew:
    """ProxSkip for averaging: after each local step all clients communicate with probability p."""

    eta_l: StepSize
    p: Share = 0.1

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x, c=torch.zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return torch.zeros_like(x)  # c_i

    def local(
        self, g: Oracle, c_i: Vector, x: Vector, c: Vector, K: Vector
    ) -> tuple[Upload, Vector]:
        y = x
        for k in range(g.steps(int(K), equal=True)):
            y = y - self.eta_l * (g(y, k) - c_i + c)
        c_i_new = c_i - c + self.p / self.eta_l * (x - y)  # 1/p = E[K] divides, not K
        dx, dc = g.sent(Upload(y - x, c_i_new - c_i))
        return Upload(dx, dc), c_i + dc

    def round(self, server: Server, clients: Clients) -> Server:
        x, c = server
        u = clients.uniform(x[:1]).sum()  # K: steps until a coin of chance p shows heads
        K = 1 + torch.floor(torch.log1p(-u) / torch.log1p(torch.full_like(u, -self.p)))
        replies = clients.run(self.local, x, c, K)
        dx, dc = replies.mean()
        return Server(x + dx, c + replies.share * dc)
