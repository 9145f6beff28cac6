"""FedNova: FedAvg for clients that make different numbers of local steps.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
2020, with plain SGD as the local solver. The paper's tau_i is K_i here.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from trimtab.core import Clients, NonNegative, Oracle, Steps, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector


class Upload(NamedTuple):
    d: Vector  # the move of one step
    K: Vector  # how many steps there were, as a vector of length one


@dataclass(frozen=True, kw_only=True)
class FedNova:
    """Normalised averaging."""

    eta_l: StepSize
    K: Steps
    eta_g: NonNegative = 1.0

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x)

    def init_client(self, x: Vector) -> tuple[()]:
        return ()

    def local(self, g: Oracle, state: tuple[()], x: Vector) -> tuple[Upload, tuple[()]]:
        y, K = x, g.steps(self.K)
        for k in range(K):
            y = y - self.eta_l * g(y, k)
        return Upload((y - x) / K, torch.full_like(y[..., :1], K)), ()

    def round(self, server: Server, clients: Clients) -> Server:
        (x,) = server
        d, K = clients.run(self.local, x).mean()  # the mean of K is the paper's tau_eff
        return Server(x + self.eta_g * K * d)
