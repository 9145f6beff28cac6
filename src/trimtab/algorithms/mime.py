"""Mime: MimeLite whose local gradients are corrected, as in SVRG, towards the cohort's gradient.

Karimireddy et al., "Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning", 2020,
Algorithm 1.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from trimtab.algorithms.bases import AnyBase
from trimtab.core import Clients, Oracle, State, Steps, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector
    s: State  # of the base optimiser


class Gradient(NamedTuple):
    gradient: Vector  # sent first


class Upload(NamedTuple):
    dx: Vector  # sent then


@dataclass(frozen=True, kw_only=True)
class Mime:
    """Mime with any base optimiser (U, V): two exchanges a round."""

    eta: StepSize
    K: Steps
    base: AnyBase

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x, self.base.init(x))

    def init_client(self, x: Vector) -> tuple[()]:
        return ()

    def gradient(self, g: Oracle, state: tuple[()], x: Vector) -> tuple[Gradient, tuple[()]]:
        return Gradient(g(x)), ()

    def local(self, g: Oracle, _: Any, x: Vector, s: State, c: Vector) -> tuple[Upload, tuple[()]]:
        y = x
        for k in range(g.steps(self.K)):
            y = y - self.eta * self.base.U(g(y, k) - g(x, k) + c, s, y)  # one k, one mini-batch
        return Upload(y - x), ()

    def round(self, server: Server, clients: Clients) -> Server:
        x, s = server
        (c,) = clients.run(self.gradient, x).mean()
        (dx,) = clients.run(self.local, x, s, c).mean()
        return Server(x + dx, self.base.V(c, s))
