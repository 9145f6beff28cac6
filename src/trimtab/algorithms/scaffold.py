"""SCAFFOLD: stochastic controlled averaging. Comments give the line of Algorithm 1.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", 2020.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from trimtab.core import Clients, Epochs, NonNegative, Oracle, Steps, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector  # the model
    c: Vector  # the sum of p_i c_i over all N clients


class Upload(NamedTuple):
    dx: Vector  # y - x
    dc: Vector | tuple[()]  # c_i_new - c_i; nothing when lean


@dataclass(frozen=True, kw_only=True)
class Scaffold:
    """SCAFFOLD, options I and II; `lean` (II) uploads dx alone, as Huang, Li and Li (2024) do."""

    eta_l: StepSize
    K: Steps
    eta_g: NonNegative = 1.0
    option: Literal["I", "II"] = "II"
    lean: bool = False

    def __post_init__(self) -> None:
        validate(self)
        if self.lean and (self.option == "I" or isinstance(self.K, Epochs)):
            raise ValueError(f"{self}: pass a whole number K, and lean with option 'II' only.")

    def init_server(self, x: Vector) -> Server:
        return Server(x, c=torch.zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return torch.zeros_like(x)  # c_i

    def local(self, g: Oracle, c_i: Vector, x: Vector, c: Vector) -> tuple[Upload, Vector]:
        y, K = x, g.steps(self.K, equal=self.lean)  # line 7
        for k in range(K):
            y = y - self.eta_l * (g(y, k) - c_i + c)  # line 10
        c_i_new = g(x) if self.option == "I" else c_i - c + (x - y) / (K * self.eta_l)  # line 12
        sent = g.sent(Upload(y - x, () if self.lean else c_i_new - c_i))  # line 13
        kept = c_i - c - sent.dx / (K * self.eta_l) if self.lean else c_i + sent.dc
        return sent, kept  # line 14: a client keeps what it sent

    def round(self, server: Server, clients: Clients) -> Server:
        x, c = server
        replies = clients.run(self.local, x, c)  # lines 5-15
        dx, dc = replies.mean()  # line 16
        dc = -c - dx / (self.K * self.eta_l) if self.lean and isinstance(self.K, int) else dc
        return Server(x + self.eta_g * dx, c + replies.share * dc)  # line 17
