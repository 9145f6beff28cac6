"""FedOpt: FedAvg whose server treats the mean update as a gradient (FedAvgM, FedAdam, ...).

Reddi et al., "Adaptive Federated Optimization", 2021.
"""

from dataclasses import dataclass
from typing import NamedTuple

from trimtab.algorithms.bases import AnyBase
from trimtab.core import Clients, NonNegative, Oracle, State, Steps, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector
    s: State  # of the base optimiser


class Upload(NamedTuple):
    dx: Vector


@dataclass(frozen=True, kw_only=True)
class FedOpt:
    """FedAvg with a server optimiser."""

    eta_l: StepSize
    K: Steps
    base: AnyBase
    eta_g: NonNegative = 1.0

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x, self.base.init(x))

    def init_client(self, x: Vector) -> tuple[()]:
        return ()

    def local(self, g: Oracle, state: tuple[()], x: Vector) -> tuple[Upload, tuple[()]]:
        y = x
        for k in range(g.steps(self.K)):
            y = y - self.eta_l * g(y, k)
        return Upload(y - x), ()

    def round(self, server: Server, clients: Clients) -> Server:
        x, s = server
        (dx,) = clients.run(self.local, x).mean()
        D = -dx  # the pseudo-gradient, mean of x - y
        return Server(x - self.eta_g * self.base.U(D, s, x), self.base.V(D, s))
