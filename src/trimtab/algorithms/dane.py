"""DANE: each client nearly minimises its loss, tilted to the common gradient, around x.

Shamir et al., "Communication-Efficient Distributed Optimization using an Approximate Newton-type
Method", 2014, with eta = 1, each local problem solved by K steps of gradient descent.
"""

from dataclasses import dataclass
from typing import NamedTuple

from trimtab.core import Clients, NonNegative, Oracle, Steps, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector


class Gradient(NamedTuple):
    gradient: Vector  # sent first


class Upload(NamedTuple):
    dx: Vector  # sent then


@dataclass(frozen=True, kw_only=True)
class Dane:
    """Minimise f_i(y) - <g_i(x) - c, y> + mu/2 |y - x|^2 on all local data."""

    eta_l: StepSize
    K: Steps
    mu: NonNegative = 1.0

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x)

    def init_client(self, x: Vector) -> tuple[()]:
        return ()

    def gradient(self, g: Oracle, state: tuple[()], x: Vector) -> tuple[Gradient, tuple[()]]:
        return Gradient(g(x)), ()

    def local(self, g: Oracle, _: tuple[()], x: Vector, c: Vector) -> tuple[Upload, tuple[()]]:
        y, tilt = x, c - g(x)
        for _k in range(g.steps(self.K)):
            y = y - self.eta_l * (g(y) + tilt + self.mu * (y - x))
        return Upload(y - x), ()

    def round(self, server: Server, clients: Clients) -> Server:
        (x,) = server
        (c,) = clients.run(self.gradient, x).mean()
        (dx,) = clients.run(self.local, x, c).mean()
        return Server(x + dx)
