"""FedAvg: local SGD, then averaging.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.
Two step sizes as in Karimireddy et al. (2020), equations (1) and (2).
"""

from dataclasses import dataclass
from typing import NamedTuple

from trimtab.core import Clients, NonNegative, Oracle, Steps, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector


class Upload(NamedTuple):
    dx: Vector


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Federated averaging."""

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
        y = x
        for k in range(g.steps(self.K)):
            y = y - self.eta_l * g(y, k)  # (1)
        return Upload(y - x), ()

    def round(self, server: Server, clients: Clients) -> Server:
        (x,) = server
        (dx,) = clients.run(self.local, x).mean()
        return Server(x + self.eta_g * dx)  # (2)
