"""SCALLION: SCAFFOLD with one upload, which a compressor may shorten.

Huang, Li and Li, "Stochastic Controlled Averaging for Federated Learning with Communication
Compression", 2024. The compressor is a stage of `Through`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from trimtab.core import Clients, EqualSteps, NonNegative, Oracle, Share, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector
    c: Vector  # the sum of p_i c_i over all N clients


class Upload(NamedTuple):
    delta: Vector


@dataclass(frozen=True, kw_only=True)
class Scallion:
    """SCAFFOLD whose c_i goes a part alpha of its way; alpha = 1 is option II."""

    eta_l: StepSize
    K: EqualSteps
    eta_g: NonNegative = 1.0
    alpha: Share = 1.0

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x, c=torch.zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return torch.zeros_like(x)  # c_i

    def local(self, g: Oracle, c_i: Vector, x: Vector, c: Vector) -> tuple[Upload, Vector]:
        y, K = x, g.steps(self.K, equal=True)
        for k in range(K):
            y = y - self.eta_l * (g(y, k) - c_i + c)
        (delta,) = g.sent(Upload(self.alpha * ((x - y) / (K * self.eta_l) - c)))
        return Upload(delta), c_i + delta

    def round(self, server: Server, clients: Clients) -> Server:
        x, c = server
        replies = clients.run(self.local, x, c)
        (delta,) = replies.mean()
        direction = delta / self.alpha + c
        x_new = x - self.eta_g * self.K * self.eta_l * direction
        return Server(x_new, c + replies.share * delta)
