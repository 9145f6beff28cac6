"""ServerOnly: the base optimiser run centrally, one step per round on the mean full gradient.

The baseline of Karimireddy et al., "Mime: Mimicking Centralized Stochastic Algorithms in Federated
Learning", 2020.
"""

from dataclasses import dataclass
from typing import NamedTuple

from trimtab.algorithms.bases import AnyBase
from trimtab.core import Clients, Oracle, State, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector
    s: State  # of the base optimiser


class Upload(NamedTuple):
    gradient: Vector


@dataclass(frozen=True, kw_only=True)
class ServerOnly:
    """SGD with momentum, Adam, ... without local steps."""

    eta: StepSize
    base: AnyBase

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x, self.base.init(x))

    def init_client(self, x: Vector) -> tuple[()]:
        return ()

    def local(self, g: Oracle, state: tuple[()], x: Vector) -> tuple[Upload, tuple[()]]:
        return Upload(g(x)), ()

    def round(self, server: Server, clients: Clients) -> Server:
        x, s = server
        (gradient,) = clients.run(self.local, x).mean()
        return Server(x - self.eta * self.base.U(gradient, s, x), self.base.V(gradient, s))
