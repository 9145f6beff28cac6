"""MimeLite: the server's optimiser run on the clients, its state frozen during the round.

Karimireddy et al., "Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning", 2020,
Algorithm 1.
"""

from dataclasses import dataclass
from typing import NamedTuple

from trimtab.algorithms.bases import AnyBase
from trimtab.core import Clients, Oracle, State, Steps, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector
    s: State  # of the base optimiser


class Upload(NamedTuple):
    dx: Vector
    gradient: Vector


@dataclass(frozen=True, kw_only=True)
class MimeLite:
    """MimeLite with any base optimiser (U, V)."""

    eta: StepSize
    K: Steps
    base: AnyBase

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x, self.base.init(x))

    def init_client(self, x: Vector) -> tuple[()]:
        return ()

    def local(self, g: Oracle, state: tuple[()], x: Vector, s: State) -> tuple[Upload, tuple[()]]:
        y = x
        for k in range(g.steps(self.K)):
            y = y - self.eta * self.base.U(g(y, k), s, y)
        return Upload(y - x, g(x)), ()

    def round(self, server: Server, clients: Clients) -> Server:
        x, s = server
        dx, gradient = clients.run(self.local, x, s).mean()
        return Server(x + dx, self.base.V(gradient, s))
